"""Measures the selective scan, S4D's operator and the layers made of them, next to other ways to compute the same.

At each length: S6 by every backend, by mamba-ssm's kernel (on a GPU, in bfloat16 too) and written out in PyTorch; S6
and complex B2S6 of equal state; S4D's kernel and convolution next to the naive ones. Then layers at LRA's sizes, and
Mamba-2's unit and block next to Mamba's.

Shapes: u, delta, y (B, D, L); A (D, N) or (N,); B, C (B, G, N, L) for the scan, (D, N) for S4D; D, delta_bias (D,);
B_bias (D, N); a layer's x, y (B, L, D). (B batch, D channels, L length, N states (conjugate pairs for complex A), G
groups.)
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import lra_ssm.layers
from bench import BOTH, Bench, Contender, lengths, options, positive, start, words
from lra_ssm.layers import LayerSpec
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
S6, B2S6, S4D, NAIVE = "S6", "B2S6", "S4D", "naive Vandermonde"
MAMBA, LOOP = "mamba-ssm", "loop over time"
GROUPS = 8


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
    """The arguments of a scan in float32, the same values for every layout.

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
    own = torch.float32 if kind == S6 else torch.complex64
    inputs = {
        "u": randn(B, D, L), "delta": 0.1 * randn(B, D, L),
        "A": initialize_A("real", N).repeat(D, 1) if kind == S6 else initialize_A("legs", N),
        "B": randn(B, groups, N, L, dtype=own), "C": randn(B, groups, N, L),
        "D": randn(D), "delta_bias": delta_bias,
    }  # fmt: skip
    if kind == B2S6:
        inputs["B_bias"] = randn(D, N, dtype=own)
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
    """by: a backend, LOOP or MAMBA.  layout: as in `scan_inputs`."""
    zoh = kind != S6
    if by == MAMBA:
        function: Callable[..., Any] = _mamba_ssm_scan
    elif by == LOOP:
        function = partial(loop, zoh=zoh)
    else:
        discretization = "zoh" if zoh else "euler"
        function = partial(selective_scan, delta_softplus=True, discretization=discretization, backend=by)
    inputs = scan_inputs(kind, shape, device, **layout)
    return prepare(function, in_float64(inputs) if dtype == torch.float64 else inputs)


def _mamba_ssm_scan(delta_bias: Tensor, **x: Tensor) -> Tensor:
    """mamba-ssm's own function, called as its users do."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    return selective_scan_fn(**x, z=None, delta_bias=delta_bias, delta_softplus=True)


def loop(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, delta_bias: Tensor,
    B_bias: Tensor | None = None, zoh: bool = False,
) -> Tensor:  # fmt: skip
    """`selective_scan` with softplus as one writes it in PyTorch, on tensors (B, L, D, N) of everything."""
    delta = F.softplus(delta + delta_bias[:, None]).transpose(1, 2).unsqueeze(-1)
    width = u.shape[1] // B.shape[1]  # of a group
    B, C = (x.repeat_interleave(width, dim=1).permute(0, 3, 1, 2) for x in (B, C))
    B = B if B_bias is None else B + B_bias
    A_bar = torch.exp(delta * A)
    v = ((A_bar - 1) / A if zoh else delta) * B * u.transpose(1, 2).unsqueeze(-1)
    x, outputs = torch.zeros_like(v[:, 0]), []
    for A_bar_k, v_k, C_k in zip(A_bar.unbind(1), v.unbind(1), C.unbind(1), strict=True):
        x = A_bar_k * x + v_k
        outputs.append((x * C_k).sum(-1))
    y = torch.stack(outputs, dim=-1)
    return (2 * y.real if y.is_complex() else y) + D[:, None] * u


def scans(shape: Shape, backends: list[str], bench: Bench) -> None:
    """S6 by every way, written out where that takes no minutes; S6 and B2S6 of equal state, as layers call them."""
    run = partial(scan, S6, shape, device=bench.device)
    double = partial(run, by="eager", dtype=torch.float64)
    fastest, short = backends[0], shape.L <= (1024 if bench.is_gpu else 4096)
    ways = [fastest, MAMBA] if bench.is_gpu else [fastest]
    contenders = [Contender(by, partial(run, by=by), double) for by in ways + (backends[1:] + [LOOP]) * short]
    if bench.is_gpu:
        rounded = partial(double, half=True)
        contenders += [Contender(f"{by}, bfloat16", partial(run, by=by, half=True), rounded) for by in ways]
    bench.compare("S6 by every way", shape._asdict(), contenders)
    contenders = []
    for kind, own in ((S6, shape), (B2S6, shape._replace(N=shape.N // 2))):
        run = partial(scan, kind, own, by=fastest, device=bench.device, channels_last=True)
        contenders.append(Contender(kind, run, partial(run, by="eager", dtype=torch.float64)))
    bench.compare("N real states each", shape._asdict(), contenders)


# -- S4D -----------------------------------------------------------------------------------------------------------


def naive_kernel(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, L: int) -> Tensor:
    """`s4d_kernel` through the whole (D, N, L) Vandermonde matrix, as the public code without its CUDA extension."""
    step = delta.unsqueeze(-1) * A
    weights = C * B * (torch.exp(step) - 1) / A
    times = torch.arange(L, device=delta.device, dtype=delta.dtype)
    return 2 * torch.einsum("dn,dnl->dl", weights, torch.exp(step.unsqueeze(-1) * times)).real


def _kernel_and_convolution(kernel: Callable[..., Tensor], u: Tensor, **system: Tensor) -> Tensor:
    return causal_convolution(u, kernel(**system, L=u.shape[-1]))


def s4d(by: str, shape: Shape, device: torch.device, dtype: torch.dtype = torch.float32) -> Prepared:
    """Kernel and convolution; by: S4D or NAIVE."""
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
    function = partial(_kernel_and_convolution, s4d_kernel if by == S4D else naive_kernel)
    return prepare(function, in_float64(inputs) if dtype == torch.float64 else inputs)


# -- layers --------------------------------------------------------------------------------------------------------

_LRA = {"d_state": 64, "bidirectional": True}
_MODELS = {"S4D": _LRA, "S6": _LRA, "B2S6": {**_LRA, "num_blocks": 8}}
_UNITS = {"S6": {"d_state": 16}, "SSD": {"d_state": 128}}  # as published
_BLOCKS = {f"{name}Block": {"layer": LayerSpec(getattr(lra_ssm.layers, unit), **_UNITS[unit])}
           for name, unit in (("Mamba", "S6"), ("Mamba2", "SSD"))}  # fmt: skip
_CAUSAL = {"S4D": {"d_state": 64}, "StableSSM": {"d_state": 64}, "LRU": {"d_state": 128}}
# (layers, batch on a GPU, length, channels). Sources: configs/lra/listops; for the width and batch of sCIFAR ("Image")
# Yu & Erichson 2025, table 4. The other sizes are our choice; LRU counts complex states.
SIZES: dict[str, tuple[dict[str, dict[str, Any]], int, int, int]] = {
    "time-invariant, causal": (_CAUSAL, 16, 4096, 128),
    "ListOps": (_MODELS, 32, 2048, 128),
    "sCIFAR": (_MODELS, 48, 1024, 512),
    "Mamba's units": (_UNITS, 16, 2048, 512),
    "Mamba's blocks": (_BLOCKS, 16, 2048, 256),
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
    return prepare(run, inputs | {name: p.detach() for name, p in module.named_parameters()})


def layers(title: str, bench: Bench) -> None:
    kinds, batch, length, channels = SIZES[title]
    # with --quick 64 channels, which a head of Mamba-2 has; on a CPU 2 sequences
    shape = (2, 32, 64) if bench.given.quick else (batch if bench.is_gpu else 2, length, channels)
    contenders = []
    for name, own in kinds.items():
        build = partial(layer, name, own, shape, bench.device)
        contenders.append(Contender(name, partial(build, torch.float32), partial(build, torch.float64)))
    bench.compare(f"{title} layers", dict(zip("BLD", shape, strict=True)), contenders, modes=(BOTH,))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, EXAMPLE)
    add = parser.add_argument
    add("--lengths", type=lengths, metavar="LIST", help="of scans and S4D; default: 1024, 4096, 16384 and 65536")
    add("--batch", type=positive, metavar="N", help="of these; default: 4, on a GPU 8")
    add("--channels", type=positive, metavar="N", help=f"D, a multiple of {GROUPS}; default: 128, on a GPU 1536")
    add("--states", type=positive, default=16, metavar="N", help="real states of a channel; default: 16")
    add("--backends", type=words, metavar="LIST", help="of the scan; default: all that run here")
    add("--sizes", nargs="*", choices=SIZES, default=list(SIZES), metavar="SIZE", help="of layers; default: all")
    given = parser.parse_args(arguments)
    bench = Bench("operators", given)
    B, D = (8, 1536) if bench.is_gpu else (4, 128)
    if given.quick:
        B, D = 2, 16
    shape = Shape(given.batch or B, given.channels or D, given.states, L=1)
    if shape.D % GROUPS or shape.N % 2:
        parser.error(f"--channels is a multiple of {GROUPS}, --states of 2")
    backends = bench.backends(given.backends)
    for L in given.lengths or ([32, 64] if given.quick else LENGTHS):
        own = shape._replace(L=L)
        scans(own, backends, bench)
        own = own._replace(N=max(shape.N // 2, 2))
        parts = {by: partial(s4d, by, own, bench.device) for by in (S4D, NAIVE)}
        contenders = [Contender(by, run, partial(run, torch.float64)) for by, run in parts.items()]
        bench.compare("S4D's kernel and convolution", own._asdict(), contenders)
    for title in given.sizes:
        layers(title, bench)
    bench.finish()


if __name__ == "__main__":
    start(main)
