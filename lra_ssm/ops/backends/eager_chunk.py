"""One chunk of the selective scan in eager PyTorch: forward and backward on (T, b, D, N) tensors.

Shapes inside a chunk are time first: u, delta (T, b, D), states and coefficients (T, b, D, N), variable B and C
(T, b, G, 1, N) broadcasting over the P = D/G channels of a group, constant ones (D, N).
(T steps of the chunk, b batch items of the chunk, D channels, N states, G groups, P channels per group.)

Backward works with conjugated gradients of the complex quantities: every formula of the scan is holomorphic but for
the final real part, so conj(grad x) = f'(x) conj(grad f(x)) needs no conjugate inside, real and complex A read the
same, and one conjugate at the very end gives PyTorch's convention.

Matrix products are avoided on purpose: their precision is the user's to lower (TF32, bf16), the scan's is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lra_ssm.ops.discretization import SERIES_RADIUS, away_from_zero, exp_values, phi1_derivative_series, zoh_values


class Workspace:
    """Named buffers that serve one chunk after the other.

    Every operation on states writes into one of them: the page faults of a fresh allocation of this size cost up to
    ten times the arithmetic on it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers: dict[str, Tensor] = {}
        self.views: dict[tuple[str, tuple[int, ...]], tuple[Tensor, tuple[Tensor, ...]]] = {}

    def _view(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, tuple[Tensor, ...]]:
        key = (name, shape)
        if key not in self.views:
            size = math.prod(shape)
            if name not in self.buffers or self.buffers[name].numel() < size:
                self.buffers[name] = torch.empty(size, dtype=dtype, device=self.device)
            view = self.buffers[name][:size].view(shape)
            self.views[key] = view, view.unbind(0)
        return self.views[key]

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The buffer of this name (one dtype per name) as a contiguous tensor of this shape; its content is stale."""
        return self._view(name, shape, dtype)[0]

    def steps(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        """The same, as one tensor per step."""
        return self._view(name, shape, dtype)[1]


class Resets:
    """Where the state is dropped, by step: masks (b, 1, 1) at the steps that have any, None elsewhere."""

    def __init__(self, reset: Tensor | None, any_at: list[bool] | None, times: slice) -> None:
        steps = range(times.start, times.stop)
        if reset is None or any_at is None:
            self.masks: list[Tensor | None] = [None] * len(steps)
        else:
            self.masks = [reset[:, k, None, None] if any_at[k] else None for k in steps]

    def drop(self, t: int, x: Tensor) -> Tensor:
        """x (b, D, N) with zeros where step t is a reset.  Filled, not multiplied: inf and nan are dropped too."""
        mask = self.masks[t]
        return x if mask is None else x.masked_fill(mask, 0)

    def drop_all_(self, x: Tensor) -> Tensor:
        """`drop` for all steps of x (T, b, D, N), in place."""
        for t, mask in enumerate(self.masks):
            if mask is not None:
                x[t].masked_fill_(mask, 0)
        return x


def real_rows(x: Tensor) -> Tensor:
    """Complex (..., N) as its 2N reals (a view), real as it is."""
    return torch.view_as_real(x).flatten(-2) if x.is_complex() else x


def multiply(x: Tensor, coefficient: Tensor, out: Tensor) -> Tensor:
    """out = x (T, b, D, N) times a coefficient (D, N), (T, b, D, N) or, shared within groups, (T, b, G, 1, N)."""
    if coefficient.dim() == 5:
        groups = (coefficient.shape[2], -1)
        torch.mul(x.unflatten(2, groups), coefficient, out=out.unflatten(2, groups))
    else:
        torch.mul(x, coefficient, out=out)
    return out


def scale(x: Tensor, r: Tensor, out: Tensor) -> Tensor:
    """out (T, b, D, N) = x, in any of `multiply`'s forms, times a real r (T, b, D) for all states of a channel.

    On 2N reals: a real times a complex tensor would first make the real one complex.
    """
    rows, out_rows = real_rows(x), real_rows(out)
    if x.dim() == 5:
        groups = (x.shape[2], -1)
        r, out_rows = r.unflatten(2, groups), out_rows.unflatten(2, groups)
    torch.mul(rows, r.unsqueeze(-1), out=out_rows)
    return out


def real_sum(x: Tensor) -> Tensor:
    """Real part of the sum over states: (T, b, D, N) -> (T, b, D)."""
    total = x.sum(-1)
    return total.real if total.is_complex() else total


def sum_like(x: Tensor, coefficient: Tensor) -> Tensor:
    """x (T, b, D, N) summed to a constant coefficient's (D, N) or, over the channels of a group, to (T, b, G, N)."""
    return x.sum((0, 1)) if coefficient.dim() == 2 else x.unflatten(2, (coefficient.shape[2], -1)).sum(3)


@dataclass
class ChunkGradients:
    """Gradients of one chunk; those of state, A, B, C and B_bias are conjugated."""

    u: Tensor  # (T, b, D)
    delta: Tensor  # (T, b, D), of delta after bias and softplus
    A: Tensor  # (D, N)
    B: Tensor  # (D, N) or (T, b, G, N)
    C: Tensor  # (D, N) or (T, b, G, N)
    B_bias: Tensor | None  # (D, N)
    state: Tensor  # (b, D, N), of the state before the chunk


class Chunk:
    """The forward quantities of one chunk, and its backward.

    u, delta (T, b, D) real, delta after bias and softplus; A and B_bias (D, N); B in `multiply`'s forms; state
    (b, D, N) before the chunk.
    """

    def __init__(
        self, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, B_bias: Tensor | None, zoh: bool, resets: Resets,
        state: Tensor, workspace: Workspace,
    ) -> None:  # fmt: skip
        self.u, self.delta, self.A, self.B, self.B_bias = u, delta, A, B, B_bias
        self.resets, self.workspace, self.initial = resets, workspace, state
        self.shape = (*u.shape, A.shape[-1])
        self.full_B = B
        if B_bias is not None:
            assert B.dim() == 5, "a bias beside a constant B is part of it"
            groups = (B.shape[2], -1)
            self.full_B = self.buffer("full_B")
            torch.add(B, B_bias.unflatten(0, groups), out=self.full_B.unflatten(2, groups))
        self.states = self.buffer("states")
        self.B_bar: Tensor | None = None
        if zoh:
            self.A_bar, self.B_bar = zoh_values(delta.unsqueeze(-1), A, self.buffer)
            scale(multiply(self.B_bar, self.full_B, out=self.states), u, out=self.states)
        else:
            self.A_bar = exp_values(delta.unsqueeze(-1), A, self.buffer)
            scale(self.full_B, delta * u, out=self.states)
        # Here states holds v = B_bar B u; in place, x_t = A_bar_t x_{t-1} + v_t.
        for t, (x, A_bar) in enumerate(zip(self.steps("states"), self.steps("A_bar"), strict=True)):
            x.addcmul_(A_bar, resets.drop(t, state))
            state = x

    def buffer(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return self.workspace.get(name, self.shape, dtype or self.A.dtype)

    def steps(self, name: str) -> tuple[Tensor, ...]:
        return self.workspace.steps(name, self.shape, self.A.dtype)

    def readout(self, C: Tensor) -> Tensor:
        """sum_n C x, or 2 Re of it for complex A: (T, b, D)."""
        y = real_sum(multiply(self.states, C, out=self.buffer("scratch")))
        return 2 * y if self.A.is_complex() else y

    def backward(self, C: Tensor, grad_y: Tensor, conj_grad_state: Tensor) -> ChunkGradients:
        """From grad_y (T, b, D), real, and the conjugated gradient of the chunk's last state (b, D, N).

        Uses up the chunk: most of its buffers are overwritten.
        """
        if self.A.is_complex():
            grad_y = 2 * grad_y
        scratch, A_bars = self.buffer("scratch"), self.steps("A_bar")
        # conj(grad x_t) =: g_t = C_t grad_y_t + A_bar_{t+1} g_{t+1}
        g, g_steps = scale(C, grad_y, out=self.buffer("g")), self.steps("g")
        g_steps[-1].add_(conj_grad_state)
        for t in range(len(g_steps) - 1, 0, -1):
            g_steps[t - 1].addcmul_(A_bars[t], self.resets.drop(t, g_steps[t]))
        grad_state = A_bars[0] * self.resets.drop(0, g_steps[0])
        grad_C = sum_like(scale(self.states, grad_y, out=scratch), C)

        grad_A_bar = self.buffer("grad_A_bar")  # g_t x_{t-1}
        torch.mul(g[0], self.initial, out=grad_A_bar[0])
        torch.mul(g[1:], self.states[:-1], out=grad_A_bar[1:])
        self.resets.drop_all_(grad_A_bar)
        g_B = multiply(g, self.full_B, out=self.buffer("g_B"))
        if self.B_bar is None:
            inner = real_sum(g_B)
            grad_u = self.delta * inner
            grad_B = scale(g, self.u * self.delta, out=g)
            grad_A_bar.mul_(self.A_bar)
            grad_delta = real_sum(torch.mul(grad_A_bar, self.A, out=scratch)).addcmul(self.u, inner)
            grad_A = scale(grad_A_bar, self.delta, out=grad_A_bar).sum((0, 1))
        else:
            grad_u = real_sum(torch.mul(g_B, self.B_bar, out=scratch))
            grad_B = scale(g.mul_(self.B_bar), self.u, out=g)
        per_B, per_bias = sum_like(grad_B, self.B), None if self.B_bias is None else grad_B.sum((0, 1))
        if self.B_bar is not None:
            grad_A, grad_delta = self._zoh_backward(grad_A_bar, scale(g_B, self.u, out=g_B), self.B_bar)
        return ChunkGradients(grad_u, grad_delta, grad_A, per_B, grad_C, per_bias, grad_state)

    def _zoh_backward(self, grad_A_bar: Tensor, grad_B_bar: Tensor, B_bar: Tensor) -> tuple[Tensor, Tensor]:
        """(conj grad A (D, N), grad delta (T, b, D)), from dA_bar/ddelta = A A_bar, dB_bar/ddelta = A_bar,
        dA_bar/dA = delta A_bar and dB_bar/dA = (delta A_bar - B_bar)/A = delta^2 phi1'(delta A).

        The quotient's sum over steps is shared with delta's gradient and divided by A once.  It loses
        eps/|delta A| to cancellation, so where |A| max(delta) is small the series takes its place.
        """
        delta = self.delta
        A, inverse = away_from_zero(delta, self.A)
        common = torch.addcmul(grad_B_bar, grad_A_bar, A, out=self.buffer("scratch")).mul_(self.A_bar)
        grad_delta = real_sum(common)
        common = scale(common, delta, out=common).sub_(torch.mul(grad_B_bar, B_bar, out=self.buffer("g")))
        grad_A = common.sum((0, 1)) * inverse
        small = A.abs() * delta.abs().amax((0, 1)).unsqueeze(-1) < SERIES_RADIUS  # (D, N)
        # where there are no values (the meta device), all of them
        columns = range(small.shape[1]) if small.is_meta else small.any(0).nonzero().squeeze(-1).tolist()
        if columns:  # a slice from the first to the last: states come ordered by |A|, and a slice is no copy
            some = slice(columns[0], columns[-1] + 1)
            shape = (*delta.shape, some.stop - some.start)
            z = scale(A[:, some], delta, out=self.workspace.get("g", shape, A.dtype))
            derivative = phi1_derivative_series(z, out=self.workspace.get("scratch", shape, A.dtype))
            exact = scale(derivative, delta, out=derivative).mul_(grad_B_bar[..., some])
            exact.add_(torch.mul(grad_A_bar[..., some], self.A_bar[..., some], out=z))
            total = scale(exact, delta, out=exact).sum((0, 1))
            grad_A[:, some] = torch.where(small[:, some], total, grad_A[:, some])
        return grad_A, grad_delta
