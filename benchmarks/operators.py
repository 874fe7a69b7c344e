"""Measures the selective scan and S4D's operator by length, next to other ways to compute the same.

At each length: S6 by our kernel, by mamba-ssm's (on a GPU, in bfloat16 too) and by the loop over time; S6 and complex
B2S6 of equal state; S4D's kernel and convolution by our kernel and by PyTorch.

Shapes: u, delta, y (B, D, L); A (D, N) or (N,); B, C (B, G, N, L) for the scan, (D, N) for S4D; D, delta_bias (D,);
B_bias (D, N). (B batch, D channels, L length, N states (conjugate pairs for complex A), G groups.)
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from bench import Bench, Contender, lengths, options, positive, start
from lra_ssm.ops import (
    causal_convolution,
    initialize_A,
    inverse_softplus,
    log_uniform_delta,
    s4d_kernel,
    selective_scan,
)
from measure import Prepared, prepare, seeded

EXAMPLE = "python benchmarks/operators.py --lengths=1024,4096 --threads=2 --budget=2"
LENGTHS = [1024, 4096, 16384, 65536]
# B2S6: complex A, zero-order hold, 8 blocks of channels, and a bias added to B.
S6, B2S6 = "S6", "B2S6"
MAMBA, LOOP = "mamba-ssm", "reference"  # mamba-ssm's own function; our backend that loops over time
GROUPS = 8


def kernels_of(device: torch.device) -> str:
    """Return the backend with our own kernels: "auto" would take mamba-ssm's where it is installed."""
    return "triton" if device.type == "cuda" else "cpu"


class Shape(NamedTuple):
    B: int
    D: int
    N: int
    L: int


# -- the selective scan --------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)  # the contenders of a comparison share them: on a GPU they are gigabytes
def scan_inputs(
    kind: str, shape: Shape, device: torch.device, channels_last: bool = False, half: bool = False
) -> dict[str, Tensor]:
    """Return the arguments of a scan in float32, with the same values in every layout.

    channels_last: the views that layers pass, projections of (B, L, D). half: real sequences in bfloat16 with complex
    ones and small parameters in float32, as mixed precision has them.
    """
    B, D, N, L = shape
    random = seeded(device=device)
    groups = 1 if kind == S6 else GROUPS

    def randn(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*size, generator=random, dtype=dtype, device=device)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        delta_bias = inverse_softplus(log_uniform_delta(D, 1e-3, 1e-1))
    state_dtype = torch.float32 if kind == S6 else torch.complex64
    inputs = {
        "u": randn(B, D, L), "delta": 0.1 * randn(B, D, L),
        "A": initialize_A("real", N).repeat(D, 1) if kind == S6 else initialize_A("legs", N),
        "B": randn(B, groups, N, L, dtype=state_dtype), "C": randn(B, groups, N, L),
        "D": randn(D), "delta_bias": delta_bias,
    }  # fmt: skip
    if kind == B2S6:
        inputs["B_bias"] = randn(D, N, dtype=state_dtype)
    sequences = ("u", "delta", "B", "C")
    if channels_last:
        inputs |= {name: inputs[name].movedim(-1, 1).contiguous().movedim(1, -1) for name in sequences}
    if half:
        inputs |= {name: inputs[name].bfloat16() for name in sequences if not inputs[name].is_complex()}
    return {name: x.to(device) for name, x in inputs.items()}


def in_float64(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.to(torch.complex128 if x.is_complex() else torch.float64) for name, x in inputs.items()}


def scan(
    kind: str, shape: Shape, by: str, device: torch.device, dtype: torch.dtype = torch.float32, **layout: bool
) -> Prepared:
    """Prepare a scan. by: a backend or MAMBA. layout: as in `scan_inputs`."""
    if by == MAMBA:
        function: Callable[..., Tensor] = _mamba_ssm_scan
    else:
        discretization = "euler" if kind == S6 else "zoh"
        function = partial(selective_scan, delta_softplus=True, discretization=discretization, backend=by)
    inputs = scan_inputs(kind, shape, device, **layout)
    return prepare(function, in_float64(inputs) if dtype == torch.float64 else inputs)


def _mamba_ssm_scan(delta_bias: Tensor, **x: Tensor) -> Tensor:
    """Call mamba-ssm's function as its users do."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    return selective_scan_fn(**x, z=None, delta_bias=delta_bias, delta_softplus=True)


def scans(shape: Shape, bench: Bench) -> None:
    """Compare S6 by every way (the loop only where it takes seconds), then S6 and B2S6 of equal state.

    The second comparison passes the views that layers pass.
    """
    run = partial(scan, S6, shape, device=bench.device)
    double = partial(run, by="eager", dtype=torch.float64)
    ours, is_short = kernels_of(bench.device), shape.L <= (1024 if bench.is_gpu else 4096)
    ways = [ours, MAMBA] if bench.is_gpu else [ours]
    contenders = [Contender(by, partial(run, by=by), double) for by in ways + [LOOP] * is_short]
    if bench.is_gpu:
        rounded = partial(double, half=True)
        contenders += [Contender(f"{by}, bfloat16", partial(run, by=by, half=True), rounded) for by in ways]
    bench.compare("S6 by every way", shape._asdict(), contenders)
    contenders = []
    for kind, kind_shape in ((S6, shape), (B2S6, shape._replace(N=shape.N // 2))):
        run = partial(scan, kind, kind_shape, by=ours, device=bench.device, channels_last=True)
        contenders.append(Contender(kind, run, partial(run, by="eager", dtype=torch.float64)))
    bench.compare("N real states each", shape._asdict(), contenders)


# -- S4D -----------------------------------------------------------------------------------------------------------


def _kernel_and_convolution(backend: str, u: Tensor, **system: Tensor) -> Tensor:
    return causal_convolution(u, s4d_kernel(**system, L=u.shape[-1], backend=backend))


def s4d(by: str, shape: Shape, device: torch.device, dtype: torch.dtype = torch.float32) -> Prepared:
    """Prepare S4D's kernel and convolution. by: the kernel's backend."""
    B, D, N, L = shape
    random = seeded()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        delta = log_uniform_delta(D, 1e-3, 1e-1)
    inputs = {
        "u": torch.randn(B, D, L, generator=random), "delta": delta,
        "A": initialize_A("legs", N).to(torch.complex64).repeat(D, 1), "B": torch.ones(D, N, dtype=torch.complex64),
        "C": torch.randn(D, N, generator=random, dtype=torch.complex64),
    }  # fmt: skip
    inputs = {name: x.to(device) for name, x in inputs.items()}
    return prepare(partial(_kernel_and_convolution, by), in_float64(inputs) if dtype == torch.float64 else inputs)


def s4d_kernels(shape: Shape, bench: Bench) -> None:
    """Compare our kernel with PyTorch's operations, both before the same convolution."""
    double = partial(s4d, "eager", shape, bench.device, torch.float64)
    ways = [kernels_of(bench.device), "eager"]
    contenders = [Contender(by, partial(s4d, by, shape, bench.device), double) for by in ways]
    bench.compare("S4D's kernel and convolution", shape._asdict(), contenders)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, EXAMPLE)
    add = parser.add_argument
    add("--lengths", type=lengths, metavar="LIST", help="default: 1024, 4096, 16384 and 65536")
    add("--batch", type=positive, metavar="N", help="default: 4, on a GPU 8")
    add("--channels", type=positive, metavar="N", help=f"D, a multiple of {GROUPS}; default: 128, on a GPU 1536")
    add("--states", type=positive, default=16, metavar="N", help="real states of a channel; default: 16")
    given = parser.parse_args(arguments)
    bench = Bench("operators", given)
    B, D = (8, 1536) if bench.is_gpu else (4, 128)
    if given.quick:
        B, D = 2, 16
    shape = Shape(given.batch or B, given.channels or D, given.states, L=1)
    if shape.D % GROUPS or shape.N % 2:
        parser.error(f"--channels must be a multiple of {GROUPS}, and --states a multiple of 2")
    for L in given.lengths or ([32, 64] if given.quick else LENGTHS):
        shape_at_L = shape._replace(L=L)
        scans(shape_at_L, bench)
        s4d_kernels(shape_at_L._replace(N=max(shape.N // 2, 2)), bench)
    bench.finish()


if __name__ == "__main__":
    start(main)
