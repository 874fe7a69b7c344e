"""Measures texts to tokens, ours next to the usual way.

- encode: the tokenizer's library on texts in memory (of a tokenizer.json; other tokenizers are ours alone).
- prepare: all that `lra-ssm prepare corpus` does with a file of these texts.
- datasets.map: as Hugging Face's run_clm example does, with an empty cache: load, map(tokenise), map(group_texts).
"""

import io
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from functools import partial
from itertools import chain
from pathlib import Path
from string import ascii_lowercase
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench import Bench, Row, options, start
from lra_ssm.datamodules import Corpus
from measure import Call
from plots import Bar

EXAMPLE = "python benchmarks/tokens.py --source=corpus/ --tokenizer=tokenizer.json --threads=2"
_BYTES, _MADE_UP_WORDS = 64_000_000, 50_000
_BLOCK = 1024  # tokens: run_clm's default


def read_texts(source: Path | None, size: int) -> list[str]:
    """The first texts of a source, about `size` bytes: "text" of .jsonl, paragraphs of a file, .txt files of a folder.

    None: made up, of words with frequencies as Zipf has them.
    """
    texts: list[str] = []
    taken = 0
    try:
        for text in _made_up() if source is None else _read(source):
            if text.strip():
                texts.append(text)
                taken += len(text.encode())
            if taken >= size:
                break
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f'error: --source {source}: cannot be read, or is no jsonl of "text" ({error})') from error
    if not texts:
        raise SystemExit(f"error: --source {source}: no text in it")
    return texts


def _read(source: Path) -> Iterator[str]:
    if source.is_dir():
        for file in sorted(source.rglob("*.txt")):
            yield file.read_text(encoding="utf-8")
    elif source.suffix == ".jsonl":
        with open(source, encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["text"]
    else:
        yield from source.read_text(encoding="utf-8").split("\n\n")


def _made_up() -> Iterator[str]:
    random = np.random.RandomState(0)
    letters = np.array(list(ascii_lowercase))
    lengths = [random.randint(1, 12) for _ in range(_MADE_UP_WORDS)]
    words = np.array(["".join(random.choice(letters, length)) for length in lengths])
    while True:
        ranks = np.minimum(random.zipf(1.2, 250), _MADE_UP_WORDS)
        yield " ".join(words[ranks - 1])


class Tokenising:
    """The calls, all of the same texts.  folder: an empty one, for files.  cores: processes, where a call has any."""

    def __init__(self, folder: Path, texts: list[str], tokenizer: str, cores: int) -> None:
        self.folder, self.texts, self.cores = folder, texts, cores
        self.file = folder / "texts.jsonl"
        _write(texts, self.file)
        self.settings: dict[str, Any] = {"source": str(self.file), "val_fraction": 0.0}
        trained = Corpus(root=str(folder / "trained"), tokenizer=tokenizer, **self.settings)
        _quietly(trained.prepare_data)
        self.tokens = trained.provenance()["tokens"]["train"]
        saved = trained.tokenizer_file
        if saved.name != "tokenizer.json":
            self.settings["tokenizer"] = tokenizer  # of which there is nothing to train but a vocabulary
            self.library = None
            return
        from tokenizers import Tokenizer

        self.library = Tokenizer.from_file(str(saved))
        self.settings["tokenizer"] = str(saved)
        self.settings["end_of_text"] = self.library.id_to_token(trained.end_of_text_id)

    def calls(self) -> dict[str, Call]:
        if self.library is None:
            return {"prepare": self._prepare}
        return {"prepare": self._prepare, "datasets.map": self._usual, "encode": self._encode}

    def _encode(self) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if self.cores > 1 else "false"  # looked up at every call
        self.library.encode_batch_fast(self.texts, add_special_tokens=False)

    def _prepare(self) -> None:
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        corpus = Corpus(root=str(self.folder / "data"), **self.settings)
        type(corpus).processes = self.cores
        _quietly(corpus.prepare_data)

    def _usual(self) -> None:
        import datasets

        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # it has processes
        datasets.disable_progress_bars()
        cache = self.folder / "cache"
        processes = {"num_proc": self.cores} if self.cores > 1 else {}
        loaded = datasets.load_dataset("json", data_files=str(self.file), cache_dir=str(cache), split="train")
        tokenise = partial(_tokenised, self.library)
        tokens = loaded.map(tokenise, batched=True, remove_columns=["text"], **processes)
        tokens.map(_group_texts, batched=True, **processes)
        shutil.rmtree(cache)


def _write(texts: list[str], file: Path) -> None:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def _quietly(call: Call) -> None:
    with redirect_stderr(io.StringIO()):  # its bar
        call()


def _tokenised(library: Any, examples: dict[str, list[str]]) -> dict[str, Any]:
    """What `tokenizer(examples["text"])` does in transformers, at its least."""
    encodings = library.encode_batch(examples["text"], add_special_tokens=False)
    return {"input_ids": [e.ids for e in encodings], "attention_mask": [e.attention_mask for e in encodings]}


def _group_texts(examples: dict[str, list[list[int]]]) -> dict[str, Any]:
    result = {}
    for name, lists in examples.items():
        joined = list(chain(*lists))
        total = len(joined) // _BLOCK * _BLOCK
        result[name] = [joined[i : i + _BLOCK] for i in range(0, total, _BLOCK)]
    result["labels"] = result["input_ids"].copy()
    return result


def compare_tokenising(texts: list[str], bench: Bench) -> list[Row]:
    size = sum(len(text.encode()) for text in texts)
    tokenizer = bench.given.tokenizer
    os.environ["RAYON_NUM_THREADS"] = str(bench.threads)  # read when the library first computes in parallel
    with TemporaryDirectory() as folder:
        bench.say(f"a tokenizer ({tokenizer}) of {size / 1e6:.3g} MB of texts")
        work = Tokenising(Path(folder), texts, tokenizer, bench.threads)
        shape = {"texts": len(texts), "kB": size // 1000, "tokens": work.tokens, "cores": bench.threads}
        rows = bench.times(f"tokens of {tokenizer}", "texts to tokens", shape, work.calls())
    for row in rows:
        if row.ms:
            row.extra["MB/s"] = size / row.ms / 1e3
            row.extra["tokens/s"] = 1e3 * work.tokens / row.ms
    return bench.keep(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, EXAMPLE)
    parser.add_argument("--source", type=Path, metavar="PATH", help="a text file, .jsonl, or folder of .txt; default: "
                        "made-up words")  # fmt: skip
    parser.add_argument("--tokenizer", default="bpe:16000", metavar="NAME", help="a tokenizer.json, words, characters, "
                        "bytes or bpe:N, trained on the texts; default: bpe:16000")  # fmt: skip
    given = parser.parse_args(arguments)
    texts = read_texts(given.source, 100_000 if given.quick else _BYTES)
    bench = Bench("tokens", given)
    rows = compare_tokenising(texts, bench)
    bars = [Bar("", row.contender, row.extra["MB/s"]) for row in rows if row.ms]
    bench.finish_bars(bars, f"MB of text a second, {bench.threads} cores")


if __name__ == "__main__":
    start(main)
