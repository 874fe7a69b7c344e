"""What one training step costs, counted and not timed: kernels launched, bytes moved, products, the peak of memory, and
where the processor waits for the device.

Counted are the calls that torch dispatches, so the tensors may be fake: then nothing is computed and nothing allocated,
and a model of any size is counted in seconds.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from lra_ssm.ops.backends import triton_call, triton_depthwise, triton_losses, triton_s4d_kernel, triton_scan

_PER_LAUNCH = 40  # tensors that one kernel of a `_foreach` or fused operator takes, about
_ROUND = 512  # bytes that CUDA's allocator rounds to


@dataclass
class StepCost:
    """Of one training step. Bytes, unless it says otherwise."""

    parameters: int = 0  # their number
    resident: int = 0  # parameters, optimizer's states, buffers and the batch
    states: int = 0  # the optimizer's, and averages of weights
    kept: int = 0  # what forward leaves for backward
    peak: int = 0
    peak_phase: str = ""
    launches: Counter[str] = field(default_factory=Counter)  # kernels by phase: forward, backward, optimizer
    moved: Counter[str] = field(default_factory=Counter)  # read and written, by operator
    products: Counter[torch.dtype] = field(default_factory=Counter)  # operations of matrix products by dtype
    waits: Counter[str] = field(default_factory=Counter)  # the processor for the device, by operator and place
    mixed: Counter[str] = field(default_factory=Counter)  # calls with tensors of several devices, by the same
    per_launch: list[tuple[int, int, torch.dtype | None]] = field(default_factory=list)  # bytes, products, their dtype

    def seconds(self, bandwidth: float, rates: dict[torch.dtype, float]) -> float:
        """At least so long the kernels take, one behind the other, each as long as its bytes or its products.

        bandwidth: bytes a second; rates: operations of matrix products a second by dtype. Nothing else is bound: a
        scan's own arithmetic, latencies, and the time to launch.
        """
        fastest = max(rates.values())
        return sum(
            max(size / bandwidth, flops / (rates.get(dtype, fastest) if dtype else fastest))
            for size, flops, dtype in self.per_launch
        )


@contextmanager
def _launches_counted(count: Callable[..., None]) -> Iterator[None]:
    """Triton's kernels are not launched but counted."""
    real = triton_call.launch_kernel
    triton_call.launch_kernel = count
    try:
        yield
    finally:
        triton_call.launch_kernel = real


class CountStep(TorchDispatchMode):
    """Counts what is dispatched while it is on; `cost` is what it found, `phase` what is running."""

    # Our own operators whose kernels are counted one by one, with the memory that they take in between.
    _OPENED = {"lra_ssm::selective_scan_triton": triton_scan._scan,
               "lra_ssm::selective_scan_triton_backward": triton_scan._scan_backward,
               "lra_ssm::s4d_kernel_triton": triton_s4d_kernel.s4d_kernel_zoh,
               "lra_ssm::s4d_kernel_triton_backward": triton_s4d_kernel.s4d_kernel_zoh_backward,
               "lra_ssm::softmax_losses_triton": triton_losses.softmax_losses,
               "lra_ssm::depthwise_convolution_triton": triton_depthwise.convolution,
               "lra_ssm::depthwise_convolution_triton_backward": triton_depthwise.convolution_backward}  # fmt: skip

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.cost, self.phase = device, StepCost(), "forward"
        self._storages: dict[int, int] = {}
        self.now = 0  # bytes that are held

    def restart(self) -> None:
        """Counts anew; what is held stays held."""
        self.cost = StepCost(peak=self.now)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.name().partition(".")[0]
        if name in self._OPENED and isinstance(args[0], FakeTensor):
            with self, _launches_counted(self._count_kernel):
                return self._OPENED[name]._init_fn(*args)
        if self._waits(name, func, args, kwargs):
            self.cost.waits[f"{name} {_place()}"] += 1
            if any(isinstance(x, FakeTensor) for x in tree_leaves(args)):
                return self._answer(name, func, args, kwargs)
        out = func(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
        for tensor in tree_leaves(out):
            self.hold(tensor)
        if any(x.device.type == self.device.type for x in tensors):
            self._count(name, func, args, kwargs, out, tensors)
        return out

    # -- memory ----------------------------------------------------------------------------------------------------

    def hold(self, tensor: Any) -> None:
        if not isinstance(tensor, Tensor) or tensor.device.type != self.device.type:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        self._storages[key] = -(-storage.nbytes() // _ROUND) * _ROUND
        self.now += self._storages[key]
        if self.now > self.cost.peak:
            self.cost.peak, self.cost.peak_phase = self.now, self.phase
        weakref.finalize(storage, self._release, key)

    def _release(self, key: int) -> None:
        self.now -= self._storages.pop(key, 0)

    # -- kernels ---------------------------------------------------------------------------------------------------

    def _count(self, name: str, func: Any, args: Any, kwargs: Any, out: Any, tensors: list[Tensor]) -> None:
        if len({x.device.type for x in tensors}) > 1 and name not in ("aten::_to_copy", "aten::copy_"):
            if any(x.device.type != self.device.type and x.dim() for x in tensors):
                self.cost.mixed[f"{name} {_place()}"] += 1
        if func.is_view or name in _NO_KERNEL:
            return
        flops, dtype = 0, None
        if func._overloadpacket in flop_registry:
            flops = flop_registry[func._overloadpacket](*args, **kwargs, out_val=out)
            dtype = next(x.dtype for x in reversed(tensors) if x.dtype.is_floating_point or x.dtype.is_complex)
        many = max((len(x) for x in args if isinstance(x, (list, tuple))), default=1)
        several = name.startswith(("aten::_foreach", "aten::_fused"))
        launches = -(-many // _PER_LAUNCH) if several else 2 if name.startswith("aten::_fft") else 1
        size = sum(_bytes(x) for x in tensors) * (2 if name.startswith("aten::_fft") else 1)
        self._add(name, launches, size, flops, dtype)

    def _count_kernel(self, kernel: Any, programs: int, **arguments: Any) -> None:
        size = sum(_bytes(x) for x in arguments.values() if isinstance(x, Tensor))
        self._add(f"triton::{kernel.__name__}", 1, size, 0, None)

    def _add(self, name: str, launches: int, size: int, flops: int, dtype: torch.dtype | None) -> None:
        self.cost.launches[self.phase] += launches
        self.cost.moved[name] += size
        self.cost.per_launch.append((size, flops, dtype))
        if dtype is not None:
            self.cost.products[dtype] += flops

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _waits(self, name: str, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether the processor needs a value that the device computes."""
        given = [x for x in tree_leaves(args) if isinstance(x, Tensor) and x.device.type == self.device.type]
        if not given or self.device.type == "cpu":
            return False
        if name == "aten::_to_copy":
            return torch.device(kwargs.get("device") or self.device).type == "cpu" and not kwargs.get("non_blocking")
        if name == "aten::copy_":
            return args[0].device.type == "cpu" and not (kwargs.get("non_blocking") or True in args[2:])
        return name in _WAITING or _mask_of(name, args)

    def _answer(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """What stands for a value that fake tensors do not have: as many entries as there can be."""
        x = args[0]
        if name == "aten::_local_scalar_dense":
            return True if x.dtype == torch.bool else 1.0 if x.is_floating_point() else 1
        if name == "aten::equal":
            return True
        if name == "aten::nonzero":
            return x.new_empty((x.numel(), x.dim()), dtype=torch.int64)
        if _mask_of(name, args):
            self._add("aten::nonzero", 3, 0, 0, None)
            return func(x, _by_numbers(args[1]), *args[2:], **kwargs)
        return func(*args, **kwargs)


class FusedAttention(TorchFunctionMode):
    """Attention by the kernel that a GPU takes, which keeps no weights. Of itself torch takes the plain form for a fake
    tensor. Heads that share keys are left as they are: in float32 that kernel has none."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, attention = kwargs or {}, torch.nn.functional.scaled_dot_product_attention
        if func is attention and args and args[0].device.type == "cuda" and not kwargs.get("enable_gqa"):
            return _fused_attention(*args, **kwargs)
        return func(*args, **kwargs)


def _fused_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    bias = attn_mask
    if bias is not None and bias.dtype == torch.bool:
        bias = torch.zeros_like(bias, dtype=q.dtype).masked_fill_(bias.logical_not(), -math.inf)
    if bias is not None:
        bias = bias.expand(*q.shape[:-1], k.shape[-2])
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    return kernel(q, k, v, bias, True, dropout_p, is_causal, scale=scale)[0]


_WAITING = ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select", "aten::_unique2")
_NO_KERNEL = ("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided",
              "aten::resolve_conj", "aten::resolve_neg", "aten::set_", "aten::_local_scalar_dense", "prim::device",
              "aten::lift_fresh", "aten::is_same_size", "aten::detach", "aten::_unsafe_view")  # fmt: skip


def _mask_of(name: str, args: Any) -> bool:
    """Whether it indexes by a mask, whose entries are counted first."""
    indices = args[1] if name.startswith(("aten::index", "aten::_index_put")) and len(args) > 1 else ()
    return isinstance(indices, (list, tuple)) and any(isinstance(i, Tensor) and i.dtype == torch.bool for i in indices)


def _by_numbers(indices: Any) -> list[Tensor | None]:
    found: list[Tensor | None] = []
    for index in indices:
        mask = isinstance(index, Tensor) and index.dtype == torch.bool
        found += [index.new_empty(index.numel(), dtype=torch.int64)] * index.dim() if mask else [index]
    return found


def _bytes(x: Tensor) -> int:
    """Of its entries, an expanded one counted once."""
    return x.element_size() * math.prod(n for n, stride in zip(x.shape, x.stride(), strict=True) if stride or n == 0)


def _place() -> str:
    """The line of this package, or of Lightning's, that is being executed."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        for package in ("lra_ssm", "lightning"):
            if f"/{package}/" in name and name != __file__:
                return f"{package}/{name.rpartition(f'/{package}/')[2]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"
