"""The user's own code that decides a run's result: the files of the classes that its configuration names, and the git
commit that they lie in, with the digest of what was not committed.

lra_ssm's own source is `provenance.code_version`'s; of an installed library the record has the version.
"""

import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lra_ssm.errors import is_installed
from lra_ssm.runs.identity import TRAINER_NEUTRAL
from lra_ssm.runs.provenance import code_version, git_state

SOURCE = "lra_ssm_source"  # the digests' name in a checkpoint; in run.json each start has them as "source"
_OURS = Path(__file__).parents[1]


def user_source(config: Mapping[str, Any], objects: Iterable[Any] = ()) -> dict[str, str]:
    """File (below its import root), or class without a file (a notebook's) -> digest; where there is one, "git commit"
    and "git diff" of the repository that the first file lies in.

    config: a run's resolved configuration; every import path in it counts whose module is loaded, wherever it stands.
    objects: further ones whose classes count. A class counts with those that it is derived from.
    """
    trainer = {key: value for key, value in (config.get("trainer") or {}).items() if key not in TRAINER_NEUTRAL}
    named = [thing for path in _texts({**config, "trainer": trainer}) for thing in _imported(path)]
    found: dict[str, str] = {}
    folders: list[Path] = []
    for thing in dict.fromkeys([*(type(each) for each in objects), *named]):
        for each in thing.__mro__ if inspect.isclass(thing) else (thing,):
            file = getattr(sys.modules.get(each.__module__), "__file__", None)
            if file is None:
                with suppress(OSError, TypeError):  # typed into a prompt, or Python's own
                    found[f"{each.__module__}.{each.__qualname__}"] = _digest(_text(each).encode())
            elif not is_installed(Path(file)) and not Path(file).is_relative_to(_OURS):
                path = Path(file).resolve()
                module = each.__module__.replace(".", "/") + ("/__init__" if path.stem == "__init__" else "")
                found[f"{module}{path.suffix}"] = _digest(path.read_bytes())
                folders.append(path.parent)
    state = git_state(folders[0]) if folders else None
    return {
        **dict(sorted(found.items())),
        **({f"git {key}": str(state[key]) for key in ("commit", "diff")} if state else {}),
    }


def changed(before: Any, now: Mapping[str, str] | None) -> str:
    """What differs between two results of `user_source`, as text; nothing where either is unknown. Names that one of
    them does not have are no difference: versions before took up more files."""
    if not isinstance(before, dict) or now is None:
        return ""
    names = [name for name in now if name in before and before[name] != now[name]]
    text = ", ".join(f"{name} has changed" for name in names[:3])
    return text + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def other_code(record: Mapping[str, Any], now: Mapping[str, str]) -> str:
    """Where one of the starts of a recorded run was with other code than this, lra_ssm's or the user's: that it was."""
    found = []
    for start in record.get("starts", []):
        versions = start.get("versions")
        made_by = versions.get("lra_ssm") if isinstance(versions, dict) else None
        if made_by not in (None, code_version()):
            found.append(f"lra_ssm was {made_by}, this is {code_version()}")
        if files := changed(start.get("source"), now):
            found.append(files)
    return f"; warning: it was trained with other code: {'; '.join(dict.fromkeys(found))}" if found else ""


def _texts(value: Any) -> Iterator[str]:
    """Every string in nested plain values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _imported(path: str) -> Iterator[Any]:
    """The class or function of an import path, where its module is loaded."""
    parts = path.split(".")
    loaded = [i for i in range(1, len(parts)) if ".".join(parts[:i]) in sys.modules]
    if loaded:
        thing: Any = sys.modules[".".join(parts[: loaded[-1]])]
        for name in parts[loaded[-1] :]:
            thing = getattr(thing, name, None)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield thing


def _text(thing: Any) -> str:
    functions = [f for f in vars(thing).values() if inspect.isfunction(f)] if inspect.isclass(thing) else [thing]
    return "\n".join(inspect.getsource(function) for function in functions)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]
