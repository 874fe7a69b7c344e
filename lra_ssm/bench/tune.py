"""The suite that tunes the Triton kernels: other cuts of a scan into programs than the default one, by shape.

What wins here at every shape becomes the constant of `lra_ssm.ops.backends.triton_call`.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest.mock import patch

import torch

from lra_ssm.bench.compare import Bar, Contender, Row, Settings, compare
from lra_ssm.bench.operators import shapes_of
from lra_ssm.bench.scan import B2S6, CHANNELS_LAST, S6, ScanWork
from lra_ssm.bench.work import BOTH, Prepared, Work
from lra_ssm.errors import InputError
from lra_ssm.machine import available_cores
from lra_ssm.ops.backends import triton_call

DEFAULT = "as it is"
CUTS: dict[str, dict[str, int]] = {
    DEFAULT: {},
    "half the state forward": {"FORWARD_STATE": 256},
    "twice the state forward": {"FORWARD_STATE": 1024},
    "half the state backward": {"BACKWARD_STATE": 128, "BACKWARD_STATE_REAL_EULER": 256},
    "twice the state backward": {"BACKWARD_STATE": 512, "BACKWARD_STATE_REAL_EULER": 1024},
    "two warps a program, twice the state": {
        "WARPS": 2, "FORWARD_STATE": 1024, "BACKWARD_STATE": 512, "BACKWARD_STATE_REAL_EULER": 1024,
    },
    "more segments": {"FEW_WARPS": 8, "GOOD_WARPS": 16},
    "most segments": {"FEW_WARPS": 16, "GOOD_WARPS": 32},
    "fewer segments": {"FEW_WARPS": 2, "GOOD_WARPS": 4},
    "chunks of 32": {"CHUNK": 32},
    "chunks of 128": {"CHUNK": 128},
}  # fmt: skip


@dataclass(frozen=True)
class CutWork:
    """A scan cut as CUTS[cut] says."""

    work: ScanWork
    cut: str

    def build(self) -> Prepared:
        with self._in_force():
            prepared = self.work.build()
        calls = {mode: self._cut(call) for mode, call in prepared.calls.items()}
        return Prepared(calls, self._cut(prepared.results))

    def _in_force(self) -> Any:
        return patch.dict(vars(triton_call), CUTS[self.cut])

    def _cut(self, call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with self._in_force():
                return call()

        return run

    def smaller(self) -> CutWork:
        return replace(self, work=self.work.smaller())

    def bytes_needed(self) -> float:
        return 2 * self.work.bytes_needed()  # smaller blocks of channels mean more sums of gradients


def check(settings: Settings) -> None:
    """Raises InputError where there are no Triton kernels to tune."""
    if settings.backends[0] != "triton":
        raise InputError(f"bench tune: for the Triton kernels, which {settings.device.type} does not run")


def run(settings: Settings) -> dict[str, Any]:
    if not settings.quick:
        settings = replace(settings, lengths=settings.lengths or [4096])
    works = {}
    for shape in shapes_of(settings):
        for case in (S6, B2S6):
            own = replace(shape, states=shape.states // 2) if case.is_complex else shape
            work = ScanWork(case, own, settings.backends[0], settings.device, CHANNELS_LAST)
            works[case.name, own] = {cut: CutWork(work, cut) for cut in CUTS}
    settings.announce("compiling")
    compile_all([work for cuts in works.values() for work in cuts.values()])
    rows: list[Row] = []
    for (name, own), cuts in works.items():
        contenders = [Contender(cut, work) for cut, work in cuts.items()]
        rows += compare(f"{name}, cut in other ways", asdict(own), contenders, settings, base=DEFAULT)
    bars = [
        Bar(f"{row.comparison.split(',')[0]}, {tuple(row.shape.values())}", row.contender, 1 / row.ratio[0])
        for row in rows
        if row.ratio is not None and row.mode == BOTH
    ]
    return {"rows": rows, "bars": bars, "unit": "speed over the default's"}


def compile_all(works: Sequence[Work]) -> None:
    """Compiles what works will need, into Triton's cache on disk, on every core: one after the other takes minutes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(available_cores(), len(works)), context) as pool:
        for _ in pool.map(_call_once, works):
            pass


def _call_once(work: Work) -> None:
    with suppress(RuntimeError):  # its row will say why
        for call in work.build().calls.values():
            call()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
