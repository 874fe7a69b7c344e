"""The suite of tokens: texts to flat ids in files, against the library's own `encode_batch` and datasets.map.

Everybody has the same number of cores and the same texts, and tokenizer libraries are loaded before:

- encode_batch: `tokenizers` itself on texts in memory, a thread for each core; its Encodings are let go.
- encode_batch_fast: the same without offsets.
- ours: a process for each core, started before, reads its share of the texts from a file, loads the tokenizer, begins
  without kept words and writes a file of ids.
- ours, prepare: all that `lra-ssm prepare` does: processes started, parts, merge, digests, manifest.
- datasets.map: as Hugging Face's run_clm example does: load, map(tokenise), map(group_texts), with a process for each
  core, an empty cache and no end of text; of `transformers` nothing but the calls that its tokenizers make.

Of a tokenizer that is none of the library's, ours alone.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from lra_ssm.bench import token_batches
from lra_ssm.bench.compare import Bar, Row, Settings
from lra_ssm.bench.measure import WallTimer, interleave, ratio
from lra_ssm.bench.token_work import TokenWork, read_texts
from lra_ssm.datamodules.language.choosing import TokenizerChoice, parse_tokenizer, train_tokenizer

MODE = "texts to tokens"
_BYTES = 64_000_000  # of texts


def check(settings: Settings) -> TokenizerChoice:
    """What is to be measured. Raises InputError where there is no such tokenizer or no such source."""
    read_texts(settings.source, 1)
    return parse_tokenizer(settings.tokenizer or "bpe:16000")


def run(settings: Settings) -> dict[str, Any]:
    choice = check(settings)
    texts = read_texts(settings.source, 100_000 if settings.quick else _BYTES)
    size = sum(len(text.encode()) for text in texts)
    settings.announce(f"a tokenizer ({choice.text}) of {size / 1e6:.3g} MB of texts")
    tokenizer = train_tokenizer(choice, texts) if choice.is_trained else choice.open()
    shape = {"texts": len(texts), "MB": round(size / 1e6, 3), "cores": settings.threads}
    with tempfile.TemporaryDirectory() as folder:
        work = TokenWork(Path(folder), tokenizer, texts, settings.threads)
        settings.announce(MODE)
        try:
            timings = interleave(work.calls(), WallTimer(), settings.effort, settings.tick)
            tokens, right = len(work.tokens()), work.are_right()
        finally:
            work.pool.shutdown()
    rows = []
    base = next(iter(timings))
    spent = {name: statistics.median(seconds) for name, seconds in work.core_seconds.items()}
    for name, timing in timings.items():
        row = Row(f"tokens of {choice.text}", name, MODE, shape, timing, base, ratio(timing, timings[base]))
        row.extra = {
            "MB/s": size / 1e6 / timing.median,
            "tokens/s": tokens / timing.median,
            "core seconds": spent[name],
            "core seconds / base's": spent[name] / spent[base],
        }
        if name == "ours":
            row.extra |= {
                "bytes per token": size / tokens,
                ("prepare's tokens" if base == name else "the library's tokens"): str(right),
            }
        rows.append(row)
    ours = timings["ours"]
    over_ours = {name: ratio(timing, ours) for name, timing in timings.items()}
    settings.done(rows)
    batches = token_batches.run(settings)
    settings.done(batches)
    bars = [Bar("", row.contender, row.extra["MB/s"]) for row in rows]
    return {
        "rows": [*rows, *batches],
        "times over ours": over_ours,
        "bars": bars,
        "unit": f"MB of text a second, {settings.threads} cores",
    }
