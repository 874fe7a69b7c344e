"""Count what torch dispatches in a training step: memory, kernels, bytes moved, operations of matrix products.

The tensors may be fake: then nothing is computed or allocated, and a model of any size is counted in seconds.
"""

import math
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from lra_ssm.ops.backends import triton_call, triton_depthwise, triton_losses, triton_s4d_kernel, triton_scan

_PER_LAUNCH = 40  # approximate number of tensors in one kernel of a `_foreach` or fused operator
_ALLOCATION = 512  # bytes that CUDA's allocator rounds to


class Kernel(NamedTuple):
    """The kernels of one dispatched call."""

    phase: str  # forward, backward or optimizer
    operator: str
    launches: int
    size: int  # bytes read and written
    flops: int  # operations of matrix products
    dtype: torch.dtype | None  # of the products; None for other kernels


@dataclass
class StepCost:
    """The cost of one training step; memory in bytes."""

    parameters: int = 0  # number of parameters
    resident: int = 0  # parameters, optimizer state, buffers and the batch
    optimizer_state: int = 0  # with averages of the weights
    saved: int = 0  # by forward for backward
    peak: int = 0
    peak_phase: str = ""
    kernels: list[Kernel] = field(default_factory=list)

    def total(self, key: str, value: str) -> Counter[Any]:
        """Return the sum of the kernels' `value` for each `key`, such as launches by phase or size by operator.

        Calls without a key (products' dtype) are left out.
        """
        totals: Counter[Any] = Counter()
        for kernel in self.kernels:
            if getattr(kernel, key) is not None:
                totals[getattr(kernel, key)] += getattr(kernel, value)
        return totals


class CountStep(TorchDispatchMode):
    """Count what is dispatched while the mode is on. `cost` is the result; the caller sets `phase`."""

    # Our operators, whose kernels are counted one by one, together with the memory that they allocate.
    _OPENED = {"lra_ssm::selective_scan_triton": triton_scan.operator.forward,
               "lra_ssm::selective_scan_triton_backward": triton_scan.operator.backward,
               "lra_ssm::s4d_kernel_triton": triton_s4d_kernel.operator.forward,
               "lra_ssm::s4d_kernel_triton_backward": triton_s4d_kernel.operator.backward,
               "lra_ssm::softmax_losses_triton": triton_losses.softmax_losses,
               "lra_ssm::depthwise_convolution_triton": triton_depthwise.convolution,
               "lra_ssm::depthwise_convolution_triton_backward": triton_depthwise.convolution_backward}  # fmt: skip

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.cost, self.phase = device, StepCost(), "forward"
        self._storages: dict[int, int] = {}
        self.allocated = 0  # bytes

    def reset(self) -> None:
        """Start a new count; what is allocated stays allocated."""
        self.cost = StepCost(peak=self.allocated)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.name().partition(".")[0]
        if name in self._OPENED and isinstance(args[0], FakeTensor):
            with self, patch.object(triton_call, "launch_kernel", self._count_kernel):
                return self._OPENED[name]._init_fn(*args)
        out = func(*args, **kwargs)
        for tensor in tree_leaves(out):
            self.track(tensor)
        tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
        if any(x.device.type == self.device.type for x in tensors):
            self._count(name, func, args, kwargs, out, tensors)
        return out

    def track(self, tensor: Any) -> None:
        """Count a tensor's memory until it is freed."""
        if not isinstance(tensor, Tensor) or tensor.device.type != self.device.type:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        self._storages[key] = -(-storage.nbytes() // _ALLOCATION) * _ALLOCATION
        self.allocated += self._storages[key]
        if self.allocated > self.cost.peak:
            self.cost.peak, self.cost.peak_phase = self.allocated, self.phase
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.allocated -= self._storages.pop(key, 0)

    def _count(self, name: str, func: Any, args: Any, kwargs: Any, out: Any, tensors: list[Tensor]) -> None:
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
        size = sum(_bytes(x) for x in tree_leaves(arguments) if isinstance(x, Tensor))
        self._add(f"triton::{kernel.__name__}", 1, size, 0, None)

    def _add(self, name: str, launches: int, size: int, flops: int, dtype: torch.dtype | None) -> None:
        self.cost.kernels.append(Kernel(self.phase, name, launches, size, flops, dtype))


_NO_KERNEL = ("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided",
              "aten::resolve_conj", "aten::resolve_neg", "aten::set_", "aten::_local_scalar_dense", "prim::device",
              "aten::lift_fresh", "aten::is_same_size", "aten::detach", "aten::_unsafe_view")  # fmt: skip


def _bytes(x: Tensor) -> int:
    """Return the bytes of a tensor's entries; expanded entries count once."""
    return x.element_size() * math.prod(n for n, stride in zip(x.shape, x.stride(), strict=True) if stride or n == 0)


class FusedAttention(TorchFunctionMode):
    """Attention by the kernel that a GPU uses, which does not store the weights.

    For fake tensors torch chooses the plain form. Heads that share keys keep the plain form, because that kernel does
    not support them in float32.
    """

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
