"""Documents put back together from segments, small sizes for tests, and files made up."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lra_ssm.datamodules.language import documents, opening, plain_text
from lra_ssm.datamodules.language.documents import CorpusReader


class Document(NamedTuple):
    split: str | None
    text: str
    source: str
    key: int


def small_sizes(patch: pytest.MonkeyPatch, segment: int, most: int = 1 << 20, block: int = 64) -> None:
    """Segments of so many bytes, files read by so many, and boundaries that reach no further than small ones do."""
    for module in (documents, opening, plain_text):
        for name, value in (("SEGMENT_BYTES", segment), ("MAX_SEGMENT_BYTES", most), ("BLOCK_BYTES", block)):
            if hasattr(module, name):
                patch.setattr(module, name, value)


def read(corpus: CorpusReader) -> list[Document]:
    """All documents, their segments joined and checked to be first, …, last of one document."""
    found: list[Document] = []
    parts: list[documents.Segment] = []
    for piece in corpus.pieces():
        read = 0
        for segment in corpus.segments(piece):
            assert segment.first == (not parts) and (segment.text or (segment.first and segment.last))
            assert read <= segment.read <= piece.size
            read = segment.read
            parts.append(segment)
            if segment.last:
                assert len({(part.key, part.source) for part in parts}) == 1
                text = "".join(part.text for part in parts)
                found.append(Document(piece.split, text, segment.source, segment.key))
                parts = []
    assert not parts
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
