"""Documents put back together from their segments, and small files of text."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from lra_ssm.datamodules.language.corpus import Input, Segment


class Whole(NamedTuple):
    """A document, its segments joined."""

    split: str
    text: str
    source: str


def joined(segments: Iterable[Segment]) -> list[Whole]:
    """Return all documents, their segments joined and checked to be first, …, last of one document."""
    found, parts = list[Whole](), list[Segment]()
    for segment in segments:
        assert segment.text and segment.first == (not parts)
        parts.append(segment)
        if segment.last:
            assert len({(part.split, part.source) for part in parts}) == 1
            found.append(Whole(segment.split, "".join(part.text for part in parts), segment.source))
            parts = []
    assert not parts
    return found


def read(inputs: list[Input]) -> list[Whole]:
    """Return all documents of a corpus."""
    return joined(segment for each in inputs for segment in each.read())


def by_split(inputs: list[Input]) -> dict[str, list[str]]:
    """Return the documents of each split."""
    found: dict[str, list[str]] = {}
    for document in read(inputs):
        found.setdefault(document.split, []).append(document.text)
    return found


def write_jsonl(path: Path, texts: list[str], **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text, **more}) + "\n" for text in texts))
    return path


def write_parquet(path: Path, columns: dict[str, Any], rows: int = 3) -> Path:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=rows)
    return path
