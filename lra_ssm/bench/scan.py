"""The selective scan as works to measure: eight cases, each backend, two layouts, the baselines, the float64 truth.

Shapes as in `selective_scan`.  (B batch, D channels, N states (conjugate pairs for complex A), L length, G groups.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from lra_ssm.bench.baselines import BASELINES, baseline_scan, mamba_ssm_scan
from lra_ssm.bench.work import Prepared, Shape, generator, prepare, random_like
from lra_ssm.ops import initialize_A, inverse_softplus, log_uniform_delta, selective_scan


@dataclass(frozen=True)
class ScanCase:
    """What kind of scan: all have softplus, D and delta_bias as Mamba's; complex ones a real C as B2S6's.

    second_scan: the bias not as B_bias but as another scan with a constant B, added to the first."""

    name: str
    is_complex: bool = False
    groups: int = 1
    bias: bool = False
    zoh: bool = False
    second_scan: bool = False

    @property
    def truth(self) -> str:
        """Cases with equal values, computed in two ways, have one truth."""
        return "B2S6" if self.second_scan else self.name


S6 = ScanCase("S6")
B2S6 = ScanCase("B2S6", is_complex=True, groups=8, bias=True, zoh=True)
B2S6_WITHOUT_BIAS = replace(B2S6, name="B2S6 without bias", bias=False)
B2S6_SECOND_SCAN = replace(B2S6, name="B2S6, bias as a second scan", second_scan=True)
CASES = (
    S6,
    ScanCase("real, 8 groups", groups=8),
    ScanCase("real, 8 groups, bias", groups=8, bias=True),
    ScanCase("complex, 1 group", is_complex=True),
    ScanCase("complex, 8 groups", is_complex=True, groups=8),
    B2S6_WITHOUT_BIAS,
    B2S6,
    B2S6_SECOND_SCAN,
)

CHANNELS_FIRST, CHANNELS_LAST = "(B, D, L)", "(B, L, D)"
MAMBA = "mamba-ssm"


SEQUENCES = ("u", "delta", "B", "C")


@lru_cache(maxsize=4)  # the contenders of one comparison share them
def scan_inputs(
    case: ScanCase, shape: Shape, layout: str, device: torch.device, dtype: torch.dtype, half: bool = False
) -> dict:
    """The arguments of a scan, the same values for every layout and dtype; half: SEQUENCES rounded to bfloat16, and
    left in it for float32, as mixed precision has them."""
    random, (B, D, N, L) = generator(device=device), (shape.batch, shape.channels, shape.states, shape.length)

    def randn(*size: int, is_complex: bool = False) -> Tensor:
        dtype = torch.complex64 if is_complex else torch.float32
        return torch.randn(*size, generator=random, dtype=dtype, device=device)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        delta_bias = inverse_softplus(log_uniform_delta(D, 1e-3, 1e-1))
    inputs = {
        "u": randn(B, D, L),
        "delta": 0.1 * randn(B, D, L),
        "A": initialize_A("legs", N) if case.is_complex else initialize_A("real", N).repeat(D, 1),
        "B": randn(B, case.groups, N, L, is_complex=case.is_complex),
        "C": randn(B, case.groups, N, L),
        "D": randn(D),
        "delta_bias": delta_bias,
    }
    if case.bias:
        inputs["B_bias"] = randn(D, N, is_complex=case.is_complex)
    if layout == CHANNELS_LAST:  # the views that the layers pass: projections of (B, L, D)
        for name in ("u", "delta"):
            inputs[name] = inputs[name].transpose(1, 2).contiguous().transpose(1, 2)
        for name in ("B", "C"):
            inputs[name] = inputs[name].permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    if half:
        inputs |= {name: inputs[name].bfloat16() for name in SEQUENCES}
        if dtype == torch.float32:
            return {name: x.to(device) for name, x in inputs.items()}
    return {name: x.to(device, _as(dtype, x)) for name, x in inputs.items()}


def _as(dtype: torch.dtype, x: Tensor) -> torch.dtype:
    return dtype.to_complex() if x.is_complex() else dtype


def run_backend(case: ScanCase, backend: str, **x: Tensor) -> Tensor:
    """`selective_scan` for a case's inputs."""

    def scan(**arguments: Tensor) -> Tensor:
        discretization = "zoh" if case.zoh else "euler"
        y = selective_scan(**arguments, delta_softplus=True, discretization=discretization, backend=backend)  # type: ignore[arg-type]
        assert isinstance(y, Tensor)
        return y

    if not case.second_scan:
        return scan(**x)
    again = {**x, "B": x.pop("B_bias")}
    for name in ("B_bias", "D"):
        del again[name]
    return scan(**x) + scan(**again)


@dataclass(frozen=True)
class ScanWork:
    """by: the name of a backend, of a baseline, or MAMBA."""

    case: ScanCase
    shape: Shape
    by: str
    device: torch.device
    layout: str = CHANNELS_FIRST
    dtype: torch.dtype = torch.float32
    half: bool = False

    def build(self) -> Prepared:
        inputs = scan_inputs(self.case, self.shape, self.layout, self.device, self.dtype, self.half)
        return prepare(self._function(), inputs, random_like)

    def _function(self) -> Callable[..., Tensor]:
        if self.by == MAMBA:
            return mamba_ssm_scan
        if self.by in BASELINES:
            return partial(baseline_scan, BASELINES[self.by], zoh=self.case.zoh)
        return partial(run_backend, self.case, self.by)

    def smaller(self) -> ScanWork:
        return replace(self, shape=replace(self.shape, batch=1, length=min(self.shape.length, 64)))

    def bytes_needed(self) -> float:
        one = self.dtype.itemsize * self.shape.batch * self.shape.channels * self.shape.length
        # measured for S6: about nine tensors with a state for every position; logarithms keep more
        if self.by in ("triton", MAMBA):  # beside the inputs' kin, sums of B's and C's gradients by blocks of channels
            return one * (10 + self.shape.states * (0.75 if self.case.is_complex else 0.25))
        one *= 2 if self.case.is_complex else 1
        states = {"loop over time": 14, "cumulative sums of logs": 30}.get(self.by, 18) if self.by in BASELINES else 0
        return one * (20 + states * self.shape.states)


@dataclass(frozen=True)
class ScanTruth:
    """The case in float64: the naive reference where it is affordable, else the eager chunked form, which the tests
    hold against the reference.

    The reference keeps many tensors with a state for every position, so it runs piece by piece: a batch item and some
    channels of one group at a time. Gradients of what pieces share are added."""

    case: ScanCase
    shape: Shape
    device: torch.device
    half: bool = False
    most_steps: int = 20_000  # of time, over all pieces; one costs about 0.1 ms, on a GPU some 1 ms (not measured)

    def _channels_per_piece(self) -> int:
        case, shape = self.case, self.shape
        group = shape.channels // case.groups
        one = shape.states * shape.length * (16 if case.is_complex else 8) * (40 if case.zoh else 10)
        limit = 8e9 if self.device.type == "cuda" else 2e9
        return max(p for p in range(1, group + 1) if group % p == 0 and (p * one <= limit or p == 1))

    @property
    def by_reference(self) -> bool:
        pieces = self.shape.batch * self.shape.channels // self._channels_per_piece()
        return pieces * self.shape.length <= self.most_steps // (10 if self.device.type == "cuda" else 1)

    @property
    def label(self) -> str:
        return "float64 reference" if self.by_reference else "float64 run of the eager backend"

    def results(self) -> dict[str, Tensor]:
        case = replace(self.case, second_scan=False)
        if not self.by_reference:
            work = ScanWork(case, self.shape, "eager", self.device, dtype=torch.float64, half=self.half)
            return work.build().results()
        whole = scan_inputs(case, self.shape, CHANNELS_FIRST, self.device, torch.float32, self.half)
        whole = {name: x.to(_as(torch.float64, x)) for name, x in whole.items()}
        weights = random_like(whole["u"])
        found = {"y": torch.empty_like(weights)}
        found.update({f"gradient of {name}": torch.zeros_like(x) for name, x in whole.items()})
        P, group = self._channels_per_piece(), self.shape.channels // case.groups
        for item in range(self.shape.batch):
            for first in range(0, self.shape.channels, P):
                where = _Piece(item, slice(first, first + P), first // group)
                leaves = {n: where.of(n, x).detach().requires_grad_() for n, x in whole.items()}
                y = run_backend(case, "reference", **leaves)
                grads = torch.autograd.grad(y, list(leaves.values()), where.of("u", weights))
                where.of("u", found["y"]).copy_(y.detach())
                for name, grad in zip(leaves, grads, strict=True):
                    where.of(name, found[f"gradient of {name}"]).add_(grad)
        return found


@dataclass(frozen=True)
class _Piece:
    item: int
    channels: slice
    group: int

    def of(self, name: str, x: Tensor) -> Tensor:
        """The view of an argument that this piece sees."""
        if name in ("u", "delta"):
            return x[self.item : self.item + 1, self.channels]
        if name in ("B", "C"):
            return x[self.item : self.item + 1, self.group : self.group + 1]
        return x if x.dim() == 1 and name == "A" else x[self.channels]
