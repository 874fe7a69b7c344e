"""Mamba as its paper and public code have it, written out position by position, and folders of tiny such models.

D channels, E inner channels, N states, R rank of the Δ projection, V vocabulary.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

SIZES = {"d": 12, "layers": 2, "vocabulary": 21, "N": 4, "W": 4, "expand": 2, "R": 1, "tied": True, "bias": False,
         "conv_bias": True, "rms": True}  # fmt: skip


def sizes(**given: Any) -> dict[str, Any]:
    return {**SIZES, **given}


def weights(s: dict[str, Any], seed: int = 0, embedding: str = "embeddings") -> dict[str, Tensor]:
    """Random tensors under the names of the public checkpoints."""
    draw, D, E = torch.Generator().manual_seed(seed), s["d"], int(s["expand"] * s["d"])

    def random(*shape: int, scale: float = 0.3) -> Tensor:
        return torch.randn(shape, generator=draw) * scale

    found = {f"backbone.{embedding}.weight": random(s["vocabulary"], D)}
    for i in range(s["layers"]):
        p = f"backbone.layers.{i}."
        found |= {
            f"{p}norm.weight": 1 + random(D),
            f"{p}mixer.A_log": torch.arange(1.0, s["N"] + 1).log().repeat(E, 1) + random(E, s["N"]),
            f"{p}mixer.D": 1 + random(E),
            f"{p}mixer.in_proj.weight": random(2 * E, D),
            f"{p}mixer.conv1d.weight": random(E, 1, s["W"]),
            f"{p}mixer.x_proj.weight": random(s["R"] + 2 * s["N"], E),
            f"{p}mixer.dt_proj.weight": random(E, s["R"]),
            f"{p}mixer.dt_proj.bias": random(E, scale=1.0) - 3,
            f"{p}mixer.out_proj.weight": random(D, E),
        }
        if s["bias"]:
            found |= {f"{p}mixer.in_proj.bias": random(2 * E), f"{p}mixer.out_proj.bias": random(D)}
        if s["conv_bias"]:
            found[f"{p}mixer.conv1d.bias"] = random(E)
        if not s["rms"]:
            found[f"{p}norm.bias"] = random(D)
    found["backbone.norm_f.weight"] = 1 + random(D)
    if not s["rms"]:
        found["backbone.norm_f.bias"] = random(D)
    if not s["tied"]:
        found["lm_head.weight"] = random(s["vocabulary"], D)
    return found


def logits(s: dict[str, Any], w: dict[str, Tensor], ids: Tensor) -> Tensor:
    """ids (batch, L) -> (batch, L, V), in float64."""
    w = {name.replace("embedding.", "embeddings."): tensor.double() for name, tensor in w.items()}
    D, N, R, W = s["d"], s["N"], s["R"], s["W"]

    def norm(x: Tensor, name: str) -> Tensor:
        if s["rms"]:
            return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"]
        return F.layer_norm(x, (D,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    x = w["backbone.embeddings.weight"][ids]
    for i in range(s["layers"]):
        p = f"backbone.layers.{i}.mixer."
        zero = torch.zeros((), dtype=torch.float64)
        h = norm(x, f"backbone.layers.{i}.norm") @ w[f"{p}in_proj.weight"].T + w.get(f"{p}in_proj.bias", zero)
        u, z = h.chunk(2, -1)
        conv = torch.zeros_like(u)
        for t in range(u.shape[1]):
            for k in range(W):  # the last tap is the position itself
                if t - (W - 1 - k) >= 0:
                    conv[:, t] += w[f"{p}conv1d.weight"][:, 0, k] * u[:, t - (W - 1 - k)]
        v = F.silu(conv + w.get(f"{p}conv1d.bias", zero))
        A, y, state = -w[f"{p}A_log"].exp(), torch.zeros_like(v), torch.zeros(*v.shape[::2], N, dtype=torch.float64)
        for t in range(v.shape[1]):
            low, B, C = (v[:, t] @ w[f"{p}x_proj.weight"].T).split([R, N, N], -1)
            delta = F.softplus(low @ w[f"{p}dt_proj.weight"].T + w[f"{p}dt_proj.bias"])[..., None]
            state = (delta * A).exp() * state + delta * B[:, None] * v[:, t, :, None]
            y[:, t] = (state * C[:, None]).sum(-1) + w[f"{p}D"] * v[:, t]
        x = x + (y * F.silu(z)) @ w[f"{p}out_proj.weight"].T + w.get(f"{p}out_proj.bias", zero)
    return norm(x, "backbone.norm_f") @ w.get("lm_head.weight", w["backbone.embeddings.weight"]).T


def hf_folder(
    folder: Path, s: dict[str, Any], dtype: torch.dtype = torch.float32, **settings: Any
) -> dict[str, Tensor]:
    """Writes what transformers' save_pretrained does; returns the tensors."""
    config = {
        "model_type": "mamba", "vocab_size": s["vocabulary"], "hidden_size": s["d"], "num_hidden_layers": s["layers"],
        "state_size": s["N"], "conv_kernel": s["W"], "expand": s["expand"], "time_step_rank": s["R"],
        "use_bias": s["bias"], "use_conv_bias": s["conv_bias"], "tie_word_embeddings": s["tied"],
    }  # fmt: skip
    tensors = {name: tensor.to(dtype) for name, tensor in weights(s).items()}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def state_spaces_folder(folder: Path, s: dict[str, Any], **settings: Any) -> dict[str, Tensor]:
    """Writes what mamba_ssm's save_pretrained does: a pickle, the tied head in it too; returns the tensors."""
    own = {"d_state": s["N"], "d_conv": s["W"], "expand": s["expand"], "bias": s["bias"], "conv_bias": s["conv_bias"]}
    own = {name: value for name, value in own.items() if value != _OF_MAMBA[name]}
    if s["R"] != math.ceil(s["d"] / 16):
        own["dt_rank"] = s["R"]
    config = {
        "d_model": s["d"], "n_layer": s["layers"], "vocab_size": s["vocabulary"], "ssm_cfg": own,
        "rms_norm": s["rms"], "residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 8,
    }  # fmt: skip
    if not s["tied"]:
        config["tie_embeddings"] = False
    padded = {**s, "vocabulary": math.ceil(s["vocabulary"] / 8) * 8}
    tensors = weights(padded, embedding="embedding")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    torch.save({"lm_head.weight": tensors["backbone.embedding.weight"], **tensors}, folder / "pytorch_model.bin")
    return tensors


_OF_MAMBA = {"d_state": 16, "d_conv": 4, "expand": 2, "bias": False, "conv_bias": True}
