"""The selective scan: a diagonal state-space model whose step size, B and C may change at every step.

Shapes: u, delta, z, y (batch, D, L), or delta (D,); A (D, N) or (N,); B, C (D, N), (batch, N, L) or (batch, G, N, L);
state (batch, D, N). (D channels, L length, N states (conjugate pairs for complex A), G groups of D/G channels.)
"""

from __future__ import annotations

from torch import Tensor

from lra_ssm.ops.backends import SCAN, run
from lra_ssm.ops.inputs import check_scan_inputs


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    B_bias: Tensor | None = None,
    discretization: str = "euler",
    initial_state: Tensor | None = None,
    reset: Tensor | None = None,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Run the recurrence of S6 (Mamba) and B2S6, for every batch item, channel d and state n:

        x_k = A_bar_k x_{k-1} + B_bar_k u_k,   y_k = sum_n C_k x_k   (2 Re of it for complex A)
        A_bar_k = exp(delta_k A),   B_bar_k = delta_k (B_k + B_bias)                      "euler", as mamba-ssm
                                    B_bar_k = A^-1 (A_bar_k - 1) (B_k + B_bias)           "zoh", B2S6 eq. 8

    with delta_k = softplus(delta_k + delta_bias) with delta_softplus, then y + D u, then y silu(z).  The positional
    arguments are those of mamba-ssm's `selective_scan_fn`, in shape, meaning and order.

    Args:
        u, delta, z: (batch, D, L), real; or delta (D,), the same at every step, which some backends discretize once.
        A: (D, N), or (N,) for one A in all channels; real or complex.
        B, C: each on its own constant (D, N), or variable: (batch, N, L), or (batch, G, N, L) with its own G dividing
            D, where group g serves the channels g D/G .. (g+1) D/G - 1.  With complex A a variable one may be complex
            of length L, real with last dimension 2L (re and im interleaved at each step), or real of length L; a real
            constant is promoted.
        D, delta_bias: (D,), real.
        delta_softplus: softplus, linear above 20, after delta_bias.
        return_last_state: return (y, state after step L-1 (batch, D, N)) instead of y; gradients flow through both.
        B_bias: (D, N), B2S6's per-channel bias, added to B before it multiplies u.
        discretization: "euler" or "zoh"; zoh is exact, gradients too, as delta A -> 0.
        initial_state: (batch, D, N), the state before step 0; zero if not given.
        reset: (batch, L) bool; where true the state before that step, initial_state included, is dropped.
        backend: "auto" takes the fastest one that supports the call; or "reference", "eager", "cpu", "triton",
            "mamba_ssm" (with the last state only under `torch.no_grad`).  All but the reference hold no
            (batch, D, L, N) tensor and give first derivatives only.

    Floating dtypes may be mixed.  State and arithmetic are float32, or float64 if any input is float64 or complex128,
    whatever autocast says; y has u's dtype (and its memory layout), the last state the arithmetic's (complex if A is),
    each gradient its input's.  Any strides are taken without a copy of the large inputs (but for interleaved ones).

    Raises:
        ValueError: one line naming the argument, what it is and what it should be; or why the backend cannot run.
    """
    inputs = check_scan_inputs(
        u, delta, A, B, C, D, z, delta_bias, delta_softplus, B_bias, discretization, initial_state, reset,
        return_last_state,
    )  # fmt: skip
    y, last_state = run(SCAN, backend, u.device, inputs)
    return (y, last_state) if return_last_state else y
