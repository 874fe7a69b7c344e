"""The selective scan by mamba-ssm's CUDA kernel (https://github.com/state-spaces/mamba), for what it computes.

Shapes: u, delta, z, y (batch, D, L); A (D, N); B, C constant (D, N) or variable (batch, G, N, L), the last dimension 2L
(re and im interleaved) beside complex A; D, delta_bias (D,); B_bias (D, N); state (batch, D, N). (D channels, L length,
N states, G groups of D/G channels, J the groups that B and C need together.)

The kernel's rules, from its C++ code:
  - B and C may be variable or constant, but C must have B's groups, and one group if B is constant;
  - u, delta, z and variable B, C have one dtype; A, constant B, C are float32 or complex64; D, delta_bias float32;
  - with complex A and G > 1 its backward writes dB and dC to wrong places, and past their end;
  - the last state that it gives lacks a constant B.
So a call takes, forward and backward each:
  - 1 launch if B and C are constant or have one group, or if A is real and B variable;
  - 1 launch with the groups folded into the batch if A is complex and one for all channels and B and C are variable;
  - J launches, one for each group, otherwise;
  - with B_bias, by linearity, those for the variable B and those for B_bias as a constant B: B2S6's form takes 1 + J.
Folding and B_bias leave the sum, D and z to PyTorch, folding delta_bias too, all in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_ssm.ops.scan_inputs import ScanInputs, is_interleaved


class _Call(NamedTuple):
    """The arguments of the kernel's function, in its order; B and C may have different groups until `_launch`."""

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    z: Tensor | None
    delta_bias: Tensor | None
    delta_softplus: bool


def _groups(B: Tensor, C: Tensor) -> int:
    """J, the fewest groups of channels that share variable B and C; it divides D, as both of theirs do."""
    return math.lcm(*(x.shape[1] for x in (B, C) if x.dim() == 4))


def _kernel() -> Callable[..., Any]:
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    return selective_scan_fn


@cache
def _refuse_installation() -> str | None:
    # Some versions of mamba_ssm import without the extension and fail when called, others fail to import.
    if find_spec("selective_scan_cuda") is None:
        return "mamba-ssm's CUDA extension, selective_scan_cuda, is not installed"
    try:
        _kernel()
    except Exception as error:  # an ImportError, or what its dependencies raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"mamba-ssm is installed but cannot be imported: {reason}"
    return None


def _refuse_device(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"runs tensors on a CUDA device alone; u is on {device}"
    return _refuse_installation()


def _refuse_inputs(inputs: ScanInputs) -> str | None:
    if inputs.discretization != "euler":
        return "discretization 'zoh': mamba-ssm has 'euler' alone; B2S6 as published runs on backend 'triton' or 'cpu'"
    if inputs.reset is not None:
        return "reset: mamba-ssm's kernel has none"
    if inputs.initial_state is not None:
        return "initial_state: mamba-ssm's kernel starts from zero"
    if inputs.dtype == torch.float64:
        return "float64: mamba-ssm's kernel computes in float32"
    (batch, D, L), N = inputs.u.shape, inputs.A.shape[1]
    if N > 256:
        return f"N = {N} states; mamba-ssm's kernel takes at most 256"
    if batch == 0 or D > 65535:  # they are its grid
        return f"batch = {batch}, D = {D}; mamba-ssm's kernel takes batch >= 1 and D <= 65535"
    if (
        max(batch * D * L, 2 * batch * _groups(inputs.B, inputs.C) * N * L) >= 2**32
        or batch * D * N * math.ceil(L / 2048) >= 2**31
    ):
        return "too large for the 32-bit offsets of mamba-ssm's kernel"
    return None


def refusal(device: torch.device, inputs: ScanInputs | None) -> str | None:
    """Why this backend cannot run there, or cannot run this call; None if it can."""
    reason = _refuse_device(device)
    return reason if reason is not None or inputs is None else _refuse_inputs(inputs)


def _rows(x: Tensor) -> Tensor:
    """x with a last dimension that the kernel can read, and whose `empty_like` it can write: x itself if it may be.

    The kernel checks only that the last stride is 1.  It reads 16 bytes at a time where L is a multiple of 128 or more,
    has 32-bit offsets, and gives results the layout that `empty_like` makes of x, where overlapping rows may come out
    in any order.
    """
    x = x.resolve_neg()
    dims = [(size, stride) for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    length, per_load = x.shape[-1], 16 // x.element_size()
    aligned = x.data_ptr() % 16 == 0 and all(stride % per_load == 0 for _, stride in dims)
    if (
        (x.stride(-1) == 1 or length == 1)
        and all(stride >= length for _, stride in dims)
        and (aligned or length % 128 != 0)
        and sum((size - 1) * stride for size, stride in dims) < 2**32 - length
    ):
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _small(x: Tensor) -> Tensor:
    return x.resolve_neg().contiguous()


def _matrix(x: Tensor, length: int, state_dtype: torch.dtype) -> Tensor:
    """A variable B or C in the kernel's form: real, and interleaved beside complex A."""
    if x.is_complex():
        return torch.view_as_real(x.resolve_conj()).flatten(-2)
    if state_dtype.is_complex and not is_interleaved(x, length, state_dtype):
        return torch.stack([x, torch.zeros_like(x)], dim=-1).flatten(-2)
    return x


def _read(inputs: ScanInputs, in_float32: bool) -> _Call:
    """The inputs in the kernel's dtypes and layouts; u's dtype is kept for u, delta, z, B, C if all have it."""
    L, state_dtype = inputs.u.shape[-1], inputs.state_dtype
    B, C = (_matrix(x, L, state_dtype) if x.dim() == 4 else _small(x) for x in (inputs.B, inputs.C))
    dtypes = {x.dtype for x in (inputs.u, inputs.delta, inputs.z, B, C) if x is not None and x.dim() > 2}
    keep = not in_float32 and len(dtypes) == 1 and dtypes <= {torch.float16, torch.bfloat16}
    dtype = inputs.u.dtype if keep else torch.float32

    def large(x: Tensor) -> Tensor:
        return x if x.dim() == 2 else _rows(x.to(dtype))

    z = None if inputs.z is None else large(inputs.z)
    D, delta_bias = (None if x is None else _small(x) for x in (inputs.D, inputs.delta_bias))
    A = inputs.A.resolve_neg()
    return _Call(large(inputs.u), large(inputs.delta), A, large(B), large(C), D, z, delta_bias, inputs.delta_softplus)


def _has_one_row(A: Tensor) -> bool:
    """Whether A is one for all channels, seen without reading it, which would wait for the device.

    A (D, N) tensor whose rows share memory may be asked for a gradient of each row all the same; a view of (N,) is not.
    """
    return A.stride(0) == 0 and (not A.requires_grad or (A._base is not None and A._base.dim() == 1))


def _first_derivatives(dy: Tensor) -> Tensor:
    """A hook on the kernel's y: its backward checks its input as little as its forward, and records no graph."""
    if torch.is_grad_enabled():
        raise RuntimeError("backend 'mamba_ssm' gives first derivatives alone (create_graph=True)")
    return _rows(dy)


def _launch(call: _Call) -> tuple[Tensor, Tensor]:
    y, state = _kernel()(*call, return_last_state=True)
    if y.requires_grad:
        y.register_hook(_first_derivatives)
    if call.B.dim() == 2:  # the kernel scans without a constant B, and has it in what is read out alone
        state = state * call.B
    return y, state.detach()  # its graph would give no gradient and no error; _LastState raises one


def _spread(x: Tensor, groups: int) -> Tensor:
    """A variable B or C with every group repeated, `groups` in all; a constant one as it is."""
    if x.dim() == 2 or x.shape[1] == groups:
        return x
    if x.shape[1] == 1:
        return x.expand(-1, groups, -1, -1)
    return x.repeat_interleave(groups // x.shape[1], dim=1)


def _group(call: _Call, g: int) -> _Call:
    """The channels of the g-th of J groups, with their one group of B and C."""
    groups = _groups(call.B, call.C)
    width = call.u.shape[1] // groups
    channels = slice(g * width, (g + 1) * width)

    def part(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if x.dim() == 4:
            of_x = g * x.shape[1] // groups
            return x[:, of_x : of_x + 1]
        return x[:, channels] if x.dim() == 3 else x[channels]

    return _Call._make(part(x) for x in call)


def _scan(call: _Call) -> tuple[Tensor, Tensor]:
    """One launch where the kernel takes B and C together and has their gradients right, else one per group."""
    groups = _groups(call.B, call.C)
    if groups == 1 or (call.B.dim() == 4 and not call.A.is_complex()):
        return _launch(call._replace(B=_spread(call.B, groups), C=_spread(call.C, groups)))
    parts = [_launch(_group(call, g)) for g in range(groups)]
    return torch.cat([y for y, _ in parts], dim=1), torch.cat([state for _, state in parts], dim=1)


def _folded_scan(call: _Call) -> tuple[Tensor, Tensor]:
    """One launch with the groups as batch items, without D and z; A is one for all channels, B and C are variable."""
    (batch, D, L), N, groups = call.u.shape, call.A.shape[1], _groups(call.B, call.C)
    width = D // groups
    delta = call.delta
    if call.delta_bias is not None:  # it has D values, and the folded call D/J channels
        delta = delta + call.delta_bias[:, None]
    B, C = (_spread(x, groups).reshape(batch * groups, 1, N, 2 * L) for x in (call.B, call.C))
    u, delta = (x.reshape(batch * groups, width, L) for x in (call.u, delta))
    y, state = _launch(_Call(u, delta, call.A[:width], B, C, None, None, None, call.delta_softplus))
    return y.reshape(batch, D, L), state.reshape(batch, D, N)


class _LastState(torch.autograd.Function):
    """The state, as a function of the inputs that it depends on; an error when its gradient is asked for."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, *inputs: Tensor) -> Tensor:
        return state.clone()  # the kernel's is a view of a larger buffer

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(
            "last state: no gradient flows through it in backend 'mamba_ssm'; detach it, or use backend 'triton', "
            "'cpu' or 'eager'"
        )


def run(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """(y, last state) of inputs that are not refused; the last state raises RuntimeError if asked for a gradient."""
    u, bias = inputs.u, inputs.B_bias
    with torch.autocast(u.device.type, enabled=False):
        both_variable = inputs.B.dim() == inputs.C.dim() == 4
        grouped = both_variable and max(inputs.B.shape[1], inputs.C.shape[1]) > 1
        fold = grouped and inputs.A.is_complex() and _has_one_row(inputs.A)
        call = _read(inputs, in_float32=fold or bias is not None)
        if not fold and bias is None:
            y, state = _scan(call)
        else:
            plain = call._replace(D=None, z=None)  # z multiplies the sum, and D u is added once
            y, state = _folded_scan(plain) if fold else _scan(plain)
            if bias is not None:
                y_bias, state_bias = _scan(plain._replace(B=_small(bias)))
                y, state = y + y_bias, state + state_bias
            if call.D is not None:
                y = y + call.D[:, None] * call.u
            if call.z is not None:
                y = y * F.silu(call.z)
        if y.dtype != u.dtype or y.stride() != torch.empty_like(u, device="meta").stride():
            y = torch.empty_like(u).copy_(y)
        origins = (u, inputs.delta, inputs.A, inputs.B, bias, inputs.delta_bias)
        state = _LastState.apply(state, *(x for x in origins if x is not None))
    return y, state
