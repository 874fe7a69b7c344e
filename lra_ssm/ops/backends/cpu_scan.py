"""The selective scan by the C++ kernels of native/.

Shapes: u, delta, y (batch, D, L); A, B_bias (D, N); B, C constant (D, N) or variable (batch, G, N, L); D, delta_bias
(D,); initial and last state (batch, D, N); reset (batch, L); checkpoints (tiles, batch, D, vectors, 1 or 2, W). (D
channels, L length, N states, G groups, W lanes of a vector of the processor.)

Extra memory beyond the results: for backward, the state at the start of every tile of time, about 2 batch D L numbers
at most; where tasks share a group of B or C, their parts of its gradient, 8 batch D L numbers at most; and for each
thread some hundred KB at N = 16.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from lra_ssm.ops.backends.native_build import call, fields, library
from lra_ssm.ops.backends.torch_operators import scan_operator
from lra_ssm.ops.inputs import ScanInputs, ScanTensors
from lra_ssm.ops.tensors import has_double

_HUGE = 32 << 20  # bytes: glibc's largest threshold, above which memory is always fresh


class _Tensor(ctypes.Structure):
    """`Tensor` of native/tiles.h: strides in real numbers of batch, channel or group, state and time."""

    _fields_ = [*fields("", "data imag"), *fields("batch row state time", "")]


def _tensors(names: str) -> list[tuple[str, type]]:
    return [(name, _Tensor) for name in names.split()]


class _Arguments(ctypes.Structure):
    """`Arguments` of native/selective_scan.h, field by field."""

    _fields_ = [
        *fields("batch channels length states is_double is_complex zoh softplus threads", ""),
        *fields("channels_per_task tile groups_B groups_C", ""),
        *_tensors("u delta y B C"),
        *fields("", "A bias constant_C D delta_bias initial last checkpoints reset"),
        *fields("reset_batch reset_time", ""),
        *_tensors("grad_y grad_u grad_delta grad_B grad_C"),
        *fields("slot_B slot_C", "grad_last grad_initial grad_A grad_bias grad_constant_C grad_D grad_delta_bias"),
    ]


def channels_per_task(batch: int, channels: int, threads: int, least: int) -> int:
    """Return the most channels per task, at least `least`, for which all threads have the same number of tasks."""

    def balance(size: int) -> float:
        tasks = batch * -(-channels // size)
        return tasks / (-(-tasks // threads) * threads)

    sizes = {-(-channels // ranges) for ranges in range(1, channels + 1)}
    return max((n for n in sizes if n >= min(least, channels)), key=lambda n: (round(balance(n), 2), n))


def slots(channels: int, groups: int, size: int) -> int:
    """Return how many tasks of `size` channels share one group of B or C, at most."""
    group = channels // groups
    return max((first + group - 1) // size - first // size + 1 for first in range(0, channels, group))


def _in_huge_pages(x: Tensor) -> Tensor:
    """Return an uninitialized result and set the pointer to it."""
    native = library()
    size = x.numel() * x.element_size()
    if size >= _HUGE and not isinstance(native, str):
        native.ask_for_huge_pages(ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(size))
    return x


def _new_like(x: Tensor) -> Tensor:
    return _in_huge_pages(torch.empty_like(x))


def _rows(x: Tensor | None) -> _Tensor:
    """Describe u, delta, y or a gradient of these."""
    return _Tensor() if x is None else _Tensor(x.data_ptr(), None, x.stride(0), x.stride(1), 0, x.stride(2))


def _matrix(x: Tensor) -> _Tensor:
    """Describe a variable B or C (..., G, N, L), or a gradient of one."""
    if not x.is_complex():
        return _Tensor(x.data_ptr(), None, *x.stride()[-4:])
    return _Tensor(x.data_ptr(), x.data_ptr() + x.element_size() // 2, *(2 * stride for stride in x.stride()[-4:]))


class _Call:
    """The arguments of one call, and the tensors whose memory they point to."""

    def __init__(self, tensors: ScanTensors, zoh: bool, softplus: bool, backward: bool = False) -> None:
        u, delta, A, B, C, bias, D, delta_bias, initial, reset = tensors
        batch, channels, length = u.shape
        if B.dim() == 2:
            bias = B  # a constant B is a bias without any B
        small = {"A": A, "bias": bias, "constant_C": C if C.dim() == 2 else None, "D": D, "delta_bias": delta_bias}
        self.small = {name: None if x is None else x.contiguous() for name, x in small.items()}
        self.initial = None if initial is None else initial.contiguous()
        threads = torch.get_num_threads()
        # Small tasks have every core work on one sample; in backward each has its own part of B's and C's gradients.
        least = max(4, A.shape[1] * (2 if A.is_complex() else 1) // 8) if backward else 2
        self.size = channels_per_task(max(batch, 1), channels, threads, least)
        self.values: dict[str, Any] = dict(
            batch=batch, channels=channels, length=length, states=A.shape[-1], is_double=has_double(A),
            is_complex=A.is_complex(), zoh=zoh, softplus=softplus, threads=threads, channels_per_task=self.size,
            tile=tile_steps(A), u=_rows(u), delta=_rows(delta), initial=self.initial, **self.small,
        )  # fmt: skip
        self.matrices = {name: x for name, x in (("B", B), ("C", C)) if x.dim() == 4}
        for name, matrix in self.matrices.items():
            self.values |= {name: _matrix(matrix), f"groups_{name}": matrix.shape[1]}
        if reset is not None:
            self.values |= dict(reset=reset, reset_batch=reset.stride(0), reset_time=reset.stride(1))

    def run(self, function: str, **more: object) -> None:
        if self.values["batch"] and call(function, _Arguments, **self.values, **more):
            raise MemoryError(f"{function}: not enough memory for the buffers of {self.values['threads']} threads")


def tile_steps(A: Tensor) -> int:
    """Return steps per tile: 32 for complex A, else 64, or more if the saved states would exceed twice u's size.

    Measured: backward's buffers of a tile then stay in a first-level cache; with 128 steps it took an eighth to a
    quarter longer.
    """
    numbers = A.shape[1] * (2 if A.is_complex() else 1)
    return max(32 if A.is_complex() else 64, (1 << (numbers - 1).bit_length()) // 2)


def _new_checkpoints(u: Tensor, A: Tensor) -> Tensor:
    """Return memory for one state per tile, as a real tensor."""
    native = library()
    assert not isinstance(native, str), native
    (channels, N), (batch, _, length) = A.shape, u.shape
    W = native.lanes(ctypes.c_int64(has_double(A)), ctypes.c_int64(N))
    tiles = (length + tile_steps(A) - 1) // tile_steps(A)
    return u.new_empty((tiles, batch, channels, -(-N // W), 2 if A.is_complex() else 1, W), dtype=A.dtype.to_real())


def _forward(tensors: ScanTensors, zoh: bool, softplus: bool, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    u, A = tensors.u, tensors.A
    y, last = _new_like(u), A.new_zeros(u.shape[0], *A.shape)
    checkpoints = _in_huge_pages(_new_checkpoints(u, A)) if keep else u.new_empty(0)
    _Call(tensors, zoh, softplus).run(
        "selective_scan_forward", y=_rows(y), last=last, checkpoints=checkpoints if keep else None
    )
    return y, last, checkpoints


def _backward(
    tensors: ScanTensors, zoh: bool, softplus: bool, checkpoints: Tensor, grad_y: Tensor | None,
    grad_last: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    scan = _Call(tensors, zoh, softplus, backward=True)
    u, delta, A, B, C, _, _, _, initial, _ = tensors
    grad_u, grad_delta = _new_like(u), _new_like(delta)
    sums = {name: None if x is None else x.new_zeros((len(u), *x.shape)) for name, x in scan.small.items()}
    grad_initial = None if initial is None else A.new_zeros(initial.shape)
    results: dict[str, Any] = {f"grad_{name}": x for name, x in sums.items()}
    variable = {}
    for name, matrix in scan.matrices.items():
        # Where several tasks share a group, each has a slot of its own, and the slots are added up in order.
        several = slots(u.shape[1], matrix.shape[1], scan.size)
        out = _new_like(matrix) if several == 1 else matrix.new_zeros((several, *matrix.shape))
        slot = out.stride(0) * (2 if out.is_complex() else 1)
        results |= {f"grad_{name}": _matrix(out), f"slot_{name}": slot}
        variable[name] = out
    scan.run(
        "selective_scan_backward", checkpoints=checkpoints, grad_y=_rows(grad_y),
        grad_last=None if grad_last is None else grad_last.resolve_conj().contiguous(), grad_u=_rows(grad_u),
        grad_delta=_rows(grad_delta), grad_initial=grad_initial, **results,
    )  # fmt: skip

    def total(name: str) -> Tensor | None:
        x = sums[name]
        return None if x is None else x.sum(0)

    def matrix_gradient(name: str, matrix: Tensor) -> Tensor | None:
        if matrix.dim() == 2:
            return total("bias" if name == "B" else "constant_C")
        out = variable[name]
        return out if out.dim() == 4 else torch.empty_like(matrix).copy_(out.sum(0))

    grads = [
        grad_u, grad_delta, total("A"), matrix_gradient("B", B), matrix_gradient("C", C),
        total("bias") if B.dim() == 4 else None, total("D"), total("delta_bias"), grad_initial,
    ]  # fmt: skip
    return [x for x in grads if x is not None]


operator = scan_operator("selective_scan_cpu", _forward, _backward, _new_checkpoints, device_types="cpu")


def run(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Return (y, last state) for checked inputs without a gate, in the arithmetic's precision, to which they are
    converted."""
    flags = inputs.discretization == "zoh", inputs.delta_softplus, inputs.needs_grad
    tensors = (
        x if x is None or x.dtype == torch.bool else x.to(inputs.state_dtype if x.is_complex() else inputs.dtype)
        for x in inputs.tensors
    )
    y, last, _ = operator.forward(*tensors, *flags)
    return y.to(inputs.tensors.u.dtype), last
