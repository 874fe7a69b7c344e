"""Folders of tiny Mamba and Mamba-2 models as public code writes them, and what transformers computes with them.

D channels, E inner channels, N states, V vocabulary; R rank of Mamba's Δ projection; H heads of P channels and G groups
of Mamba-2's.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

Sizes = dict[str, Any]
SIZES = {"d": 12, "layers": 2, "vocabulary": 21, "W": 4, "expand": 2, "tied": True, "bias": False, "conv_bias": True,
         "rms": True}  # fmt: skip


def sizes(**given: Any) -> Sizes:
    return {**SIZES, "N": 4, "R": 1, **given}


def sizes2(**given: Any) -> Sizes:
    return {**SIZES, "N": 5, "P": 6, "G": 1, **given}


def weights(s: Sizes, embedding: str = "embeddings") -> dict[str, Tensor]:
    """Random tensors under the names of the public checkpoints."""
    draw, D, E, N = torch.Generator().manual_seed(0), s["d"], s["expand"] * s["d"], s["N"]

    def random(*shape: int, mean: Any = 0.0, scale: float = 0.3) -> Tensor:
        return mean + torch.randn(shape, generator=draw) * scale

    def norm(name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": random(D, mean=1), **({} if s["rms"] else {f"{name}.bias": random(D)})}

    found = {f"backbone.{embedding}.weight": random(s["vocabulary"], D)}
    for i in range(s["layers"]):
        if "R" in s:
            rows, channels = 2 * E, E
            own = {"A_log": random(E, N, mean=torch.arange(1.0, N + 1).log()), "D": random(E, mean=1)}
            own |= {"x_proj.weight": random(s["R"] + 2 * N, E), "dt_proj.weight": random(E, s["R"])}
            own["dt_proj.bias"] = random(E, mean=-3, scale=1)
        else:
            H, channels = E // s["P"], E + 2 * s["G"] * N
            rows = E + channels + H
            own = {"A_log": random(H, scale=1), "D": random(H, mean=1), "dt_bias": random(H, mean=-2, scale=1)}
            own["norm.weight"] = random(E, mean=1)
        own |= {"in_proj.weight": random(rows, D), "conv1d.weight": random(channels, 1, s["W"])}
        own["out_proj.weight"] = random(D, E)
        own |= {"in_proj.bias": random(rows), "out_proj.bias": random(D)} if s["bias"] else {}
        own |= {"conv1d.bias": random(channels)} if s["conv_bias"] else {}
        found |= {f"backbone.layers.{i}.mixer.{name}": tensor for name, tensor in own.items()}
        found |= norm(f"backbone.layers.{i}.norm")
    return found | norm("backbone.norm_f") | ({} if s["tied"] else {"lm_head.weight": random(s["vocabulary"], D)})


def logits(folder: Path, ids: Tensor) -> Tensor:
    """Return what transformers' model in a folder gives: ids (batch, L) -> (batch, L, V)."""
    transformers = pytest.importorskip("transformers", reason="transformers, which is compared, is not installed")
    with torch.no_grad():
        return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()(ids).logits


def hf_folder(folder: Path, s: Sizes, dtype: torch.dtype = torch.float32, **settings: Any) -> dict[str, Tensor]:
    """Writes what transformers' save_pretrained does; returns the tensors."""
    config = {
        "model_type": "mamba" if "R" in s else "mamba2", "vocab_size": s["vocabulary"], "hidden_size": s["d"],
        "num_hidden_layers": s["layers"], "state_size": s["N"], "conv_kernel": s["W"], "expand": s["expand"],
        "use_bias": s["bias"], "use_conv_bias": s["conv_bias"], "tie_word_embeddings": s["tied"],
    }  # fmt: skip
    if "R" in s:
        config["time_step_rank"] = s["R"]
    else:
        heads = {"head_dim": s["P"], "n_groups": s["G"], "num_heads": s["expand"] * s["d"] // s["P"]}
        config |= {**heads, "time_step_limit": [0.0, math.inf]}
    tensors = {name: tensor.to(dtype) for name, tensor in weights(s).items()}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def state_spaces_folder(folder: Path, s: Sizes, **settings: Any) -> dict[str, Tensor]:
    """Writes what mamba_ssm's save_pretrained does: a pickle, the tied head in it too; returns the tensors."""
    own = {"d_state": s["N"], "d_conv": s["W"], "expand": s["expand"], "bias": s["bias"], "conv_bias": s["conv_bias"]}
    if "P" in s:
        own |= {"layer": "Mamba2", "headdim": s["P"], "ngroups": s["G"]}
    else:
        own = {name: value for name, value in own.items() if value != _OF_MAMBA[name]}
        if s["R"] != math.ceil(s["d"] / 16):
            own["dt_rank"] = s["R"]
    config = {
        "d_model": s["d"], "n_layer": s["layers"], "vocab_size": s["vocabulary"],
        "rms_norm": s["rms"], "residual_in_fp32": True, "fused_add_norm": True,
        "pad_vocab_size_multiple": _MULTIPLES["P" in s],
    }  # fmt: skip
    if "P" in s:
        config |= {"d_intermediate": 0, "attn_layer_idx": [], "attn_cfg": {}}
    if "P" in s or not s["tied"]:
        config["tie_embeddings"] = s["tied"]
    config["ssm_cfg"] = {**own, **settings.pop("ssm_cfg", {})}
    tensors = weights(padded(s), embedding="embedding")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    torch.save({"lm_head.weight": tensors["backbone.embedding.weight"], **tensors}, folder / "pytorch_model.bin")
    return tensors


def padded(s: Sizes) -> Sizes:
    """Return the sizes with the rows that the public models' embedding has."""
    multiple = _MULTIPLES["P" in s]
    return {**s, "vocabulary": math.ceil(s["vocabulary"] / multiple) * multiple}


_MULTIPLES = {False: 8, True: 16}
_OF_MAMBA = {"d_state": 16, "d_conv": 4, "expand": 2, "bias": False, "conv_bias": True}
