"""Measures layers forward and backward: time-invariant ones, LRA's at their sizes, Mamba-2's unit and block by Mamba's.

Shapes: x, y (B, L, D).  (B batch, L length, D channels.)
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import lra_ssm.layers
from bench import Bench, Contender, options, positive, start
from lra_ssm.layers import LayerSpec
from measure import Prepared, prepare, seeded
from plots import Bar

EXAMPLE = "python benchmarks/layers.py --batch=2 --threads=2"
_LRA = {"d_state": 64, "bidirectional": True}
_MODELS = {"S4D": _LRA, "S6": _LRA, "B2S6": {**_LRA, "num_blocks": 8}}
_MAMBA = {"S6": {"d_state": 16}, "SSD": {"d_state": 128}}  # as published
_BLOCKS = {f"{name}Block": {"layer": LayerSpec(getattr(lra_ssm.layers, unit), **_MAMBA[unit])}
           for name, unit in (("Mamba", "S6"), ("Mamba2", "SSD"))}  # fmt: skip
_CAUSAL = {"S4D": {"d_state": 64}, "StableSSM": {"d_state": 64}, "LRU": {"d_state": 128}}


class Size(NamedTuple):
    """batch: on a GPU; 2 on a CPU."""

    layers: dict[str, dict[str, Any]]
    batch: int
    length: int
    channels: int


# Sources: configs/lra/listops; for the width and batch of sCIFAR ("Image") Yu & Erichson 2025, table 4. The sizes of
# the time-invariant layers are our choice; LRU counts complex states.
SIZES = {
    "time-invariant, causal": Size(_CAUSAL, 16, 4096, 128),
    "ListOps": Size(_MODELS, 32, 2048, 128),
    "sCIFAR": Size(_MODELS, 48, 1024, 512),
    "Mamba's units, L = 512": Size(_MAMBA, 32, 512, 512),
    "Mamba's units, L = 2,048": Size(_MAMBA, 16, 2048, 512),
    "Mamba's blocks, L = 512": Size(_BLOCKS, 32, 512, 256),
    "Mamba's blocks, L = 2,048": Size(_BLOCKS, 16, 2048, 256),
}


def layer(
    name: str, arguments: dict[str, Any], shape: tuple[int, int, int], device: torch.device, dtype: torch.dtype
) -> Prepared:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = getattr(lra_ssm.layers, name)(shape[-1], **arguments)
    module.to(device, dtype)

    def run(x: Tensor, **parameters: Tensor) -> Tensor:
        return torch.func.functional_call(module, parameters, (x,))

    inputs = {"x": torch.randn(shape, generator=seeded()).to(device, dtype)}
    inputs |= {name: p.detach() for name, p in module.named_parameters()}
    return prepare(run, inputs)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, EXAMPLE)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), metavar="SIZE", help="default: all")
    parser.add_argument("--batch", type=positive, metavar="N", help="default: the published ones on a GPU, 2 on a CPU")
    given = parser.parse_args(arguments)
    bench = Bench("layers", given)
    bars = []
    for title in given.sizes:
        size = SIZES[title]
        batch = given.batch or (size.batch if bench.is_gpu else 2)
        shape = (batch, size.length, size.channels)
        if given.quick:
            shape = (2, 32, 64)  # of which a head of Mamba-2 has 64
        contenders = []
        for name, own in size.layers.items():
            build = partial(layer, name, own, shape, bench.device)
            contenders.append(Contender(name, partial(build, torch.float32), partial(build, torch.float64)))
        rows = bench.compare(f"{title} layers", dict(zip("BLD", shape, strict=True)), contenders)
        tokens = shape[0] * shape[1]
        bars += [Bar(f"{title}, {row.mode}", row.contender, 1e3 * tokens / row.ms) for row in rows if row.ms]
    bench.finish_bars(bars, "tokens/s")


if __name__ == "__main__":
    start(main)
