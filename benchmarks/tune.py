"""Measures other cuts of the Triton scan into programs than the package's, by shape.

The script changes constants of `lra_ssm.ops.backends.triton_call`; what wins at every shape is to become the constant.
"""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from unittest.mock import patch

import torch

from bench import BOTH, Bench, Contender, device_of, lengths, options, positive, start
from lra_ssm.ops.backends import triton_call
from measure import Call, Prepared
from plots import Bar
from scans import B2S6, S6, Shape, scan

EXAMPLE = "python benchmarks/tune.py --lengths=4096,16384 --budget=1 --repeats=7"
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
SHAPES = ((8, 1536, 16), (32, 128, 64), (1, 1536, 16))  # B, D, N


def cut_scan(cut: str, kind: str, shape: Shape, by: str, device: torch.device) -> Prepared:
    """A scan cut as CUTS[cut] says."""
    with patch.dict(vars(triton_call), CUTS[cut]):
        prepared = scan(kind, shape, by, device, channels_last=True)
    calls = {mode: partial(_in_force, cut, call) for mode, call in prepared.calls.items()}
    return Prepared(calls, partial(_in_force, cut, prepared.results))


def _in_force(cut: str, call: Call) -> object:
    with patch.dict(vars(triton_call), CUTS[cut]):
        return call()


def compile_all(contenders: Sequence[Contender]) -> None:
    """Compiles what they need, into Triton's cache on disk, on every core: one after the other takes minutes."""
    context = multiprocessing.get_context("spawn")
    workers = min(os.cpu_count() or 1, len(contenders))
    with ProcessPoolExecutor(workers, context) as pool:
        list(pool.map(_call_once, [contender.build for contender in contenders]))


def _call_once(build: partial[Prepared]) -> None:
    with suppress(RuntimeError):  # its row will say why
        for call in build().calls.values():
            call()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, EXAMPLE)
    parser.add_argument("--lengths", type=lengths, default=[4096], metavar="LIST", help="default: 4096")
    parser.add_argument("--batch", type=positive, metavar="N", help="with --channels and --states: this shape alone")
    parser.add_argument("--channels", type=positive, metavar="N")
    parser.add_argument("--states", type=positive, metavar="N")
    given = parser.parse_args(arguments)
    if device_of(given).type != "cuda":
        parser.error("for the Triton kernels, which a CPU does not run")
    bench = Bench("tune", given)
    asked = (given.batch, given.channels, given.states)
    sizes = [asked] if all(asked) else SHAPES
    tables: dict[tuple[str, Shape], list[Contender]] = {}
    for B, D, N in sizes:
        for L in given.lengths:
            for kind, own in ((S6, Shape(B, D, N, L)), (B2S6, Shape(B, D, N // 2, L))):
                builds = {cut: partial(cut_scan, cut, kind, own, "triton", bench.device) for cut in CUTS}
                tables[kind, own] = [Contender(cut, build) for cut, build in builds.items()]
    bench.say("compiling")
    compile_all([contender for contenders in tables.values() for contender in contenders])
    bars = []
    for (kind, own), contenders in tables.items():
        rows = bench.compare(f"{kind}, cut in other ways", own._asdict(), contenders, DEFAULT)
        for row in rows:
            if row.ratio and row.mode == BOTH:
                bars.append(Bar(f"{kind}, {tuple(own)}", row.contender, 1 / row.ratio[0]))
    bench.finish_bars(bars, "speed over the package's cut")


if __name__ == "__main__":
    start(main)
