"""Find the files of a corpus, read them by their form, group them into parts.

.txt                            plain text; the setting `documents` says what a document is
.jsonl, .jsonl.gz, .jsonl.zst   one document per line
.parquet                        one document per row
"""

import io
import json
import logging
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.download import read_parquet
from lra_ssm.datamodules.language.corpus import Document, Input, ReadOptions, Segment, read_text, segments
from lra_ssm.datamodules.storage import visible_files
from lra_ssm.errors import InputError, describe_error

log = logging.getLogger(__name__)

PART_BYTES = 8 << 20  # smaller files share a part with their neighbors
FORMS = (".txt", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")


def read_file(path: Path, options: ReadOptions, split: str | None = None) -> Iterator[Document]:
    """Yield the documents of a file by its form.

    Raises:
        InputError: the file cannot be read or is damaged, a line is not JSON, a record has no text, or the text is not
            UTF-8; names file and line (or row).
    """
    try:
        if path.suffix == ".txt":
            with open(path, "rb") as file:
                yield from read_text(file, str(path), options.documents, split)
            return
        columns = [name for name in (options.text_field, options.source_field) if name is not None]
        for where, record in read_parquet(path, *columns) if path.suffix == ".parquet" else _json_lines(path):
            text = _field(record, options.text_field, where)
            source = "" if options.source_field is None else _field(record, options.source_field, where)
            yield Document(text, where, split, source)
    except InputError:
        raise
    except Exception as error:  # a damaged file raises errors of many kinds
        raise InputError(f"{path}: cannot be read, or is cut off or damaged ({describe_error(error)})") from error


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow

    with io.BufferedReader(pyarrow.input_stream(str(path), compression="detect"), 1 << 20) as file:
        for number, line in enumerate(file, start=1):
            if line.isspace():
                continue
            try:
                record = json.loads(line.rstrip())
            except (ValueError, RecursionError) as error:  # not UTF-8, or not JSON
                raise InputError(f"{path}:{number}: is not JSON ({error}); expected one document per line") from None
            yield f"{path}:{number}", record


def _field(record: Any, name: str, where: str) -> str:
    """Return a text in a record; "" for null, which dumps of tables have."""
    value = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            keys = ", ".join(map(repr, value)) if isinstance(value, dict) else repr(value)
            raise InputError(f"{where}: has no {name!r}; it has {keys or 'nothing'}")
        value = value[part]
    if value is not None and not isinstance(value, str):
        raise InputError(f"{where}: {name!r} is {value!r} instead of a string")
    return value or ""


# -- files -------------------------------------------------------------------------------------------------------------

_SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_IGNORED = (".md", ".lock", "files.json")  # files next to a corpus that do not belong to it


def find_files(folder: Path, forms: tuple[str, ...] = FORMS) -> list[Path]:
    """Return all files of these forms below a folder, sorted by their paths, without hidden ones.

    Raises:
        InputError: there are no such files.
    """
    files = visible_files(folder)
    readable = [path for path in files if path.name.endswith(forms)]
    others = [str(path.relative_to(folder)) for path in files if not path.name.endswith((*forms, *_IGNORED))]
    others = [*others[:3], *([f"and {len(others) - 3} more"] if len(others) > 3 else [])]
    if not readable:
        raise InputError(f"{folder}: holds no files in {', '.join(forms)}; it has {', '.join(others) or 'none'}")
    if others:
        log.warning("%s: passing over %s: not one of %s", folder, ", ".join(others), ", ".join(forms))
    return readable


def split_of(path: Path, folder: Path) -> str | None:
    """Return the split that the name of a file, or of its folders below `folder`, states; None for none.

    The rule is Hugging Face's (datasets.data_files): a keyword anywhere in the name, delimited by "-", ".", "_", a
    space or a digit, as in TinyStories-valid.txt or c4-validation.00000-of-00001.jsonl.gz; folders count first.

    Raises:
        InputError: a name has the keywords of two splits.
    """
    for part in path.relative_to(folder).parts:
        words = {*re.split(r"[-._ 0-9]+", part)}
        splits = [split for split, keywords in _SPLIT_NAMES.items() if words & {*keywords}]
        if len(splits) > 1:
            raise InputError(f"{path}: {part!r} names two splits, {' and '.join(splits)}; rename it")
        if splits:
            return splits[0]
    return None


def file_inputs(files: Iterable[tuple[Path, str | None]], options: ReadOptions) -> list[Input]:
    """Return an input for each file and its split (None: each document's hash decides)."""
    return [Input([path], partial(_read, path, options, split)) for path, split in files]


def _read(path: Path, options: ReadOptions, split: str | None) -> Iterator[Segment]:
    return segments(read_file(path, options, split), options)


def in_parts(inputs: list[Input]) -> list[list[Input]]:
    """Group inputs into parts of a preparation: one input each, but small neighbors together."""
    parts, total = list[list[Input]](), PART_BYTES + 1
    for each in inputs:
        if total + (size := each.size) > PART_BYTES:
            parts.append([])
            total = 0
        parts[-1].append(each)
        total += size
    return parts
