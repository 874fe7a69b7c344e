"""Batches of windows beside a training step of the smallest language model: what loading text costs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lra_ssm.bench.compare import Row, Settings
from lra_ssm.bench.measure import Call, WallTimer, interleave, ratio
from lra_ssm.datamodules.language.shards import TokenWriter
from lra_ssm.datamodules.language.windows import Streams, TokenWindows, Windows
from lra_ssm.datamodules.storage.format import TokenSplit
from lra_ssm.layers import S4D, LayerSpec
from lra_ssm.models import Backbone

MODE = "a batch"
_TOKENS = 10_000_000
_DOCUMENT = 300  # tokens
_VOCABULARY = 257  # of bytes: the smallest head


def run(settings: Settings) -> list[Row]:
    """Rows: the step (forward and backward of one S4D block of 64 channels, a head over bytes, AdamW), and how many of
    it a batch takes, shuffled and in streams, documents isolated."""
    batch, length = (2, 64) if settings.quick else (32, 512)
    with tempfile.TemporaryDirectory() as folder:
        split = _written(Path(folder), 100_000 if settings.quick else _TOKENS)
        windows = {"shuffled": Windows([split], length), "streams": Streams([split], length, batch)}
        calls = {"step": _step(windows["shuffled"], batch), **{n: _next(w, batch) for n, w in windows.items()}}
        settings.announce(f"{MODE} of {batch} × {length}")
        timings = interleave(calls, WallTimer(), settings.effort, settings.tick)
    shape = {"batch": batch, "length": length}
    rows = []
    for name, timing in timings.items():
        row = Row("windows of text", name, MODE, shape, timing, "step", ratio(timing, timings["step"]))
        row.extra = {"tokens/s": batch * length / timing.median}
        rows.append(row)
    return rows


def _written(folder: Path, count: int) -> TokenSplit:
    random = np.random.RandomState(0)
    writer = TokenWriter(folder, "train", 0, _VOCABULARY)
    writer.append(random.randint(0, _VOCABULARY, count).astype(np.uint16), np.arange(0, count, _DOCUMENT))
    return TokenSplit(folder, writer.close(), _VOCABULARY, _VOCABULARY - 1)


def _next(windows: TokenWindows, batch: int) -> Call:
    order = np.random.RandomState(1).permutation(len(windows)) if isinstance(windows, Windows) else None
    batches = len(windows) // batch
    number = 0

    def call() -> None:
        nonlocal number
        begin = number % batches * batch
        windows.batch(np.arange(begin, begin + batch) if order is None else order[begin : begin + batch], 0)
        number += 1

    return call


def _step(windows: TokenWindows, batch: int) -> Call:
    torch.manual_seed(0)
    backbone = Backbone(LayerSpec(S4D), vocab_size=_VOCABULARY, d_model=64, n_layers=1)
    head = nn.Linear(64, _VOCABULARY)
    optimizer = torch.optim.AdamW([*backbone.parameters(), *head.parameters()])
    inputs, targets, _, _ = windows.batch(np.arange(batch), 0)

    def call() -> None:
        loss = nn.functional.cross_entropy(head(backbone(inputs)).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return call
