"""What a run starts from that its configuration names and does not hold: the user's files of data, starting weights."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lra_ssm.checkpoints import ModelFiles
from lra_ssm.errors import InputError
from lra_ssm.files import sha256
from lra_ssm.runs.record import recorded_inputs, same_data
from lra_ssm.runs.source import changed


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
        before = (known or {}).get(str(file))
        found[str(file)] = before if isinstance(before, list) and before[1:] == look else [sha256(file), *look]
    return found


def changed_inputs(record: Mapping[str, Any], data: Callable[[], Any], given: str | None) -> str:
    """Which of the user's files of data and of the starting weights are others than a recorded run's, as text.

    Nothing where it is not known, where the files are gone, or where what is prepared of them is the same. data: makes
    the data module; called where the record names files of the user's.
    """
    names = ""
    if known := recorded_inputs(record, "data"):
        with suppress(ValueError, OSError):  # gone: there are no others
            now = data()
            names = changed(known, data_fingerprint(now))
            if names and now.is_prepared() and same_data(record.get("data") or {}, now.manifest()):
                names = ""  # touched or copied
    return "; ".join(filter(None, [names and f"other data: {names}", changed_weights(record, given)]))


def changed_weights(record: Mapping[str, Any], given: str | None) -> str:
    """Of starting weights alone, as `changed_inputs`."""
    known = {name: its for name, its in recorded_inputs(record, "weights").items() if isinstance(its, list) and its}
    try:
        now = weights_fingerprint(given, known) if known else {}
    except (InputError, OSError):
        return ""
    before, after = ({name: its[0] for name, its in each.items()} for each in (known, now))
    return f"other weights: {names}" if after and (names := changed(before, after)) else ""
