"""A run's settings by dotted name, as users write them: `model.network.layer` is a class, what is below it is its."""

import difflib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from lra_ssm.errors import InputError
from lra_ssm.runs.identity import CHECKPOINT_NEUTRAL, DATA_NEUTRAL, OPTIONS_NEUTRAL, SEED, ends, what_counts

Settings = dict[str, Any]

ABSENT = "not set"
# Of Lightning's Trainer the defaults that are not empty (None, False, 0); a test holds them to its signature.
TRAINER_DEFAULTS = {
    "max_steps": -1,
    "check_val_every_n_epoch": 1,
    "accumulate_grad_batches": 1,
    "inference_mode": True,
    "use_distributed_sampler": True,
    "enable_autolog_hparams": True,
}


def flat(node: Any, path: str = "") -> Settings:
    """The leaves of a configuration; `init_args` is no part of a name."""
    if not isinstance(node, dict) or not node:
        return {path: node}
    found: Settings = {}
    if "class_path" in node:
        found[path] = node["class_path"]
        node = {k: v for k, v in node.items() if k not in ("class_path", "init_args")} | (node.get("init_args") or {})
    for key, value in node.items():
        found |= flat(value, f"{path}.{key}" if path else str(key))
    return found


def counting(config: Mapping[str, Any], data_neutral: Sequence[str] = DATA_NEUTRAL) -> Settings:
    """The settings that can change a result, without the seed. data_neutral: of the data's, those that cannot."""
    neutral = {"": (*OPTIONS_NEUTRAL, SEED), "checkpoint": CHECKPOINT_NEUTRAL, "data": data_neutral}
    kept = what_counts({"trainer": {}, **config}, neutral)
    default = TRAINER_DEFAULTS
    kept["trainer"] = {k: v for k, v in kept["trainer"].items() if (v != default[k] if k in default else v)}
    return flat({key: value for key, value in kept.items() if value not in (None, {}, [])})


def differing(several: Iterable[Settings]) -> dict[str, list[Any]]:
    """What is not the same in all: each one's value, ABSENT where it has none. Where classes differ, what one of them
    alone has is left out: it is the class that differs."""
    given = list(several)
    found = {}
    for key in sorted({key for settings in given for key in settings}):
        values = [settings.get(key, ABSENT) for settings in given]
        if any(value != values[0] for value in values):
            found[key] = values
    keys = {key for settings in given for key in settings}
    classes = tuple(f"{key}." for key in found if any(other.startswith(f"{key}.") for other in keys))
    return {
        key: values
        for key, values in found.items()
        if not key.startswith(classes) or ABSENT not in values or len({*map(repr, values)}) > 2
    }


def told_apart(values: Sequence[Any]) -> list[str]:
    """Values as they are shown, or as JSON has them where two look the same and are not: 1 and 1.0 (of batches one and
    all of them), two classes of one name."""
    short = [shown(value) for value in values]
    full = [exact(value) for value in values]
    return short if len({*short}) == len({*full}) else full


def exact(value: Any) -> str:
    """A value as text that no other value has."""
    return json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)


def shown(value: Any) -> str:
    """A value as it is shown: of a class its name."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return shown(value["class_path"]) if "class_path" in value else str(value)
    name = str(value).rpartition(".")[2]
    return name if isinstance(value, str) and "/" not in value and name[:1].isupper() else str(value)


def resolve(name: str, keys: Collection[str]) -> str:
    """The setting that a user means by its name, or by the end of it. Raises InputError: none, or several."""
    name = SEED if name == "seed" else name
    if name in keys:
        return name
    found = sorted(key for key in keys if name in ends(key))
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{name!r} may be any of {', '.join(found)}: give more of its name")
    near = difflib.get_close_matches(name, {end for key in keys for end in ends(key)}, n=1)
    more = f"did you mean {near[0]!r}?" if near else "lra-ssm runs shows those that differ"
    raise InputError(f"no run has a setting {name!r}; {more}")
