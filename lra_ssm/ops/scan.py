"""The plain linear recurrence x_t = a_t x_{t-1} + b_t, real or complex, with a constant or varying in time.

Shapes: b, x (B, D, L); a (D,) or (B, D, L); states (B, D); reset (B, L).  (B batch, D channels, L length.)

Both forms have the same gradients.  With g_t the whole gradient of x_t (through x_{t+1} as well),

    g_t = grad x_t + conj(a_{t+1}) g_{t+1},   grad b_t = g_t,   grad a_t = conj(x_{t-1}) g_t,

a recurrence of the same kind that runs from the end: nothing is divided by a, which may be zero.  The code has
conj(g) throughout, whose recurrence has a itself for its factor.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra_ssm.ops.backends import scans_constants_natively
from lra_ssm.ops.backends.cpu_linear_scan import constant_scan
from lra_ssm.ops.inputs import check_linear_inputs
from lra_ssm.ops.reference import run_linear_reference
from lra_ssm.ops.selective_scan import selective_scan


def _carry_(target: Tensor, factor: Tensor, source: Tensor, dropped: Tensor | None) -> None:
    """Add factor · source to target, except where dropped (B, or B and time): there even inf and nan add nothing."""
    if dropped is None:
        target.addcmul_(factor, source)
    else:
        target.add_((factor * source).masked_fill_(dropped.unsqueeze(1), 0))


def _scan_(x: Tensor, links: Tensor, dropped: Tensor | None, backwards: bool) -> None:
    """Scan in place: x_{k+1} += links_k x_k in the order of time, or x_k += links_k x_{k+1} from the end.

    x (B, D, n); links (B, D, n-1), not changed; dropped (B, n-1), the links across which nothing passes.

    Every second step takes in its neighbour, so that steps two apart are linked by products of two links; these, half
    as many, are scanned in the same way; the other steps then take in their neighbours. 2 log2(n) rounds that touch 3n
    numbers in all; to double the reach of every step, round by round, would touch 2 n log2(n), several times as slow as
    measured.
    """
    n = x.shape[-1]
    if n < 2:
        return

    def carry(first: int) -> None:
        earlier, later = x[..., first : n - 1 : 2], x[..., first + 1 :: 2]
        target, source = (earlier, later) if backwards else (later, earlier)
        _carry_(target, links[..., first::2], source, None if dropped is None else dropped[:, first::2])

    carry(0)
    start = 0 if backwards else 1
    half = x[..., start::2]
    stop = start + 2 * (half.shape[-1] - 1)
    first, second = slice(start, stop, 2), slice(start + 1, stop, 2)
    either = None if dropped is None else dropped[:, first] | dropped[:, second]
    _scan_(half, links[..., first] * links[..., second], either, backwards)
    carry(1)


def _laid_out_as(b: Tensor, w: Tensor) -> Tensor:
    """Return w (D, L), its channels adjacent in memory if those of b (B, D, L) are: products are then fast."""
    return w.T.contiguous().T if b.stride(1) < b.stride(2) else w


def _powers(log: Tensor, L: int, dtype: torch.dtype) -> Tensor:
    """Return exp(t log), t = 0 .. L-1, as (D, L) from log (D,) complex128: a product of two exact tables per entry."""
    size = 1 << (math.isqrt(L - 1).bit_length())
    t = torch.arange(size, device=log.device, dtype=torch.float64)
    fine = torch.exp(log[:, None] * t).to(dtype)
    coarse = torch.exp(log[:, None] * (size * t[: -(-L // size)])).to(dtype)
    return (coarse.unsqueeze(2) * fine.unsqueeze(1)).flatten(1)[:, :L]


def _by_the_kernels(a: Tensor, b: Tensor, initial: Tensor | None, reset: Tensor | None, backend: str) -> Tensor:
    """Return x for a constant a (D,), by a selective scan of delta = 1 (D,), A = log rho and rho = |a|: no autograd.

    The rest of a is turned out of the recurrence: with w_t = (a / rho)^t, x = w y where y_t = rho y_{t-1} + b_t / w_t.
    For real a, w is the sign of every other step; for complex a, re and im of y are two channels of a real scan.  A
    phase in the scan's factors would be rounded there, the same way at every step: 1e-7 a step in float32, and 5e-4
    after 4096 of them.  For the same reason rho is |a| as rounded to the arithmetic's dtype (exp(log rho) then gives
    just that where the memory is long), and what the rounding took away is part of w, whose logarithm is float64.
    """
    (_, D, L), dtype = b.shape, b.real.dtype
    wide = a.to(torch.complex128 if a.is_complex() else torch.float64)
    magnitude = wide.abs().clamp_min(torch.finfo(dtype).tiny)
    log_rho = magnitude.to(dtype).double().log()
    if a.is_complex():
        log_w = torch.complex(magnitude.log() - log_rho, wide.angle())
        v = b * _laid_out_as(b, _powers(-log_w, L, b.dtype))
        w = _laid_out_as(b, _powers(log_w, L, b.dtype))
    else:
        odd = torch.arange(L, device=a.device) % 2 == 1
        w = _laid_out_as(b, 1 - 2 * ((a < 0).unsqueeze(1) & odd).to(dtype))
        v = b * w
    if initial is not None:
        _carry_(v[..., 0], a, initial, None if reset is None else reset[:, 0])
    if a.is_complex():
        v, log_rho = torch.view_as_real(v).movedim(-1, 2).flatten(1, 2), log_rho.repeat_interleave(2)
    ones = log_rho.new_ones(v.shape[1], 1, dtype=dtype)
    y = selective_scan(v, ones[:, 0], log_rho.to(dtype).unsqueeze(1), ones, ones, reset=reset, backend=backend)
    assert isinstance(y, Tensor)
    if a.is_complex():
        y = y.unflatten(1, (D, 2))
        y = torch.complex(y[:, :, 0], y[:, :, 1])
    return y.mul_(w)


class _LinearScan(torch.autograd.Function):
    """a (D,) or (B, D, L), b (B, D, L), initial (B, D) in one dtype; keeps a and x for backward."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, initial: Tensor | None, reset: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        if a.dim() == 1:
            x = _by_the_kernels(a, b, initial, reset, backend)
        else:
            x = b.clone()
            if initial is not None:
                _carry_(x[..., 0], a[..., 0], initial, None if reset is None else reset[:, 0])
            _scan_(x, a[..., 1:], None if reset is None else reset[:, 1:], backwards=False)
        ctx.save_for_backward(a, x, initial, reset)
        ctx.backend = backend
        ctx.set_materialize_grads(False)
        return x, x[..., -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_x: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor | None, ...]:
        a, x, initial, reset = ctx.saved_tensors
        needs_a, needs_b, needs_initial, *_ = ctx.needs_input_grad
        # conj of x's whole gradient
        g = torch.zeros_like(x) if grad_x is None else torch.empty_like(x).copy_(grad_x.conj())
        if grad_last is not None:
            g[..., -1] += grad_last.conj()
        if a.dim() == 1:
            # From the end, what comes to step t from t+1 is dropped where step t+1 has a reset.
            from_the_end = None if reset is None else reset.roll(-1, 1).flip(1)
            g = _by_the_kernels(a, g.flip(-1), None, from_the_end, ctx.backend).flip(-1)
        else:
            _scan_(g, a[..., 1:], None if reset is None else reset[:, 1:], backwards=True)
        grad_a = grad_initial = None
        if needs_initial:
            grad_initial = ((a if a.dim() == 1 else a[..., 0]) * g[..., 0]).conj().resolve_conj()
            if reset is not None:
                grad_initial.masked_fill_(reset[:, :1], 0)
        if needs_a:
            grad_a = torch.empty_like(g)
            grad_a[..., 1:].copy_(x[..., :-1]).mul_(g[..., 1:])
            grad_a[..., 0] = 0 if initial is None else initial * g[..., 0]
            if reset is not None:
                grad_a.masked_fill_(reset.unsqueeze(1), 0)
            grad_a = (grad_a.sum((0, 2)) if a.dim() == 1 else grad_a).conj_physical_()
        return grad_a, g.conj_physical_() if needs_b else None, grad_initial, None, None


def linear_scan(
    a: Tensor,
    b: Tensor,
    *,
    initial_state: Tensor | None = None,
    reset: Tensor | None = None,
    return_last_state: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Run x_t = a_t x_{t-1} + b_t, for every batch item and channel.

    Args:
        a: (D,), the same at every step, or (B, D, L); real or complex, zero included.
        b: (B, D, L), real or complex.
        initial_state: (B, D), the state before step 0; zero if not given.
        reset: (B, L) bool; where true the state before that step, initial_state included, is dropped, inf and nan too.
        return_last_state: return (x, x_{L-1} (B, D)) instead of x; gradients flow through both.
        backend: for a constant a those of `selective_scan`; "cpu" has C++ of its own, the others run by their kernels
            ("auto" takes a single step without them).  A varying a is scanned by torch operations on any device, in
            log2(L) rounds: "auto" or "eager".  "reference" is the loop over time.

    Floating dtypes may be mixed.  x has the promotion of the dtypes of a, b and initial_state, complex if any of them
    is; the arithmetic and the last state have at least single precision, whatever autocast says; each gradient has
    its input's dtype, and for a complex input torch's convention.  Only the reference has second derivatives.

    A constant a keeps its precision in float32 however long the memory: C++ has states in double; for the others see
    `_by_the_kernels`, and where |a| > 1, powers of it up to the L-th must be finite there.

    Raises:
        ValueError: one line naming the argument, what it is and what it should be; or why the backend cannot run.
    """
    inputs = check_linear_inputs(a, b, initial_state, reset)
    constant = inputs.a.dim() == 1
    if backend == "reference":
        x, last = run_linear_reference(inputs)
    elif constant and scans_constants_natively(backend, b.device):
        x, last = constant_scan(inputs.a, inputs.b.transpose(1, 2), inputs.initial, reset)
        x = x.transpose(1, 2)
    elif constant and (b.shape[-1] > 1 or backend != "auto"):
        x, last = _LinearScan.apply(*inputs[:4], backend)
    elif backend in ("auto", "eager"):
        # One step of a long recurrence, too: no need of tables and kernels.
        a = inputs.a[:, None].expand(b.shape) if constant else inputs.a
        x, last = _LinearScan.apply(a, *inputs[1:4], backend)
    else:
        raise ValueError(f"backend: {backend!r}; expected 'auto', 'eager' or 'reference' for an a that varies in time")
    x = x.to(inputs.dtype)
    return (x, last) if return_last_state else x
