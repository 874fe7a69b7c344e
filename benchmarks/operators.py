"""Measures the selective scan and S4D's operator, and how they grow with length.

Three comparisons at each length: S6 against other ways to write it (on a GPU mamba-ssm's kernel, in bfloat16 too); S6
and complex B2S6 of equal state, with and without bias; S4D's kernel and convolution. Then the ceilings of the device
(a copy, matrix products, exponentials), and the shares of them that the scans reach.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from bench import BOTH, FORWARD, Bench, Contender, Row, lengths, options, positive, start, words
from measure import interleave
from plots import growth_plot
from scans import B2S6, CONVOLUTION, GROUPS, KERNEL, MAMBA, NAIVE, S4D, S6, WITHOUT_BIAS, WRITTEN_OUT, Shape, s4d, scan

EXAMPLE = "python benchmarks/operators.py --lengths=1024,4096 --threads=2 --budget=2"
LENGTHS = [1024, 4096, 16384, 65536]
PUBLISHED = ((128, 1024), (128, 4096), (256, 4096), (512, 1024), (128, 16384))  # D, L of S4D
FIT_FROM = 4096  # the least length of the fitted growth: below, what every call costs shows
COPY, PRODUCTS, EXP = "copy, GB/s", "multiply-add, GFLOP/s", "exponential, G/s"


def against(shape: Shape, backends: list[str], bench: Bench) -> list[Row]:
    """S6 by every backend, in both layouts, by mamba-ssm, in bfloat16, and written out where that takes no minutes."""
    run = partial(scan, S6, shape, device=bench.device)
    double = partial(run, by="eager", dtype=torch.float64)
    fastest, *others = backends
    ways = [fastest]
    if bench.is_gpu:
        ways.append(MAMBA)
    contenders = [Contender(by, partial(run, by=by), double) for by in ways]
    if shape.L <= (1024 if bench.is_gpu else 4096):
        last = partial(run, by=fastest, channels_last=True)
        contenders.append(Contender(f"{fastest}, channels last", last, double))
        contenders += [Contender(by, partial(run, by=by), double) for by in others]
    if shape.L <= (1024 if bench.is_gpu else 16384):
        contenders += [Contender(by, partial(run, by=by), double) for by in WRITTEN_OUT]
    if bench.is_gpu:
        rounded = partial(double, half=True)
        contenders += [Contender(f"{by}, bfloat16", partial(run, by=by, half=True), rounded) for by in ways]
    return bench.compare("S6 against other ways to write it", shape._asdict(), contenders)


def of_equal_state(shape: Shape, backends: list[str], bench: Bench) -> list[Row]:
    """Real S6 with N states; B2S6 with N/2 conjugate pairs, with and without bias; as their layers call them."""
    fastest = backends[0]
    if shape.L > 1024:
        backends = [fastest]
    contenders = []
    for kind in (WITHOUT_BIAS, B2S6, S6):
        own = shape if kind == S6 else shape._replace(N=shape.N // 2)
        run = partial(scan, kind, own, device=bench.device)
        double = partial(run, by="eager", dtype=torch.float64)
        for by in backends:
            name = kind if by == fastest else f"{kind}, {by}"
            contenders.append(Contender(name, partial(run, by=by, channels_last=True), double))
    return bench.compare("N real states each", shape._asdict(), contenders)


def s4d_parts(shape: Shape, bench: Bench) -> list[Row]:
    contenders = []
    for part in (S4D, KERNEL, CONVOLUTION, NAIVE):
        run = partial(s4d, part, shape, bench.device)
        contenders.append(Contender(part, run, partial(run, torch.float64)))
    rows = bench.compare("S4D", shape._asdict(), contenders)
    return [row for row in rows if row.contender == S4D]


# -- the device's ceilings -----------------------------------------------------------------------------------------


def ceilings(bench: Bench) -> dict[str, float]:
    """Highest rates: bytes read and written by a copy, float32 products, exponentials without memory traffic."""
    numbers, side = (1 << 28, 8192) if bench.is_gpu else (1 << 25, 1024)
    if bench.given.quick:
        numbers, side = 1 << 16, 64
    source = torch.ones(numbers, device=bench.device)
    target = torch.empty_like(source)
    square = torch.ones(side, side, device=bench.device)
    calls = {COPY: lambda: target.copy_(source), PRODUCTS: lambda: square @ square}
    work = {COPY: 2 * source.nbytes, PRODUCTS: 2 * side**3}
    if bench.is_gpu:
        from gpu_exp import ROUNDS, repeated_exp

        x = torch.linspace(-1, 0, numbers // 16, device="cuda")
        calls[EXP] = partial(repeated_exp, x)
        work[EXP] = x.numel() * ROUNDS
    else:  # in the first cache: 32,768 numbers are what torch gives one thread at a time
        x = torch.linspace(-1, 0, 32768 * bench.threads)
        calls[EXP] = partial(torch.exp, x, out=torch.empty_like(x))
        work[EXP] = x.numel()
    timings = interleave(calls, replace(bench.effort, budget=3))
    # the least time of all rounds: what else runs on the machine takes from the others
    least = {name: min(timing.seconds.values()) for name, timing in timings.items()}
    return {name: work[name] / seconds / 1e9 for name, seconds in least.items()}


def reached(row: Row, highest: dict[str, float]) -> dict[str, float]:
    """Bytes and exponentials a second of a scan, and their shares of the ceilings.

    A scan reads and writes each sequence once, and takes an exponential for each state and step (complex: one, a sine
    and a cosine), and again in backward, where states are recomputed.
    """
    if row.ms is None:
        return {}
    B, D, N, L = row.shape.values()
    if row.contender == S6:
        states, groups, parts, exps = N, 1, 2, 1  # parts: B and C
    else:
        states, groups, parts, exps = N // 2, GROUPS, 3, 3  # B's re and im, and C
    sequence = 4 * B * D * L
    matrices = 4 * parts * B * groups * states * L
    exps *= B * D * states * L
    if row.mode == FORWARD:  # reads u, delta, B, C and writes y
        moved = 3 * sequence + matrices
    else:  # and reads them and y's gradient, and writes four gradients
        moved = 8 * sequence + 3 * matrices
        exps *= 2
    copy, exp = moved / row.ms / 1e6, exps / row.ms / 1e6
    shares = {"share of copy": copy / highest[COPY], "share of exponential": exp / highest[EXP]}
    return {COPY: copy, EXP: exp, **shares}


# -- growth --------------------------------------------------------------------------------------------------------


def slope(rows: Sequence[Row], measured: str) -> float | None:
    """Of log y over log L from FIT_FROM on; 1 is linear. None with fewer than three points."""
    found = [(row.shape["L"], getattr(row, measured)) for row in rows]
    points = [(L, y) for L, y in found if L >= FIT_FROM and y]
    if len(points) < 3:
        return None
    x, y = np.log(points).T
    return float(np.polyfit(x, y, 1)[0])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, EXAMPLE)
    add = parser.add_argument
    add("--lengths", type=lengths, metavar="LIST", help="default: 1024, 4096, 16384 and 65536")
    add("--batch", type=positive, metavar="N", help="default: 4, on a GPU 8")
    add("--channels", type=positive, metavar="N", help=f"D, a multiple of {GROUPS}; default: 128, on a GPU 1536")
    add("--states", type=positive, default=16, metavar="N", help="real states of a channel; default: 16")
    add("--backends", type=words, metavar="LIST", help="of the scan; default: all that run here")
    given = parser.parse_args(arguments)
    bench = Bench("operators", given)
    B, D = (8, 1536) if bench.is_gpu else (4, 128)
    if given.quick:
        B, D = 2, 16
    shape = Shape(given.batch or B, given.channels or D, given.states, L=1)
    if shape.D % GROUPS or shape.N % 2:
        parser.error(f"--channels is a multiple of {GROUPS}, --states of 2")
    lines, scans = measured(shape, bench)
    highest = ceilings(bench)
    for row in scans:
        row.extra |= reached(row, highest)
    fits = {name: {"time": slope(rows, "ms"), "memory": slope(rows, "megabytes")} for name, rows in lines.items()}
    bench.more |= {"slopes": fits, "ceilings": highest}
    show(fits, highest, scans, bench)
    about = f"batch {shape.B}, D = {shape.D}, N = {shape.N}, float32"
    bench.finish(growth_plot(lines, f"{about}\n{bench.hardware}"))


def measured(shape: Shape, bench: Bench) -> tuple[dict[str, list[Row]], list[Row]]:
    """All comparisons; returns rows of forward and backward by what grows, and the rows of scans of equal state."""
    given = bench.given
    backends = bench.backends(given.backends)
    lines: dict[str, list[Row]] = {S6: [], B2S6: [], "S4D": []}
    scans = []
    for L in given.lengths or ([32, 64] if given.quick else LENGTHS):
        own = shape._replace(L=L)
        lines[S6].append(against(own, backends, bench)[1])
        equal = [row for row in of_equal_state(own, backends, bench) if row.contender in (S6, B2S6)]
        lines[B2S6] += [row for row in equal if row.contender == B2S6 and row.mode == BOTH]
        scans += equal
        lines["S4D"].append(s4d_parts(own._replace(N=max(shape.N // 2, 2)), bench)[1])
    if given.channels is None and given.lengths is None and not given.quick:
        for D, L in PUBLISHED:
            s4d_parts(Shape(4, D, 32, L), bench)
    return lines, scans


def show(fits: dict[str, dict[str, float | None]], highest: dict[str, float], scans: list[Row], bench: Bench) -> None:
    """The tables of what was made of the times."""
    title = f"growth: slope of log time and log memory over log L from {FIT_FROM:,} on; 1 is linear"
    slopes = {name: {of: f"{x:.2f}" if x else "–" for of, x in fit.items()} for name, fit in fits.items()}
    bench.table(title, [{"": name, **cells} for name, cells in slopes.items()])
    bench.table("ceilings of the device", [{"": name, "rate": f"{x:,.4g}"} for name, x in highest.items()])
    lines = []
    for row in scans:
        rates = {name: f"{x:.0%}" if name.startswith("share") else f"{x:.3g}" for name, x in row.extra.items()}
        lines.append({"": row.contender, "L": f"{row.shape['L']:,}", "mode": row.mode, **rates})
    bench.table("reached", lines)


if __name__ == "__main__":
    start(main)
