"""The suite of layers, forward and backward: those of the LRA models at their sizes, and the time-invariant ones among
themselves.

Shapes: x, y (B, L, D).  (B batch, L length, D channels.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lra_ssm.bench.compare import Bar, Contender, Row, Settings, compare
from lra_ssm.bench.work import Prepared, generator, prepare, random_like
from lra_ssm.layers import LayerSpec
from lra_ssm.ops import prefer_backend

# Sources: configs/lra/listops; Yu & Erichson 2025, table 4, for the width and batch of sCIFAR ("Image"), and the S4D
# paper's public settings for S4D's batch of 50.
_SELECTIVE = {"d_state": 64, "bidirectional": True}
_INVARIANT = "time-invariant, causal"  # as LRU is published; sizes and batch are our choice
LAYERS = {
    "S4D": _SELECTIVE,
    "StableSSM": _SELECTIVE,
    "LRU": {"d_state": 128, "bidirectional": True},
    "S6": _SELECTIVE,
    "B2S6": {**_SELECTIVE, "num_blocks": 8},
}
BATCHES = {
    "ListOps": {"S4D": 50, "S6": 32, "B2S6": 32},
    "sCIFAR": {"S4D": 50, "S6": 48, "B2S6": 48},
    _INVARIANT: {"S4D": 16, "StableSSM": 16, "LRU": 16},
}
SIZES = {
    "ListOps": {"length": 2048, "d_model": 128},
    "sCIFAR": {"length": 1024, "d_model": 512},
    _INVARIANT: {"length": 4096, "d_model": 128},
}
_WITH_A_SCAN = ("S6", "B2S6")  # of whose backends there are several
_CPU_BATCH = 2  # of the published batches on a CPU, unless --batch says more


@dataclass(frozen=True)
class LayerWork:
    """arguments: of the layer's class, as sorted pairs, so that this is hashable."""

    layer: str
    arguments: tuple[tuple[str, Any], ...]
    batch: int
    length: int
    d_model: int
    backend: str
    device: torch.device
    dtype: torch.dtype = torch.float32

    def build(self) -> Prepared:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layer = LayerSpec(f"lra_ssm.layers.{self.layer}", **dict(self.arguments))(self.d_model)
        layer = layer.to(self.device, self.dtype)
        x = torch.randn(self.batch, self.length, self.d_model, generator=generator()).to(self.device, self.dtype)
        parameters = {name: p.detach() for name, p in layer.named_parameters()}

        def run(x: Tensor, **parameters: Tensor) -> Tensor:
            with prefer_backend(self.backend):
                return torch.func.functional_call(layer, parameters, (x,))

        # dotted names of parameters pass as keywords too, through a dict
        return prepare(run, {"x": x, **parameters}, random_like)

    def smaller(self) -> LayerWork:
        return replace(self, batch=1, length=min(self.length, 64))

    def bytes_needed(self) -> float:
        states = dict(self.arguments).get("d_state", 16)
        return self.dtype.itemsize * self.batch * self.length * (60 * self.d_model + 40 * 8 * states)


@dataclass(frozen=True)
class LayerTruth:
    """The same layer, parameters and input in float64."""

    work: LayerWork
    label: str = "float64 run of the same layer"

    def results(self) -> dict[str, Tensor]:
        return replace(self.work, dtype=torch.float64, backend="auto").build().results()


def run(settings: Settings) -> dict[str, Any]:
    rows: list[Row] = []
    for task, size in SIZES.items():
        for published in dict.fromkeys(BATCHES[task].values()):
            for length in settings.lengths or [size["length"]]:
                batch = settings.batch or (published if settings.device.type == "cuda" else min(published, _CPU_BATCH))
                d_model = settings.channels or size["d_model"]
                if settings.quick:
                    batch, length, d_model = 2, 32, 16
                rows += _compare(task, published, batch, length, d_model, settings)
    return {
        "rows": rows,
        "bars": [Bar(_group(row), row.contender, row.extra["tokens/s"]) for row in rows if row.timing],
        "unit": "tokens/s",
    }


def _group(row: Row) -> str:
    return f"{row.comparison}, L = {row.shape['length']}, {row.mode}"


def _compare(task: str, published: int, batch: int, length: int, d_model: int, settings: Settings) -> list[Row]:
    contenders = []
    for layer, arguments in LAYERS.items():
        if BATCHES[task].get(layer) != published:
            continue
        if task == _INVARIANT:
            arguments = {**arguments, "bidirectional": False}
        for backend in settings.backends if layer in _WITH_A_SCAN else settings.backends[:1]:
            work = LayerWork(layer, tuple(sorted(arguments.items())), batch, length, d_model, backend, settings.device)
            name = f"{layer}, {backend}" if layer in _WITH_A_SCAN else layer
            contenders.append(Contender(name, work, LayerTruth(replace(work, backend="auto"))))
    shape = {"batch": batch, "length": length, "channels": d_model}
    rows = compare(
        f"{task} layers, {'batch' if task == _INVARIANT else 'published batch'} {published}",
        shape,
        contenders,
        settings,
    )
    for row in rows:
        if row.timing is not None:
            row.extra["tokens/s"] = batch * length / row.timing.median
    return rows
