"""One position at a time, as generation has it: around its arithmetic a scan, or a block, costs more than that.

Shapes: R rows, D channels, N states; of a Mamba block: M model channels, E inner channels, K rank of the Δ projection,
W taps of the convolution.
Source of `mamba_step`: Gu & Dao 2023 (Mamba), figure 3 and its public code's `step`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lra_ssm.ops.backends import cpu_pieces

_WORTH_READING = 1 << 16  # weights; of fewer torch's own product is done before C++ is called


def selective_step(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    state: Tensor,
    delta_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (y, state after it) of Mamba's selective scan (real A, Euler's rule) at one position, y + D u.

    u, delta, y (R, D); A (D, N) or (N,); B, C broadcast to (R, D, N); D, delta_bias (D,); state (R, D, N); all real.

    With delta_bias the step is softplus(delta + delta_bias), else delta, which may broadcast to (batch, D). All in the
    state's precision; y has u's dtype. Gradients flow through everything; nothing is checked.
    """
    u_dtype = u.dtype
    u, delta, A, B, C, D = (x.to(state.dtype) for x in (u, delta, A, B, C, D))
    if delta_bias is not None:
        delta = F.softplus(delta + delta_bias.to(state.dtype))
    state = torch.addcmul(torch.exp(delta.unsqueeze(-1) * A) * state, B, (delta * u).unsqueeze(-1))
    return torch.addcmul((C * state).sum(-1), D, u).to(u_dtype), state


def step_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `F.linear`: x (R, D), weight (O, D), bias (O,) -> (R, O).

    In float32 on a CPU, for up to eight rows and without gradients, it is C++ that takes about the time of reading the
    weight, half of what MKL's product takes.
    """
    few = (
        x.dim() == 2
        and weight.numel() >= _WORTH_READING
        and 0 < len(x) <= cpu_pieces.MAX_ROWS
        and x.dtype == torch.float32
        and weight.is_contiguous()
    )
    needs_gradient = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if not few or needs_gradient or torch.is_autocast_enabled(x.device.type) or not cpu_pieces.supports(x, weight):
        return F.linear(x, weight, bias)
    y = cpu_pieces.few_rows(x, weight)
    return y if bias is None else y + bias


class SelectiveWeights(NamedTuple):
    """The weights of S6, as `selective_step` takes them."""

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
