"""Measures texts to tokens, ours next to the usual way.

- encode: the tokenizer's library on texts in memory (only for a tokenizer.json).
- prepare: all that `lra-ssm prepare corpus` does with a file of these texts.
- datasets.map: as Hugging Face's run_clm example does, with an empty cache: load, map(tokenize), map(group_texts).
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

from bench import Bench, options, start
from lra_ssm.datamodules import Corpus

EXAMPLE = "python benchmarks/tokens.py --source=corpus.txt --tokenizer=tokenizer.json --threads=2"
_BYTES, _MADE_UP_WORDS = 64_000_000, 50_000
_BLOCK = 1024  # tokens: run_clm's default


def read_texts(source: Path | None, size: int) -> list[str]:
    """The first texts of a source, about `size` bytes: "text" of a .jsonl, else the paragraphs of a file.

    None: made up, of words with frequencies as Zipf has them.
    """
    try:
        texts, taken = [], 0
        for text in _made_up() if source is None else _read(source):
            texts += [text] if text.strip() else []
            taken += len(text.encode())
            if taken >= size:
                break
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f'error: --source {source}: cannot be read, or is not a jsonl of "text" ({error})') from error
    if not texts:
        raise SystemExit(f"error: --source {source}: it has no text")
    return texts


def _read(source: Path) -> Iterator[str]:
    text = source.read_text(encoding="utf-8")
    yield from (
        (json.loads(line)["text"] for line in text.splitlines()) if source.suffix == ".jsonl" else text.split("\n\n")
    )


def _made_up() -> Iterator[str]:
    random = np.random.RandomState(0)
    letters = np.array(list(ascii_lowercase))
    words = np.array(["".join(random.choice(letters, random.randint(1, 12))) for _ in range(_MADE_UP_WORDS)])
    while True:
        ranks = np.minimum(random.zipf(1.2, 250), _MADE_UP_WORDS)
        yield " ".join(words[ranks - 1])


class Tokenizing:
    """The calls, all of the same texts.  folder: an empty one, for files.  cores: processes, where a call has any."""

    def __init__(self, folder: Path, texts: list[str], tokenizer: str, cores: int) -> None:
        self.folder, self.texts, self.cores = folder, texts, cores
        self.file = folder / "texts.jsonl"
        self.file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        self.settings: dict[str, Any] = {"source": str(self.file), "val_fraction": 0.0}
        trained = Corpus(root=str(folder / "trained"), tokenizer=tokenizer, **self.settings)
        with redirect_stderr(io.StringIO()):  # its bar
            trained.prepare_data()
        self.tokens = trained.provenance()["tokens"]["train"]
        saved = trained.tokenizer_file
        self.calls = {"prepare": self._prepare}
        self.settings["tokenizer"] = tokenizer  # it has nothing to train but a vocabulary
        if saved.name == "tokenizer.json":
            from tokenizers import Tokenizer

            self.library = Tokenizer.from_file(str(saved))
            self.settings["tokenizer"] = str(saved)
            self.settings["end_of_text"] = self.library.id_to_token(trained.end_of_text_id)
            self.calls |= {"datasets.map": self._usual, "encode": self._encode}

    def _encode(self) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if self.cores > 1 else "false"  # looked up at every call
        self.library.encode_batch_fast(self.texts, add_special_tokens=False)

    def _prepare(self) -> None:
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        corpus = Corpus(root=str(self.folder / "data"), **self.settings)
        type(corpus).processes = self.cores
        with redirect_stderr(io.StringIO()):
            corpus.prepare_data()

    def _usual(self) -> None:
        import datasets

        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # it has processes
        datasets.disable_progress_bars()
        cache = self.folder / "cache"
        processes = {"num_proc": self.cores} if self.cores > 1 else {}
        loaded = datasets.load_dataset("json", data_files=str(self.file), cache_dir=str(cache), split="train")
        tokens = loaded.map(partial(_tokenized, self.library), batched=True, remove_columns=["text"], **processes)
        tokens.map(_group_texts, batched=True, **processes)
        shutil.rmtree(cache)


def _tokenized(library: Any, examples: dict[str, list[str]]) -> dict[str, Any]:
    """What `tokenizer(examples["text"])` does in transformers, at its least."""
    encodings = library.encode_batch(examples["text"], add_special_tokens=False)
    return {"input_ids": [e.ids for e in encodings], "attention_mask": [e.attention_mask for e in encodings]}


def _group_texts(examples: dict[str, list[list[int]]]) -> dict[str, Any]:
    result = {}
    for name, lists in examples.items():
        joined = list(chain(*lists))
        total = len(joined) // _BLOCK * _BLOCK
        result[name] = [joined[i : i + _BLOCK] for i in range(0, total, _BLOCK)]
    return result | {"labels": result["input_ids"].copy()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, EXAMPLE)
    parser.add_argument("--source", type=Path, metavar="FILE", help="a text file or .jsonl; default: made-up words")
    parser.add_argument("--tokenizer", default="bpe:16000", metavar="NAME", help="a tokenizer.json, words, characters, "
                        "bytes or bpe:N, trained on the texts; default: bpe:16000")  # fmt: skip
    given = parser.parse_args(arguments)
    texts = read_texts(given.source, 100_000 if given.quick else _BYTES)
    size = sum(len(text.encode()) for text in texts)
    bench = Bench("tokens", given)
    os.environ["RAYON_NUM_THREADS"] = str(bench.threads)  # read when the library first computes in parallel
    with TemporaryDirectory() as folder:
        bench.say(f"a tokenizer ({given.tokenizer}) of {size / 1e6:.3g} MB of texts")
        work = Tokenizing(Path(folder), texts, given.tokenizer, bench.threads)
        shape = {"texts": len(texts), "kB": size // 1000, "tokens": work.tokens, "cores": bench.threads}
        rows = bench.times(f"tokens of {given.tokenizer}", "texts to tokens", shape, work.calls)
    for row in rows:
        if row.ms:
            row.extra |= {"MB/s": size / row.ms / 1e3, "tokens/s": 1e3 * work.tokens / row.ms}
    bench.keep(rows)
    bench.finish()


if __name__ == "__main__":
    start(main)
