"""What the package set out to reach, and whether this run shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lra_ssm.bench.compare import Row, Settings, find
from lra_ssm.bench.growth import slopes
from lra_ssm.bench.measure import ratio
from lra_ssm.bench.s4d import KERNEL
from lra_ssm.bench.work import BOTH, FORWARD

NOT_MEASURED = "not measured"
_SIZE = {"batch": 4, "channels": 128, "states": 16}
_GPU_SIZES = ({"batch": 16, "channels": 1024, "length": 2048}, {"batch": 8, "channels": 128, "length": 16384})
_S4D_SIZES = ((128, 1024), (128, 4096), (256, 4096), (512, 1024), (128, 16384))


@dataclass(frozen=True)
class Target:
    """measured: in words; verdict: "met", "not met" or "not measured"."""

    target: str
    measured: str
    verdict: str


def judge(target: str, values: Sequence[float | None], show: str, holds: Callable[[float], bool]) -> Target:
    """Met if it holds for every value; one that is missing makes it not measured."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        partly = f" ({len(known)} of {len(values)}: {', '.join(show.format(v) for v in known)})" if known else ""
        return Target(target, NOT_MEASURED + partly, NOT_MEASURED)
    measured = ", ".join(show.format(value) for value in known)
    return Target(target, measured, "met" if all(holds(value) for value in known) else "not met")


def time_ratio(a: Row | None, b: Row | None) -> float | None:
    """Median over the rounds of one comparison of a's time over b's."""
    if a is None or b is None or a.timing is None or b.timing is None:
        return None
    return ratio(a.timing, b.timing)[0]


def memory_ratio(a: Row | None, b: Row | None) -> float | None:
    if a is None or b is None or a.memory is None or b.memory is None or b.memory.megabytes == 0:
        return None
    return a.memory.megabytes / b.memory.megabytes


def operator_targets(rows: Sequence[Row], settings: Settings) -> list[Target]:
    ours = settings.backends[0]
    on_gpu = settings.device.type == "cuda"
    return (_gpu if on_gpu else _cpu)(rows, ours) + _both_devices(rows, ours, on_gpu)


def _cpu(rows: Sequence[Row], ours: str) -> list[Target]:
    against = "S6 against other ways to write it"

    def s6(contender: str, mode: str, length: int) -> Row | None:
        return find(rows, against, contender, mode, **_SIZE, length=length)

    targets = []
    for mode, least in ((FORWARD, 33), (BOTH, 40)):
        value = time_ratio(s6("loop over time", mode, 4096), s6(ours, mode, 4096))
        name = f"S6 against the eager loop, {mode}, L = 4096: at least {least}x as fast"
        targets.append(judge(name, [value], "{:.1f}x", lambda v, least=least: v >= least))  # type: ignore[misc]
    value = memory_ratio(s6("loop over time", BOTH, 16384), s6(ours, BOTH, 16384))
    name = "S6's extra memory, forward+backward, L = 16384: under 1/15 of the loop's"
    targets.append(judge(name, [value], "1/{:.1f}", lambda v: v > 15))
    row = s6(ours, BOTH, 16384)
    errors = row.errors if row is not None else None
    values = [errors.value, errors.worst_gradient] if errors is not None else [None]
    name = "S6's float32 error (y, worst gradient) at L = 16384: under 1e-5"
    targets.append(judge(name, values, "{:.1e}", lambda v: v < 1e-5))
    return targets


def _gpu(rows: Sequence[Row], ours: str) -> list[Target]:
    targets = []
    for size in _GPU_SIZES:
        against = "S6 against other ways to write it"
        for mode in (FORWARD, BOTH):
            value = time_ratio(find(rows, against, "mamba-ssm", mode, **size), find(rows, against, ours, mode, **size))
            name = f"S6 against mamba-ssm's kernel, {mode}, {_words(size)}: at least as fast"
            targets.append(judge(name, [value], "{:.2f}x", lambda v: v >= 1))
    for size in _GPU_SIZES:
        values = [
            time_ratio(*(find(rows, f"cases on {ours}", case, mode, **size) for case in ("B2S6", "S6")))
            for mode in (FORWARD, BOTH)
        ]
        name = f"complex B2S6 against real S6 (forward, forward+backward), {_words(size)}: within 2x"
        targets.append(judge(name, values, "{:.2f}x", lambda v: v <= 2))
    name = "B2S6's bias in a whole training step of a language model: within 2.7 %"
    targets.append(judge(name, [None], "{}", lambda v: v <= 1.027))
    return targets


def _both_devices(rows: Sequence[Row], ours: str, on_gpu: bool) -> list[Target]:
    targets, cases = [], f"cases on {ours}"
    sizes: Sequence[dict[str, int]] = _GPU_SIZES if on_gpu else [{**_SIZE, "length": n} for n in (1024, 4096, 16384)]
    for size in sizes:
        values = [
            time_ratio(*(find(rows, cases, case, mode, **size) for case in ("B2S6", "B2S6 without bias")))
            for mode in (FORWARD, BOTH)
        ]
        name = f"B2S6 against the same without bias (forward, forward+backward), {_words(size)}: within 1.10x"
        targets.append(judge(name, values, "{:.2f}x", lambda v: v <= 1.10))
    shares = []
    for channels, length in _S4D_SIZES:
        row = find(rows, "S4D", KERNEL, BOTH, batch=4, channels=channels, states=32, length=length)
        shares.append(None if row is None else row.extra.get("share of kernel and convolution"))
    sizes_text = ", ".join(f"({channels}, {length})" for channels, length in _S4D_SIZES)
    name = f"S4D's kernel as a share of forward+backward at (H, L) = {sizes_text}: under 20 %"
    targets.append(judge(name, shares, "{:.0%}", lambda v: v < 0.2))
    fits = slopes([row for row in rows if row.comparison == "growth with length"])
    for contender in (f"S6, {ours}", f"B2S6, {ours}", "S4D"):
        fit = fits.get(contender, {})
        name = f"growth of {contender} from L = 4096 to 65536, log-log slope of time and memory: at most 1.1"
        targets.append(judge(name, [fit.get("time"), fit.get("memory")], "{:.2f}", lambda v: v <= 1.1))
    return targets


def _words(size: dict[str, int]) -> str:
    letters = {"batch": "batch {}", "channels": "D = {}", "states": "N = {}", "length": "L = {}"}
    return ", ".join(letters[name].format(value) for name, value in size.items())
