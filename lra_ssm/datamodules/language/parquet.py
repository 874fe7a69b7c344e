"""Parquet files, a row a document; shares are row groups."""

from collections.abc import Iterator
from typing import Any

from lra_ssm.datamodules.language.documents import MAX_SEGMENT_BYTES, Range, Reading, Segment, segments_of
from lra_ssm.errors import InputError

BATCH_BYTES = 4 << 20  # of rows read at a time, about
MOST_ROWS = 1024  # read at a time


def division(path: str, reading: Reading, piece_bytes: int) -> list[tuple[Range, int]]:
    """A file in shares of about piece_bytes, with their sizes as they are in the file.

    Raises:
        InputError: it cannot be read, or lacks the columns.
    """
    with _Opened(path) as file:
        _columns(path, file, reading)
        shares: list[tuple[Range, int]] = []
        begin = size = 0
        for group in range(file.num_row_groups):
            size += _size(file, group)
            if size >= piece_bytes or group == file.num_row_groups - 1:
                shares.append((Range(path, begin, group + 1), size))
                begin, size = group + 1, 0
        return shares


def segments(share: Range, reading: Reading, keyed: bool, done: int) -> Iterator[Segment]:
    """The documents of row groups of a file; `done`: bytes of the piece behind us.

    Raises:
        InputError: the file is damaged or lacks columns, a row is null, empty or not UTF-8; names the file and the row.
    """
    with _Opened(share.path) as file:
        columns = _columns(share.path, file, reading)
        groups = range(share.begin, file.num_row_groups if share.end is None else share.end)
        row = sum(file.metadata.row_group(group).num_rows for group in range(share.begin))
        for group in groups:
            rows, size = file.metadata.row_group(group).num_rows, _size(file, group)
            here = 0
            for texts, sources in _batches(share.path, file, group, columns, row):
                for index, text in enumerate(texts):
                    here += 1
                    yield from _document(
                        share.path, row, text, sources[index] if sources else "", reading, keyed,
                        done + size * here // rows,
                    )  # fmt: skip
                    row += 1
            done += size


def texts(path: str, reading: Reading, begin: int = 0, end: int | None = None) -> Iterator[list[str]]:
    """The texts of a file's rows begin to end (None: all), some at a time.

    Raises:
        InputError: the file is damaged or lacks the column, or a row is null or not UTF-8.
    """
    with _Opened(path) as file:
        columns = _columns(path, file, Reading(text_field=reading.text_field))
        row = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if row + rows > begin and (end is None or row < end):
                here = row
                for batch, _ in _batches(path, file, group, columns, row):
                    first, last = max(begin - here, 0), len(batch) if end is None else max(end - here, 0)
                    if None in batch:
                        raise InputError(f"{path}: row {here + batch.index(None)}: {columns[0]!r} is null")
                    yield batch[first:last]
                    here += len(batch)
            row += rows


def _document(
    path: str, row: int, text: str, source: str, reading: Reading, keyed: bool, read: int
) -> Iterator[Segment]:
    for name, value in ((reading.text_field, text), (reading.source_field, source)):
        if not isinstance(value, str):
            kind = "null" if value is None else f"of the type {type(value).__name__}"
            raise InputError(f"{path}: row {row}: {name!r} is {kind} instead of a string")
    if not text or text.isspace():
        yield reading.empty(f"{path}: row {row}", source, read)
        return
    data = text.encode()
    if len(data) > MAX_SEGMENT_BYTES:
        raise InputError(
            f"{path}: row {row}: a document longer than memory should hold (more than {MAX_SEGMENT_BYTES:,} bytes)"
        )
    yield from segments_of(data, text, source, reading.seed if keyed else None, read, lambda: f"{path}: row {row}")


def _batches(
    path: str, file: Any, group: int, columns: list[str], row: int
) -> Iterator[tuple[list[Any], list[Any] | None]]:
    """Texts and sources of some rows at a time."""
    metadata = file.metadata.row_group(group)
    rows = max(1, min(MOST_ROWS, BATCH_BYTES * metadata.num_rows // max(1, metadata.total_byte_size)))
    try:
        batches = file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False)
        while (batch := next(batches, None)) is not None:
            arrays = [_leaf(batch, name) for name in columns]
            try:
                lists = [array.to_pylist() for array in arrays]
            except UnicodeDecodeError:
                index, error = _first_broken(arrays)
                wrong = f"byte {error.object[error.start]:#04x}, the text's number {error.start + 1}"
                raise InputError(f"{path}: row {row + index}: is not UTF-8 ({wrong})") from None
            row += len(batch)
            yield lists[0], lists[1] if len(lists) > 1 else None
    except InputError:
        raise
    except Exception as error:  # of a damaged file, pyarrow raises whatever it does
        raise InputError(f"{path}: {_damaged(error)} in row group {group}") from error


def _first_broken(arrays: list[Any]) -> tuple[int, UnicodeDecodeError]:
    for index in range(len(arrays[0])):
        for array in arrays:
            try:
                array[index].as_py()
            except UnicodeDecodeError as error:
                return index, error
    raise AssertionError


def _leaf(batch: Any, name: str) -> Any:
    first, *parts = name.split(".")
    array = batch.column(first)
    for part in parts:
        array = array.field(part) if not array.null_count else array.flatten()[array.type.get_field_index(part)]
    return array


def _columns(path: str, file: Any, reading: Reading) -> list[str]:
    """The columns wanted.

    Raises:
        InputError: one is missing, or holds something else than strings.
    """
    import pyarrow

    names = [reading.text_field, *([] if reading.source_field is None else [reading.source_field])]
    for name in names:
        kind: Any = file.schema_arrow
        for part in name.split("."):
            index = kind.get_field_index(part) if hasattr(kind, "get_field_index") else -1
            if index < 0:
                there = ", ".join(file.schema_arrow.names)
                raise InputError(f"{path}: has no column {name!r}; there is {there or 'none'}")
            kind = kind.field(index).type
        value = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if not (pyarrow.types.is_string(value) or pyarrow.types.is_large_string(value)):
            raise InputError(f"{path}: column {name!r} holds {kind} instead of strings")
    return names


def _size(file: Any, group: int) -> int:
    """Bytes of a row group in the file."""
    metadata = file.metadata.row_group(group)
    return sum(metadata.column(column).total_compressed_size for column in range(metadata.num_columns))


class _Opened:
    """A parquet file that is read bit by bit. Raises InputError: it is none."""

    def __init__(self, path: str) -> None:
        import pyarrow.parquet

        try:
            # Column chunks come through a buffer then, not whole: a row group may be larger than memory.
            self.file = pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
            raise InputError(f"{path}: {_damaged(error)}") from error

    def __enter__(self) -> Any:
        return self.file

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _damaged(error: Exception) -> str:
    reason = str(error).partition("\n")[0] or type(error).__name__
    return f"is broken off or damaged parquet ({reason})"
