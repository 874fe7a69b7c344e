"""Times of calls that are compared: taken in turn, so that what slows the machine for a while slows all of them."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

Call = Callable[[], Any]


class Timer(Protocol):
    def __call__(self, call: Call, number: int) -> float:
        """Seconds that `number` calls, one after the other, take."""


class WallTimer:
    """Seconds by the wall; for devices that have computed when a call returns."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now

    def __call__(self, call: Call, number: int) -> float:
        start = self.now()
        for _ in range(number):
            call()
        return self.now() - start


class CudaTimer:
    """Seconds between two events on the GPU's stream, after everything before them is done."""

    def __call__(self, call: Call, number: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(number):
            call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3


def timer_for(device: torch.device) -> Timer:
    return CudaTimer() if device.type == "cuda" else WallTimer()


def core_seconds() -> tuple[float, float] | None:
    """Seconds that this process's threads ran so far, and that they were ready to and got no core; None where the
    kernel does not count them (Linux does)."""
    ran = waited = 0
    try:
        threads = list(Path("/proc/self/task").iterdir())
    except OSError:
        return None
    for thread in threads:
        with suppress(OSError):  # it ended meanwhile
            times = (thread / "schedstat").read_text().split()
            ran, waited = ran + int(times[0]), waited + int(times[1])
    return (ran / 1e9, waited / 1e9) if ran else None


def waiting_share(before: tuple[float, float] | None, after: tuple[float, float] | None) -> float | None:
    """Of the time that threads wanted a core, the share without one: 0 on an idle machine."""
    if before is None or after is None:
        return None
    ran, waited = (max(late - early, 0.0) for early, late in zip(before, after, strict=True))
    return waited / (ran + waited) if ran else None


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the interquartile range as a share of it (0 for a single value)."""
    middle = statistics.median(values)
    if len(values) < 2:
        return middle, 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, (high - low) / middle


@dataclass
class Timing:
    """Seconds per call by round; `inner` calls made up each sample."""

    seconds: dict[int, float]
    inner: int

    @property
    def median(self) -> float:
        return median_and_spread(list(self.seconds.values()))[0]

    @property
    def spread(self) -> float:
        return median_and_spread(list(self.seconds.values()))[1]


def ratio(a: Timing, b: Timing) -> tuple[float, float]:
    """Median and spread of a's time over b's, round by round; only rounds that both took part in."""
    rounds = sorted(a.seconds.keys() & b.seconds.keys())
    return median_and_spread([a.seconds[r] / b.seconds[r] for r in rounds])


@dataclass(frozen=True)
class Effort:
    """repeats: rounds. budget: seconds that one contender may take; it gets fewer rounds, but at least `least`.

    sample: seconds that a sample lasts at least, by calling several times."""

    repeats: int = 15
    budget: float = 10.0
    least: int = 3
    sample: float = 0.005

    def __post_init__(self) -> None:
        assert self.repeats >= 1 and self.least >= 1


def interleave(
    calls: Mapping[str, Call],
    timer: Timer,
    effort: Effort,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Times every call once per round, in an order that rotates from round to round.

    Round 0 always has everybody, so that every pair has a ratio. `tick` is called between samples.
    """
    plans: dict[str, tuple[int, frozenset[int]]] = {}
    for name, call in calls.items():
        seconds = max(timer(call, 1), 1e-9)
        if seconds < effort.budget / effort.least:  # the first call also pays for what is loaded and compiled then
            seconds = max(timer(call, 1), 1e-9)
        inner = max(1, math.ceil(effort.sample / seconds))
        count = min(effort.repeats, max(effort.least, int(effort.budget / (seconds * inner))))
        plans[name] = inner, frozenset(i * effort.repeats // count for i in range(count))
        tick()
    names = list(calls)
    samples: dict[str, dict[int, float]] = {name: {} for name in names}
    was_enabled = gc.isenabled()
    gc.disable()  # a collection in the middle of a sample is no part of what is measured
    gc.freeze()  # what is there already: collections between rounds look at what the calls left alone
    try:
        for round_ in range(effort.repeats):
            gc.collect()
            for i in range(len(names)):
                name = names[(i + round_) % len(names)]
                inner, rounds = plans[name]
                if round_ in rounds:
                    samples[name][round_] = timer(calls[name], inner) / inner
                    tick()
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
    return {name: Timing(samples[name], plans[name][0]) for name in names}
