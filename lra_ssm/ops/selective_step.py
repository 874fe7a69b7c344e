"""One position of a selective scan, by plain operations: around its arithmetic a scan costs more than that.

Shapes: u, delta, y (batch, D); A (D, N) or (N,); B, C broadcast to (batch, D, N); D, delta_bias (D,); state
(batch, D, N).  (D channels, N states (conjugate pairs for complex A).)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lra_ssm.ops.discretization import zoh


def selective_step(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    state: Tensor,
    delta_bias: Tensor | None = None,
    discretization: str = "euler",
) -> tuple[Tensor, Tensor]:
    """Return (y, state after it) of `selective_scan`'s recurrence at one position, y + D u.

    With delta_bias the step is softplus(delta + delta_bias), else delta, which may broadcast to (batch, D). All in the
    state's precision; y has u's dtype. Gradients flow through everything; nothing is checked.
    """
    real, u_dtype = state.dtype.to_real(), u.dtype
    u, delta, D = u.to(real), delta.to(real), D.to(real)
    A, B, C = A.to(state.dtype), B.to(state.dtype), C.to(state.dtype if C.is_complex() else real)
    if delta_bias is not None:
        delta = F.softplus(delta + delta_bias.to(real))
    if discretization == "euler":
        state = torch.addcmul(torch.exp(delta.unsqueeze(-1) * A) * state, B, (delta * u).unsqueeze(-1))
    else:
        A_bar, B_bar = zoh(delta.unsqueeze(-1), A)
        state = torch.addcmul(A_bar * state, B_bar * B, u.unsqueeze(-1))
    # 2 Re over the conjugate pairs; with a real C, of the state's real part
    if not state.is_complex():
        y = (C * state).sum(-1)
    else:
        y = 2 * ((C * state).real if C.is_complex() else C * state.real).sum(-1)
    return torch.addcmul(y, D, u).to(u_dtype), state
