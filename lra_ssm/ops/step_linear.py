"""A linear map of one position, as the steps of generation have it: of a few rows and without gradients.

Shapes: x (R, D); weight (O, D); bias (O,); y (R, O).  (R rows, D and O channels.)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lra_ssm.ops.backends import cpu_pieces

_WORTH_READING = 1 << 16  # weights; of fewer torch's own product is done before C++ is called


def step_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `F.linear`.

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
