"""One position of a whole Mamba block with S6 in one call: around its arithmetic a small step costs more than that.

Shapes: R rows, M model channels, E inner channels, N states, K rank of the Δ projection, W taps of the convolution.
Source: Gu & Dao 2023 (Mamba), figure 3 and its public code's `step`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lra_ssm.ops.backends import cpu_pieces


class SelectiveWeights(NamedTuple):
    """The weights of S6, as `selective_step` with Euler's rule takes them."""

    delta_down: Tensor  # (K, E)
    delta_up: Tensor  # (E, K)
    delta_bias: Tensor  # (E,)
    A_log: Tensor  # (E, N), A = -exp(A_log)
    B: Tensor  # (N, E)
    C: Tensor  # (N, E)
    D: Tensor  # (E,)


def mamba_step(
    x: Tensor,
    norm: Tensor,
    epsilon: float,
    in_proj: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    unit: SelectiveWeights,
    out_proj: Tensor,
    window: Tensor,
    state: Tensor,
) -> tuple[Tensor, tuple[Tensor, Tensor]] | None:
    """Return (y (R, M), (window, state)) of y = x + out_proj(Γ(SiLU(conv(u))) SiLU(z)), (u, z) = in_proj(RMSNorm(x)).

    x (R, M), norm (M,), in_proj (2E, M), conv_weight (E, W), conv_bias (E,), out_proj (M, E), window (R, E, W − 1), the
    convolution's last inputs, state (R, E, N). Returns None if it cannot be one call, which is C++ on a CPU, in
    float32, for up to eight rows, without gradients.
    """
    if not 0 < len(x) <= cpu_pieces.MAX_ROWS or x.dtype != torch.float32 or torch.is_autocast_enabled(x.device.type):
        return None
    weights = {"norm": norm, "in_proj": in_proj, "conv_weight": conv_weight, "conv_bias": conv_bias,
               **unit._asdict(), "out_proj": out_proj}  # fmt: skip
    given = [w for w in weights.values() if w is not None]
    if not all(weight.is_contiguous() for weight in given) or not cpu_pieces.supports(x, window, state, *given):
        return None
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, window, state, *given)):
        return None
    x, window, state = x.contiguous(), window.contiguous(), state.contiguous()
    y, window, state = cpu_pieces.mamba_step(x, epsilon, window=window, state=state, **weights)
    return y, (window, state)
