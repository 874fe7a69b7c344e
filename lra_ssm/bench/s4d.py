"""S4D's operator as works to measure: the kernel, the convolution, both, and the obvious ways to write them.

Shapes: u, y (B, D, L); delta (D,); A, B, C (D, N); kernels (D, L).
(B batch, D channels, N conjugate pairs, L length.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from lra_ssm.bench.work import Prepared, Shape, generator, prepare, random_like
from lra_ssm.ops import bidirectional_convolution, causal_convolution, initialize_A, log_uniform_delta, s4d_kernel


def naive_kernel(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, L: int) -> Tensor:
    """`s4d_kernel` through the whole (D, N, L) Vandermonde matrix, as its paper writes it."""
    step = delta.unsqueeze(-1) * A
    weights = C * B * (torch.exp(step) - 1) / A
    times = torch.arange(L, device=delta.device, dtype=delta.dtype)
    return 2 * torch.einsum("dn,dnl->dl", weights, torch.exp(step.unsqueeze(-1) * times)).real


def shortest_fft_convolution(u: Tensor, k: Tensor) -> Tensor:
    """`causal_convolution` with a transform of the 2L - 1 points that it needs at least."""
    L = u.shape[-1]
    n = 2 * L - 1
    return torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(k, n=n), n=n)[..., :L]


def two_convolutions(u: Tensor, k_forward: Tensor, k_backward: Tensor) -> Tensor:
    """`bidirectional_convolution` as a causal one and another over the reversed sequence, one step later."""
    backward = causal_convolution(u.flip(-1), k_backward).flip(-1)[..., 1:]
    return causal_convolution(u, k_forward) + torch.nn.functional.pad(backward, (0, 1))


def _system_and_convolution(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        return causal_convolution(u, kernel(delta, A, B, C, u.shape[-1]))

    return run


OURS = "kernel and convolution"
KERNEL = "kernel alone"
CONVOLUTION = "convolution alone"
NAIVE = "naive Vandermonde kernel and convolution"
NAIVE_KERNEL = "naive Vandermonde kernel alone"
SHORTEST_FFT = "convolution alone, FFT of 2L - 1 points"
ONE_FFT, TWO_FFT = "both directions in one FFT", "both directions in two FFTs"

_SYSTEM, _PAIR = ("delta", "A", "B", "C"), ("u", "k_forward", "k_backward")
# part -> (its function; the kernel's length is bound later; its inputs; the part that is its float64 truth)
PARTS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...], str]] = {
    OURS: (_system_and_convolution(s4d_kernel), ("u", *_SYSTEM), NAIVE),
    KERNEL: (s4d_kernel, _SYSTEM, NAIVE_KERNEL),
    CONVOLUTION: (causal_convolution, ("u", "k"), SHORTEST_FFT),
    NAIVE: (_system_and_convolution(naive_kernel), ("u", *_SYSTEM), NAIVE),
    NAIVE_KERNEL: (naive_kernel, _SYSTEM, NAIVE_KERNEL),
    SHORTEST_FFT: (shortest_fft_convolution, ("u", "k"), SHORTEST_FFT),
    ONE_FFT: (bidirectional_convolution, _PAIR, TWO_FFT),
    TWO_FFT: (two_convolutions, _PAIR, TWO_FFT),
}


@lru_cache(maxsize=4)
def s4d_inputs(shape: Shape, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """LegS states, steps log-uniform in Mamba's range; kernels as they come out of it."""
    random, (B, D, N, L) = generator(), (shape.batch, shape.channels, shape.states, shape.length)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        delta = log_uniform_delta(D, 1e-3, 1e-1)
    A = initialize_A("legs", N).to(torch.complex64).repeat(D, 1)
    one = torch.ones(D, N, dtype=torch.complex64)
    C = torch.randn(2, D, N, generator=random, dtype=torch.complex64)
    kernels = s4d_kernel(delta, A, one, C, L)
    inputs = {
        "u": torch.randn(B, D, L, generator=random),
        "delta": delta, "A": A, "B": one, "C": C[0],
        "k": kernels[0], "k_forward": kernels[0], "k_backward": kernels[1],
    }  # fmt: skip
    return {n: x.to(device, dtype.to_complex() if x.is_complex() else dtype) for n, x in inputs.items()}


@dataclass(frozen=True)
class S4DWork:
    """part: a key of PARTS."""

    part: str
    shape: Shape
    device: torch.device
    dtype: torch.dtype = torch.float32

    def build(self) -> Prepared:
        function, names, _ = PARTS[self.part]
        inputs = {name: x for name, x in s4d_inputs(self.shape, self.device, self.dtype).items() if name in names}
        if names == _SYSTEM:
            return prepare(lambda **x: function(**x, L=self.shape.length), inputs, random_like)
        return prepare(function, inputs, random_like)

    def smaller(self) -> S4DWork:
        return replace(self, shape=replace(self.shape, batch=1, length=min(self.shape.length, 64)))

    def bytes_needed(self) -> float:
        shape = self.shape
        sequences = 30 * self.dtype.itemsize * (shape.batch + 1) * shape.channels * shape.length
        states = shape.channels * shape.states * shape.length if self.part in (NAIVE, NAIVE_KERNEL) else 0
        return sequences + 6 * 2 * self.dtype.itemsize * states


@dataclass(frozen=True)
class S4DTruth:
    """The naive twin of a part in float64; where its (D, N, L) is too large, the part itself in float64."""

    part: str
    shape: Shape
    device: torch.device

    @property
    def _twin(self) -> str:
        twin = PARTS[self.part][2]
        large = self.shape.channels * self.shape.states * self.shape.length > 2**24
        replacement = {NAIVE: OURS, NAIVE_KERNEL: KERNEL}
        return replacement.get(twin, twin) if large else twin

    @property
    def label(self) -> str:
        return f"float64 {self._twin}"

    def results(self) -> dict[str, Tensor]:
        return S4DWork(self._twin, self.shape, self.device, torch.float64).build().results()
