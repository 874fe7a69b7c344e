"""The suite of tokens: from texts to tokens, ours beside the usual way, and batches of windows beside a training step.

- encode: the tokenizer on texts in memory; a tokenizer.json's has a thread for each core.
- prepare: all that `lra-ssm prepare corpus` does with a file of these texts, digests and manifest too.
- datasets.map: as Hugging Face's run_clm example does: load, map(tokenise), map(group_texts), with a process for each
  core, an empty cache and no end of text; of `transformers` nothing but the calls that its tokenizers make. Of a
  tokenizer.json alone.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.bench import token_batches
from lra_ssm.bench.compare import Bar, Row, Settings
from lra_ssm.bench.measure import WallTimer, interleave, ratio
from lra_ssm.datamodules.corpus.module import Corpus
from lra_ssm.datamodules.language.choosing import TokenizerChoice, parse_tokenizer, train_tokenizer
from lra_ssm.datamodules.language.subwords import SubwordTokenizer
from lra_ssm.datamodules.language.tokenizers import TextTokenizer
from lra_ssm.datamodules.storage.format import IntArray
from lra_ssm.errors import InputError

MODE = "texts to tokens"
_BYTES = 64_000_000  # of texts
_BLOCK = 1024  # tokens, run_clm's default
_MADE_UP_WORDS = 50_000


def check(settings: Settings) -> TokenizerChoice:
    """What is to be measured. Raises InputError where there is no such tokenizer or no such source."""
    read_texts(settings.source, 1)
    return parse_tokenizer(settings.tokenizer or "bpe:16000")


def run(settings: Settings) -> dict[str, Any]:
    choice = check(settings)
    texts = read_texts(settings.source, 100_000 if settings.quick else _BYTES)
    size = sum(len(text.encode()) for text in texts)
    settings.announce(f"a tokenizer ({choice.text}) of {size / 1e6:.3g} MB of texts")
    os.environ["RAYON_NUM_THREADS"] = str(settings.threads)  # read when the library first computes in parallel
    tokenizer = train_tokenizer(choice, texts) if choice.is_trained else choice.open()
    shape = {"texts": len(texts), "MB": round(size / 1e6, 3), "cores": settings.threads}
    with tempfile.TemporaryDirectory() as folder:
        work = TokenWork(Path(folder), tokenizer, texts, settings.threads)
        settings.announce(MODE)
        timings = interleave(work.calls(), WallTimer(), settings.effort, settings.tick)
        tokens, prepared = work.tokens(), work.prepared()
    rows = []
    for name, timing in timings.items():
        row = Row(f"tokens of {choice.text}", name, MODE, shape, timing, "encode", ratio(timing, timings["encode"]))
        row.extra = {"MB/s": size / 1e6 / timing.median, "tokens/s": len(tokens) / timing.median}
        rows.append(row)
    rows[0].extra |= {"bytes per token": size / len(tokens), "prepare's tokens": str(np.array_equal(tokens, prepared))}
    settings.done(rows)
    batches = token_batches.run(settings)
    settings.done(batches)
    bars = [Bar("", row.contender, row.extra["MB/s"]) for row in rows]
    return {"rows": [*rows, *batches], "bars": bars, "unit": f"MB of text a second, {settings.threads} cores"}


class TokenWork:
    """The calls, all of the same texts.

    Args:
        folder: an empty one, for files.
        tokenizer: what all have.
        texts: documents.
        cores: processes, where a call has any.
    """

    def __init__(self, folder: Path, tokenizer: TextTokenizer, texts: list[str], cores: int) -> None:
        self.folder, self.tokenizer, self.texts, self.cores = folder, tokenizer, texts, cores
        self._saved = tokenizer.save(folder)
        self._file = folder / "texts.jsonl"
        self._file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        end = tokenizer.end_of_text_name
        root, saved = str(folder / "data"), str(self._saved)
        self._corpus = Corpus(source=str(self._file), root=root, tokenizer=saved, end_of_text=end, val_fraction=0.0)
        self._corpus.processes = cores  # type: ignore[misc]

    def calls(self) -> dict[str, Callable[[], Any]]:
        usual = {"datasets.map": self._usual} if isinstance(self.tokenizer, SubwordTokenizer) else {}
        return {"encode": self.tokens, "prepare": self._prepare, **usual}

    def tokens(self) -> IntArray:
        """Those of all texts, each followed by the end of text."""
        _parallel(self.cores > 1)
        return self.tokenizer.encode(self.texts, [True] * len(self.texts)).tokens

    def prepared(self) -> IntArray:
        """Those that the last call of prepare has left."""
        (split,) = self._corpus.text_splits("train")
        return split.tokens(0, split.num_tokens)

    def _prepare(self) -> None:
        _parallel(self.cores > 1)
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        with redirect_stderr(io.StringIO()):  # its bar
            self._corpus.prepare_data()

    def _usual(self) -> None:
        import datasets
        from tokenizers import Tokenizer

        _parallel(False)  # in its processes
        datasets.disable_progress_bars()
        cache = self.folder / "cache"
        processes = {"num_proc": self.cores} if self.cores > 1 else {}
        loaded = datasets.load_dataset("json", data_files=str(self._file), cache_dir=str(cache), split="train")
        tokenise = partial(_tokenised, Tokenizer.from_file(str(self._saved)))
        tokens = loaded.map(tokenise, batched=True, remove_columns=["text"], **processes)
        tokens.map(_group_texts, batched=True, **processes)
        shutil.rmtree(cache)


def _parallel(wanted: bool) -> None:
    """Whether the library computes in parallel, which it looks up at every call."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if wanted else "false"


def _tokenised(library: Any, examples: dict[str, list[str]]) -> dict[str, Any]:
    """What `tokenizer(examples["text"])` does in transformers, at its least."""
    encodings = library.encode_batch(examples["text"], add_special_tokens=False)
    return {"input_ids": [e.ids for e in encodings], "attention_mask": [e.attention_mask for e in encodings]}


def _group_texts(examples: dict[str, list[list[int]]]) -> dict[str, Any]:
    joined = {name: list(chain(*lists)) for name, lists in examples.items()}
    total = len(joined["input_ids"]) // _BLOCK * _BLOCK
    result = {name: [ids[i : i + _BLOCK] for i in range(0, total, _BLOCK)] for name, ids in joined.items()}
    result["labels"] = result["input_ids"].copy()
    return result


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
