"""A made-up SlimPajama in the published schema: text, meta.redpajama_set_name; as parquet or jsonl.zst."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

SOURCES = {
    "RedPajamaCommonCrawl": 0.52,
    "RedPajamaC4": 0.27,
    "RedPajamaGithub": 0.05,
    "RedPajamaBook": 0.04,
    "RedPajamaArXiv": 0.05,
    "RedPajamaWikipedia": 0.04,
    "RedPajamaStackExchange": 0.03,
}


_WORDS = 20_000
_SEPARATORS = (" ", ". ", ".\n")


@cache
def _table() -> np.ndarray:
    """Words, each with each of the separators behind it (separators · words,)."""
    rng = np.random.default_rng(0)
    letters = "etaoinshrdlucm"
    ends = np.cumsum(rng.integers(1, 12, _WORDS))
    text = "".join(letters[i] for i in rng.integers(0, len(letters), ends[-1]))
    words = [text[end - length : end] for end, length in zip(ends, np.diff(ends, prepend=0), strict=True)]
    words[100::50] = ["größe"] * len(words[100::50])  # not ASCII alone
    return np.array([word + separator for separator in _SEPARATORS for word in words], dtype=object)


def documents(size: int, seed: int, mean_bytes: int = 4000) -> Iterator[tuple[str, str]]:
    """(text, source) until their texts have about `size` bytes: Zipf's words, sentences, lines; lengths vary widely."""
    rng, table = np.random.default_rng(seed), _table()
    shares = np.cumsum(1 / np.arange(1, _WORDS + 1))
    names = list(SOURCES)
    limits = np.cumsum(list(SOURCES.values()))
    done = 0
    while done < size:
        count = max(int(rng.lognormal(np.log(mean_bytes / 10), 1.0)), 3)
        words = np.searchsorted(shares, rng.random(count) * shares[-1])
        text = "".join(table[words + _WORDS * np.searchsorted((0.92, 0.97), rng.random(count))]).rstrip()
        yield text, names[int(np.searchsorted(limits, rng.random() * limits[-1]))]
        done += len(text)


def write(folder: Path, form: str, size: int, *, files: int = 8, seed: int = 0) -> None:
    """Writes train (of `files` files), validation and test (a file each, a fiftieth of `size`)."""
    shares = [("train", f"train-{i:05d}", size // files, i) for i in range(files)]
    shares += [("validation", "validation-00000", size // 50, files), ("test", "test-00000", size // 50, files + 1)]
    for split, name, share, number in shares:
        rows = documents(share, seed + number)
        if form == "parquet":
            _parquet(folder / "data" / f"{name}-of-{files:05d}.parquet", rows)
        else:
            _jsonl(folder / split / "chunk1" / f"{name}.jsonl.zst", rows)


def _parquet(path: Path, rows) -> None:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    schema = pyarrow.schema(
        [("text", pyarrow.string()), ("meta", pyarrow.struct([("redpajama_set_name", pyarrow.string())]))]
    )
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        batch = []
        for text, source in rows:
            batch.append({"text": text, "meta": {"redpajama_set_name": source}})
            if len(batch) == 1000:
                writer.write_table(pyarrow.Table.from_pylist(batch, schema))
                batch = []
        if batch:
            writer.write_table(pyarrow.Table.from_pylist(batch, schema))


def _jsonl(path: Path, rows) -> None:
    import pyarrow

    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.output_stream(str(path), compression="zstd") as file:
        for text, source in rows:
            row = {"text": text, "meta": {"redpajama_set_name": source}}
            file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
