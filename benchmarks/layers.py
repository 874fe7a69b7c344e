"""Measures layers forward and backward: time-invariant ones among themselves, and the LRA models' at their sizes.

Shapes: x, y (B, L, D).  (B batch, L length, D channels.)
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import lra_ssm.layers
from bench import Bench, Contender, options, positive
from measure import Prepared, prepare, seeded
from plots import Bar, bar_plot

EXAMPLE = "python benchmarks/layers.py --batch=2 --threads=2"
_SELECTIVE = {"d_state": 64, "bidirectional": True}
_S6, _B2S6 = {"S6": _SELECTIVE}, {"B2S6": {**_SELECTIVE, "num_blocks": 8}}


class Size(NamedTuple):
    """batch: on a GPU; 2 on a CPU."""

    layers: dict[str, dict[str, Any]]
    batch: int
    length: int
    channels: int


# Sources: configs/lra/listops; for the width and batch of sCIFAR ("Image") Yu & Erichson 2025, table 4. The sizes of
# the time-invariant layers are our choice; LRU counts complex states.
SIZES = {
    "time-invariant, causal": Size(
        {"S4D": {"d_state": 64}, "StableSSM": {"d_state": 64}, "LRU": {"d_state": 128}}, 16, 4096, 128
    ),
    "ListOps": Size({"S4D": _SELECTIVE, **_S6, **_B2S6}, 32, 2048, 128),
    "sCIFAR": Size({"S4D": _SELECTIVE, **_S6, **_B2S6}, 48, 1024, 512),
}


def layer(
    name: str, arguments: dict[str, Any], shape: tuple[int, int, int], device: torch.device, dtype: torch.dtype
) -> Prepared:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = getattr(lra_ssm.layers, name)(shape[-1], **arguments).to(device, dtype)

    def run(x: Tensor, **parameters: Tensor) -> Tensor:
        return torch.func.functional_call(module, parameters, (x,))

    x = torch.randn(shape, generator=seeded()).to(device, dtype)
    return prepare(run, {"x": x, **{name: p.detach() for name, p in module.named_parameters()}})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__.split("\n")[0], EXAMPLE)
    parser.add_argument("--batch", type=positive, metavar="N", help="default: the published ones on a GPU, 2 on a CPU")
    given = parser.parse_args(arguments)
    bench, bars = Bench("layers", given), list[Bar]()
    for name, size in SIZES.items():
        shape = (given.batch or (size.batch if bench.is_gpu else 2), size.length, size.channels)
        shape = (2, 32, 16) if given.quick else shape
        contenders = []
        for each, own in size.layers.items():
            truth = partial(layer, each, own, shape, bench.device, torch.float64)
            contenders.append(Contender(each, partial(layer, each, own, shape, bench.device, torch.float32), truth))
        rows = bench.compare(f"{name} layers", dict(zip("BLD", shape, strict=True)), contenders)
        for row in rows:
            if row.ms:
                bars.append(Bar(f"{name}, {row.mode}", row.contender, 1e3 * shape[0] * shape[1] / row.ms))
    bench.finish(bar_plot(bars, "tokens/s", f"layers\n{bench.hardware}"))


if __name__ == "__main__":
    main()
