"""Long convolutions along time by the fast Fourier transform.

Shapes: u (B, D, L), kernels (D, L), results (B, D, L).  (B batch, D channels, L length.)
"""

from __future__ import annotations

import torch
from torch import Tensor


def _check(u: Tensor, **kernels: Tensor) -> None:
    if u.dim() != 3 or not u.is_floating_point():
        raise ValueError(f"u: shape {tuple(u.shape)}, dtype {u.dtype}; expected (B, D, L), real floating")
    if u.shape[-1] < 1:
        raise ValueError(f"u: shape {tuple(u.shape)}; expected length L >= 1")
    for name, kernel in kernels.items():
        if kernel.shape != u.shape[1:] or not kernel.is_floating_point():
            got, expected = tuple(kernel.shape), tuple(u.shape[1:])
            raise ValueError(f"{name}: shape {got}, dtype {kernel.dtype}; expected (D, L) = {expected}, real floating")


def _working_dtype(*tensors: Tensor) -> torch.dtype:
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


def _fft_length(L: int) -> int:
    """The smallest power of two >= 2L: no wrap-around, and several times faster than 2L - 1."""
    return 2 << (L - 1).bit_length()


def causal_convolution(u: Tensor, k: Tensor) -> Tensor:
    """y_t = sum over s <= t of k_{t-s} u_s (S4, eq. 4-5).

    u (B, D, L), k (D, L), both real; y has u's shape and dtype.  float64 if either is, otherwise computed in float32.
    Raises ValueError for a shape or dtype that does not fit.
    """
    _check(u, k=k)
    L, dtype = u.shape[-1], _working_dtype(u, k)
    n = _fft_length(L)
    with torch.autocast(u.device.type, enabled=False):
        spectrum = torch.fft.rfft(u.to(dtype), n=n) * torch.fft.rfft(k.to(dtype), n=n)
        return torch.fft.irfft(spectrum, n=n)[..., :L].to(u.dtype)


def bidirectional_convolution(u: Tensor, k_forward: Tensor, k_backward: Tensor) -> Tensor:
    """y_t = sum_{s<=t} k_forward_{t-s} u_s + sum_{s>t} k_backward_{s-t-1} u_s, in one transform.

    The present step belongs to the forward kernel alone, so the backward one starts at the next step: the convention
    of the public S4 code (models/functional/fftconv, kernel = pad(k0, (0, L)) + pad(flip(k1), (L, 0))).
    Shapes, dtypes and errors as in `causal_convolution`.
    """
    _check(u, k_forward=k_forward, k_backward=k_backward)
    L, dtype = u.shape[-1], _working_dtype(u, k_forward, k_backward)
    n = _fft_length(L)
    with torch.autocast(u.device.type, enabled=False):
        # On a circle of n >= 2L points, lag -1-j is the point n-1-j: the backward kernel stands reversed at the end.
        gap = k_forward.new_zeros((k_forward.shape[0], n - 2 * L), dtype=dtype)
        kernel = torch.cat([k_forward.to(dtype), gap, k_backward.to(dtype).flip(-1)], dim=-1)
        spectrum = torch.fft.rfft(u.to(dtype), n=n) * torch.fft.rfft(kernel, n=n)
        return torch.fft.irfft(spectrum, n=n)[..., :L].to(u.dtype)
