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

from bench import BOTH, FORWARD, Bench, Contender, Row, lengths, options, positive, words
from measure import interleave
from plots import growth_plot
from scans import B2S6, CONVOLUTION, GROUPS, KERNEL, MAMBA, NAIVE, S4D, S6, WITHOUT_BIAS, WRITTEN_OUT, Shape, s4d, scan

EXAMPLE = "python benchmarks/operators.py --lengths=1024,4096 --threads=2 --budget=2"
FIT_FROM = 4096  # the least length of the fitted growth: below, what every call costs shows
COPY, PRODUCTS, EXP = "copy, GB/s", "multiply-add, GFLOP/s", "exponential, G/s"


def against(shape: Shape, backends: list[str], bench: Bench) -> list[Row]:
    """S6 by every backend, in both layouts, by mamba-ssm, in bfloat16, and written out where that takes no minutes."""
    device = bench.device
    truth = partial(scan, S6, shape, "eager", device, torch.float64)
    fastest, *others = backends
    contenders = [Contender(fastest, partial(scan, S6, shape, fastest, device), truth)]
    if bench.is_gpu:
        contenders.append(Contender(MAMBA, partial(scan, S6, shape, MAMBA, device), truth))
    if shape.L <= (1024 if bench.is_gpu else 4096):
        last = partial(scan, S6, shape, fastest, device, channels_last=True)
        contenders.append(Contender(f"{fastest}, channels last", last, truth))
        contenders += [Contender(by, partial(scan, S6, shape, by, device), truth) for by in others]
    if shape.L <= (1024 if bench.is_gpu else 16384):
        contenders += [Contender(by, partial(scan, S6, shape, by, device), truth) for by in WRITTEN_OUT]
    if bench.is_gpu:
        rounded = partial(scan, S6, shape, "eager", device, torch.float64, half=True)
        for by in (fastest, MAMBA):
            half = partial(scan, S6, shape, by, device, half=True)
            contenders.append(Contender(f"{by}, bfloat16", half, rounded))
    return bench.compare("S6 against other ways to write it", shape._asdict(), contenders)


def of_equal_state(shape: Shape, backends: list[str], bench: Bench) -> list[Row]:
    """Real S6 with N states; B2S6 with N/2 conjugate pairs, with and without bias; as their layers call them."""
    contenders = []
    for kind in (WITHOUT_BIAS, B2S6, S6):
        own = shape if kind == S6 else shape._replace(N=shape.N // 2)
        for by in backends if shape.L <= 1024 else backends[:1]:
            build = partial(scan, kind, own, by, bench.device, channels_last=True)
            truth = partial(scan, kind, own, "eager", bench.device, torch.float64)
            contenders.append(Contender(kind if by == backends[0] else f"{kind}, {by}", build, truth))
    return bench.compare("N real states each", shape._asdict(), contenders)


def s4d_parts(shape: Shape, bench: Bench) -> list[Row]:
    contenders = []
    for part in (S4D, KERNEL, CONVOLUTION, NAIVE):
        truth = partial(s4d, part, shape, bench.device, torch.float64)
        contenders.append(Contender(part, partial(s4d, part, shape, bench.device), truth))
    rows = bench.compare("S4D", shape._asdict(), contenders)
    return [row for row in rows if row.contender == S4D]


# -- the device's ceilings -----------------------------------------------------------------------------------------


def ceilings(bench: Bench) -> dict[str, float]:
    """Highest rates: bytes read and written by a copy, float32 products, exponentials without memory traffic."""
    numbers = 1 << 16 if bench.given.quick else 1 << 28 if bench.is_gpu else 1 << 25
    side = 64 if bench.given.quick else 8192 if bench.is_gpu else 1024
    source = torch.ones(numbers, device=bench.device)
    target, square = torch.empty_like(source), torch.ones(side, side, device=bench.device)
    calls = {COPY: lambda: target.copy_(source), PRODUCTS: lambda: square @ square}
    work = {COPY: 2 * source.nbytes, PRODUCTS: 2 * side**3}
    if bench.is_gpu:
        from gpu_exp import ROUNDS, repeated_exp

        x = torch.linspace(-1, 0, numbers // 16, device="cuda")
        calls[EXP], work[EXP] = partial(repeated_exp, x), x.numel() * ROUNDS
    else:  # in the first cache: 32,768 numbers are what torch gives one thread at a time
        x = torch.linspace(-1, 0, 32768 * bench.threads)
        calls[EXP], work[EXP] = partial(torch.exp, x, out=torch.empty_like(x)), x.numel()
    timings = interleave(calls, replace(bench.effort, budget=3))
    # the least time of all rounds: what else runs on the machine takes from the others
    return {name: work[name] / min(timing.seconds.values()) / 1e9 for name, timing in timings.items()}


def reached(row: Row, highest: dict[str, float]) -> dict[str, float]:
    """Bytes and exponentials a second of a scan, and their shares of the ceilings.

    A scan reads and writes each sequence once, and takes an exponential for each state and step (complex: one, a sine
    and a cosine), and again in backward, where states are recomputed.
    """
    assert row.ms is not None
    (B, D, N, L), is_complex = row.shape.values(), row.contender != S6
    states, groups, parts = (N // 2, GROUPS, 3) if is_complex else (N, 1, 2)  # parts: B's re and im, and C
    matrices = 4 * parts * B * groups * states * L
    # forward reads u, delta, B, C and writes y; backward reads them and y's gradient and writes four gradients
    amount = {FORWARD: 3 * 4 * B * D * L + matrices, BOTH: 8 * 4 * B * D * L + 3 * matrices}[row.mode]
    exps = B * D * states * L * (3 if is_complex else 1) * {FORWARD: 1, BOTH: 2}[row.mode]
    rates = {COPY: amount / row.ms / 1e6, EXP: exps / row.ms / 1e6}
    return rates | {f"share of {name.split(',')[0]}": rate / highest[name] for name, rate in rates.items()}


# -- growth --------------------------------------------------------------------------------------------------------


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Of log y over log x from FIT_FROM on; 1 is linear. None with fewer than three points."""
    logs = [(np.log(x), np.log(y)) for x, y in points if x >= FIT_FROM and y > 0]
    return float(np.polyfit(*zip(*logs, strict=True), 1)[0]) if len(logs) >= 3 else None


def slopes(rows: Sequence[Row]) -> dict[str, float | None]:
    return {
        "time": slope([(row.shape["L"], row.ms) for row in rows if row.ms]),
        "memory": slope([(row.shape["L"], row.megabytes) for row in rows if row.megabytes]),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__.split("\n")[0], EXAMPLE)
    parser.add_argument("--lengths", type=lengths, metavar="LIST", help="default: 1024, 4096, 16384 and 65536")
    parser.add_argument("--batch", type=positive, metavar="N", help="default: 4, on a GPU 8")
    parser.add_argument("--channels", type=positive, metavar="N", help=f"D, a multiple of {GROUPS}; default: 128, 1536")
    parser.add_argument(
        "--states", type=positive, default=16, metavar="N", help="real states of a channel; default: 16"
    )
    parser.add_argument("--backends", type=words, metavar="LIST", help="of the scan; default: all that run here")
    given = parser.parse_args(arguments)
    bench = Bench("operators", given)
    batch, channels = (2, 16) if given.quick else (8, 1536) if bench.is_gpu else (4, 128)
    batch, channels = given.batch or batch, given.channels or channels
    if channels % GROUPS or given.states % 2:
        parser.error(f"--channels is a multiple of {GROUPS}, --states of 2")
    backends = bench.backends(given.backends)
    scans, lines = list[Row](), dict[str, list[Row]]()
    for L in given.lengths or ([32, 64] if given.quick else [1024, 4096, 16384, 65536]):
        shape = Shape(batch, channels, given.states, L)
        lines.setdefault(S6, []).append(against(shape, backends, bench)[1])
        own = of_equal_state(shape, backends, bench)
        scans += [row for row in own if row.contender in (S6, B2S6)]
        lines.setdefault(B2S6, []).extend(row for row in own if (row.contender, row.mode) == (B2S6, BOTH))
        lines.setdefault("S4D", []).append(s4d_parts(shape._replace(N=max(given.states // 2, 2)), bench)[1])
    if given.channels is None and given.lengths is None and not given.quick:  # the published sizes of S4D
        for D, L in ((128, 1024), (128, 4096), (256, 4096), (512, 1024), (128, 16384)):
            s4d_parts(Shape(4, D, 32, L), bench)
    highest, fits = ceilings(bench), {name: slopes(rows) for name, rows in lines.items()}
    for row in scans:
        row.extra |= reached(row, highest) if row.ms else {}
    title = f"growth: slope of log time and log memory over log L from {FIT_FROM:,} on; 1 is linear"
    shown = [[name, *(f"{x:.2f}" if x else "–" for x in fit.values())] for name, fit in fits.items()]
    bench.table(title, ["", "time", "memory"], shown, left=1)
    bench.table("ceilings of the device", ["", "rate"], [[name, f"{x:,.4g}"] for name, x in highest.items()], left=1)
    bench.table(
        "reached", ["", "L", "mode", COPY, "share", EXP, "share"], [_reached_line(row) for row in scans], left=1
    )
    about = f"batch {batch}, D = {channels}, N = {given.states}, float32\n{bench.hardware}"
    bench.finish(growth_plot(lines, about), {"slopes": fits, "ceilings": highest})


def _reached_line(row: Row) -> list[str]:
    copy, exp, of_copy, of_exp = (float(x) for x in row.extra.values()) if row.ms else (float("nan"),) * 4
    rates = [f"{copy:.3g}", f"{of_copy:.0%}", f"{exp:.3g}", f"{of_exp:.0%}"]
    return [row.contender, f"{row.shape['L']:,}", row.mode, *rates]


if __name__ == "__main__":
    main()
