"""The selective scan by the C++ kernels of native/.

Shapes: u, delta, z, y (batch, D, L); A, B_bias (D, N); B, C constant (D, N) or variable (batch, G, N, L or 2L); D,
delta_bias (D,); initial and last state (batch, D, N); reset (batch, L); checkpoints
(tiles, batch, D, vectors, 1 or 2, W). (D channels, L length, N states, G groups, W lanes of a vector of the processor.)

Extra memory beyond the results: for backward, the state at the start of every tile of time, about 2 batch D L numbers
at most; where tasks share a group of B or C, their parts of its gradient, 8 batch D L numbers at most; and for each
thread some hundred KB at N = 16.
"""

import ctypes

import torch
from torch import Tensor

from lra_ssm.ops.backends.native_build import library, unavailable
from lra_ssm.ops.backends.scan_operator import scan_operator
from lra_ssm.ops.scan_inputs import ScanInputs, ScanTensors, is_interleaved

_HUGE = 32 << 20  # bytes: glibc's largest threshold, above which memory is always fresh
_TYPES = {torch.float32: 0, torch.float64: 1}


class _Tensor(ctypes.Structure):
    """`Tensor` of native/tiles.h: strides in real numbers of batch, channel or group, state and time."""

    _fields_ = [("data", ctypes.c_void_p), ("imag", ctypes.c_void_p)] + [
        (name, ctypes.c_int64) for name in ("type", "batch", "row", "state", "time")
    ]


_INTEGERS = "batch channels length states is_double is_complex zoh softplus threads".split()
_INTEGERS += ["channels_per_task", "tile", "groups_B", "groups_C"]
_POINTERS = ("A", "bias", "constant_C", "D", "delta_bias", "initial", "last", "checkpoints", "reset")
_GRADIENTS = ("grad_last", "grad_initial", "grad_A", "grad_bias", "grad_constant_C", "grad_D", "grad_delta_bias")


class _Arguments(ctypes.Structure):
    """`Arguments` of native/selective_scan.h, field by field."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in _INTEGERS]
        + [(name, _Tensor) for name in ("u", "delta", "z", "y", "B", "C")]
        + [(name, ctypes.c_void_p) for name in _POINTERS]
        + [("reset_batch", ctypes.c_int64), ("reset_time", ctypes.c_int64)]
        + [(name, _Tensor) for name in ("grad_y", "grad_u", "grad_delta", "grad_z", "grad_B", "grad_C")]
        + [("slot_B", ctypes.c_int64), ("slot_C", ctypes.c_int64)]
        + [(name, ctypes.c_void_p) for name in _GRADIENTS]
    )


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
    return max(
        (last - 1) // size - first // size + 1 for first in range(0, channels, group) for last in [first + group]
    )


def _in_huge_pages(x: Tensor) -> Tensor:
    """Return an uninitialized result and set the pointer to it."""
    native = library()
    size = x.numel() * x.element_size()
    if size >= _HUGE and not isinstance(native, str):
        native.ask_for_huge_pages(ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(size))
    return x


def _new_like(x: Tensor) -> Tensor:
    return _in_huge_pages(torch.empty_like(x))


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _rows(x: Tensor | None) -> _Tensor:
    """Describe u, delta, z, y or a gradient of these."""
    if x is None:
        return _Tensor(None, None, 0, 0, 0, 0, 0)
    return _Tensor(x.data_ptr(), None, _TYPES[x.dtype], x.stride(0), x.stride(1), 0, x.stride(2))


def _matrix(x: Tensor, interleaved: bool) -> _Tensor:
    """Describe a variable B or C (..., G, N, L), or a gradient of one."""
    if x.is_complex():
        x = torch.view_as_real(x)
        real = x.select(-1, 0)
        imag = x.data_ptr() + x.element_size()
    elif interleaved:
        real, imag = x[..., ::2], x.data_ptr() + x.stride(-1) * x.element_size()
    else:
        real, imag = x, None
    return _Tensor(x.data_ptr(), imag, _TYPES[x.dtype], *real.stride()[-4:])


class _Call:
    """The arguments of one call, and the tensors whose memory they point to."""

    def __init__(self, tensors: ScanTensors, zoh: bool, softplus: bool, backward: bool = False) -> None:
        u, delta, A, B, C, bias, D, z, delta_bias, initial, reset = tensors
        batch, channels, length = u.shape
        self.dtype = torch.float64 if A.dtype in (torch.float64, torch.complex128) else torch.float32
        self.interleaved = {name: is_interleaved(x, length, A.dtype) for name, x in (("B", B), ("C", C))}
        if B.dim() == 2:
            bias = B  # a constant B is a bias without any B
        small = {"A": A, "bias": bias, "constant_C": C if C.dim() == 2 else None, "D": D, "delta_bias": delta_bias}
        self.small = {name: None if x is None else x.contiguous() for name, x in small.items()}
        self.initial = None if initial is None else initial.contiguous()
        self.operands = (u, delta, z, B, C, reset)
        threads = torch.get_num_threads()
        # Small tasks have every core work on one sample; in backward each has its own part of B's and C's gradients.
        least = max(4, A.shape[1] * (2 if A.is_complex() else 1) // 8) if backward else 2
        self.size = channels_per_task(max(batch, 1), channels, threads, least)
        self.tile = tile_steps(A)
        a = self.arguments = _Arguments()
        a.batch, a.channels, a.length, a.states = batch, channels, length, A.shape[-1]
        a.is_double, a.is_complex, a.zoh, a.softplus = self.dtype == torch.float64, A.is_complex(), zoh, softplus
        a.threads, a.channels_per_task, a.tile = threads, self.size, self.tile
        a.u, a.delta, a.z = _rows(u), _rows(delta), _rows(z)
        if B.dim() == 4:
            a.groups_B, a.B = B.shape[1], _matrix(B, self.interleaved["B"])
        if C.dim() == 4:
            a.groups_C, a.C = C.shape[1], _matrix(C, self.interleaved["C"])
        for name, x in self.small.items():
            setattr(a, name, _pointer(x))
        a.initial = _pointer(self.initial)
        if reset is not None:
            a.reset, a.reset_batch, a.reset_time = reset.data_ptr(), reset.stride(0), reset.stride(1)

    def run(self, function: str) -> None:
        native = library()
        assert not isinstance(native, str), native
        if self.arguments.batch and getattr(native, function)(ctypes.byref(self.arguments)):
            raise MemoryError(f"{function}: not enough memory for the buffers of {self.arguments.threads} threads")


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
    double, complex_A = A.dtype in (torch.float64, torch.complex128), A.is_complex()
    (channels, N), (batch, _, length) = A.shape, u.shape
    W = native.lanes(ctypes.c_int64(double), ctypes.c_int64(N))
    tiles = (length + tile_steps(A) - 1) // tile_steps(A)
    dtype = torch.float64 if double else torch.float32
    return u.new_empty((tiles, batch, channels, -(-N // W), 2 if complex_A else 1, W), dtype=dtype)


def _forward(tensors: ScanTensors, zoh: bool, softplus: bool, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    u, A = tensors.u, tensors.A
    call = _Call(tensors, zoh, softplus)
    y, last = _new_like(u), A.new_zeros(u.shape[0], *A.shape)
    checkpoints = _in_huge_pages(_new_checkpoints(u, A)) if keep else u.new_empty(0)
    call.arguments.y, call.arguments.last = _rows(y), last.data_ptr()
    call.arguments.checkpoints = checkpoints.data_ptr() if keep else None
    call.run("selective_scan_forward")
    return y, last, checkpoints


def _backward(
    tensors: ScanTensors, zoh: bool, softplus: bool, checkpoints: Tensor, grad_y: Tensor | None,
    grad_last: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    call = _Call(tensors, zoh, softplus, backward=True)
    u, delta, A, B, C, _, _, z, _, initial, _ = tensors
    a, (batch, channels, _) = call.arguments, u.shape
    grad_last = None if grad_last is None else grad_last.resolve_conj().contiguous()
    a.checkpoints, a.grad_y, a.grad_last = checkpoints.data_ptr(), _rows(grad_y), _pointer(grad_last)

    def like(x: Tensor | None) -> Tensor | None:
        return None if x is None else _new_like(x)

    def per_batch_item(x: Tensor | None) -> Tensor | None:
        return None if x is None else A.new_zeros((batch, *x.shape), dtype=x.dtype)

    grad_u, grad_delta, grad_z = _new_like(u), _new_like(delta), like(z)
    a.grad_u, a.grad_delta, a.grad_z = _rows(grad_u), _rows(grad_delta), _rows(grad_z)
    sums = {name: per_batch_item(x) for name, x in call.small.items()}
    for name, x in sums.items():
        setattr(a, f"grad_{name}", _pointer(x))
    grad_initial = None if initial is None else A.new_zeros(initial.shape)
    a.grad_initial = _pointer(grad_initial)
    variable = {}
    for name, matrix in (("B", B), ("C", C)):
        if matrix.dim() == 4:
            # Where several tasks share a group, each has a slot of its own, and the slots are added up in order.
            several = slots(channels, matrix.shape[1], call.size)
            if several == 1:
                out = _new_like(matrix)
            else:
                dtype = A.dtype if matrix.is_complex() else call.dtype
                out = torch.zeros((several, *matrix.shape), dtype=dtype)
                setattr(a, f"slot_{name}", out.stride(0) * (2 if out.is_complex() else 1))
            setattr(a, f"grad_{name}", _matrix(out, call.interleaved[name]))
            variable[name] = out
    call.run("selective_scan_backward")

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
        total("bias") if B.dim() == 4 else None, total("D"), grad_z, total("delta_bias"), grad_initial,
    ]  # fmt: skip
    return [x for x in grads if x is not None]


operator = scan_operator("selective_scan_cpu", _forward, _backward, _new_checkpoints, device_types="cpu")


def unsupported_reason(device: torch.device, inputs: ScanInputs | None) -> str | None:
    if device.type != "cpu":
        return f"runs tensors on a CPU only; u is on {device}"
    return unavailable()


def run(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Return (y, last state) for checked inputs; torch widens those in half precision."""
    flags = inputs.discretization == "zoh", inputs.delta_softplus, inputs.needs_grad
    half = (torch.float16, torch.bfloat16)
    tensors = (x.float() if x is not None and x.dtype in half else x for x in inputs.tensors)
    y, last, _ = operator.scan(*tensors, *flags)
    return y.to(inputs.u.dtype), last
