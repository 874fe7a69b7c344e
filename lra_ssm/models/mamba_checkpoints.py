"""Mamba's and Mamba-2's public checkpoints: their config.json as a `LanguageModel`, and their tensors' names.

There are two layouts with the same tensors: `state-spaces/mamba-*`, `mamba2-*` (mamba_ssm's MambaConfig and
MambaLMHeadModel, source: mamba_ssm/models/config_mamba.py, mixer_seq_simple.py) and `-hf` (transformers'
MambaForCausalLM and Mamba2ForCausalLM). `mamba_kinds` has the differences between Mamba and Mamba-2.

Shapes: V vocabulary, D channels, E inner channels.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lra_ssm.errors import InputError
from lra_ssm.models.mamba_kinds import KINDS, MAMBA, MAMBA2, Kind

# Name in the public checkpoints -> our name.
_TOP = {
    "backbone.norm_f.weight": "backbone.norm.weight",
    "backbone.norm_f.bias": "backbone.norm.bias",
    "lm_head.weight": "head.weight",
}
_EMBEDDING, _EMBEDDING_HF = "backbone.embedding.weight", "backbone.embeddings.weight"

_STATE_SPACES = {
    "d_model": 2560, "d_intermediate": 0, "n_layer": 64, "vocab_size": 50277, "ssm_cfg": {}, "attn_layer_idx": [],
    "attn_cfg": {}, "rms_norm": True, "residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 8,
    "tie_embeddings": True,
}  # fmt: skip


# The only values that can be read, by either layout's names.
_NEEDED = {"d_intermediate": 0, "attn_layer_idx": [], "hidden_act": "silu", "layer_norm_epsilon": 1e-5}


def network_of_mamba(config: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """Return the `LanguageModel`'s specification for a config.json of either layout, or None for another layout.

    Raises InputError for a setting that such a model cannot have, naming it.
    """
    named = next((kind for kind in KINDS if config.get("model_type") == kind.model_type), None)
    if named is not None:
        kind, values = named, _from_transformers(config, named)
    elif {"d_model", "n_layer"} <= config.keys() and "model_type" not in config:
        kind, values = _from_state_spaces(config, where)
    else:
        return None
    for name, needed in {**_NEEDED, **kind.needed}.items():
        if values.get(name, needed) != needed:
            raise InputError(f"{where}: {name} is {values[name]!r}; only {needed!r} can be read")
    D, E = values["d_model"], values.get("d_inner", int(values["expand"] * values["d_model"]))
    vocabulary, multiple = values["vocab_size"], values["pad_vocab_size_multiple"]
    sizes = (D, E, values["n_layer"], values["d_state"], values["d_conv"], vocabulary, multiple)
    if not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise InputError(f"{where}: its sizes {sizes} are not all whole numbers of at least 1")
    norm = "rms" if values["rms_norm"] else "layer"
    block = {"expand": E / D, "norm": norm, **{name: values[name] for name in ("d_conv", "bias", "conv_bias")}}
    arguments = {
        "layer": {"class_path": kind.layer, "init_args": kind.layer_arguments(values, where)},
        "vocab_size": vocabulary,
        "d_model": D,
        "n_layers": values["n_layer"],
        "block": {"class_path": kind.block, "init_args": block},
        "tie_embeddings": values["tie_embeddings"],
        "pad_vocab_size_multiple": multiple,
        "residual_in_float32": values["residual_in_fp32"],
    }
    return {"class_path": "lra_ssm.models.LanguageModel", "init_args": arguments}


def _from_transformers(config: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Return the settings of a -hf config.json by state-spaces' names."""
    values = {name: config.get(name, default) for name, default in kind.hf.items()}
    if "time_step_limit" in values:  # transformers writes infinity, which JSON lacks, as {"__float__": "Infinity"}
        limit = values["time_step_limit"]
        values["time_step_limit"] = [math.inf if x == {"__float__": "Infinity"} else x for x in limit]
    renamed = {name: values[hf_name] for name, hf_name in kind.hf_names.items()}
    inner = {"d_inner": config["intermediate_size"]} if kind is MAMBA and "intermediate_size" in config else {}
    return {**kind.ssm_cfg, **values, **renamed, **inner, "rms_norm": True, "pad_vocab_size_multiple": 1}


def _from_state_spaces(config: Mapping[str, Any], where: str) -> tuple[Kind, dict[str, Any]]:
    """Return the kind and the settings of a state-spaces config.json."""
    values = _with_defaults(config, _STATE_SPACES, where)
    layer = values["ssm_cfg"].get("layer", MAMBA.ssm_layer)
    kind = next((kind for kind in KINDS if kind.ssm_layer == layer), None)
    if kind is None:
        known = " and ".join(repr(kind.ssm_layer) for kind in KINDS)
        raise InputError(f"{where}: ssm_cfg: layer is {layer!r}; only {known} can be read")
    return kind, values | _with_defaults(values["ssm_cfg"], kind.ssm_cfg, f"{where}: ssm_cfg")


def _with_defaults(config: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fill in a configuration's defaults. Raises InputError for an unknown setting."""
    for name in config.keys() - defaults.keys():
        raise InputError(f"{where} has a setting {name!r} ({config[name]!r:.40}) that this version does not know")
    return {**defaults, **config}


def _kind_of(names: Iterable[str]) -> Kind:
    """Decide the kind by our names of parameters."""
    return MAMBA2 if any(name.endswith(".gated_norm.weight") for name in names) else MAMBA


def to_mamba(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a `LanguageModel` of S6 in MambaBlocks, or SSD in Mamba2Blocks, to the -hf layout.

    The tensors may be on the meta device, for their shapes.
    """
    kind = _kind_of(state)
    top, block = ({local: public for public, local in names.items()} for names in (_TOP, kind.names))
    top[_EMBEDDING] = _EMBEDDING_HF
    joined = {parts[0]: public for public, parts in kind.joined.items()}
    later = {part for parts in kind.joined.values() for part in parts[1:]}
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if match := re.fullmatch(r"backbone\.blocks\.(\d+)\.(.+)", name):
            prefix, rest = f"backbone.layers.{match[1]}.", match[2]
            if rest in joined:
                parts = [state[f"backbone.blocks.{match[1]}.{part}"] for part in kind.joined[joined[rest]]]
                renamed[prefix + joined[rest]] = torch.cat(parts)
            elif rest not in later:
                renamed[prefix + block[rest]] = tensor
        else:
            renamed[top[name]] = tensor
    return renamed


def from_mamba(tensors: Mapping[str, Tensor], sizes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Invert `to_mamba` for tensors as `normalized` returns them; sizes: the model's state_dict."""
    kind, renamed = _kind_of(sizes), dict[str, Tensor]()
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"backbone\.layers\.(\d+)\.(.+)", name):
            prefix = f"backbone.blocks.{match[1]}."
            if match[2] in kind.joined:
                names = [prefix + part for part in kind.joined[match[2]]]
                renamed |= zip(names, tensor.split([len(sizes[part]) for part in names]), strict=True)
            else:
                renamed[prefix + kind.names[match[2]]] = tensor
        else:
            renamed[_EMBEDDING if name == _EMBEDDING_HF else _TOP[name]] = tensor
    return renamed


def normalized(tensors: Mapping[str, Tensor], tied: bool, where: str) -> dict[str, Tensor]:
    """Return the tensors of either layout by the names of -hf, without a tied head.

    Raises InputError if the head is tied by the configuration but not equal to the embedding.
    """
    renamed = {_EMBEDDING_HF if name == _EMBEDDING else name: tensor for name, tensor in tensors.items()}
    if tied and _EMBEDDING_HF in renamed and (head := renamed.pop("lm_head.weight", None)) is not None:
        if not torch.equal(head, renamed[_EMBEDDING_HF]):
            raise InputError(f"{where}: lm_head.weight is not the embedding, though its configuration ties them")
    return renamed


# Arguments of our layers and blocks: the only values that transformers has.
_HF_HAS = {"bidirectional": False, "parameterization": "exp", "norm": "rms", "prenorm": True, "glu": False}


def hf_config(network: Mapping[str, Any], end_of_text: int | None, where: str) -> dict[str, Any]:
    """Return the config.json of transformers' MambaForCausalLM or Mamba2ForCausalLM for a network's specification.

    The specification includes its defaults. Raises InputError naming what that class cannot represent.
    """
    arguments = network["init_args"]
    layer, block = arguments.get("layer") or {}, arguments.get("block") or {}
    paths = [spec.get("class_path") for spec in (layer, block) if isinstance(spec, Mapping)]
    kind = MAMBA2 if {MAMBA2.layer, MAMBA2.block} & {*paths} else MAMBA
    reason = _unsupported_reason(kind, network, layer, block)
    if reason:
        raise InputError(f"{where}: transformers' {kind.hf_class} cannot represent such a model: {reason}")
    unit, inner = layer["init_args"], block["init_args"]
    D, multiple = arguments["d_model"], arguments["pad_vocab_size_multiple"]
    E = round(inner["expand"] * D)
    return {
        "architectures": [kind.hf_class],
        "model_type": kind.model_type,
        "vocab_size": math.ceil(arguments["vocab_size"] / multiple) * multiple,
        "hidden_size": D,
        "expand": E // D,
        "num_hidden_layers": arguments["n_layers"],
        "state_size": unit["d_state"],
        **kind.hf_arguments(unit, E),
        "conv_kernel": inner["d_conv"],
        "time_step_min": unit["delta_min"],
        "time_step_max": unit["delta_max"],
        "use_bias": inner["bias"],
        "use_conv_bias": inner["conv_bias"],
        "hidden_act": "silu",
        "layer_norm_epsilon": 1e-5,
        "residual_in_fp32": arguments["residual_in_float32"],
        "tie_word_embeddings": arguments["tie_embeddings"],
        **{f"{name}_token_id": end_of_text for name in ("bos", "eos", "pad")},
    }


def _unsupported_reason(kind: Kind, network: Mapping[str, Any], layer: Any, block: Any) -> str:
    """Return what in a specification transformers' class does not support; "" if it supports everything."""
    for spec, needed in ((network, "lra_ssm.models.LanguageModel"), (layer, kind.layer), (block, kind.block)):
        if not isinstance(spec, Mapping) or spec.get("class_path") != needed:
            path = spec.get("class_path") if isinstance(spec, Mapping) else "several kinds of layers or blocks"
            return f"it has {path}, not {needed}"
    for name, value in {**layer["init_args"], **block["init_args"]}.items():
        if name in _HF_HAS and value != _HF_HAS[name]:
            return f"{name} is {value!r}, not {_HF_HAS[name]!r}"
    if not float(block["init_args"]["expand"]).is_integer():
        return f"expand is {block['init_args']['expand']}, not a whole number"
    return ""
