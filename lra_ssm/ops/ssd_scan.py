"""The scan of Mamba-2 (SSD): a selective state-space model in which a whole head decays at one rate.

Shapes: x, y (batch, L, H, P); delta (batch, L, H); A, D (H,); B, C (batch, L, G, N); state (batch, H, P, N).
(L length, H heads, P channels per head, G groups of H/G heads, N states.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lra_ssm.ops.backends import SSD, run
from lra_ssm.ops.inputs import SSDInputs, check_ssd_inputs
from lra_ssm.ops.tensors import is_clean, is_nonfinite, without_autocast, without_nonfinite


def ssd_scan(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    delayed: bool = False,
    chunk_size: int | None = None,
    initial_state: Tensor | None = None,
    reset: Tensor | None = None,
    return_last_state: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Run the state-space dual of Dao & Gu 2024, eq. 1-2 with a scalar A per head; for every batch item and head h:

        S_k = exp(delta_k A_h) S_{k-1} + delta_k x_k B_k^T,   y_k = S_k C_k + D_h x_k

    Args:
        x: (batch, L, H, P), real.
        delta: (batch, L, H), the step sizes, softplus taken.
        A: (H,), negative.
        B, C: (batch, L, G, N), G dividing H; group g serves the heads g H/G .. (g+1) H/G - 1.
        D: (H,); 0 if not given.
        delayed: S_k = exp(delta_k A_h) S_{k-1} + x_k B_k^T and y_k = exp(delta_k A_h) S_{k-1} C_k + D_h x_k instead:
            x_k enters without delta_k, and is first read one position later.
        chunk_size: how many positions a matrix product combines (section 6); None takes what is fast.
        initial_state: (batch, H, P, N), the state before step 0; zero if not given.
        reset: (batch, L) bool; where true the state before that step, initial_state included, is dropped, inf and NaN
            too.
        return_last_state: return (y, state after step L-1 (batch, H, P, N)) instead of y; gradients flow through both.
        backend: "auto" takes the fastest one that supports the call; or "reference", a loop over time, "eager", matrix
            products by PyTorch on any device, "mamba_ssm", its Triton kernels.

    Floating dtypes may be mixed.  State and arithmetic are float32, or float64 if any input is float64, whatever
    autocast says; y has x's dtype, the last state the arithmetic's, each gradient its input's.  (mamba_ssm's kernels
    multiply in x's dtype, adding up in float32.)  Only "reference" gives second derivatives.

    Raises:
        ValueError: one line naming the argument, what it is and what it should be; or why the backend cannot run.
    """
    inputs = check_ssd_inputs(x, delta, A, B, C, D, chunk_size, initial_state, reset, delayed)
    y, last_state = _keep_nonfinite_apart(inputs, partial(run, SSD, backend, x.device))
    return (y, last_state) if return_last_state else y


def _keep_nonfinite_apart(
    inputs: SSDInputs, run: Callable[[SSDInputs], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Call `run` on the inputs such that an inf or NaN before a reset does not reach what comes after it.

    Backends bring positions together by products with decays, 0 across a reset, and 0 times NaN is NaN. So they take 0
    in place of what is not finite (each by itself, piece by piece: copies of whole inputs would be kept for backward).
    Here y and the last state become NaN where it counts: in its document, from its position on.
    """
    x, delta, _, B, C, _, initial, reset, *_ = inputs
    if reset is None or is_clean(x, delta, B, C, initial):
        return run(inputs)
    heads, dtype = x.shape[2] // B.shape[2], inputs.dtype
    sums = x.sum(-1, dtype=dtype) + delta + B.sum(-1, dtype=dtype).repeat_interleave(heads, 2)
    entering = is_nonfinite(sums)  # (batch, L, H): here something enters the state
    before = entering.cumsum(1) - entering.int()  # how many at earlier positions
    if initial is not None:
        before = before + is_nonfinite(initial.sum((-1, -2))).int().unsqueeze(1)
    of_document = torch.where(reset.unsqueeze(-1), before, 0).cummax(1).values  # before the document
    bad = before + entering.int() > of_document
    bad_y = (before + is_nonfinite(delta).int() > of_document) if inputs.delayed else bad
    initial = None if initial is None else without_nonfinite(initial)
    y, state = run(inputs._replace(initial_state=initial, zero_nonfinite=True))
    unread = is_nonfinite(C.sum(-1, dtype=dtype)).repeat_interleave(heads, 2)
    y = y.masked_fill((bad_y | unread).unsqueeze(-1), torch.nan)
    return y, state.masked_fill(bad[:, -1, :, None, None], torch.nan)


def ssd_step(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (y, state after it) of `ssd_scan` at one position.

    x (batch, H, P), delta (batch, H), B, C (batch, G, N), D (H,).

    All in the state's precision; y has x's dtype. Gradients flow through everything; nothing is checked.
    """
    own, work = x.dtype, state.dtype
    x, delta, A, B, C = (given.to(work) for given in (x, delta, A, B, C))
    batch, H, P, N = state.shape
    G = B.shape[1]
    grouped = (batch, G, H // G * P, N)
    decay = torch.exp(delta * A)[..., None, None]
    added = (delta.unsqueeze(-1) * x).view(grouped[:3]).unsqueeze(-1) * B.unsqueeze(2)
    state = torch.addcmul(added.view(state.shape), decay, state)
    with without_autocast(x.device):
        y = (state.view(grouped) @ C.unsqueeze(-1)).view(x.shape)
    if D is not None:
        y = torch.addcmul(y, D.to(work).unsqueeze(-1), x)
    return y.to(own), state
