"""The ways from texts to tokens that the suite compares, and the texts. Needs no torch: processes load it."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.datamodules.language import jsonl
from lra_ssm.datamodules.language.builder import Preparation
from lra_ssm.datamodules.language.choosing import load_tokenizer, parse_tokenizer
from lra_ssm.datamodules.language.documents import HeldOut, Piece, Range, Reading, Segment
from lra_ssm.datamodules.language.subwords import SubwordTokenizer
from lra_ssm.datamodules.language.tokenizers import TextTokenizer
from lra_ssm.datamodules.storage.format import TokenSplit, open_prepared
from lra_ssm.errors import InputError

BATCH = 1000  # texts of a call, the default of datasets.map
BLOCK = 1024  # run_clm's default
_MADE_UP_WORDS = 50_000


class TokenWork:
    """The calls, all of the same texts; `core_seconds` of each call are kept by its name.

    Args:
        folder: an empty one, for files.
        tokenizer: what all have.
        texts: documents.
        cores: threads of the library, processes of the others.
    """

    def __init__(self, folder: Path, tokenizer: TextTokenizer, texts: list[str], cores: int) -> None:
        self.folder, self.tokenizer, self.texts, self.cores = folder, tokenizer, texts, cores
        self.core_seconds: dict[str, list[float]] = {}
        self._saved = tokenizer.save(folder)
        ends = np.cumsum([len(text) for text in texts])
        bounds = [0, *np.searchsorted(ends, ends[-1] * np.arange(1, cores) / cores).tolist(), len(texts)]
        self._shares = [folder / f"{i}.jsonl" for i in range(cores)]
        for path, begin, end in zip(self._shares, bounds[:-1], bounds[1:], strict=True):
            _write(path, texts[begin:end])
        _write(folder / "all.jsonl", texts)
        self.pool = ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"), _one_thread)
        if isinstance(tokenizer, SubwordTokenizer):
            self._library = _library(str(self._saved))

    def calls(self) -> dict[str, Callable[[], None]]:
        ours = {"ours": self._ours, "ours, prepare": self._prepare}
        if isinstance(self.tokenizer, SubwordTokenizer):
            batch, fast = self._library.encode_batch, self._library.encode_batch_fast
            theirs = {"encode_batch": partial(self._encode, batch), "encode_batch_fast": partial(self._encode, fast)}
            return {**theirs, **ours, "datasets.map": self._usual}
        return ours

    def _encode(self, encode: Callable[..., list[Any]]) -> None:
        with self._spent(encode.__name__), _library_threads(self.cores):
            for begin in range(0, len(self.texts), BATCH):
                encode(self.texts[begin : begin + BATCH], add_special_tokens=False)

    def _ours(self) -> None:
        call = partial(_encode_file, saved=self._saved, end_of_text=self.tokenizer.end_of_text)
        self.core_seconds.setdefault("ours", []).append(sum(self.pool.map(call, self._shares)))

    def _prepare(self) -> None:
        parts, prepared = self.folder / "parts", self.folder / "prepared"
        shutil.rmtree(parts, ignore_errors=True)
        shutil.rmtree(prepared, ignore_errors=True)
        prepared.mkdir()
        choice = parse_tokenizer(str(self._saved))
        reader = _Reader(tuple(map(str, self._shares)))
        preparation = Preparation(parts, "texts", reader, choice, self.tokenizer.end_of_text_name, self.cores)
        with self._spent("ours, prepare"), redirect_stderr(io.StringIO()):  # its bar
            preparation.tokenise()
            preparation.merge(prepared, lambda splits: {"kind": "bench"})

    def _usual(self) -> None:
        import datasets

        datasets.disable_progress_bars()
        file, cache = str(self.folder / "all.jsonl"), self.folder / "cache"
        processes = {"num_proc": self.cores} if self.cores > 1 else {}
        with self._spent("datasets.map"), _library_threads(1):
            loaded = datasets.load_dataset("json", data_files=file, cache_dir=str(cache), split="train")
            call = _Tokenise(str(self._saved))
            tokens = loaded.map(call, batched=True, batch_size=BATCH, remove_columns=["text"], **processes)
            tokens.map(_group_texts, batched=True, batch_size=BATCH, **processes)
        shutil.rmtree(cache)

    @contextmanager
    def _spent(self, name: str) -> Iterator[None]:
        """Counts the seconds of all threads here, and of the processes that begin and end meanwhile."""
        before = _core_seconds()
        yield
        self.core_seconds.setdefault(name, []).append(_core_seconds() - before)

    def tokens(self) -> np.ndarray[Any, Any]:
        """Those that "ours" wrote."""
        return np.concatenate([np.fromfile(path.with_suffix(".bin"), self.tokenizer.dtype) for path in self._shares])

    def are_right(self) -> bool:
        """Whether what both of ours wrote are the library's ids, each text's followed by the end of text."""
        split = open_prepared(self.folder / "prepared").split("train")
        assert isinstance(split, TokenSplit)
        own = self.tokens()
        if not np.array_equal(split.tokens(0, split.num_tokens), own):
            return False
        if not isinstance(self.tokenizer, SubwordTokenizer):
            return True
        want = (
            (*encoding.ids, self.tokenizer.end_of_text)
            for begin in range(0, len(self.texts), BATCH)
            for encoding in self._library.encode_batch(self.texts[begin : begin + BATCH], add_special_tokens=False)
        )
        return np.array_equal(np.fromiter(chain.from_iterable(want), np.int64), own)


@dataclass(frozen=True)
class _Reader:
    """Of JSON lines, a piece for each file."""

    files: tuple[str, ...]
    held_out: HeldOut = HeldOut()

    def pieces(self) -> list[Piece]:
        return [Piece("train", (Range(file, 0, None),), os.path.getsize(file)) for file in self.files]

    def segments(self, piece: Piece) -> Iterator[Segment]:
        return jsonl.segments(piece.ranges[0], Reading(), False, 0)

    def split_of(self, key: int) -> str:
        return self.held_out.split(key)

    def content_settings(self) -> dict[str, Any]:
        return {}


def _core_seconds() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def _write(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def _one_thread() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _encode_file(path: Path, saved: Path, end_of_text: int) -> float:
    """Its seconds of a core."""
    begin = time.process_time()
    tokenizer = load_tokenizer(saved, end_of_text)
    with open(path, encoding="utf-8") as lines, open(path.with_suffix(".bin"), "wb") as file:
        while texts := [json.loads(line)["text"] for line in islice(lines, BATCH)]:
            tokenizer.encode(texts, [True] * len(texts)).tokens.tofile(file)
    return time.process_time() - begin


class _Tokenise:
    """What `tokenizer(examples["text"])` does in transformers, at its least. Pickles as a path."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, examples: dict[str, list[str]]) -> dict[str, Any]:
        encodings = _library(self.path).encode_batch(examples["text"], add_special_tokens=False)
        return {"input_ids": [e.ids for e in encodings], "attention_mask": [e.attention_mask for e in encodings]}


_LIBRARY: dict[str, Any] = {}


def _library(path: str) -> Any:
    if path not in _LIBRARY:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(path)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        _LIBRARY[path] = tokenizer
    return _LIBRARY[path]


def _group_texts(examples: dict[str, list[list[int]]]) -> dict[str, Any]:
    joined = {name: list(chain(*lists)) for name, lists in examples.items()}
    total = len(joined["input_ids"]) // BLOCK * BLOCK
    result = {name: [ids[i : i + BLOCK] for i in range(0, total, BLOCK)] for name, ids in joined.items()}
    result["labels"] = result["input_ids"].copy()
    return result


@contextmanager
def _library_threads(threads: int) -> Iterator[None]:
    """The first is read at every call, the second when the library first computes in parallel."""
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
    """The first texts of a source, about `size` bytes: lines of .jsonl, paragraphs of a file, .txt files of a folder.

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
        raise InputError(f'--source {source}: no text in it: the "text" of .jsonl, a file, or .txt files of a folder')
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
