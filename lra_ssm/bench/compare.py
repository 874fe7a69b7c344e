"""One comparison: several contenders at one shape, their times taken in turn, memory and errors beside them."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from lra_ssm.bench.measure import Effort, Timing, interleave, ratio, timer_for
from lra_ssm.bench.memory import MemoryFailure, Peak, available_bytes, peak_memory
from lra_ssm.bench.work import BOTH, FORWARD, Prepared, Work


class Truth(Protocol):
    """Hashable; what the contenders should compute, in float64."""

    @property
    def label(self) -> str: ...

    def results(self) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class Contender:
    label: str
    work: Work
    truth: Truth | None = None


@dataclass(frozen=True)
class Errors:
    """Largest absolute error over the truth's largest absolute value."""

    value: float
    worst_gradient: float | None
    worst_gradient_of: str | None
    truth: str


class Bar(NamedTuple):
    """Of a suite's picture. `group`: what is compared, whose bars share a scale and a panel; empty where all do."""

    group: str
    name: str
    value: float


@dataclass
class Row:
    """A contender in one mode. `ratio`: (median, spread) of its time over that of `base`, round by round."""

    comparison: str
    contender: str
    mode: str
    shape: dict[str, Any]
    timing: Timing | None = None
    base: str | None = None
    ratio: tuple[float, float] | None = None
    memory: Peak | None = None
    errors: Errors | None = None
    note: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def ms(self) -> float | None:
        return None if self.timing is None else self.timing.median * 1e3

    def as_dict(self) -> dict[str, Any]:
        data = asdict(self)
        if self.timing is not None:
            data["timing"] = {
                "median_ms": self.ms,
                "spread": self.timing.spread,
                "number_of_samples": len(self.timing.seconds),
                "calls_per_sample": self.timing.inner,
                "samples_ms": {r: 1e3 * s for r, s in sorted(self.timing.seconds.items())},
            }
        if self.ratio is not None:
            data["ratio"] = {"to": self.base, "median": self.ratio[0], "spread": self.ratio[1]}
        return data


@dataclass
class Settings:
    """What every suite is given. `announce(text)` says what is being measured now, `done(rows)` keeps what has been."""

    device: torch.device
    backends: list[str]
    threads: int
    effort: Effort
    quick: bool = False
    batch: int | None = None
    channels: int | None = None
    states: int | None = None
    lengths: list[int] | None = None
    compiled: bool = False
    config: str | None = None
    source: str | None = None
    tokenizer: str | None = None
    sizes: list[str] | None = None
    announce: Callable[[str], None] = lambda text: None
    tick: Callable[[], None] = lambda: None
    done: Callable[[Sequence[Row]], None] = lambda rows: None


def errors_against(results: dict[str, Tensor], truth: dict[str, Tensor], label: str) -> Errors:
    """The first result is the value, the others gradients; both have the same names."""
    relative = {}
    for name, want in truth.items():
        error, scale = float((results[name].to(want.dtype) - want).abs().max()), float(want.abs().max())
        # a gradient that is zero throughout (A's at length 1) has no relative error; NaN is worse than anything
        relative[name] = math.inf if math.isnan(error) else error / (scale or 1.0)
    value, *gradients = truth
    worst = max(gradients, key=lambda name: relative[name]) if gradients else None
    return Errors(relative[value], relative[worst] if worst else None, worst, label)


def compare(
    name: str,
    shape: dict[str, Any],
    contenders: Sequence[Contender],
    settings: Settings,
    base: str | None = None,
    modes: Sequence[str] = (FORWARD, BOTH),
) -> list[Row]:
    """Measures memory, then errors, then times; a contender that cannot run stays in the rows with the reason.

    base: the contender that times are ratios to; the first one that runs if not given.
    """
    rows = {(c.label, mode): Row(name, c.label, mode, shape) for c in contenders for mode in modes}
    prepared: dict[str, Prepared] = {}
    for truth in dict.fromkeys(c.truth for c in contenders):  # one truth is held at a time: it may be large
        want: dict[str, Tensor] = {}
        own = [c for c in contenders if c.truth == truth]
        failed = {c.label: _memory(c, [rows[c.label, mode] for mode in modes], settings) for c in own}
        if truth is not None and not all(failed.values()):
            settings.announce(f"{name}: {truth.label}")
            try:
                want = truth.results()
            except _FAILURES as error:
                _without_errors([rows[c.label, mode] for c in own for mode in modes], error)
        for contender in own:
            of_contender = [rows[contender.label, mode] for mode in modes]
            reason = failed[contender.label]
            if reason is None:
                settings.announce(f"{name}: errors of {contender.label}")
                try:
                    prepared[contender.label] = contender.work.build()
                except _FAILURES as error:
                    reason = _reason(error)
            if reason is None and truth is not None and want:
                try:
                    errors = errors_against(prepared[contender.label].results(), want, truth.label)
                    for row in of_contender:
                        row.errors = errors
                except _FAILURES as error:  # they take more memory than what is timed
                    _without_errors(of_contender, error)
            for row in of_contender:
                row.note = reason
            settings.tick()
        del want
        gc.collect()
    for mode in modes:
        settings.announce(f"{name}: {mode}")
        calls = {label: prepared[label].calls[mode] for label in prepared}
        try:
            timings = interleave(calls, timer_for(settings.device), settings.effort, settings.tick)
        except _FAILURES as error:  # beside each other they may need more memory than each alone
            for label in calls:
                rows[label, mode].note = _reason(error)
            continue
        to = base if base in timings else next(iter(timings), None)
        for label, timing in timings.items():
            row = rows[label, mode]
            row.timing, row.base = timing, to
            row.ratio = ratio(timing, timings[to]) if to is not None else None
    settings.done(list(rows.values()))
    return list(rows.values())


_FAILURES = (MemoryFailure, RuntimeError, ValueError, ImportError)  # out of memory is a RuntimeError


def _without_errors(rows: Sequence[Row], error: BaseException) -> None:
    for row in rows:
        row.extra["errors not measured:"] = _reason(error)


def _memory(contender: Contender, rows: Sequence[Row], settings: Settings) -> str | None:
    """Sets the rows' memory; returns why the contender cannot run, or None."""
    settings.announce(f"{rows[0].comparison}: memory of {contender.label}")
    needed, there = contender.work.bytes_needed(), available_bytes(settings.device)
    if needed > there:
        return f"not tried: may need {needed / 1e9:.1f} GB of the {there / 1e9:.1f} GB that it may take"
    try:
        peaks = peak_memory(contender.work, [row.mode for row in rows], settings.device, settings.threads)
    except _FAILURES as error:
        return _reason(error)
    for row in rows:
        row.memory = peaks[row.mode]
    return None


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
