"""Mamba-2 as its paper and public code have it, written out position by position, and folders of tiny such models.

D channels, E inner channels, H heads of P channels, G groups, N states, V vocabulary.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

SIZES = {"d": 12, "layers": 2, "vocabulary": 21, "N": 5, "P": 6, "G": 1, "W": 4, "expand": 2, "tied": True,
         "bias": False, "conv_bias": True, "rms": True}  # fmt: skip


def sizes(**given: Any) -> dict[str, Any]:
    return {**SIZES, **given}


def weights(s: dict[str, Any], embedding: str = "embeddings") -> dict[str, Tensor]:
    """Random tensors under the names of the public checkpoints."""
    draw, D, E = torch.Generator().manual_seed(0), s["d"], s["expand"] * s["d"]
    H, S = E // s["P"], 2 * s["G"] * s["N"]

    def random(*shape: int, scale: float = 0.3) -> Tensor:
        return torch.randn(shape, generator=draw) * scale

    found = {f"backbone.{embedding}.weight": random(s["vocabulary"], D), "backbone.norm_f.weight": 1 + random(D)}
    for i in range(s["layers"]):
        p = f"backbone.layers.{i}."
        found |= {
            f"{p}norm.weight": 1 + random(D),
            f"{p}mixer.A_log": random(H, scale=1.0),
            f"{p}mixer.D": 1 + random(H),
            f"{p}mixer.dt_bias": random(H, scale=1.0) - 2,
            f"{p}mixer.in_proj.weight": random(2 * E + S + H, D),
            f"{p}mixer.conv1d.weight": random(E + S, 1, s["W"]),
            f"{p}mixer.norm.weight": 1 + random(E),
            f"{p}mixer.out_proj.weight": random(D, E),
        }
        if s["bias"]:
            found |= {f"{p}mixer.in_proj.bias": random(2 * E + S + H), f"{p}mixer.out_proj.bias": random(D)}
        if s["conv_bias"]:
            found[f"{p}mixer.conv1d.bias"] = random(E + S)
        if not s["rms"]:
            found[f"{p}norm.bias"] = random(D)
    if not s["rms"]:
        found["backbone.norm_f.bias"] = random(D)
    if not s["tied"]:
        found["lm_head.weight"] = random(s["vocabulary"], D)
    return found


def logits(s: dict[str, Any], w: dict[str, Tensor], ids: Tensor) -> Tensor:
    """ids (batch, L) -> (batch, L, V), in float64."""
    w = {name.replace("embedding.", "embeddings."): tensor.double() for name, tensor in w.items()}
    E, N, P, G, W = s["expand"] * s["d"], s["N"], s["P"], s["G"], s["W"]
    H, zero = E // P, torch.zeros((), dtype=torch.float64)

    def rms(x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    def norm(x: Tensor, name: str) -> Tensor:
        if s["rms"]:
            return rms(x) * w[f"{name}.weight"]
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    x = w["backbone.embeddings.weight"][ids]
    for i in range(s["layers"]):
        p = f"backbone.layers.{i}.mixer."
        h = norm(x, f"backbone.layers.{i}.norm") @ w[f"{p}in_proj.weight"].T + w.get(f"{p}in_proj.bias", zero)
        z, u, delta = h.split([E, E + 2 * G * N, H], -1)
        conv = torch.zeros_like(u)
        for t in range(u.shape[1]):
            for k in range(max(0, W - 1 - t), W):  # the last tap is the position itself
                conv[:, t] += w[f"{p}conv1d.weight"][:, 0, k] * u[:, t - (W - 1 - k)]
        v, B, C = F.silu(conv + w.get(f"{p}conv1d.bias", zero)).split([E, G * N, G * N], -1)
        delta, A = F.softplus(delta + w[f"{p}dt_bias"]), -w[f"{p}A_log"].exp()
        y, state = torch.zeros_like(v), torch.zeros(len(v), H, P, N, dtype=torch.float64)
        for t in range(v.shape[1]):
            for h_ in range(H):
                g, of = h_ // (H // G), slice(h_ * P, (h_ + 1) * P)
                B_t, C_t = B[:, t, g * N : (g + 1) * N], C[:, t, g * N : (g + 1) * N]
                step = delta[:, t, h_, None, None]
                state[:, h_] = (step * A[h_]).exp() * state[:, h_] + step * v[:, t, of, None] * B_t[:, None]
                y[:, t, of] = (state[:, h_] * C_t[:, None]).sum(-1) + w[f"{p}D"][h_] * v[:, t, of]
        y = rms((y * F.silu(z)).unflatten(-1, (G, -1))).flatten(-2) * w[f"{p}norm.weight"]
        x = x + y @ w[f"{p}out_proj.weight"].T + w.get(f"{p}out_proj.bias", zero)
    return norm(x, "backbone.norm_f") @ w.get("lm_head.weight", w["backbone.embeddings.weight"]).T


def hf_folder(folder: Path, s: dict[str, Any], **settings: Any) -> dict[str, Tensor]:
    """Writes what transformers' save_pretrained does; returns the tensors."""
    config = {
        "model_type": "mamba2", "vocab_size": s["vocabulary"], "hidden_size": s["d"], "num_hidden_layers": s["layers"],
        "state_size": s["N"], "conv_kernel": s["W"], "expand": s["expand"], "head_dim": s["P"], "n_groups": s["G"],
        "num_heads": s["expand"] * s["d"] // s["P"], "use_bias": s["bias"], "use_conv_bias": s["conv_bias"],
        "tie_word_embeddings": s["tied"], "time_step_limit": [0.0, math.inf],
    }  # fmt: skip
    tensors = weights(s)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def state_spaces_folder(folder: Path, s: dict[str, Any], ssm_cfg: dict[str, Any] | None = None) -> dict[str, Tensor]:
    """Writes what mamba_ssm's save_pretrained does: a pickle, the tied head in it too; returns the tensors."""
    own = {"layer": "Mamba2", "d_state": s["N"], "headdim": s["P"], "ngroups": s["G"], "d_conv": s["W"],
           "expand": s["expand"], "bias": s["bias"], "conv_bias": s["conv_bias"]}  # fmt: skip
    config = {
        "d_model": s["d"], "d_intermediate": 0, "n_layer": s["layers"], "vocab_size": s["vocabulary"],
        "ssm_cfg": {**own, **(ssm_cfg or {})}, "attn_layer_idx": [], "attn_cfg": {}, "rms_norm": s["rms"],
        "residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 16, "tie_embeddings": s["tied"],
    }  # fmt: skip
    tensors = weights({**s, "vocabulary": math.ceil(s["vocabulary"] / 16) * 16}, embedding="embedding")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.save({"lm_head.weight": tensors["backbone.embedding.weight"], **tensors}, folder / "pytorch_model.bin")
    return tensors
