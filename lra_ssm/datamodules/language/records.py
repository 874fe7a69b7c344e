"""JSON lines, plain, by gzip or by zstd, and parquet: a record a document."""

import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.language.documents import Passage, Range, Reading, everywhere, texts_of
from lra_ssm.datamodules.language.plain_text import BOM
from lra_ssm.errors import InputError
from lra_ssm.files import one_reason

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_MOST_ROWS = 1024  # of parquet, read at a time

Record = tuple[Callable[[], str], Any]  # what names it, and what it holds


def texts(share: Range, reading: Reading, keyed: bool) -> Iterator[Passage]:
    """The documents of a file of JSON lines or parquet, or of a share of it; `keyed`: with keys.

    Raises:
        InputError: a damaged file, a line that is no JSON, a record without text; names file and line (or row).
    """
    names = _names(reading)
    records = _rows(share, names) if share.path.endswith(".parquet") else _lines(share)
    for where, record in records:
        text, *sources = (_field(record, name, where) for name in names)
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}"
            raise InputError(f"{where()}: its text has half of a surrogate pair alone ({half}), no character") from None
        yield from texts_of(data, 0, len(data), reading, keyed, everywhere(where), *sources)


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


def _lines(share: Range) -> Iterator[Record]:
    """Records of JSON lines, of a share of a file; blank lines are none."""
    import pyarrow  # comes with `datasets`

    path, end = share.path, share.end

    def where(number: int) -> str:
        before = 0
        if share.begin:  # read for messages alone
            with open(path, "rb") as file:
                before = file.read(share.begin).count(b"\n")
        return f"{path}:{before + number}"

    try:
        compression = COMPRESSIONS.get(Path(path).suffix)
        with io.BufferedReader(pyarrow.input_stream(path, compression=compression)) as file:
            position = file.seek(share.begin) if share.begin else 0
            for number, line in enumerate(file, start=1):
                position += len(line)
                if line and not line.isspace():
                    yield partial(where, number), _parsed(line.removeprefix(BOM), partial(where, number))
                if end is not None and position >= end:
                    return
    except InputError:
        raise
    except Exception as error:  # of a damaged file pyarrow raises whatever it does
        raise InputError(f"{path}: cannot be read, or is broken off or damaged ({one_reason(error)})") from error


def _parsed(line: bytes, where: Callable[[], str]) -> Any:
    try:
        return json.loads(line.rstrip().decode())
    except UnicodeDecodeError as error:
        wrong = f"byte {error.object[error.start]:#04x}, the line's number {error.start + 1}"
        raise InputError(f"{where()}: is not UTF-8 ({wrong})") from None
    except (ValueError, RecursionError) as error:
        why = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise InputError(f"{where()}: is no JSON ({why}); a document a line is expected") from None


def _rows(share: Range, names: list[str]) -> Iterator[Record]:
    """Records of row groups of a parquet file."""
    path = share.path
    file = _opened(path, names)
    groups = range(share.begin, file.num_row_groups if share.end is None else share.end)
    row = sum(file.metadata.row_group(group).num_rows for group in range(share.begin))
    try:
        for batch in file.iter_batches(_MOST_ROWS, row_groups=list(groups), columns=names, use_threads=False):
            for record in batch.to_pylist():
                yield partial("{}: row {}".format, path, row), record
                row += 1
    except InputError:
        raise
    except Exception as error:  # of a damaged file pyarrow raises whatever it does
        raise InputError(f"{path}: is broken off or damaged parquet near row {row} ({one_reason(error)})") from error


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


def _field(record: Any, name: str, where: Callable[[], str]) -> str:
    """A text in a record. Raises InputError: it is missing, or no text."""
    value = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            there = ", ".join(map(repr, value)) if isinstance(value, dict) else repr(value)
            raise InputError(f"{where()}: has no {name!r}; there is {there or 'nothing'}")
        value = value[part]
    if not isinstance(value, str):
        raise InputError(f"{where()}: {name!r} is {value!r} instead of a string")
    return value
