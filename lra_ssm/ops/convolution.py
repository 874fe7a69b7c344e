"""Long convolutions along time by the fast Fourier transform.

Shapes: u (B, D, L), kernels (D, L), results (B, D, L).  (B batch, D channels, L length.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra_ssm.ops.tensors import check_shapes, check_tensors, has_double, read_sizes, without_autocast

# On a CPU, a few channels of a few batch items are transformed at a time: so many bytes of points stay in the
# cache.  Channels that lie next to each other in memory go by sixteen at least, a line of the cache.
_PIECE_BYTES, _LINE = 8 << 20, 16


def _check(u: Tensor, **kernels: Tensor) -> torch.dtype:
    """Return the arithmetic's dtype. Raises ValueError, naming the argument, for what does not fit."""
    check_tensors({"u": u} | kernels)
    check_shapes(kernels, dict.fromkeys(kernels, "D L"), read_sizes("u", u, "B D L"))
    return torch.float64 if has_double(u, *kernels.values()) else torch.float32


def _fft_length(L: int) -> int:
    """Return the smallest power of two >= 2L: no wrap-around, and several times faster than 2L - 1."""
    return 2 << (L - 1).bit_length()


def _pieces(u: Tensor, n: int) -> tuple[list[slice], list[slice]]:
    """Yield ranges of channels and of batch items, piece by piece; nothing for an empty batch, which MKL refuses."""
    (batch, D, _), budget = u.shape, _PIECE_BYTES // (4 * n)
    if u.device.type != "cpu" or not batch:
        return [slice(0, D)], [slice(0, batch)][:batch]
    channels = min(max(budget // batch, _LINE if u.stride(1) == 1 else 1), D)
    items = min(max(budget // channels, 1), batch)
    return [slice(i, i + channels) for i in range(0, D, channels)], [
        slice(i, i + items) for i in range(0, batch, items)
    ]


class _CircularConvolution(torch.autograd.Function):
    """Convolve u (B, D, L) with kernels (D, M) on a circle of n >= L, M points; return the first L points.

    Backward computes the spectra again, one transform of six: they are twice as large as u.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, kernel: Tensor, n: int, dtype: torch.dtype) -> Tensor:
        y = torch.empty_like(u)
        all_channels, all_items = _pieces(u, n)
        for channels in all_channels:
            of_kernel = torch.fft.rfft(kernel[channels].to(dtype), n=n)
            for items in all_items:
                spectrum = torch.fft.rfft(u[items, channels].to(dtype), n=n).mul_(of_kernel)
                y[items, channels] = torch.fft.irfft(spectrum, n=n)[..., : u.shape[-1]]
        ctx.save_for_backward(u, kernel)
        ctx.n, ctx.dtype = n, dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        u, kernel = ctx.saved_tensors
        n, dtype = ctx.n, ctx.dtype
        needs_u, needs_kernel = ctx.needs_input_grad[:2]
        grad_u = torch.empty_like(u) if needs_u else None
        grad_kernel = torch.empty_like(kernel) if needs_kernel else None
        with without_autocast(u.device):
            all_channels, all_items = _pieces(u, n)
            for channels in all_channels:
                of_kernel = torch.fft.rfft(kernel[channels].to(dtype), n=n).conj_physical_()
                total = torch.zeros_like(of_kernel)
                for items in all_items:
                    grad = torch.fft.rfft(grad_y[items, channels].to(dtype), n=n)
                    if grad_kernel is not None:
                        spectrum = torch.fft.rfft(u[items, channels].to(dtype), n=n).conj_physical_()
                        total += spectrum.mul_(grad).sum(0)
                    if grad_u is not None:
                        grad_u[items, channels] = torch.fft.irfft(grad.mul_(of_kernel), n=n)[..., : u.shape[-1]].to(
                            u.dtype
                        )
                if grad_kernel is not None:
                    grad_kernel[channels] = torch.fft.irfft(total, n=n)[..., : kernel.shape[-1]].to(kernel.dtype)
        return grad_u, grad_kernel, None, None


def causal_convolution(u: Tensor, k: Tensor) -> Tensor:
    """Return y_t = sum over s <= t of k_{t-s} u_s (S4, eq. 4-5).

    u (B, D, L), k (D, L), both real; y has u's shape and dtype.  float64 if either is, otherwise computed in float32.
    The gradient is not differentiable a second time.  Raises ValueError for a shape or dtype that does not fit.
    """
    dtype, n = _check(u, k=k), _fft_length(u.shape[-1])
    with without_autocast(u.device):
        return _CircularConvolution.apply(u, k, n, dtype)


def bidirectional_convolution(u: Tensor, k_forward: Tensor, k_backward: Tensor) -> Tensor:
    """Return y_t = sum_{s<=t} k_forward_{t-s} u_s + sum_{s>t} k_backward_{s-t-1} u_s, in one transform.

    The present step belongs to the forward kernel only, so the backward one starts at the next step: the convention
    of the public S4 code (models/functional/fftconv, kernel = pad(k0, (0, L)) + pad(flip(k1), (L, 0))).
    Shapes, dtypes and errors as in `causal_convolution`.
    """
    dtype, L = _check(u, k_forward=k_forward, k_backward=k_backward), u.shape[-1]
    n = _fft_length(L)
    with without_autocast(u.device):
        # On a circle of n >= 2L points, lag -1-j is the point n-1-j: the backward kernel stands reversed at the end.
        gap = k_forward.new_zeros((k_forward.shape[0], n - 2 * L), dtype=dtype)
        kernel = torch.cat([k_forward.to(dtype), gap, k_backward.to(dtype).flip(-1)], dim=-1)
        return _CircularConvolution.apply(u, kernel, n, dtype)
