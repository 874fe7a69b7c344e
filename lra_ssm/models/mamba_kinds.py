"""Mamba's and Mamba-2's public checkpoints: what differs between the two.

Sources: mamba_ssm/modules/mamba_simple.py and mamba2.py; transformers, models/mamba and models/mamba2.

Shapes: D channels, E inner channels, N states, R rank of the Δ projection, G groups, H heads, W taps.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lra_ssm.errors import InputError


class Kind(NamedTuple):
    """One of the two; defaults are the settings that a config.json may omit."""

    model_type: str  # transformers'
    hf_class: str
    ssm_layer: str  # state-spaces': `layer` of ssm_cfg
    layer: str  # class path of our layer
    block: str
    ssm_cfg: dict[str, Any]  # state-spaces' settings with their defaults
    hf: dict[str, Any]  # transformers'
    hf_names: dict[str, str]  # state-spaces' name -> transformers'
    needed: dict[str, Any]  # state-spaces' name -> the only value that can be read
    layer_arguments: Callable[[dict[str, Any], str], dict[str, Any]]  # from settings by state-spaces' names
    hf_arguments: Callable[[Mapping[str, Any], int], dict[str, Any]]  # from the layer's arguments and E
    names: dict[str, str]  # name in transformers -> our name, within a block
    joined: dict[str, tuple[str, ...]]  # name in transformers -> our names, whose tensors are concatenated


_SAME = ("conv1d.weight", "conv1d.bias", "out_proj.weight", "out_proj.bias")
_NAMES = {
    "norm.weight": "norm.weight",
    "norm.bias": "norm.bias",
    "mixer.A_log": "layer.A_log",
    "mixer.D": "layer.D",
    **{f"mixer.{name}": name for name in _SAME},
}
_HF_NAMES = {
    "d_model": "hidden_size", "n_layer": "num_hidden_layers", "d_state": "state_size", "d_conv": "conv_kernel",
    "dt_min": "time_step_min", "dt_max": "time_step_max", "bias": "use_bias", "conv_bias": "use_conv_bias",
    "tie_embeddings": "tie_word_embeddings",
}  # fmt: skip
# dt_min and so on determine how weights are drawn; use_fast_path, chunk_size and the like how they run.
_DRAWN = {"dt_min": 1e-3, "dt_max": 0.1, "dt_init_floor": 1e-4}


def _S6(values: dict[str, Any], where: str) -> dict[str, Any]:
    rank = math.ceil(values["d_model"] / 16) if values["dt_rank"] == "auto" else values["dt_rank"]
    steps = {"delta_min": values["dt_min"], "delta_max": values["dt_max"]}
    return {"d_state": values["d_state"], "delta_rank": rank, **steps}


MAMBA = Kind(
    model_type="mamba",
    hf_class="MambaForCausalLM",
    ssm_layer="Mamba1",
    layer="lra_ssm.layers.S6",
    block="lra_ssm.layers.MambaBlock",
    ssm_cfg={
        "layer": "Mamba1", "d_state": 16, "d_conv": 4, "expand": 2, "dt_rank": "auto", "conv_bias": True,
        "bias": False, "dt_init": "random", "dt_scale": 1.0, "use_fast_path": True, **_DRAWN,
    },
    hf={
        "vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 32, "layer_norm_epsilon": 1e-5,
        "expand": 2, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "hidden_act": "silu",
        "residual_in_fp32": True, "time_step_rank": "auto", "tie_word_embeddings": True,
        "time_step_min": 1e-3, "time_step_max": 0.1,
    },
    hf_names={**_HF_NAMES, "dt_rank": "time_step_rank"},
    needed={},
    layer_arguments=_S6,
    hf_arguments=lambda S6, E: {"time_step_rank": S6["delta_rank"] or math.ceil(E / 16), "intermediate_size": E},
    names={
        **_NAMES,
        "mixer.in_proj.weight": "in_proj.weight",
        "mixer.in_proj.bias": "in_proj.bias",
        "mixer.dt_proj.weight": "layer.delta_up",  # (E, R)
        "mixer.dt_proj.bias": "layer.delta_bias",
    },
    joined={"mixer.x_proj.weight": ("layer.delta_down", "layer.B", "layer.C")},  # (R + 2 N, E)
)  # fmt: skip


def _SSD(values: dict[str, Any], where: str) -> dict[str, Any]:
    E, heads, groups = int(values["expand"] * values["d_model"]), values.get("num_heads"), values["ngroups"]
    P = values["headdim"]
    if P < 1 or E % P or (heads is not None and heads * P != E) or groups < 1 or E // P % groups:
        count = "" if heads is None else f", {heads} heads"
        raise InputError(f"{where}: {E} inner channels{count}, head_dim {P} and n_groups {groups} do not go together")
    low, high = values["A_init_range"]
    return {
        "d_state": values["d_state"], "head_dim": P, "n_groups": groups, "A_min": float(low), "A_max": float(high),
        "delta_min": values["dt_min"], "delta_max": values["dt_max"],
    }  # fmt: skip


def _hf_of_SSD(SSD: Mapping[str, Any], E: int) -> dict[str, Any]:
    sizes = {"head_dim": SSD["head_dim"], "num_heads": E // SSD["head_dim"], "n_groups": SSD["n_groups"]}
    return {**sizes, "chunk_size": SSD["chunk_size"] or 256}


MAMBA2 = Kind(
    model_type="mamba2",
    hf_class="Mamba2ForCausalLM",
    ssm_layer="Mamba2",
    layer="lra_ssm.layers.SSD",
    block="lra_ssm.layers.Mamba2Block",
    ssm_cfg={
        "layer": "Mamba2", "d_state": 128, "d_conv": 4, "expand": 2, "headdim": 64, "ngroups": 1, "d_ssm": None,
        "A_init_range": [1, 16], "D_has_hdim": False, "rmsnorm": True, "norm_before_gate": False,
        "dt_limit": [0.0, math.inf], "bias": False, "conv_bias": True, "conv_init": None, "chunk_size": 256,
        "use_mem_eff_path": True, **_DRAWN,
    },
    hf={
        "vocab_size": 32768, "hidden_size": 4096, "state_size": 128, "num_hidden_layers": 64, "num_heads": 128,
        "head_dim": 64, "n_groups": 8, "layer_norm_epsilon": 1e-5, "expand": 2, "conv_kernel": 4, "use_bias": False,
        "use_conv_bias": True, "hidden_act": "silu", "residual_in_fp32": True, "tie_word_embeddings": False,
        "time_step_min": 1e-3, "time_step_max": 0.1, "time_step_limit": [0.0, math.inf],
    },
    hf_names={**_HF_NAMES, "headdim": "head_dim", "ngroups": "n_groups", "dt_limit": "time_step_limit"},
    needed={
        "d_ssm": None, "D_has_hdim": False, "rmsnorm": True, "norm_before_gate": False, "dt_limit": [0.0, math.inf],
    },
    layer_arguments=_SSD,
    hf_arguments=_hf_of_SSD,
    names={**_NAMES, "mixer.dt_bias": "layer.delta_bias", "mixer.norm.weight": "gated_norm.weight"},
    joined={  # (2 E + 2 G N + H, D)
        f"mixer.in_proj.{name}": (f"in_proj.{name}", f"delta_proj.{name}") for name in ("weight", "bias")
    },
)  # fmt: skip

KINDS = (MAMBA, MAMBA2)
