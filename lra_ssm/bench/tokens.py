"""The suite of tokenizers: texts to flat arrays of ids in files, against the library's `encode_batch` and datasets.map.

Everybody has the same number of cores, and processes that are started and have loaded their libraries:

- encode_batch: `tokenizers` itself on texts in memory, as many threads as there are cores; its Encodings are let go.
- encode_batch_fast: the same without offsets.
- ours: a process for each core, which reads its share from a file, begins without kept words and writes a file of ids.
- datasets.map: as Hugging Face's run_clm example does: load, map(tokenise), map(group_texts), num_proc as above, with
  the calls that its tokenizers make, an empty cache and no end of text.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.bench.compare import Row, Settings
from lra_ssm.bench.measure import WallTimer, interleave, ratio
from lra_ssm.datamodules.language.specifications import TokenizerChoice, parse_tokenizer
from lra_ssm.datamodules.language.subwords import SubwordTokenizer
from lra_ssm.datamodules.language.tokenizers import TextTokenizer, load_tokenizer
from lra_ssm.datamodules.language.vocabularies import train_tokenizer
from lra_ssm.errors import InputError

BATCH = 1000  # texts of a call, the default of datasets.map
BLOCK = 1024  # run_clm's default
MODE = "texts to tokens"
ITSELF, OURS, USUAL = "encode_batch", "ours", "datasets.map"
_BYTES = 16_000_000  # of texts
_MADE_UP_WORDS = 50_000


def run(settings: Settings) -> dict[str, Any]:
    choice = parse_tokenizer(settings.tokenizer or "bpe:16000")
    texts = read_texts(settings.source, 100_000 if settings.quick else _BYTES)
    size = sum(len(text.encode()) for text in texts)
    settings.announce(f"a tokenizer ({choice.text}) of {size / 1e6:.3g} MB of texts")
    tokenizer = train_tokenizer(choice, texts) if choice.is_trained else choice.open()
    shape = {"texts": len(texts), "MB": round(size / 1e6, 3), "cores": settings.threads}
    with tempfile.TemporaryDirectory() as folder, _threads_of_the_library(settings.threads):
        work = _Work(Path(folder), choice, tokenizer, texts, settings.threads)
        calls = {OURS: work.ours}
        if isinstance(tokenizer, SubwordTokenizer):
            calls = {ITSELF: work.itself, "encode_batch_fast": work.fast, **calls, USUAL: work.usual}
        settings.announce(MODE)
        try:
            timings = interleave(calls, WallTimer(), settings.effort, settings.tick)
            tokens, same = len(work.tokens()), work.is_same()
        finally:
            work.pool.shutdown()
    base = ITSELF if ITSELF in timings else OURS
    rows = []
    for name, timing in timings.items():
        row = Row(f"tokens of {choice.text}", name, MODE, shape, timing, base, ratio(timing, timings[base]))
        row.extra = {"MB/s": size / 1e6 / timing.median, "tokens/s": tokens / timing.median}
        if name == OURS:
            row.extra["bytes per token"] = size / tokens
            row.extra["same tokens as encode_batch"] = str(same)
        if name in (ITSELF, USUAL):
            row.extra["its time over ours"] = ratio(timing, timings[OURS])[0]
        rows.append(row)
    settings.done(rows)
    bars = [(row.contender, row.extra["MB/s"]) for row in rows]
    return {"rows": rows, "bars": bars, "unit": f"MB of text a second, {settings.threads} cores"}


class _Work:
    """The calls, all of the same texts."""

    def __init__(
        self, folder: Path, choice: TokenizerChoice, tokenizer: TextTokenizer, texts: list[str], cores: int
    ) -> None:
        self.folder, self.tokenizer, self.texts, self.cores = folder, tokenizer, texts, cores
        self.saved = tokenizer.save(folder)
        if isinstance(tokenizer, SubwordTokenizer):
            from tokenizers import Tokenizer

            self.library = Tokenizer.from_file(str(self.saved))
            self.library.no_truncation()
            self.library.no_padding()
            self.library.encode_special_tokens = True
        bounds = np.searchsorted(
            np.cumsum([len(t) for t in texts]), np.arange(cores + 1) / cores * sum(map(len, texts))
        )
        bounds[-1] = len(texts)
        self.shares = [folder / f"{i}.jsonl" for i in range(cores)]
        for path, begin, end in zip(self.shares, bounds[:-1], bounds[1:], strict=True):
            _write(path, texts[begin:end])
        _write(folder / "all.jsonl", texts)
        self.pool = ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"), _one_thread)

    def itself(self) -> None:
        for begin in range(0, len(self.texts), BATCH):
            self.library.encode_batch(self.texts[begin : begin + BATCH], add_special_tokens=False)

    def fast(self) -> None:
        for begin in range(0, len(self.texts), BATCH):
            self.library.encode_batch_fast(self.texts[begin : begin + BATCH], add_special_tokens=False)

    def ours(self) -> None:
        list(
            self.pool.map(
                _encode_file, self.shares, [self.saved] * self.cores, [self.tokenizer.end_of_text] * self.cores
            )
        )

    def usual(self) -> None:
        import datasets

        cache = self.folder / "cache"
        datasets.disable_progress_bars()
        loaded = datasets.load_dataset(
            "json", data_files=str(self.folder / "all.jsonl"), cache_dir=str(cache), split="train"
        )
        num_proc = {"num_proc": self.cores} if self.cores > 1 else {}
        tokens = loaded.map(_Tokenise(str(self.saved)), batched=True, remove_columns=["text"], **num_proc)
        tokens.map(_group_texts, batched=True, **num_proc)
        shutil.rmtree(cache)

    def tokens(self) -> np.ndarray[Any, Any]:
        return np.concatenate([np.fromfile(path.with_suffix(".bin"), self.tokenizer.dtype) for path in self.shares])

    def is_same(self) -> bool:
        """Whether ours are the library's ids, each text's followed by the end of text."""
        if not isinstance(self.tokenizer, SubwordTokenizer):
            return True
        want = (
            (*encoding.ids, self.tokenizer.end_of_text)
            for begin in range(0, len(self.texts), BATCH)
            for encoding in self.library.encode_batch(self.texts[begin : begin + BATCH], add_special_tokens=False)
        )
        return bool(np.array_equal(np.fromiter(chain.from_iterable(want), np.int64), self.tokens()))


def _write(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def _one_thread() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _encode_file(path: Path, saved: Path, end_of_text: int) -> None:
    tokenizer = load_tokenizer(saved, end_of_text)
    with open(path, encoding="utf-8") as lines, open(path.with_suffix(".bin"), "wb") as file:
        while texts := [json.loads(line)["text"] for line in islice(lines, BATCH)]:
            tokenizer.encode(texts, [True] * len(texts)).tokens.tofile(file)


class _Tokenise:
    """What `tokenizer(examples["text"])` does in transformers, at its least. Pickled by path: its name in the cache."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, examples: dict[str, list[str]]) -> dict[str, Any]:
        _one_thread()  # in a process of datasets.map, or with a single core
        encodings = _library(self.path).encode_batch(examples["text"], add_special_tokens=False)
        return {"input_ids": [e.ids for e in encodings], "attention_mask": [e.attention_mask for e in encodings]}


_LIBRARY: dict[str, Any] = {}


def _library(path: str) -> Any:
    if path not in _LIBRARY:
        from tokenizers import Tokenizer

        _LIBRARY[path] = Tokenizer.from_file(path)
    return _LIBRARY[path]


def _group_texts(examples: dict[str, list[list[int]]]) -> dict[str, Any]:
    joined = {name: list(chain(*lists)) for name, lists in examples.items()}
    total = len(joined["input_ids"]) // BLOCK * BLOCK
    result = {name: [ids[i : i + BLOCK] for i in range(0, total, BLOCK)] for name, ids in joined.items()}
    result["labels"] = result["input_ids"].copy()
    return result


@contextmanager
def _threads_of_the_library(threads: int) -> Iterator[None]:
    """`tokenizers` reads these when it first computes in parallel, the first also later."""
    wanted = {"TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false", "RAYON_NUM_THREADS": str(threads)}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def read_texts(source: str | None, size: int) -> list[str]:
    """The first texts of a source, about `size` bytes: lines of .jsonl, paragraphs of a file, files of a folder.

    None: made up, of words with frequencies as Zipf has them.

    Raises:
        InputError: there is no such source, or no text in it.
    """
    texts, taken = list[str](), 0
    for text in _made_up() if source is None else _texts(Path(source).expanduser()):
        if text.strip():
            texts.append(text)
            taken += len(text.encode())
        if taken >= size:
            break
    if not texts:
        raise InputError(
            f'--source {source}: there is no text in it (of .jsonl lines\' "text", files, .txt of a folder)'
        )
    return texts


def _texts(source: Path) -> Iterator[str]:
    try:
        if source.is_dir():
            for path in sorted(source.rglob("*.txt")):
                yield path.read_text(encoding="utf-8")
        elif source.suffix == ".jsonl":
            with open(source, encoding="utf-8") as lines:
                for line in lines:
                    yield json.loads(line)["text"]
        else:
            yield from source.read_text(encoding="utf-8").split("\n\n")
    except OSError as error:
        raise InputError(f"--source {source}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f'--source {source}: is no UTF-8, or no jsonl of "text" ({error})') from error


def _made_up() -> Iterator[str]:
    random = np.random.RandomState(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(random.choice(letters, random.randint(1, 12))) for _ in range(_MADE_UP_WORDS)])
    while True:
        ranks = np.minimum(random.zipf(1.2, 250), _MADE_UP_WORDS) - 1
        yield " ".join(words[ranks])
