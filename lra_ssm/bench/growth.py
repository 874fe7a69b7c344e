"""Time and memory of forward and backward against length: what the plot shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from lra_ssm.bench.compare import Contender, Row, Settings, compare
from lra_ssm.bench.s4d import OURS, S4DTruth, S4DWork
from lra_ssm.bench.scan import B2S6, S6, ScanTruth, ScanWork
from lra_ssm.bench.work import BOTH, Shape

GROWTH = "growth with length"
FIT_FROM = 4096  # below, what every call costs shows


def growth_lengths(settings: Settings) -> list[int]:
    if settings.quick:
        return [32, 64]
    return sorted(settings.lengths or [2**k for k in range(10, 17)])


def measure_growth(settings: Settings) -> list[Row]:
    """S6, B2S6 and S4D on every backend, forward and backward, and the baselines as far as they go."""
    rows: list[Row] = []
    device = settings.device
    base = Shape(2, 16, 4, 0) if settings.quick else Shape(4, 128, 16, 0)
    for length in growth_lengths(settings):
        shape = Shape(
            settings.batch or base.batch, settings.channels or base.channels, settings.states or base.states, length
        )
        contenders = []
        for i, by in enumerate(settings.backends):
            for case in (S6, B2S6):
                if shape.channels % case.groups or (i > 0 and length > 4096):
                    continue
                work = ScanWork(case, shape, by, device)
                contenders.append(Contender(f"{case.name}, {by}", work, ScanTruth(case, shape, device)))
        contenders.append(Contender("S4D", S4DWork(OURS, shape, device), S4DTruth(OURS, shape, device)))
        for by, longest in {"loop over time": 4096, "parallel scan": 8192}.items():
            if length <= longest:
                work = ScanWork(S6, shape, by, device)
                contenders.append(Contender(f"S6, {by}", work, ScanTruth(S6, shape, device)))
        rows += compare(GROWTH, asdict(shape), contenders, settings, modes=(BOTH,))
    return rows


def slopes(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Contender -> fitted slope of log time and of log memory against log length, from FIT_FROM on; 1 is linear."""
    result = {}
    for contender in dict.fromkeys(row.contender for row in rows):
        own = [row for row in rows if row.contender == contender]
        fits = {
            "time": slope([(row.shape["length"], row.ms) for row in own if row.ms]),
            "memory": slope([(row.shape["length"], row.memory.megabytes) for row in own if row.memory]),
        }
        if any(value is not None for value in fits.values()):
            result[contender] = {name: value for name, value in fits.items() if value is not None}
    return result


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least squares on logarithms; None with fewer than three points."""
    logs = [(math.log(x), math.log(y)) for x, y in points if x >= FIT_FROM and y > 0]
    if len(logs) < 3:
        return None
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)
