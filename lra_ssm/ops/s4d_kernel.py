"""The convolution kernel of a diagonal, time-invariant state-space model (S4D).

Shapes: delta (D,), A and B (D, N) or (N,), C (N,), (D, N) or (K, D, N), kernel (D, L) or (K, D, L).
(D channels, N conjugate pairs of states, L length, K kernels that share A, B and delta.)
"""

from __future__ import annotations

from torch import Tensor

from lra_ssm.ops.backends import KERNEL, run
from lra_ssm.ops.inputs import check_kernel_inputs
from lra_ssm.ops.tensors import without_autocast


def s4d_kernel(
    delta: Tensor, A: Tensor, B: Tensor, C: Tensor, L: int, discretization: str = "zoh", *, backend: str = "auto"
) -> Tensor:
    """Return k_l = 2 Re sum_n C_n B_bar_n A_bar_n^l, l = 0..L-1 (S4D, eq. 5).

    delta (D,) real; A, B (D, N) or (N,); C too, or (K, D, N) for K kernels from one set of powers (a bidirectional
    layer takes K = 2).  A is complex, B and C may be.  Returns (D, L), or (K, D, L), real: float64 if any
    input is float64 or complex128, else float32.  discretization: "zoh" or "bilinear", see `discretization`.
    backend: "auto" takes the fastest one that supports the call; or "cpu", "triton", "eager", "reference".
    delta, A, B and C get gradients.  Raises ValueError for arguments that do not fit, or a backend that cannot run.
    """
    inputs = check_kernel_inputs(delta, A, B, C, L, discretization)
    with without_autocast(delta.device):
        kernel = run(KERNEL, backend, delta.device, inputs)
    return kernel if C.dim() == 3 else kernel.squeeze(0)
