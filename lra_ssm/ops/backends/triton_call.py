"""A call of the Triton scan: how it is cut into programs, what the kernels are given, and what becomes of their sums.

Shapes: u, delta, y (batch, D, L); A (D, N); B, C constant (D, N) or variable (batch, G, N, L); state (batch, D, N).
(D channels, L length, N states, G groups, W = 2 for complex A, else 1: its re and im.)

A program walks one batch item, a block of channels and a segment of the length.  Where batch and channels already fill
the device there is one segment, the whole length.  Otherwise the scan has three phases: every segment's end from zero
and its total decay; what these make enter each segment; every segment's outputs.  Backward does the same in reverse.

Extra memory beyond the results: for backward the state before every CHUNK steps; during it, a state for every fourth
step of one chunk of each segment (1/16 of a (batch, D, L, N) tensor at most), and variable B's and C's gradients once
per block of channels.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lra_ssm.ops.inputs import ScanTensors

# Steps between the states that backward starts from, a multiple of 4.
CHUNK = 64
# Steps of a segment at least.  Backward's scratch holds a state per 4 steps of one chunk of every segment.
MIN_SEGMENT = 256
# 32-bit numbers of a program's state, which a warp shares: 16 or 8 registers a thread.  Backward keeps four steps of
# states and A_bar besides, and with more would spill: on an H200 S6 took 1.3 times as long (docs/gpu.md).
FORWARD_STATE = 512
BACKWARD_STATE = 256
WARPS = 1
# Channels a program takes at most, backward with complex A or zero-order hold, and, unless N asks for fewer, at least.
MAX_BLOCK, MAX_BLOCK_BACKWARD, MIN_BLOCK = 32, 8, 4
# States per program of the small kernel between the phases.
JOIN_BLOCK = 128
# Warps per multiprocessor that backward's registers leave room for, below which forward's blocks are made smaller (9 %
# faster on an H200 at mamba-ssm's size, nothing at LRA's), and those below which a second walk through time costs less
# than idle units.
GOOD_WARPS, FEW_WARPS = 8, 3
# States that a program has at least, forward: one a lane, or half of that where a second walk is else the alternative.
MIN_STATES = {GOOD_WARPS: 32, FEW_WARPS: 16}


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


class Plan(NamedTuple):
    """How a call is split: channels per program, blocks of channels in all, steps per segment, segments."""

    block: int
    blocks: int
    segment: int
    segments: int


def _power_of_two(x: int) -> int:
    return 1 << (x - 1).bit_length()


def plan(
    batch: int,
    channels: int,
    length: int,
    unit: int,
    states: int,
    width: int,
    budget: int,
    device: torch.device,
    backward: bool,
) -> Plan:
    """unit: channels that share a group of B and of C; states: of a channel, padded; width: the 32-bit numbers of one;
    budget: the same of a program's state."""

    def blocks_of(block: int) -> int:
        return channels // unit * math.ceil(unit / block)

    widest = min(max(budget // (states * width), 1), MAX_BLOCK, _power_of_two(unit))
    available, block, segments = processors(device), widest, 1
    if not backward:  # there, smaller blocks would mean more partial gradients of B and C
        for warps, least in MIN_STATES.items():
            while block > max(MIN_BLOCK, least // states) and batch * blocks_of(block) < warps * available:
                block //= 2
    if batch * blocks_of(block) < FEW_WARPS * available and length >= 2 * MIN_SEGMENT:
        block = widest
        segments = min(math.ceil(GOOD_WARPS * available / (batch * blocks_of(block))), length // MIN_SEGMENT)
    segment = math.ceil(math.ceil(length / segments) / CHUNK) * CHUNK
    return Plan(block, blocks_of(block), segment, math.ceil(length / segment))


def launch_kernel(kernel: Any, programs: int, num_warps: int = WARPS, **arguments: Any) -> None:
    """Launch a kernel on the device of its tensors, which may not be the current one."""
    device = next(x.device for x in arguments.values() if isinstance(x, Tensor))
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        # Fused multiply-add is Triton's default until 3.9 and not after.
        kernel[(programs,)](**arguments, num_warps=num_warps, enable_fp_fusion=True)


def _pairs(x: Tensor | None) -> Tensor | None:
    """Return a small tensor as contiguous reals (..., W)."""
    if x is None:
        return None
    x = x.contiguous()
    return torch.view_as_real(x) if x.is_complex() else x


class Steps(NamedTuple):
    """A tensor (batch, D, L) and its strides, for the kernels; delta (D,), which does not vary, has None for strides.

    (A tuple of strides within it would be lost in the loops of Triton 3.6.)
    """

    data: Tensor
    batch: int | None = None
    channel: int | None = None
    step: int | None = None


class Matrix(NamedTuple):
    """B or C and its strides, for the kernels: a real tensor (batch, G, N, L), or (batch, G, N, L, 2) of re and im.

    A constant one, (D, N, W), has None for strides, and a real one None for part's.
    """

    data: Tensor
    channels: int = 1  # that share a group
    batch: int | None = None
    group: int | None = None
    state: int | None = None
    step: int | None = None
    part: int | None = None


class Summary(NamedTuple):
    """What a first walk finds of each segment: its end from zero, its decay (segments, batch, W, N, D), and whether it
    drops what was before it (segments, batch)."""

    ends: Tensor
    decays: Tensor
    dropped: Tensor | None


class Sums(NamedTuple):
    """Partial sums of gradients, by segment or, for variable B and C, by block of channels: `gradient_kernel`'s."""

    A: Tensor
    B: Tensor
    C: Tensor
    B_bias: Tensor | None
    D: Tensor | None
    delta_bias: Tensor | None


def _steps(x: Tensor) -> Steps:
    return Steps(x, *x.stride())


def _planes(state: Tensor | None) -> Tensor | None:
    """Return a state (batch, D, N), conjugation resolved, as (batch, W, N, D)."""
    if state is None:
        return None
    pairs = torch.view_as_real(state.resolve_conj()) if state.is_complex() else state.unsqueeze(-1)
    return pairs.permute(0, 3, 2, 1).contiguous()


def _matrix(x: Tensor, channels: int) -> Matrix:
    if x.dim() == 2:
        pairs = _pairs(x)
        assert pairs is not None
        return Matrix(pairs)
    channels //= x.shape[1]
    if x.is_complex():
        pairs = torch.view_as_real(x.resolve_conj())
        return Matrix(pairs, channels, *pairs.stride())
    return Matrix(x, channels, *x.stride())


class Scan:
    """A call, ready to launch kernels for it."""

    def __init__(self, tensors: ScanTensors, zoh: bool, softplus: bool, backward: bool) -> None:
        x = self.tensors = tensors
        self.time_invariant = x.delta.dim() == 1
        delta = Steps(x.delta.contiguous()) if self.time_invariant else _steps(x.delta)
        self.batch, self.channels, self.length = x.u.shape
        self.states, self.complex, self.device = x.A.shape[-1], x.A.is_complex(), x.u.device
        self.B, self.C = (_matrix(m, self.channels) for m in (x.B, x.C))
        groups = [m.shape[1] if m.dim() == 4 else 1 for m in (x.B, x.C)]
        unit, block_n = self.channels // math.lcm(*groups), _power_of_two(self.states)
        width = 2 if self.complex else 1
        budget = FORWARD_STATE
        if backward:
            budget = BACKWARD_STATE
            if zoh or self.complex:
                budget = min(budget, MAX_BLOCK_BACKWARD * block_n * width)
        shape = (self.batch, self.channels, self.length, unit, block_n)
        self.plan = plan(*shape, width, budget, self.device, backward)
        self.programs = self.batch * self.plan.blocks * self.plan.segments
        # The same of all channels, with a lane for each state; of fewer states, the compiler would lay out what is made
        # of such an A otherwise than the states, and move it at every step.
        shared_A = x.A.stride(0) == 0 and not self.time_invariant and block_n >= 32
        # A row for all channels. (No None within: Triton 3.6 cannot compare such a tuple with None.)
        reset = None if x.reset is None else x.reset.view(torch.uint8).unsqueeze(1).expand(x.u.shape)
        # All that a kernel may ask for, by name.
        self.known: dict[str, Any] = dict(
            u=_steps(x.u), delta=delta, A=_pairs(x.A[0] if shared_A else x.A), B=self.B, C=self.C,
            D=_pairs(x.D), delta_bias=_pairs(x.delta_bias), B_bias=_pairs(x.B_bias),
            reset=None if reset is None else _steps(reset),
            batch=self.batch, length=self.length, channels=self.channels, states=self.states, unit=unit,
            segment_length=self.plan.segment, segments=self.plan.segments, plane=self.states * self.channels,
            CHUNK=CHUNK, BLOCK_D=self.plan.block, BLOCK_N=block_n, COMPLEX=self.complex, ZOH=zoh, SOFTPLUS=softplus,
            SHARED_A=shared_A, EVEN=unit % self.plan.block == 0,
            WHOLE=self.length % 16 == 0,  # of which Triton compiles other kernels anyway
        )  # fmt: skip

    def launch(self, kernel: Any, programs: int, **arguments: Any) -> None:
        known = {name: self.known[name] for name in kernel.arg_names if name in self.known}
        launch_kernel(kernel, programs, **{**known, **arguments})

    def planes(self, *leading: int) -> Tensor:
        """Return a buffer of states (..., W, N, D), channels last."""
        width = (2,) if self.complex else (1,)
        return torch.empty((*leading, *width, self.states, self.channels), dtype=torch.float32, device=self.device)

    def joined(self, first: Tensor | None, reverse: bool, kernel: Any, **arguments: Any) -> Tensor | None:
        """What enters every segment, from what `kernel` finds of each; of one segment that is `first`."""
        from lra_ssm.ops.backends.triton_segment_kernels import join_kernel

        segments = self.plan.segments
        if segments == 1:
            return first
        ends, decays, starts = (self.planes(segments, self.batch) for _ in range(3))
        dropped = None
        if self.tensors.reset is not None:
            dropped = torch.empty((segments, self.batch), dtype=torch.int32, device=self.device)
        summary = Summary(ends, decays, dropped)
        self.launch(kernel, self.programs, summary=summary, **arguments)
        programs = self.batch * math.ceil(self.states * self.channels / JOIN_BLOCK)
        self.launch(join_kernel, programs, summary=summary, first=first, starts=starts, BLOCK=JOIN_BLOCK,
                    REVERSE=reverse)  # fmt: skip
        return starts

    def forward(self, y: Tensor, last: Tensor, checkpoints: Tensor | None) -> None:
        from lra_ssm.ops.backends.triton_kernels import scan_kernel

        absent = dict(starts=None, y=None, last=None, checkpoints=None, C=Matrix(self.C.data))
        starts = self.joined(_planes(self.tensors.initial_state), False, scan_kernel, **absent)
        self.launch(scan_kernel, self.programs, starts=starts, y=_steps(y), last=_pairs(last), checkpoints=checkpoints,
                    summary=None)  # fmt: skip

    def backward(self, checkpoints: Tensor, grad_y: Tensor | None, grad_last: Tensor | None) -> list[Tensor]:
        """Return the gradients of the call's tensors except the reset and None, in `ScanTensors`' order."""
        from lra_ssm.ops.backends.triton_backward_kernels import gradient_kernel
        from lra_ssm.ops.backends.triton_segment_kernels import adjoint_kernel

        x, segments, batch = self.tensors, self.plan.segments, self.batch
        if grad_y is None:
            grad_y = torch.zeros((), dtype=x.u.dtype, device=self.device).expand_as(x.u)
        first = _planes(None if grad_last is None else grad_last.conj())
        carries = self.joined(first, True, adjoint_kernel, grad_y=_steps(grad_y))
        tile = (2 if self.complex else 1) * self.known["BLOCK_N"] * self.plan.block
        scratch = torch.empty((self.programs, CHUNK // 4 + 1, tile), dtype=torch.float32, device=self.device)
        grads = {"u": torch.empty_like(x.u)}
        if not self.time_invariant:
            grads["delta"] = torch.empty_like(x.delta)
        if x.initial_state is not None:
            grads["initial_state"] = torch.empty(x.initial_state.shape, dtype=x.A.dtype, device=self.device)
        partial = {"A": self.planes(segments, batch)}
        for name, matrix in (("B", self.B), ("C", self.C)):
            partial[name] = self.planes(segments, batch) if matrix.step is None else self.partial_steps(matrix)
        if x.B_bias is not None:
            partial["B_bias"] = self.planes(segments, batch)
        per_channel = [name for name in ("D", "delta_bias") if getattr(x, name) is not None]
        if self.time_invariant:
            per_channel.append("delta")
        for name in per_channel:
            partial[name] = torch.empty((segments, batch, self.channels), dtype=torch.float32, device=self.device)
        sums: dict[str, Any] = {name: partial.get(name) for name in Sums._fields}
        grad_delta = Steps(partial["delta"]) if self.time_invariant else _steps(grads["delta"])
        self.launch(
            gradient_kernel, self.programs, grad_y=_steps(grad_y), carries=carries, checkpoints=checkpoints,
            scratch=scratch, grad_u=_steps(grads["u"]), grad_delta=grad_delta,
            grad_initial=_pairs(grads.get("initial_state")), sums=Sums(**sums),
        )  # fmt: skip
        for name in ("A", "B", "C", "B_bias"):
            if name in partial:
                like = getattr(x, name)
                grads[name] = (
                    self.sum_partials(partial[name]) if like.dim() == 2 else self.sum_partial_steps(partial[name], like)
                )
        for name in per_channel:
            grads[name] = partial[name].sum((0, 1))
        return [grads[name] for name in ScanTensors._fields if name in grads]

    def partial_steps(self, matrix: Matrix) -> Tensor:
        """Return a buffer (batch, blocks, L, N, 1 or 2) for the gradient of a variable B or C."""
        width = 1 if matrix.part is None else 2
        shape = (self.batch, self.plan.blocks, self.length, self.states, width)
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def sum_partials(self, partial: Tensor) -> Tensor:
        """Sum over segments and batch: (segments, batch, W, N, D) -> (D, N) in the state's dtype."""
        total = partial.sum((0, 1)).permute(2, 1, 0).contiguous()
        # With the strides of its shape where a dimension is 1 too: torch 2.10's view_as_complex asks for them.
        total = total.flatten().view(total.shape)
        return torch.view_as_complex(total) if self.complex else total.squeeze(-1)

    def sum_partial_steps(self, partial: Tensor, like: Tensor) -> Tensor:
        """Sum over blocks: (batch, blocks, L, N, 1 or 2) -> a variable B's or C's gradient, in its form and dtype."""
        total = partial.unflatten(1, (like.shape[1], -1)).sum(2).permute(0, 1, 3, 2, 4)  # (batch, G, N, L, 1 or 2)
        return torch.empty_like(like).copy_(torch.view_as_complex(total) if like.is_complex() else total.flatten(-2))
