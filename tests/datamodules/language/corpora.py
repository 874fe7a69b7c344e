"""Documents put back together from their texts, small sizes for tests, and files made up."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lra_ssm.datamodules.language import documents
from lra_ssm.datamodules.language.documents import CorpusReader, Passage


class Document(NamedTuple):
    split: str
    text: str
    source: str


def small_sizes(patch: pytest.MonkeyPatch, text: int, most: int = 1 << 20) -> None:
    """Documents are cut to texts of so many bytes, and must be once they have `most`."""
    patch.setattr(documents, "TEXT_BYTES", text)
    patch.setattr(documents, "MOST_TEXT_BYTES", most)


def read(corpus: CorpusReader) -> list[Document]:
    """All documents, their texts joined and checked to be first, …, last of one document."""
    found: list[Document] = []
    parts: list[Passage] = []
    for shard in corpus.shards():
        for text in corpus.texts(shard):
            assert text.first == (not parts) and (text.text or (text.first and text.last))
            parts.append(text)
            if text.last:
                assert len({(part.split, part.source) for part in parts}) == 1
                assert text.split == (shard.split or text.split)
                found.append(Document(text.split, "".join(part.text for part in parts), text.source))
                parts = []
    assert not parts
    return found


def by_split(corpus: CorpusReader) -> dict[str, list[str]]:
    """The documents of each split."""
    found: dict[str, list[str]] = {}
    for document in read(corpus):
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
