"""Mamba's public checkpoints: what their config.json says as a `LanguageModel`, and their tensors' names.

Two layouts with the same tensors: `state-spaces/mamba-*` (mamba_ssm's MambaConfig and MambaLMHeadModel, source:
mamba_ssm/models/config_mamba.py, mixer_seq_simple.py, modules/mamba_simple.py) and `-hf` (transformers' MambaConfig and
MambaForCausalLM, source: models/mamba).

Shapes: V vocabulary, D channels, E inner channels, N states, R rank of the Δ projection.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lra_ssm.errors import InputError

# Theirs -> ours.
_TOP = {
    "backbone.norm_f.weight": "backbone.norm.weight",
    "backbone.norm_f.bias": "backbone.norm.bias",
    "lm_head.weight": "head.weight",
}
_EMBEDDING, _EMBEDDING_HF, _OURS = (
    "backbone.embedding.weight",
    "backbone.embeddings.weight",
    "backbone.embedding.weight",
)
# Within backbone.layers.{i}. and backbone.blocks.{i}.; other names are the same behind "mixer.".
_BLOCK = {
    "norm.weight": "norm.weight",
    "norm.bias": "norm.bias",
    "mixer.A_log": "layer.A_log",
    "mixer.D": "layer.D",
    "mixer.dt_proj.weight": "layer.delta_up",  # (E, R)
    "mixer.dt_proj.bias": "layer.delta_bias",
    **{f"mixer.{name}": name for name in (
        "in_proj.weight", "in_proj.bias", "conv1d.weight", "conv1d.bias", "out_proj.weight", "out_proj.bias",
    )},
}  # fmt: skip
# (R + 2 N, E): Δ's, B and C, one below the other.
_X_PROJ, _X_PROJ_PARTS = "mixer.x_proj.weight", ("layer.delta_down", "layer.B", "layer.C")

_STATE_SPACES = {
    "d_model": 2560, "d_intermediate": 0, "n_layer": 64, "vocab_size": 50277, "ssm_cfg": {}, "attn_layer_idx": [],
    "attn_cfg": {}, "rms_norm": True, "residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 8,
    "tie_embeddings": True,
}  # fmt: skip
# dt_min and so on say how weights are drawn, use_fast_path and layer_idx how they are run.
_SSM_CFG = {
    "layer": "Mamba1", "d_state": 16, "d_conv": 4, "expand": 2, "dt_rank": "auto", "conv_bias": True, "bias": False,
    "dt_min": 1e-3, "dt_max": 0.1, "dt_init": "random", "dt_scale": 1.0, "dt_init_floor": 1e-4, "use_fast_path": True,
}  # fmt: skip
# What transformers leaves out of a config.json where it is its default.
_HF = {
    "vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 32, "layer_norm_epsilon": 1e-5,
    "expand": 2, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "hidden_act": "silu",
    "residual_in_fp32": True, "time_step_rank": "auto", "tie_word_embeddings": True,
    "time_step_min": 1e-3, "time_step_max": 0.1,
}  # fmt: skip

# state-spaces' name -> transformers'.
_HF_NAMES = {
    "d_model": "hidden_size", "n_layer": "num_hidden_layers", "d_state": "state_size", "d_conv": "conv_kernel",
    "dt_rank": "time_step_rank", "dt_min": "time_step_min", "dt_max": "time_step_max", "bias": "use_bias",
    "conv_bias": "use_conv_bias", "tie_embeddings": "tie_word_embeddings",
}  # fmt: skip


def network_of_mamba(config: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """The specification of the `LanguageModel` that a config.json of either layout describes; None for other layouts.

    Raises InputError, naming it, for a setting that such a model cannot have.
    """
    if config.get("model_type") == "mamba":
        values = _of_transformers(config, where)
    elif {"d_model", "n_layer"} <= config.keys() and "model_type" not in config:
        values = _of_state_spaces(config, where)
    else:
        return None
    D, E = values["d_model"], values.get("d_inner", int(values["expand"] * values["d_model"]))
    vocabulary, multiple = values["vocab_size"], values["pad_vocab_size_multiple"]
    sizes = (D, E, values["n_layer"], values["d_state"], values["d_conv"], vocabulary, multiple)
    if not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise InputError(f"{where}: its sizes {sizes} are not all whole numbers of at least 1")
    rank = math.ceil(D / 16) if values["dt_rank"] == "auto" else values["dt_rank"]
    layer = {
        "d_state": values["d_state"],
        "delta_rank": rank,
        "delta_min": values["dt_min"],
        "delta_max": values["dt_max"],
    }
    norm = "rms" if values["rms_norm"] else "layer"
    block = {"expand": E / D, "norm": norm, **{name: values[name] for name in ("d_conv", "bias", "conv_bias")}}
    arguments = {
        "layer": {"class_path": "lra_ssm.layers.S6", "init_args": layer},
        "vocab_size": vocabulary,
        "d_model": D,
        "n_layers": values["n_layer"],
        "block": {"class_path": "lra_ssm.layers.MambaBlock", "init_args": block},
        "tie_embeddings": values["tie_embeddings"],
        "pad_vocab_size_multiple": multiple,
        "residual_in_float32": values["residual_in_fp32"],
    }
    return {"class_path": "lra_ssm.models.LanguageModel", "init_args": arguments}


def _of_transformers(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Settings by state-spaces' names."""
    values = _settings(config, _HF, where, strict=False)
    _require(values, where, layer_norm_epsilon=1e-5)
    if values["hidden_act"] not in ("silu", "swish"):
        raise InputError(f"{where}: hidden_act is {values['hidden_act']!r}; 'silu' alone can be read")
    renamed = {ours: values[theirs] for ours, theirs in _HF_NAMES.items()}
    inner = {"d_inner": config["intermediate_size"]} if "intermediate_size" in config else {}
    return {**values, **renamed, **inner, "rms_norm": True, "pad_vocab_size_multiple": 1}


def _of_state_spaces(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    values = _settings(config, _STATE_SPACES, where, strict=True)
    _require(values, where, d_intermediate=0, attn_layer_idx=[])
    values |= _settings(values["ssm_cfg"], _SSM_CFG, f"{where}: ssm_cfg", strict=True)
    _require(values, f"{where}: ssm_cfg", layer="Mamba1")
    return values


def _settings(given: Any, defaults: Mapping[str, Any], where: str, strict: bool) -> dict[str, Any]:
    """A configuration with its defaults. strict: what is none of them is an error, not something for others."""
    if not isinstance(given, Mapping):
        raise InputError(f"{where} is a {type(given).__name__}, not settings by name")
    for name, value in given.items():
        if name not in defaults and strict:
            raise InputError(f"{where} has a setting {name!r} ({value!r:.40}) that this version does not know")
        kind = type(defaults.get(name, value))
        fits = isinstance(value, (int, float) if kind is float or name == "expand" else kind)
        if name in defaults and not fits and not (defaults[name] == "auto" and isinstance(value, int)):
            raise InputError(f"{where}: {name} is {value!r:.40}, not of the kind of {defaults[name]!r}")
    return {name: given.get(name, default) for name, default in defaults.items()}


def _require(values: Mapping[str, Any], where: str, **needed: Any) -> None:
    for name, value in needed.items():
        if values[name] != value:
            raise InputError(f"{where}: {name} is {values[name]!r}; {value!r} alone can be read")


def to_mamba(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a `LanguageModel` of S6 in MambaBlocks under the names of the -hf layout.

    Also of tensors without values (on the meta device), for their shapes."""
    top, block = ({ours: theirs for theirs, ours in names.items()} for names in (_TOP, _BLOCK))
    top[_EMBEDDING] = _EMBEDDING_HF
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if within := re.fullmatch(r"backbone\.blocks\.(\d+)\.(.+)", name):
            prefix, rest = f"backbone.layers.{within[1]}.", within[2]
            if rest == _X_PROJ_PARTS[0]:
                parts = [state[f"backbone.blocks.{within[1]}.{part}"] for part in _X_PROJ_PARTS]
                found[prefix + _X_PROJ] = torch.cat(parts)
            elif rest not in _X_PROJ_PARTS:
                found[prefix + block[rest]] = tensor
        else:
            found[top[name]] = tensor
    return found


def from_mamba(tensors: Mapping[str, Tensor], sizes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `to_mamba`, of tensors that are as `normalized` gives them. sizes: of the model, for N and R."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if within := re.fullmatch(r"backbone\.layers\.(\d+)\.(.+)", name):
            prefix = f"backbone.blocks.{within[1]}."
            if within[2] == _X_PROJ:
                names = [prefix + part for part in _X_PROJ_PARTS]
                found |= zip(names, tensor.split([len(sizes[part]) for part in names]), strict=True)
            else:
                found[prefix + _BLOCK[within[2]]] = tensor
        else:
            found[_EMBEDDING if name == _EMBEDDING_HF else _TOP[name]] = tensor
    return found


def normalized(tensors: Mapping[str, Tensor], tied: bool, where: str) -> dict[str, Tensor]:
    """Tensors of either layout under the names of -hf, a tied head left out. Raises InputError: it is another one."""
    found = {_EMBEDDING_HF if name == _EMBEDDING else name: tensor for name, tensor in tensors.items()}
    if tied and _EMBEDDING_HF in found and (head := found.pop("lm_head.weight", None)) is not None:
        if not torch.equal(head, found[_EMBEDDING_HF]):
            raise InputError(f"{where}: lm_head.weight is not the embedding, though its configuration ties them")
    return found


def hf_config(network: Mapping[str, Any], end_of_text: int | None, where: str) -> dict[str, Any]:
    """config.json of transformers' MambaForCausalLM for a network's specification, complete with its defaults.

    Raises InputError saying what that class cannot be.
    """
    arguments = network["init_args"]
    layer, block = arguments.get("layer") or {}, arguments.get("block") or {}
    refused = _not_mamba(network, layer, block)
    if refused:
        raise InputError(f"{where}: transformers' MambaForCausalLM cannot be such a model: {refused}")
    S6, inner = layer["init_args"], block["init_args"]
    D, multiple = arguments["d_model"], arguments["pad_vocab_size_multiple"]
    E = round(inner["expand"] * D)
    return {
        "architectures": ["MambaForCausalLM"],
        "model_type": "mamba",
        "vocab_size": math.ceil(arguments["vocab_size"] / multiple) * multiple,
        "hidden_size": D,
        "intermediate_size": E,
        "expand": E // D,
        "num_hidden_layers": arguments["n_layers"],
        "state_size": S6["d_state"],
        "conv_kernel": inner["d_conv"],
        "time_step_rank": S6["delta_rank"] or math.ceil(E / 16),
        "time_step_min": S6["delta_min"],
        "time_step_max": S6["delta_max"],
        "use_bias": inner["bias"],
        "use_conv_bias": inner["conv_bias"],
        "hidden_act": "silu",
        "layer_norm_epsilon": 1e-5,
        "residual_in_fp32": arguments["residual_in_float32"],
        "tie_word_embeddings": arguments["tie_embeddings"],
        **{f"{name}_token_id": end_of_text for name in ("bos", "eos", "pad")},
    }


def _not_mamba(network: Mapping[str, Any], layer: Any, block: Any) -> str:
    """What of a specification MambaForCausalLM has not, as text; empty if nothing."""
    for given, needed in (
        (network, "lra_ssm.models.LanguageModel"), (layer, "lra_ssm.layers.S6"), (block, "lra_ssm.layers.MambaBlock"),
    ):  # fmt: skip
        if not isinstance(given, Mapping) or given.get("class_path") != needed:
            found = given.get("class_path") if isinstance(given, Mapping) else "several kinds of layers or blocks"
            return f"it has {found}, not {needed}"
    needed_values: tuple[tuple[Mapping[str, Any], dict[str, Any]], ...] = (
        (layer["init_args"], {"form": "mamba", "bidirectional": False, "parameterization": "exp"}),
        (block["init_args"], {"norm": "rms", "prenorm": True, "glu": False}),
    )
    for values, needed_here in needed_values:
        for name, value in needed_here.items():
            if values[name] != value:
                return f"{name} is {values[name]!r}, not {value!r}"
    if not float(block["init_args"]["expand"]).is_integer():
        return f"expand is {block['init_args']['expand']}, no whole number"
    return ""
