"""The losses of logits and the logits' gradient by one Triton kernel, in the logits' own dtype.

Its arithmetic is in float32, or float64 for such logits.

In bfloat16 PyTorch's operations would widen, exponentiate, scale, mask and narrow all logits one after the other, 26
bytes of a GPU's memory for each where these are 6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lra_ssm.ops.backends import triton_call, triton_scan

BLOCK, WARPS = 4096, 8


def supports(logits: Tensor) -> bool:
    """Return whether the kernel supports logits (n, V): on a GPU, but not under torch.compile, which has its own."""
    on_gpu = logits.device.type == "cuda" and triton_scan.unsupported_reason(logits.device, None) is None
    return on_gpu and not torch.compiler.is_compiling()


@torch.library.custom_op("lra_ssm::softmax_losses_triton", mutates_args=("logits",))
def softmax_losses(logits: Tensor, targets: Tensor, ignored: Tensor, scale: Tensor | None) -> Tensor:
    """Return -log softmax(logits)[target] (n,), 0 where ignored; with scale (n,) overwrite logits with the gradient of
    sum(scale · losses)."""
    import triton.language as tl

    from lra_ssm.ops.backends.triton_losses_kernel import losses_kernel

    n, V = logits.shape
    losses = logits.new_empty(n, dtype=torch.promote_types(logits.dtype, torch.float32))
    if n:
        triton_call.launch_kernel(
            losses_kernel, n, num_warps=WARPS, logits=logits, targets=targets, ignored=ignored.view(torch.uint8),
            scale=scale, losses=losses, V=V, row_stride=logits.stride(0),
            TYPE=tl.float64 if losses.dtype == torch.float64 else tl.float32,
            BLOCK=min(BLOCK, triton_call._power_of_two(V)),
        )  # fmt: skip
    return losses


@softmax_losses.register_fake
def _(logits: Tensor, targets: Tensor, ignored: Tensor, scale: Tensor | None) -> Tensor:
    return logits.new_empty(len(logits), dtype=torch.promote_types(logits.dtype, torch.float32))
