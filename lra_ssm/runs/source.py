"""What decides a run's result and is not in its configuration: the user's code, files of data, and starting weights.

Code is the files of the classes that the configuration names, and the git commit that they lie in, with the digest of
what was not committed. lra_ssm's own source is `provenance.code_version`'s; of an installed library the record has the
version.
"""

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lra_ssm.checkpoints import ModelFiles
from lra_ssm.errors import InputError, is_installed
from lra_ssm.files import sha256
from lra_ssm.runs.identity import TRAINER_NEUTRAL
from lra_ssm.runs.provenance import code_version, git_state
from lra_ssm.runs.record import INPUTS, same_data

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
    things = dict.fromkeys([*(type(each) for each in objects), *named])
    found: dict[str, str] = {}
    folders: list[Path] = []
    for each in dict.fromkeys(own for thing in things for own in getattr(thing, "__mro__", (thing,))):
        file = getattr(sys.modules.get(each.__module__), "__file__", None)
        if file is None:
            with suppress(OSError, TypeError):  # typed into a prompt, or Python's own
                if text := _text(each):
                    found[f"{each.__module__}.{each.__qualname__}"] = _digest(text.encode())
        elif Path(file).is_file() and not is_installed(Path(file)) and not Path(file).is_relative_to(_OURS):
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
    names = [name for name in sorted(now) if name in before and before[name] != now[name]]
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
    """The source of a function, or of a class's; those that Python makes, as a dataclass's, have none."""
    texts = []
    for held in vars(thing).values() if inspect.isclass(thing) else [thing]:
        parts = (held.fget, held.fset) if isinstance(held, property) else (getattr(held, "__func__", held),)
        for function in filter(inspect.isfunction, parts):
            with suppress(OSError):
                texts.append(inspect.getsource(function))
    return "\n".join(texts)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]


def data_fingerprint(data: Any) -> dict[str, str]:
    """What the user names of data -> what stands for its content, looked at and not read. Raises InputError: missing.

    Empty where a publisher's files, or a generator, are the source; for data modules that say nothing of it."""
    return data.source_digests() if hasattr(data, "source_digests") else {}


def weights_fingerprint(given: str | None, known: Mapping[str, Any] | None = None) -> dict[str, list[Any]]:
    """File -> sha256, bytes and time of change, of each file of weights in a checkpoint or a folder of a saved model.

    Empty for what is no path here: a revision tells what a name of the Hub means. known: an earlier result; a file that
    has its size and time of change is not read again. Raises InputError where a folder holds no weights.
    """
    if not given or not (path := Path(given)).exists():
        return {}
    found: dict[str, list[Any]] = {}
    for file in [path] if path.is_file() else ModelFiles(path).weight_files(allow_pickle=True):
        stat = file.stat()
        look = [stat.st_size, stat.st_mtime_ns]
        before = (known or {}).get(str(file), [])
        found[str(file)] = before if before[1:] == look else [sha256(file), *look]
    return found


def changed_inputs(record: Mapping[str, Any], data: Callable[[], Any], given: str | None) -> str:
    """Which of the user's files of data and of the starting weights are others than a recorded run's, as text.

    Nothing where it is not known, where the files are gone, or where what is prepared of them is the same. data: makes
    the data module; called where the record names files of the user's.
    """
    names = ""
    if known := record.get(INPUTS, {}).get("data"):
        with suppress(ValueError, OSError):  # gone: there are no others
            now = data()
            names = changed(known, data_fingerprint(now))
            if names and now.is_prepared() and same_data(record.get("data") or {}, now.manifest()):
                names = ""  # touched or copied
    return "; ".join(filter(None, [names and f"other data: {names}", changed_weights(record, given)]))


def changed_weights(record: Mapping[str, Any], given: str | None) -> str:
    """Of starting weights alone, as `changed_inputs`."""
    known = record.get(INPUTS, {}).get("weights")
    try:
        now = weights_fingerprint(given, known) if known else {}
    except (InputError, OSError):
        return ""
    before, after = ({name: its[0] for name, its in each.items()} for each in (known or {}, now))
    return f"other weights: {names}" if after and (names := changed(before, after)) else ""
