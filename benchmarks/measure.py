"""Times, memory and errors of contenders.

Times are taken in turn, round by round, so that what slows the machine for a while slows every contender. The clock is
that of torch.utils.benchmark, which waits for the GPU; its `timeit` is not used, because it calls a contender of 100 s
three times for one sample.
"""

import gc
import math
import os
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark.utils.timer import timer

FORWARD, BOTH = "forward", "forward+backward"
FAILURES = (RuntimeError, ValueError, ImportError)  # out of memory is a RuntimeError
Call = Callable[[], Any]
os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # the profiler's lines on starting and stopping tell a user nothing


class Prepared(NamedTuple):
    """calls: mode -> what is timed.  results: the value and its gradients by name; errors are computed from them."""

    calls: dict[str, Call]
    results: Callable[[], dict[str, Tensor]]


def seeded(seed: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def prepare(run: Callable[..., Tensor], inputs: Mapping[str, Tensor]) -> Prepared:
    """Prepare calls of `run(**inputs)`, without gradients and with those of a random weighted sum of the result."""
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    with torch.no_grad():
        y = run(**inputs)
    # the same numbers in float32 and float64, in the memory layout of y
    numbers = torch.randn(y.shape, generator=seeded(1, y.device), device=y.device)
    weights = torch.empty_like(y).copy_(numbers)

    @torch.no_grad()
    def forward() -> Tensor:
        return run(**inputs)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(run(**leaves), list(leaves.values()), weights)

    def results() -> dict[str, Tensor]:
        outputs = {"y": forward()}
        for name, gradient in zip(leaves, both(), strict=True):
            outputs[f"gradient of {name}"] = gradient
        return outputs

    return Prepared({FORWARD: forward, BOTH: both}, results)


# -- time ----------------------------------------------------------------------------------------------------------


@dataclass
class Timing:
    """Seconds per call by round; `inner` calls made up each sample."""

    inner: int
    seconds: dict[int, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return median_and_spread(list(self.seconds.values()))[0]

    @property
    def spread(self) -> float:
        return median_and_spread(list(self.seconds.values()))[1]

    def over(self, other: "Timing") -> tuple[float, float]:
        """Return median and spread of the ratio to another timing, over the rounds that both have."""
        common = self.seconds.keys() & other.seconds.keys()
        return median_and_spread([self.seconds[i] / other.seconds[i] for i in common])


def median_and_spread(values: list[float]) -> tuple[float, float]:
    """Return the median, and the interquartile range as a share of it."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float(middle), float((high - low) / middle)


@dataclass(frozen=True)
class Effort:
    """repeats: rounds.  budget: seconds of one contender; a slow one gets fewer rounds, but at least `least`.
    sample: seconds that a sample lasts at least, by calling several times."""

    repeats: int = 15
    budget: float = 10.0
    least: int = 3
    sample: float = 0.005


def interleave(calls: Mapping[str, Call], effort: Effort, clock: Callable[[], float] = timer) -> dict[str, Timing]:
    """Time the calls round by round, in rotating order. Round 0 has all calls, so that every pair has a ratio."""
    timers = {name: timeit.Timer(call, timer=clock) for name, call in calls.items()}
    timings: dict[str, Timing] = {}
    rounds: dict[str, set[int]] = {}
    for name, each in timers.items():
        seconds = each.timeit(1)
        if seconds < effort.budget / effort.least:  # the first call also loads and compiles
            seconds = each.timeit(1)
        seconds = max(seconds, 1e-9)
        inner = math.ceil(effort.sample / seconds) or 1
        affordable = int(effort.budget / (seconds * inner))
        count = min(effort.repeats, max(effort.least, affordable))
        timings[name] = Timing(inner)
        rounds[name] = {i * effort.repeats // count for i in range(count)}
    names = list(calls)
    gc.freeze()  # collections look only at what the calls left
    for number in range(effort.repeats):
        gc.collect()  # timeit keeps it from running within a sample
        first = number % len(names)
        for name in names[first:] + names[:first]:
            if number in rounds[name]:
                inner = timings[name].inner
                timings[name].seconds[number] = timers[name].timeit(inner) / inner
    gc.unfreeze()
    return timings


# -- memory --------------------------------------------------------------------------------------------------------


def peak_memory(call: Call, device: torch.device) -> float:
    """Return the peak memory of a call in megabytes (10^6 bytes) beyond its inputs, as torch's allocators count it."""
    call()  # loads libraries, compiles and starts threads
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(accumulate(changes, initial=0)) / 1e6


# -- errors --------------------------------------------------------------------------------------------------------


def errors_against(results: dict[str, Tensor], truth: dict[str, Tensor]) -> tuple[float, float | None]:
    """Return the relative error of the result, and of the worst gradient.

    It is the largest absolute error over the truth's largest absolute value.
    """
    relative = []
    for name, want in truth.items():
        result = results[name].to(want.dtype)
        error = float((result - want).abs().max())
        # a gradient that is zero throughout (A's at length 1) has no relative error
        scale = float(want.abs().max()) or 1.0
        # NaN is worse than anything
        relative.append(math.inf if math.isnan(error) else error / scale)
    return relative[0], max(relative[1:], default=None)


def reason(error: BaseException) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0]
