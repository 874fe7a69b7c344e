"""Compare the settings of runs, by the dotted names that users write."""

import difflib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lra_ssm.errors import InputError
from lra_ssm.runs.identity import SEED

ABSENT = "default"  # shown for a setting that a run does not set
_LIBRARIES = ("lra_ssm.", "torch.", "lightning.")


def differing(several: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings that are not the same in all, each with its values; ABSENT where a run does not set it.

    Where a class differs, settings below it that do not vary within either class are left out.
    """
    all_settings = list(several)
    keys = sorted({key for settings in all_settings for key in settings})
    columns = {key: [settings.get(key, ABSENT) for settings in all_settings] for key in keys}
    varying = {key: values for key, values in columns.items() if len({*map(exact, values)}) > 1}

    def follows_from(above: str, key: str) -> bool:
        pairs = {(exact(cls), exact(value)) for cls, value in zip(varying[above], varying[key], strict=True)}
        return key.startswith(f"{above}.") and len(pairs) == len({cls for cls, _ in pairs})

    return {key: values for key, values in varying.items() if not any(follows_from(above, key) for above in varying)}


def format_value(value: Any) -> str:
    """Return a value as tables show it: different values look different. A library's class is shown by its name."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, dict):
        return format_value(value["class_path"]) if "class_path" in value else str(value)
    name = str(value).rpartition(".")[2]
    return name if str(value).startswith(_LIBRARIES) and name[:1].isupper() else str(value)


def exact(value: Any) -> str:
    """Return a value as text that no other value has."""
    return json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def sort_key(value: Any) -> tuple[int, float, str]:
    """Sort numbers by size, then words."""
    return (0, float(value), "") if is_number(value) else (1, 0.0, format_value(value))


def short_names(keys: Collection[str]) -> dict[str, str]:
    """Return for each dotted name its shortest end that no other name has; `seed` for the seed."""
    count = Counter(end for key in keys for end in _ends(key))
    named = {key: next(end for end in _ends(key) if count[end] == 1 or end == key) for key in keys}
    return named | ({SEED: "seed"} if SEED in named else {})


def resolve(name: str, keys: Collection[str]) -> str:
    """Return the setting that a user means by its name or the end of it. Raises InputError if none or several match."""
    matches = matching(name, keys)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InputError(f"{name!r} may be any of {', '.join(matches)}: give more of its name")
    near = difflib.get_close_matches(name, {end for key in keys for end in _ends(key)}, n=1)
    more = f"did you mean {near[0]!r}?" if near else "lra-ssm status shows those that differ"
    raise InputError(f"no run has a setting {name!r}; {more}")


def matching(name: str, keys: Collection[str]) -> list[str]:
    """Return the settings called by a name or the end of one."""
    name = SEED if name == "seed" else name
    return [name] if name in keys else sorted(key for key in keys if name in _ends(key))


def _ends(key: str) -> list[str]:
    """A dotted name's ends, the shortest first. A role's rate is `recurrent.lr`; `lr` is only the optimizer's."""
    parts = key.split(".")
    shortest = 2 if ".roles." in key else 1
    return [".".join(parts[i:]) for i in range(len(parts) - shortest, -1, -1)]
