"""Which run a configuration is: a hash of everything that decides its result.

What cannot change a result is said beside the settings that it concerns, in a data module's `neutral_settings`; of
checkpoints, which torch need not be loaded for, of the commands' options and of Lightning's Trainer here.
"""

import copy
import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from lra_ssm.errors import InputError

# Options of the commands.
OPTIONS_NEUTRAL = (
    "config", "runs_dir", "experiment", "fresh", "strict_resume", "allow_pickle", "weights_only", "verbose",
    "return_predictions", "split", "output", "estimate", "compute",
)  # fmt: skip
SEED = "seed_everything"
TRAINER_NEUTRAL = (
    "accelerator",
    "default_root_dir",
    "devices",
    "enable_model_summary",
    "enable_progress_bar",
    "limit_predict_batches",
    "limit_test_batches",
    "log_every_n_steps",
    "max_time",
    "logger",
    "num_nodes",
    "profiler",
    "strategy",
)
# Callbacks that only show something.
_SHOWING = ("lra_ssm.progress.Progress", "lra_ssm.progress.ShowModel", "lra_ssm.callbacks.Throughput")
CHECKPOINT_NEUTRAL = ("every_n_steps",)
# Of a data module that has no `neutral_settings`: what is called so everywhere.
DATA_NEUTRAL = ("root", "eval_batch_size", "num_workers", "pin_memory")
# Settings that came later, each with the value that means "as before": with that it does not count, so that a run keeps
# the id that it had when there was no such setting. A line for each, by its name as users write it (`init_args` and
# places in lists are no part of it), or as much of the name's end as tells what is meant: "optimizer.algorithm" stands
# for model.optimizer.algorithm, "layer.init" for every layer's, wherever it is nested; or by the name of its class,
# "S4D.init". The value is the default, plain as in a configuration (a list, no tuple).
AS_BEFORE: dict[str, Any] = {
    "StableSSM.learn_B": True,
    "optimizer.cosine_by": "step",
    "optimizer.algorithm": "AdamW",
    "optimizer.arguments": {},
    "optimizer.schedule": "cosine",
    "optimizer.schedule_arguments": {},
    "optimizer.ema_decay": None,
    "model.label_smoothing": 0.0,
    "model.class_weights": None,
    "model.metrics": None,
    "model.width": None,
    "MNIST.mean": 0.0,
    "MNIST.std": 1.0,
    "SCIFAR.std": None,
    "WikiText.documents": "article",
    "S5.fast_B": False,
    "Attention.d_head": None,
    "TransformerBlock.mlp_dropout": 0.0,
    "network.padding": "masked",
    "network.embedding_std": None,
    "network.embedding": None,
    "S4D.discretization": "zoh",
    "S4D.learn_B": True,
}
# What Lightning takes precisions for, by their short names.
PRECISIONS = {"64": "64-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}


def run_identity(config: dict[str, Any], neutral: Mapping[str, Sequence[str]]) -> str:
    """Ten hexadecimal digits of the resolved configuration, seed included, without what cannot change the result.

    config: plain values. neutral: names that do not count, by section; "" is the top level. Defaults of the Trainer do
    not count either: an argument that a new Lightning brings does not make every run another one. Nor do settings that
    came later where they are as before, or how a value is spelled that the Trainer takes as the same.
    """
    return run_identities(config, neutral)[0]


def run_identities(config: dict[str, Any], neutral: Mapping[str, Sequence[str]]) -> list[str]:
    """`run_identity`, and behind it the ids that the same run may have had before: by other spellings of its settings,
    and in Python, where a class without arguments has empty `init_args`."""
    every, found = _without_neutral(config, neutral), []
    for counting in (_without_later(every), _without_later(every, empty=True)):
        for trainer in _spellings(counting["trainer"]):
            counting["trainer"] = without_trainer_defaults(trainer)
            found.append(hashlib.sha256(json.dumps(counting, sort_keys=True, default=str).encode()).hexdigest()[:10])
    return list(dict.fromkeys(found))


def what_counts(config: dict[str, Any], neutral: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A copy of a configuration with what can change a result, spelled in one way; arguments: as of `run_identity`."""
    config = _without_later(_without_neutral(config, neutral))
    return {**config, "trainer": spelled_one_way(config["trainer"])}


def spelled_one_way(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """A Trainer's arguments, of those that it takes as the same the one that counts: 32-true for 32, a gradient clipped
    at 1.0 for 1. (Of batches 1 and 1.0 are not the same: one, and all of them.)"""
    clip, precision = trainer.get("gradient_clip_val"), trainer.get("precision")
    found = {"gradient_clip_val": float(clip)} if isinstance(clip, int) else {}
    return {**trainer, **found, **({"precision": PRECISIONS[p]} if (p := str(precision)) in PRECISIONS else {})}


def _spellings(trainer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A Trainer's arguments in every spelling of them, the one that counts first."""
    trainer = spelled_one_way(trainer)
    clip, precision = trainer.get("gradient_clip_val"), trainer.get("precision")
    clips = [clip, int(clip)] if isinstance(clip, float) and clip.is_integer() else [clip]
    short = [name for name, full in PRECISIONS.items() if full == precision]
    precisions = [precision, *short, *(int(name) for name in short if name.isdecimal())]
    return [{**trainer, "gradient_clip_val": c, "precision": p} for c, p in product(clips, precisions)]


def _without_later(node: Any, name: str = "", empty: bool = False, owner: str = "") -> Any:
    """A configuration, or what stands in it under a dotted name, without settings that came later and are as before.

    empty: keep `init_args` of which nothing is left. owner: the class whose arguments these are."""
    if isinstance(node, list):
        return [_without_later(item, name, empty) for item in node]
    if not isinstance(node, dict) or name in (".trainer", ".settings"):  # Lightning's, and words of the user's own
        return node
    found = {}
    for key, value in node.items():
        of_class = "class_path" in node and key in ("init_args", "attributes")
        its = name if of_class else f"{name}.{key}"
        left = _without_later(value, its, empty, node["class_path"].rpartition(".")[2] if of_class else "")
        emptied = key == "init_args" and value and not left and not empty
        if not emptied and not _is_as_before(its, f"{owner}.{key}", left):
            found[key] = left
    return found


def _is_as_before(name: str, of_class: str, value: Any) -> bool:
    names = (later for later in AS_BEFORE if later == of_class or name.endswith(f".{later}"))
    return any(value == AS_BEFORE[later] for later in names)


def _without_neutral(config: dict[str, Any], neutral: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A copy of a configuration without what cannot change a result."""
    config = copy.deepcopy(config)
    if config.get("ckpt_path") in (None, "last", "best"):
        config.pop("ckpt_path", None)
    trainer = config["trainer"]
    if isinstance(callbacks := trainer.get("callbacks"), list):
        # None where there is no other, as without any
        trainer["callbacks"] = [c for c in callbacks if c.get("class_path") not in _SHOWING] or None
    for section, names in {**neutral, "trainer": TRAINER_NEUTRAL}.items():
        node: Any = (config.get(section) or {}) if section else config
        node = node.get("init_args", node) if "class_path" in node else node
        for name in names:
            node.pop(name, None)
    return config


def without_trainer_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """A Trainer's arguments without those that are its defaults."""
    from lightning.pytorch import Trainer

    defaults = {name: p.default for name, p in inspect.signature(Trainer).parameters.items()}
    return {key: value for key, value in given.items() if key not in defaults or value != defaults[key]}


def plain(value: Any, where: str) -> Any:
    """`value` as JSON has it, so that different values stay different: of an object its class and its attributes.

    Raises InputError naming `where` for what cannot be told apart from another of its kind.
    """
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return plain(value.item(), where)  # a float64 is a float too, but none that a config could hold
    if isinstance(value, (Path, timedelta)):
        return f"{type(value).__name__} {value}"
    if isinstance(value, Enum):
        return f"{class_path(value)}.{value.name}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        pairs = ((key if isinstance(key, str) else f"{type(key).__name__} {key!r}", key) for key in value)
        return {name: plain(value[key], f"{where}.{name}") for name, key in pairs}
    if isinstance(value, (list, tuple)):
        return [plain(item, where) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item, where) for item in value), key=repr)
    if isinstance(value, partial):
        return {"partial": plain([value.func, value.args, value.keywords], where)}
    if inspect.isclass(value) or (inspect.isroutine(value) and "<" not in value.__qualname__):
        if inspect.isclass(value) or not hasattr(value, "__self__") or inspect.ismodule(value.__self__):
            return f"{value.__module__}.{value.__qualname__}"
    opaque = type(value).__module__.partition(".")[0] in ("torch", "numpy", "builtins")
    if opaque or not hasattr(value, "__dict__") or hasattr(value, "__slots__"):
        raise InputError(f"{where} is a {type(value).__name__}: give it as plain values, a run is told by them")
    return {"class_path": class_path(value), "attributes": plain(vars(value), where)}


def plain_trainer(given: Mapping[str, Any]) -> dict[str, Any]:
    """A Trainer's arguments that count. Of objects (callbacks, plugins) the class and the constructor's arguments, as
    far as they are kept under their names and plain: what they have become since does not count."""

    def settings(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [settings(item) for item in value]
        try:
            if type(value).__module__ in ("builtins", "numpy") or isinstance(value, (Path, timedelta, Enum)):
                return plain(value, "trainer")
        except InputError:
            return class_path(value)
        kept = {name: getattr(value, name, None) for name in inspect.signature(type(value)).parameters}
        return {"class_path": class_path(value), "arguments": {name: settings(item) for name, item in kept.items()}}

    return {name: settings(value) for name, value in given.items() if name not in TRAINER_NEUTRAL}


def class_path(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def described(thing: Any, what: str, settings: Any) -> dict[str, Any]:
    """A task or a data module, for a run's identity: what it says of itself, else its hyperparameters.

    Raises InputError where it takes arguments and keeps none, and no settings are given that stand for them.
    """
    if hasattr(thing, "record"):
        return {"class_path": class_path(thing), "init_args": plain(thing.record(), what)}
    if not thing.hparams and inspect.signature(type(thing)).parameters and not settings:
        raise InputError(
            f"{type(thing).__name__} takes arguments and keeps none, so that runs with others could not be told apart:"
            " call save_hyperparameters() in it, or give what decides the result as settings"
        )
    return {"class_path": class_path(thing), "init_args": plain(dict(thing.hparams), what)}


def short_names(keys: Collection[str]) -> dict[str, str]:
    """Of each name the shortest end that no other has; of the seed's `seed`."""
    count = Counter(end for key in keys for end in ends(key))
    named = {key: next(end for end in ends(key) if count[end] == 1 or end == key) for key in keys}
    return named | ({SEED: "seed"} if SEED in named else {})


def ends(key: str) -> list[str]:
    """A dotted name's ends, the shortest first. A role is a part of each: its rate is `recurrent.lr`, not `lr`."""
    parts = key.split(".")
    shortest = 2 if ".roles." in key else 1
    return [".".join(parts[i:]) for i in range(len(parts) - shortest, -1, -1)]
