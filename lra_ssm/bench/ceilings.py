"""What the device can do at most, measured in the same run: copying memory, multiply-adds, exponentials.

A scan reaches a share of the ceiling that binds it: it reads and writes each sequence once, and takes one exponential
per state and step forward (complex: one, and a sine and a cosine), and again in backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from lra_ssm.bench.compare import Row, Settings
from lra_ssm.bench.measure import interleave, timer_for
from lra_ssm.bench.work import BOTH, FORWARD

COPY, FMA, EXP = "copy, GB/s", "multiply-add, GFLOP/s", "exponential, G/s"


def measure_ceilings(settings: Settings) -> dict[str, float]:
    """Highest rates: bytes read and written by a copy, float32 matrix product, exponentials without memory traffic."""
    settings.announce("ceilings of the device")
    device, cuda = settings.device, settings.device.type == "cuda"
    numbers = 1 << 16 if settings.quick else 1 << 28 if cuda else 1 << 25
    side = 64 if settings.quick else 8192 if cuda else 1024
    source = torch.ones(numbers, device=device)
    target, square = torch.empty_like(source), torch.ones(side, side, device=device)
    exp_call, exps = _gpu_exp(numbers) if cuda else _cpu_exp(settings.threads)
    calls = {
        COPY: lambda: target.copy_(source),
        FMA: lambda: square @ square,
        EXP: exp_call,
    }
    work = {COPY: 2 * source.nbytes, FMA: 2 * side**3, EXP: exps}
    timings = interleave(calls, timer_for(device), replace(settings.effort, budget=3), settings.tick)
    # The least time of all rounds: what else runs on the machine takes from the others.
    return {name: work[name] / min(timing.seconds.values()) / 1e9 for name, timing in timings.items()}


def _cpu_exp(threads: int) -> tuple[Callable[[], Any], int]:
    """torch.exp in place of the first cache: 32768 numbers are what torch gives one thread at a time."""
    numbers = 32768 * threads
    x, y = torch.linspace(-1, 0, numbers), torch.empty(numbers)
    return lambda: torch.exp(x, out=y), numbers


def _gpu_exp(numbers: int) -> tuple[Callable[[], Any], int]:
    from lra_ssm.bench.gpu_exp import ROUNDS, repeated_exp

    x = torch.linspace(-1, 0, numbers // 16, device="cuda")
    return lambda: repeated_exp(x), x.numel() * ROUNDS


def shares(rows: Sequence[Row], ceilings: Mapping[str, float]) -> list[dict[str, Any]]:
    """For S6 and B2S6 among the eight cases: bandwidth and exponentials reached, and their share of the ceilings."""
    table = []
    for row in rows:
        if row.contender not in ("S6", "B2S6") or not row.comparison.startswith("cases on") or row.timing is None:
            continue
        s, is_complex = row.shape, row.contender == "B2S6"
        sequence = 4 * s["batch"] * s["channels"] * s["length"]
        groups, parts = (8, 3) if is_complex else (1, 2)  # B's re and im, and C
        states = row.extra.get("pairs of states", s["states"])
        matrices = 4 * parts * s["batch"] * groups * states * s["length"]
        # forward reads u, delta, B, C and writes y; backward reads them and y's gradient and writes four gradients
        amount = {FORWARD: 3 * sequence + matrices, BOTH: 8 * sequence + 3 * matrices}[row.mode]
        exps = s["batch"] * s["channels"] * states * s["length"] * (3 if is_complex else 1)
        exps *= {FORWARD: 1, BOTH: 2}[row.mode]  # backward takes them again: states are recomputed, not stored
        reached = {COPY: amount / row.timing.median / 1e9, EXP: exps / row.timing.median / 1e9}
        table.append(
            {
                "comparison": row.comparison,
                "contender": row.contender,
                "mode": row.mode,
                "length": s["length"],
                **{name: {"reached": rate, "share": rate / ceilings[name]} for name, rate in reached.items()},
            }
        )
    return table
