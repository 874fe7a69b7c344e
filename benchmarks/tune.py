"""Measures other cuts of the Triton scan into programs than the package's, by shape.

The script changes constants of `lra_ssm.ops.backends.triton_call`; what wins at every shape is to become the constant.
"""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import torch

from bench import Bench, Contender, device_of, options, start, words
from lra_ssm.ops.backends import triton_call
from measure import Call, Prepared
from operators import B2S6, S6, Shape, scan

EXAMPLE = "python benchmarks/tune.py --shapes=listops/b2s6 --budget=1 --repeats=7"
DEFAULT = "as it is"
CUTS: dict[str, dict[str, int]] = {
    DEFAULT: {},
    "forward: a quarter of the state": {"FORWARD_STATE": 128},
    "forward: half": {"FORWARD_STATE": 256},
    "forward: twice": {"FORWARD_STATE": 1024},
    "backward: half": {"BACKWARD_STATE": 128},
    "backward: twice": {"BACKWARD_STATE": 512},
    "backward: sixteen channels": {"MAX_BLOCK_BACKWARD": 16},
    "forward: larger blocks": {"MIN_STATES": {3: 16}},
    "one segment": {"FEW_WARPS": 0},
    "segments for 8 warps": {"FEW_WARPS": 8, "GOOD_WARPS": 8},
    "segments for 16 warps": {"FEW_WARPS": 16, "GOOD_WARPS": 16},
    "segments for 32 warps": {"FEW_WARPS": 32, "GOOD_WARPS": 32},
    "chunks of 32": {"CHUNK": 32},
    "chunks of 128": {"CHUNK": 128},
}  # fmt: skip


class Case(NamedTuple):
    """layout and half: as in `scan_inputs`."""

    kind: str
    shape: Shape
    channels_last: bool = True
    half: bool = False


# As layers call the scan: a sequence and its reverse of LRA are two calls.
SHAPES = {
    "mamba-ssm's": Case(S6, Shape(8, 1536, 16, 4096), channels_last=False),
    "wikitext103/mamba": Case(S6, Shape(32, 1536, 16, 2048), half=True),
    "listops/s6": Case(S6, Shape(32, 128, 64, 2048)),
    "listops/b2s6": Case(B2S6, Shape(32, 128, 32, 2048)),
    "image/b2s6": Case(B2S6, Shape(48, 512, 32, 1024)),
    "wikitext103/b2s6": Case(B2S6, Shape(32, 1536, 8, 2048), half=True),
    "one sequence": Case(S6, Shape(1, 1536, 16, 4096)),
}


def in_force(cut: str):
    """The package with the constants of CUTS[cut]."""
    return patch.dict(vars(triton_call), CUTS[cut])


def cut_scan(cut: str, case: Case, device: torch.device) -> Prepared:
    """A scan cut as CUTS[cut] says."""
    with in_force(cut):
        prepared = scan(case.kind, case.shape, "triton", device, channels_last=case.channels_last, half=case.half)
    calls = {mode: partial(_in_force, cut, call) for mode, call in prepared.calls.items()}
    return Prepared(calls, partial(_in_force, cut, prepared.results))


def _in_force(cut: str, call: Call) -> object:
    with in_force(cut):
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
    torch.cuda.empty_cache()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, EXAMPLE)
    parser.add_argument("--shapes", type=words, default=list(SHAPES), metavar="LIST",
                        help=f"comma-separated, of {', '.join(SHAPES)}; default: all")  # fmt: skip
    parser.add_argument("--cuts", type=words, default=list(CUTS), metavar="LIST", help="default: all")
    given = parser.parse_args(arguments)
    if device_of(given).type != "cuda":
        parser.error("for the Triton kernels, which a CPU does not run")
    for name, asked, known in (("shapes", given.shapes, SHAPES), ("cuts", given.cuts, CUTS)):
        if unknown := set(asked) - set(known):
            parser.error(f"--{name}: there are {', '.join(known)}, not {', '.join(unknown)}")
    bench = Bench("tune", given)
    cuts = [DEFAULT, *(cut for cut in given.cuts if cut != DEFAULT)]
    tables = {
        shape: [Contender(cut, partial(cut_scan, cut, SHAPES[shape], bench.device)) for cut in cuts]
        for shape in given.shapes
    }
    bench.say("compiling")
    compile_all([contender for contenders in tables.values() for contender in contenders])
    for shape, contenders in tables.items():
        bench.compare(f"{shape}, cut in other ways", SHAPES[shape].shape._asdict(), contenders, DEFAULT)
    bench.finish()


if __name__ == "__main__":
    start(main)
