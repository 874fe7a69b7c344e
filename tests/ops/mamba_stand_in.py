"""A stand-in for mamba-ssm's selective_scan_fn, as strict as its kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from lra_ssm.ops import selective_scan_reference


def check_rows(x: Tensor, shape: tuple[int, ...]) -> None:
    """What the kernel needs of a tensor that it reads along time, whether it checks that or not."""
    assert tuple(x.shape) == shape and not x.is_neg()
    assert x.stride(-1) == 1 or x.shape[-1] == 1  # checked by the kernel; mamba-ssm's function sees to it for most
    assert torch.empty_like(x).stride(-1) == 1 or x.shape[-1] == 1  # results are written so, unchecked
    if x.shape[-1] % 128 == 0:  # vectors of 16 bytes
        strides = [stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
        assert x.data_ptr() % 16 == 0 and all(stride * x.element_size() % 16 == 0 for stride in strides)


class KernelGraph(torch.autograd.Function):
    """The kernel's place in the graph: its backward takes y's gradient and passes over that of the last state."""

    @staticmethod
    def forward(ctx, y, state):
        return y.clone(), state.clone()

    @staticmethod
    def backward(ctx, dy, dstate):
        check_rows(dy, tuple(dy.shape))
        return dy, None


class StandIn:
    """mamba-ssm's selective_scan_fn: what it takes, checks and gives, written as the reference in float64."""

    def __init__(self):
        self.launches = []  # the shapes of u

    def __call__(self, u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False,
                 return_last_state=False):  # fmt: skip
        self.launches.append(tuple(u.shape))
        assert not torch.is_autocast_enabled(u.device.type)
        (batch, channels, L), N = u.shape, A.shape[1]
        assert u.dtype in (torch.float32, torch.float16, torch.bfloat16) and A.dtype == torch.float32
        assert A.shape == (channels, N) and N <= 256 and batch > 0
        for x in (u, delta) if z is None else (u, delta, z):
            check_rows(x, (batch, channels, L))
        groups = B.shape[1] if B.dim() > 2 else 1
        assert channels % groups == 0
        for x in (B, C):
            if x.dim() == 2:
                assert x.dtype == A.dtype and x.shape == (channels, N)
            else:
                assert x.dtype == u.dtype
                check_rows(x, (batch, groups, N, L))
        assert all(x is None or x.dtype == u.dtype for x in (delta, z))
        for x in (D, delta_bias):
            assert x is None or (x.dtype == torch.float32 and x.shape == (channels,) and x.is_contiguous())
        wide = [None if x is None else x.double() for x in (u, delta, A, B, C, D, z, delta_bias)]
        y, state = selective_scan_reference(*wide, delta_softplus, True)
        if B.dim() == 2:
            state = state / B  # the kernel's lacks it
        y, state = KernelGraph.apply(torch.empty_like(delta).copy_(y), state.to(A.dtype))
        return (y, state) if return_last_state else y
