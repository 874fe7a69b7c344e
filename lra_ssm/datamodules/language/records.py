"""JSON lines, plain, by gzip or by zstd, and parquet: a record a document."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.language.documents import BadText, Passage, Range, Reading, placed, texts_of
from lra_ssm.datamodules.language.plain_text import BOM
from lra_ssm.errors import InputError
from lra_ssm.files import one_reason

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_MOST_ROWS = 1024  # of parquet, read at a time


def texts(share: Range, reading: Reading, split: str | None) -> Iterator[Passage]:
    """The documents of a file of JSON lines or parquet, or of a share of it; split: theirs, None where each one's
    beginning decides.

    Raises:
        InputError: a damaged file, a line that is no JSON, a record without text; names file and line (or row).
    """
    names, is_parquet, number = _names(reading), share.path.endswith(".parquet"), 0

    def where(_: int) -> str:
        return f"{share.path}: row {number}" if is_parquet else f"{share.path}:{_lines_before(share) + number}"

    with placed(where):
        for number, found in _rows(share, names) if is_parquet else _lines(share):  # noqa: B007  (`where` names it)
            record = found if is_parquet else _parsed(found)
            text = _field(record, reading.text_field)
            source = "" if reading.source_field is None else _field(record, reading.source_field)
            try:
                data = text.encode()
            except UnicodeEncodeError as error:
                half = f"\\u{ord(text[error.start]):04x}"
                raise BadText(f"its text has half of a surrogate pair alone ({half}), no character") from None
            yield from texts_of(data, 0, len(data), reading, split, source)


def parquet_division(path: str, shard_bytes: int, reading: Reading) -> list[tuple[Range, int]]:
    """A parquet file in shares of about shard_bytes, with their sizes as they are in the file.

    Raises:
        InputError: it cannot be read, or lacks a column.
    """
    file = _opened(path, _names(reading))
    shares: list[tuple[Range, int]] = []
    begin = size = 0
    for group in range(file.num_row_groups):
        metadata = file.metadata.row_group(group)
        size += sum(metadata.column(column).total_compressed_size for column in range(metadata.num_columns))
        if size >= shard_bytes or group == file.num_row_groups - 1:
            shares.append((Range(path, begin, group + 1), size))
            begin, size = group + 1, 0
    return shares


def _names(reading: Reading) -> list[str]:
    return [reading.text_field, *([] if reading.source_field is None else [reading.source_field])]


def _lines(share: Range) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of a share of a file; blank ones are passed over."""
    import pyarrow  # comes with `datasets`

    try:
        compression = COMPRESSIONS.get(Path(share.path).suffix)
        with io.BufferedReader(pyarrow.input_stream(share.path, compression=compression)) as file:
            position = file.seek(share.begin) if share.begin else 0
            for number, line in enumerate(file, start=1):
                position += len(line)
                if not line.isspace():
                    yield number, line.removeprefix(BOM)
                if share.end is not None and position >= share.end:
                    return
    except Exception as error:  # of a damaged file pyarrow raises whatever it does
        raise InputError(f"{share.path}: cannot be read, or is broken off or damaged ({one_reason(error)})") from error


def _lines_before(share: Range) -> int:
    """Of the file, which is read for messages alone."""
    if not share.begin:
        return 0
    with open(share.path, "rb") as file:
        return file.read(share.begin).count(b"\n")


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.rstrip().decode())
    except UnicodeDecodeError as error:
        wrong = f"byte {error.object[error.start]:#04x}, the line's number {error.start + 1}"
        raise BadText(f"is not UTF-8 ({wrong})") from None
    except (ValueError, RecursionError) as error:
        why = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise BadText(f"is no JSON ({why}); a document a line is expected") from None


def _rows(share: Range, names: list[str]) -> Iterator[tuple[int, Any]]:
    """Numbered records of row groups of a parquet file."""
    file = _opened(share.path, names)
    groups = range(share.begin, file.num_row_groups if share.end is None else share.end)
    row = sum(file.metadata.row_group(group).num_rows for group in range(share.begin))
    try:
        for batch in file.iter_batches(_MOST_ROWS, row_groups=list(groups), columns=names, use_threads=False):
            yield from enumerate(batch.to_pylist(), start=row)
            row += len(batch)
    except Exception as error:  # of a damaged file pyarrow raises whatever it does
        raise InputError(
            f"{share.path}: is broken off or damaged parquet near row {row} ({one_reason(error)})"
        ) from error


def _opened(path: str, names: list[str]) -> Any:
    """A parquet file. Raises InputError: it is none, or lacks a column."""
    import pyarrow.parquet

    try:
        # Column chunks come through a buffer then, not whole: a row group may be larger than memory.
        file = pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except Exception as error:
        raise InputError(f"{path}: is broken off or damaged parquet ({one_reason(error)})") from error
    columns = file.schema_arrow.names
    for name in names:
        if name.partition(".")[0] not in columns:
            raise InputError(f"{path}: has no column {name!r}; there is {', '.join(columns) or 'none'}")
    return file


def _field(record: Any, name: str) -> str:
    """A text in a record. Raises BadText: it is missing, or no text."""
    value = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            there = ", ".join(map(repr, value)) if isinstance(value, dict) else repr(value)
            raise BadText(f"has no {name!r}; there is {there or 'nothing'}")
        value = value[part]
    if not isinstance(value, str):
        raise BadText(f"{name!r} is {value!r} instead of a string")
    return value
