"""JSON lines, plain, in shares of a file, or compressed with gzip or zstd, several members or frames included."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from lra_ssm.datamodules.language.documents import Range, Reading, Segment, segments_of
from lra_ssm.datamodules.language.opening import BOM, lines, lines_before, opened
from lra_ssm.errors import InputError

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


def segments(share: Range, reading: Reading, keyed: bool, done: int) -> Iterator[Segment]:
    """The documents of a file of JSON lines, or of a share of it; `done`: bytes of the piece behind us.

    Raises:
        InputError: a line that is not UTF-8, no JSON, too long, without text; damaged compression; names file and line.
    """
    compression = COMPRESSIONS.get(Path(share.path).suffix)
    with opened(share.path) as file:
        if compression:
            read, position = _unpacked(file, share.path, compression)
        else:
            read, position = _share(file, share)
        before: list[int] = []  # lines of the file before the share, counted for messages alone

        def where(line: int) -> str:
            if not before:
                before.append(lines_before(share.path, share.begin) if share.begin else 0)
            return f"{share.path}:{before[0] + line + 1}"

        number = 0
        for block in lines(read, where):
            here = done + position()
            for line in block:
                yield from _document(line, number, where, reading, keyed, here)
                number += 1


_Source = tuple[Callable[[int], bytes], Callable[[], int]]  # reads on; bytes of the file behind us


def _share(file: IO[bytes], share: Range) -> _Source:
    file.seek(share.begin)

    def read(size: int) -> bytes:
        left = size if share.end is None else share.end - file.tell()
        data = file.read(min(size, left))
        if not data and share.end is not None and left > 0:
            raise InputError(f"{share.path}: has become shorter while it was read")
        return data

    return read, lambda: file.tell() - share.begin


def _unpacked(file: IO[bytes], path: str, compression: str) -> _Source:
    import pyarrow  # comes with `datasets`

    try:
        stream = pyarrow.CompressedInputStream(file, compression)
    except Exception as error:
        raise InputError(f"{path}: cannot be unpacked ({error})") from error

    def read(size: int) -> bytes:
        try:
            return bytes(stream.read(size))
        except Exception as error:  # whatever pyarrow raises
            reason = str(error).partition("\n")[0]
            raise InputError(f"{path}: is broken off or damaged {compression} ({reason})") from error

    return read, file.tell


def _document(
    line: bytes, number: int, where: Callable[[int], str], reading: Reading, keyed: bool, read: int
) -> Iterator[Segment]:
    try:
        record = json.loads(line.removeprefix(BOM).decode())
    except UnicodeDecodeError as error:
        wrong = f"byte {error.object[error.start]:#04x}, the line's number {error.start + 1}"
        raise InputError(f"{where(number)}: is not UTF-8 ({wrong})") from None
    except (ValueError, RecursionError) as error:
        if not line or line.isspace():
            return
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise InputError(f"{where(number)}: is no JSON ({reason}); a document a line is expected") from None
    text = field(record, reading.text_field, lambda: where(number))
    source = "" if reading.source_field is None else field(record, reading.source_field, lambda: where(number))
    if not text or text.isspace():
        yield reading.empty(where(number), source, read)
        return
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise InputError(
            f"{where(number)}: its text has half of a surrogate pair alone ({half}), no character"
        ) from None
    yield from segments_of(data, text, source, reading.seed if keyed else None, read, lambda: where(number))


def field(record: Any, name: str, where: Callable[[], str]) -> str:
    """A text in a record; "a.b" is b of a.

    Raises:
        InputError: it is missing, or no text.
    """
    value = record
    for part in name.split("."):
        if not isinstance(value, dict):
            raise InputError(f"{where()}: has no {name!r}: {_kind(value)} instead of an object with {part!r}")
        if part not in value:
            there = ", ".join(map(repr, value)) or "nothing"
            raise InputError(f"{where()}: has no {name!r}; there is {there}")
        value = value[part]
    if not isinstance(value, str):
        raise InputError(f"{where()}: {name!r} is {_kind(value)} instead of a string")
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
