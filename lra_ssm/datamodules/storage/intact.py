"""Whether prepared arrays are still what was written: digests compared once, and again whenever a file was touched.

What was found intact is remembered beside the prepared folder, in `.<name>.intact`: each file's size, times of change
and digest. So opening costs one look at each file, a changed byte is found at the next start, and data that was copied
or moved (which changes the times) is read through once more, about a second for each GB. Needs no torch.
"""

import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.storage.format import MANIFEST, StoredSplit, array_entries, damaged
from lra_ssm.datamodules.storage.manifest import read_manifest
from lra_ssm.files import sha256, write_json

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
    folder = split.folder
    memory = _memory(folder)
    known = _read(memory)
    found = _found(folder, split.entry)
    suspects = sorted((file for file in found if known.get(file) != found[file]), key=lambda file: found[file][0])
    if not suspects:
        return
    remembers = os.access(folder.parent, os.W_OK)
    total = sum(found[file][0] for file in suspects)
    if remembers and total > _WORTH_SAYING:
        log.warning("%s: comparing digests of %.0f GB, once", folder, total / 1e9)
    compared = 0
    for file in suspects:
        compared += found[file][0]
        if not remembers and compared > _AT_EVERY_START:
            return
        if sha256(folder / file) != found[file][-1]:
            raise damaged(folder / file, "does not have its recorded sha256: it is not what was prepared")
    if remembers:
        with suppress(OSError):
            write_json(memory, known | found)


def remember_intact(folder: Path) -> None:
    """Remembers all arrays of a prepared folder as intact without reading them.

    For whoever has just written them, counting and hashing on the way: the first start need not read them all again.
    """
    splits = read_manifest(folder / MANIFEST)["splits"].values()
    found = [item for split in splits for item in _found(folder, split).items()]
    with suppress(OSError):  # then the first start compares digests
        write_json(_memory(folder), dict(found))


def _memory(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.intact"


def _found(folder: Path, entry: dict[str, Any]) -> dict[str, list[Any]]:
    """What is to be remembered of the files of a split's entry in a manifest."""
    return {array["file"]: [*_state(folder / array["file"]), array["sha256"]] for array in array_entries(entry)}


def _state(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _read(memory: Path) -> dict[str, Any]:
    """What is remembered; nothing of a memory that cannot be read."""
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}
