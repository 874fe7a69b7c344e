"""The selective scan in eager PyTorch, chunk by chunk, on any device.

Shapes: u, delta, z, y (batch, D, L); A (D, N); B, C constant (D, N) or variable (batch, G, N, L or 2L); state
(batch, D, N). (D channels, L length, N states, G groups.)

The scan walks pieces of b batch items and T steps; what has N states per channel exists for one piece at a time.
Forward keeps the state before every chunk of T steps; backward walks the chunks in reverse and computes each anew.
Extra memory beyond the results: batch D N ceil(L/T) states, that is 1/T of a (batch, D, L, N) tensor, kept for
backward, and a dozen buffers of one piece each, `_PIECE_BYTES` (or 16 steps of one batch item, if that is more).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra_ssm.ops.backends.eager_chunk import Chunk, Resets, Workspace
from lra_ssm.ops.scan_inputs import ScanInputs, ScanTensors, is_interleaved
from lra_ssm.ops.tensors import without_autocast

# Size of one (T, b, D, N) buffer.  On a CPU the dozen in use should stay in the cache; on other devices a larger
# piece pays for the launches.
_PIECE_BYTES = {"cpu": 4 << 20}
_PIECE_BYTES_ELSEWHERE = 64 << 20
_MIN_STEPS, _GOOD_STEPS, _MAX_STEPS = 16, 64, 128


def piece_size(batch: int, state_bytes: int, length: int, device_type: str) -> tuple[int, int]:
    """(b, T): batch items and steps of a piece, for state_bytes = bytes of one batch item's (D, N) state."""
    budget = _PIECE_BYTES.get(device_type, _PIECE_BYTES_ELSEWHERE)
    b = min(max(budget // (state_bytes * _GOOD_STEPS), 1), max(batch, 1))
    T = min(max(budget // (state_bytes * b), _MIN_STEPS), _MAX_STEPS, length)
    return b, T


def time_first(x: Tensor, dtype: torch.dtype) -> Tensor:
    """(b, D, T) of any strides and dtype -> contiguous (T, b, D) in the given dtype, in one copy."""
    return torch.empty((x.shape[2], *x.shape[:2]), dtype=dtype, device=x.device).copy_(x.permute(2, 0, 1))


def read_variable(x: Tensor, times: slice, interleaved: bool, state_dtype: torch.dtype) -> Tensor:
    """Steps `times` of a variable B or C (b, G, N, L or 2L) as (T, b, G, 1, N) in the state's dtype."""
    if interleaved:
        pairs = x[..., 2 * times.start : 2 * times.stop].unflatten(-1, (-1, 2)).permute(3, 0, 1, 2, 4)
        out = torch.empty(pairs.shape[:-1], dtype=state_dtype, device=x.device)
        torch.view_as_real(out).copy_(pairs)
    else:
        steps = x[..., times].permute(3, 0, 1, 2)
        out = torch.empty(steps.shape, dtype=state_dtype, device=x.device).copy_(steps)
    return out.unsqueeze(3)


def write_variable(grad: Tensor, times: slice, interleaved: bool, conj_grad: Tensor) -> None:
    """The inverse: store the conjugated gradient (T, b, G, N) into grad, in grad's form and dtype."""
    value = conj_grad.conj().resolve_conj().permute(1, 2, 3, 0)
    if interleaved:
        grad[..., 2 * times.start : 2 * times.stop].unflatten(-1, (-1, 2)).copy_(torch.view_as_real(value))
    else:
        grad[..., times].copy_(value.real if value.is_complex() and not grad.is_complex() else value)


class _Scan:
    """A call, cut into pieces; shared by forward and backward."""

    def __init__(self, tensors: ScanTensors, zoh: bool, softplus: bool, dtype: torch.dtype) -> None:
        self.tensors, self.zoh, self.softplus, self.dtype = tensors, zoh, softplus, dtype
        A, device = tensors.A, tensors.u.device
        batch, _, self.length = tensors.u.shape
        b, T = piece_size(batch, A.numel() * A.element_size(), self.length, device.type)
        self.rows = [slice(i, min(i + b, batch)) for i in range(0, batch, b)]
        self.times = [slice(k, min(k + T, self.length)) for k in range(0, self.length, T)]
        self.workspace = Workspace(device)
        self.reset_at = None
        if tensors.reset is not None:  # on the meta device, anywhere
            self.reset_at = [True] * self.length if tensors.reset.is_meta else tensors.reset.any(0).tolist()

    def first_state(self, rows: slice) -> Tensor:
        A, initial = self.tensors.A, self.tensors.initial
        return A.new_zeros((rows.stop - rows.start, *A.shape)) if initial is None else initial[rows]

    def piece(self, x: Tensor, rows: slice, times: slice) -> Tensor:
        """u, delta, z or y's gradient for a piece, as (T, b, D)."""
        return time_first(x[rows, :, times], self.dtype)

    def matrix(self, x: Tensor, rows: slice, times: slice) -> Tensor:
        """B or C for a piece: (D, N) if constant, else (T, b, G, 1, N)."""
        if x.dim() == 2:
            return x
        state_dtype = self.tensors.A.dtype
        return read_variable(x[rows], times, is_interleaved(x, self.length, state_dtype), state_dtype)

    def write_matrix_grad(self, grad: Tensor, rows: slice, times: slice, conj_grad: Tensor) -> None:
        """Take one piece into B's or C's gradient (conjugated still, if it is constant)."""
        if grad.dim() == 2:
            grad += conj_grad
        else:
            write_variable(grad[rows], times, is_interleaved(grad, self.length, self.tensors.A.dtype), conj_grad)

    def raw_delta(self, rows: slice, times: slice) -> Tensor:
        """delta with its bias, before softplus."""
        delta = self.piece(self.tensors.delta, rows, times)
        return delta if self.tensors.delta_bias is None else delta.add_(self.tensors.delta_bias)

    def chunk(self, rows: slice, times: slice, raw_delta: Tensor, state: Tensor) -> Chunk:
        x = self.tensors
        resets = Resets(None if x.reset is None else x.reset[rows], self.reset_at, times)
        delta = F.softplus(raw_delta) if self.softplus else raw_delta
        u, B = self.piece(x.u, rows, times), self.matrix(x.B, rows, times)
        return Chunk(u, delta, x.A, B, x.B_bias, self.zoh, resets, state, self.workspace)

    def output(self, chunk: Chunk, C: Tensor) -> Tensor:
        """y of a piece before the gate: (T, b, D)."""
        y = chunk.readout(C)
        return y if self.tensors.D is None else y.addcmul(self.tensors.D, chunk.u)

    def forward(self, keep: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """(y, last state, the state before every chunk (chunks, batch, D, N) if it is to be kept)."""
        x = self.tensors
        y = torch.empty_like(x.u)
        last_state = x.A.new_empty((x.u.shape[0], *x.A.shape))
        checkpoints = x.A.new_empty((len(self.times), *last_state.shape)) if keep else None
        for rows in self.rows:
            state = self.first_state(rows)
            for k, times in enumerate(self.times):
                if checkpoints is not None:
                    checkpoints[k, rows] = state
                chunk = self.chunk(rows, times, self.raw_delta(rows, times), state)
                out = self.output(chunk, self.matrix(x.C, rows, times))
                if x.z is not None:
                    out *= F.silu(self.piece(x.z, rows, times))
                y[rows, :, times] = out.permute(1, 2, 0)
                state = chunk.states[-1].clone()  # the buffer is the next chunk's
            last_state[rows] = state
        return y, last_state, checkpoints

    def backward(
        self, checkpoints: Tensor, grad_y: Tensor | None, grad_last: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Gradients in `ScanTensors`' order."""
        x = self.tensors
        grads = ScanTensors(*(None if tensor is x.reset else _gradient_buffer(tensor) for tensor in x))  # type: ignore[arg-type]
        for rows in self.rows:
            carry = torch.zeros_like(checkpoints[0, rows])
            if grad_last is not None:
                carry.copy_(grad_last[rows].conj())
            for k, times in reversed(list(enumerate(self.times))):
                raw_delta = self.raw_delta(rows, times)
                chunk = self.chunk(rows, times, raw_delta, checkpoints[k, rows])
                C = self.matrix(x.C, rows, times)
                out_grad = torch.zeros_like(chunk.u) if grad_y is None else self.piece(grad_y, rows, times)
                if x.z is not None:
                    assert grads.z is not None
                    gate = self.piece(x.z, rows, times)
                    sigmoid = torch.sigmoid(gate)
                    slope = sigmoid * (1 + gate * (1 - sigmoid))
                    grads.z[rows, :, times] = (out_grad * self.output(chunk, C) * slope).permute(1, 2, 0)
                    out_grad *= gate * sigmoid
                piece = chunk.backward(C, out_grad, carry)
                carry = piece.state
                if x.D is not None:
                    assert grads.D is not None
                    grads.D.add_((out_grad * chunk.u).sum((0, 1)))
                    piece.u.addcmul_(x.D, out_grad)
                grads.u[rows, :, times] = piece.u.permute(1, 2, 0)
                if self.softplus:
                    slope = torch.sigmoid(raw_delta)
                    piece.delta *= slope.masked_fill_(raw_delta > 20, 1)
                grads.delta[rows, :, times] = piece.delta.permute(1, 2, 0)
                if grads.delta_bias is not None:
                    grads.delta_bias.add_(piece.delta.sum((0, 1)))
                grads.A.add_(piece.A)
                if grads.B_bias is not None and piece.B_bias is not None:
                    grads.B_bias.add_(piece.B_bias)
                self.write_matrix_grad(grads.B, rows, times, piece.B)
                self.write_matrix_grad(grads.C, rows, times, piece.C)
            if grads.initial is not None:
                grads.initial[rows] = carry.conj()
        for total in (grads.A, grads.B_bias, grads.B, grads.C):
            if total is not None and total.dim() == 2 and total.is_complex():
                total.copy_(total.conj().resolve_conj())
        return tuple(grads)


def _gradient_buffer(x: Tensor | None) -> Tensor | None:
    """Zeros for what is summed over pieces (at most (D, N)), uninitialised for what is written piece by piece."""
    if x is None:
        return None
    return torch.empty_like(x) if x.dim() > 2 else torch.zeros(x.shape, dtype=x.dtype, device=x.device)


class _EagerScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, zoh: bool, softplus: bool, dtype: torch.dtype, keep: bool, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        y, last_state, checkpoints = _Scan(ScanTensors(*tensors), zoh, softplus, dtype).forward(keep)  # type: ignore[arg-type]
        if keep:
            ctx.save_for_backward(*tensors, checkpoints)
            ctx.call = zoh, softplus, dtype
            ctx.set_materialize_grads(False)
        return y, last_state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, checkpoints = ctx.saved_tensors
        with without_autocast(checkpoints.device):
            grads = _Scan(ScanTensors(*tensors), *ctx.call).backward(checkpoints, grad_y, grad_last)
        return (None, None, None, None, *grads)


def run_eager(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """(y, last state) for checked inputs."""
    with without_autocast(inputs.u.device):
        flags = inputs.discretization == "zoh", inputs.delta_softplus, inputs.dtype, inputs.needs_grad
        return _EagerScan.apply(*flags, *inputs.tensors)
