"""A run's identity: the seed, and all settings that differ from the defaults and can change the result.

A setting with its default value does not count, so that settings added later do not change identities. The spelling of
a value (1 or 1.0, a short name or an import path), the place of the data and the machine do not count either.
Loads neither torch nor lightning until an identity is computed.
"""

import copy
import hashlib
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin

SEED = "seed_everything"
# Names that cannot change a result, by section of the configuration; data modules have their own `neutral_settings`.
OPTIONS_NEUTRAL = (
    "config", "runs_dir", "experiment", "fresh", "strict_resume", "allow_pickle", "weights_only", "verbose",
    "return_predictions", "split", "output", "estimate", "compute", "check_layer",
)  # fmt: skip
TRAINER_NEUTRAL = (
    "accelerator", "default_root_dir", "devices", "enable_model_summary", "enable_progress_bar", "fast_dev_run",
    "limit_predict_batches", "limit_test_batches", "log_every_n_steps", "max_time", "logger", "num_nodes", "profiler",
    "strategy",
)  # fmt: skip
CHECKPOINT_NEUTRAL = ("every_n_steps",)
DATA_NEUTRAL = ("root", "eval_batch_size", "num_workers", "pin_memory")  # of a data module without `neutral_settings`
_DISPLAYS = ("lra_ssm.progress.LogLines", "lra_ssm.progress.Bar")
_PATHS = ("source", "tokenizer")  # settings of data that may be paths: only the last part of a path counts
# Lightning's names for the same precision, and the values that it uses for arguments that are None.
PRECISIONS = {"64": "64-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}
NONE_MEANS = {
    "limit_train_batches": 1.0, "limit_val_batches": 1.0, "val_check_interval": 1.0, "deterministic": False,
    "num_sanity_val_steps": 2, "precision": "32-true", "gradient_clip_val": 0, "gradient_clip_algorithm": "norm",
}  # fmt: skip
# 1 is one batch, 1.0 all batches.
_BATCHES = ("limit_train_batches", "limit_val_batches", "overfit_batches", "val_check_interval")


def run_identity(config: Mapping[str, Any]) -> str:
    """Return the run's id: ten hexadecimal digits of `set_beyond_defaults`."""
    text = json.dumps(set_beyond_defaults(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def set_beyond_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults and can change the result; the seed always.

    config: a resolved configuration of plain values, as in config.yaml.
    """
    from lra_ssm.runs.checkpoints import CheckpointSettings

    counting = result_settings(config, neutral_data(config))
    identity: dict[str, Any] = {SEED: counting.pop(SEED), "trainer": _trainer(counting.pop("trainer"))}
    for key, value in counting.items():
        if key == "checkpoint":
            value = _without_defaults(CheckpointSettings, value or {})
        elif key == "init_from" and value and os.path.exists(value):
            value = os.path.relpath(value)
        elif key == "data" and value:
            settings = value.get("init_args") or {}
            for name in _PATHS:
                if isinstance(path := settings.get(name), str):
                    settings[name] = os.path.basename(os.path.normpath(path))
        identity[key] = _one_spelling(value)
    return {key: value for key, value in identity.items() if key == SEED or value not in (None, {}, [])}


def neutral_data(config: Mapping[str, Any]) -> Sequence[str]:
    """Return the names among the data's settings that cannot change a result, as its class declares them."""
    from lra_ssm.layers.spec import import_object

    try:
        cls = import_object((config.get("data") or {}).get("class_path") or "")
    except ValueError:  # no data, or a class that is defined in a notebook
        return DATA_NEUTRAL
    return getattr(cls, "neutral_settings", DATA_NEUTRAL)


def result_settings(config: Mapping[str, Any], data_names: Sequence[str] = DATA_NEUTRAL) -> dict[str, Any]:
    """Return a copy of a configuration without the names that cannot change its result.

    data_names: those among the data's settings; `neutral_data` loads torch to know them.
    """
    settings = copy.deepcopy({"trainer": {}, **config})
    if settings.get("ckpt_path") in (None, "last", "best"):
        settings.pop("ckpt_path", None)
    neutral = {"": OPTIONS_NEUTRAL, "checkpoint": CHECKPOINT_NEUTRAL, "data": data_names, "trainer": TRAINER_NEUTRAL}
    for section, names in neutral.items():
        node: Any = (settings.get(section) or {}) if section else settings
        node = (node.get("init_args") or {}) if "class_path" in node else node
        for name in names:
            node.pop(name, None)
    return settings


def _trainer(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Trainer's arguments without its defaults, each value in one spelling."""
    from lightning.pytorch import Trainer

    parameters, arguments = inspect.signature(Trainer).parameters, {}
    for name, value in given.items():
        if name == "callbacks":
            several = value if isinstance(value, list) else [value] if value else []
            value = [c for c in several if not (isinstance(c, dict) and c.get("class_path") in _DISPLAYS)] or None
        value = PRECISIONS.get(str(value), value) if name == "precision" else value
        value = value if name in _BATCHES else _one_spelling(value)
        default = parameters[name].default if name in parameters else None
        if not _same(value, default) and not _same(value, NONE_MEANS.get(name)):
            arguments[name] = value
    return arguments


def _one_spelling(value: Any, hint: Any = None) -> Any:
    """Return a plain value in one spelling; classes and dataclasses without their defaults. hint: its annotation."""
    from lra_ssm.layers.spec import import_object, public_path

    if isinstance(value, Mapping) and "class_path" in value:
        try:
            cls = import_object(value["class_path"])
        except ValueError:  # defined in a notebook, or in a module that is gone
            return dict(value)
        settings = _without_defaults(cls, value.get("init_args") or {})
        others = {key: each for key, each in value.items() if key not in ("class_path", "init_args") and each}
        return {"class_path": public_path(cls), **({"init_args": settings} if settings else {}), **others}
    if isinstance(value, Mapping):
        if kind := next((each for each in members(hint) if is_dataclass(each)), None):
            return _without_defaults(kind, value)
        return {str(key): _one_spelling(each, item_of(hint)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_one_spelling(each, item_of(hint)) for each in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _without_defaults(cls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a class that are not its defaults, each in one spelling."""
    from lra_ssm.layers.spec import annotations

    parameters, hints, arguments = inspect.signature(cls).parameters, annotations(cls), {}
    factories: dict[str, Any] = {each.name: each.default_factory for each in fields(cls)} if is_dataclass(cls) else {}
    for name, value in given.items():
        value, default = _one_spelling(value, hints.get(name)), inspect.Parameter.empty
        if factories.get(name, MISSING) is not MISSING:
            default = factories[name]()
        elif name in parameters:
            default = parameters[name].default
        if default is inspect.Parameter.empty or not _same(value, _one_spelling(plain(default), hints.get(name))):
            arguments[name] = value
    return arguments


def members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def item_of(hint: Any) -> Any:
    """Return the annotation of the items of a list or dict with this annotation."""
    arguments = [get_args(each) for each in members(hint) if get_origin(each) in (list, dict)]
    return next((each[-1] for each in arguments if each), None)


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal; True is not 1, and 1.0 is not 1."""
    return json.dumps(one, sort_keys=True, default=repr) == json.dumps(other, sort_keys=True, default=repr)


def differences(one: Any, other: Any, *, name: str = "", common: bool = False) -> list[str]:
    """Return the differences between two configurations as text: "model.network.d_model 8 there, 16 here".

    common: compare only the names that both have.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.get("class_path") == other.get("class_path"):
        texts = []
        for key in dict.fromkeys([*one, *other]):
            if not common or key in one and key in other:
                below = name if key == "init_args" else f"{name}.{key}".lstrip(".")
                texts += differences(one.get(key), other.get(key), name=below, common=common)
        return texts
    same = _same(_one_spelling(one), _one_spelling(other))
    return [] if same else [f"{name} {_short(one)} there, {_short(other)} here"]


def _short(value: Any) -> str:
    is_class = isinstance(value, Mapping) and "class_path" in value
    return str(value["class_path"]).rpartition(".")[2] if is_class else repr(value)


def plain(value: Any) -> Any:
    """Return a value in types of JSON and YAML: a class by its path, another object by its class and settings."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.name if isinstance(value, Enum) else value
    if hasattr(value, "as_dict"):  # a specification, or jsonargparse's Namespace
        return plain(value.as_dict())
    if is_dataclass(value) and not inspect.isclass(value):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if inspect.isclass(value) or inspect.isroutine(value):
        from lra_ssm.layers.spec import public_path

        return {"class_path": public_path(value)} if inspect.isclass(value) else public_path(value)
    if type(value).__module__ == "builtins" or not hasattr(value, "__dict__"):
        return str(value)
    names = [name for name in inspect.signature(type(value)).parameters if hasattr(value, name)]
    return {"class_path": f"{type(value).__module__}.{type(value).__qualname__}",
            "init_args": {name: plain(getattr(value, name)) for name in names}}  # fmt: skip
