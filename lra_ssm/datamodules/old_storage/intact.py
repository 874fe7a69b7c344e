"""Whether prepared arrays are still what was written: digests compared once, and again whenever a file was touched.

What was found intact is remembered beside the prepared folder, in `.<name>.intact`: each file's size, times of change
and digest. So opening costs one look at each file, a changed byte is found at the next start, and data that was copied
or moved (which changes the times) is read through once more, about a second for each GB.
"""

import json
import logging
import os
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.old_storage.arrays import check_digest
from lra_ssm.datamodules.old_storage.format import StoredSplit, array_entries, read_manifest
from lra_ssm.files import write_json

log = logging.getLogger(__name__)

_AT_EVERY_START = 1 << 30  # bytes that are compared where nothing can be remembered: less than a second or two
_WORTH_SAYING = 4 << 30  # bytes whose comparison somebody might wonder about


def check_intact(split: StoredSplit) -> None:
    """Compares the digests of those of a split's arrays that are not remembered as they are.

    Where the data root cannot be written, nothing is remembered: there the arrays are compared at every start, the
    smallest first, as far as that is a matter of a second; the rest is left to `lra-ssm doctor --verify`.

    Raises:
        InputError: an array is not what was written; names it and what to do.
    """
    folder, memory, entries = split.folder, _memory(split.folder), array_entries(split.entry)
    try:
        known = dict(json.loads(memory.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # there is none, or none that can be read
        known = {}
    found = {entry["file"]: _state(folder, entry) for entry in entries}
    suspects = sorted((e for e in entries if known.get(e["file"]) != found[e["file"]]), key=itemgetter("bytes"))
    remembers = os.access(folder.parent, os.W_OK)
    if remembers and (total := sum(entry["bytes"] for entry in suspects)) > _WORTH_SAYING:
        log.warning("%s: comparing digests of %.0f GB, once", folder, total / 1e9)
    compared = 0
    for entry in suspects:
        compared += entry["bytes"]
        if not remembers and compared > _AT_EVERY_START:
            return
        check_digest(folder, entry)
    if suspects and remembers:
        with suppress(OSError):
            write_json(memory, known | found)


def remember_intact(folder: Path) -> None:
    """Remembers all arrays of a prepared folder as intact without reading them.

    For whoever has just written them, counting and hashing on the way: the first start need not read them all again.
    """
    entries = [entry for split in read_manifest(folder)["splits"].values() for entry in array_entries(split)]
    with suppress(OSError):  # then the first start compares digests
        write_json(_memory(folder), {entry["file"]: _state(folder, entry) for entry in entries})


def _memory(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.intact"


def _state(folder: Path, entry: dict[str, Any]) -> list[Any]:
    stat = (folder / entry["file"]).stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, entry["sha256"]]
