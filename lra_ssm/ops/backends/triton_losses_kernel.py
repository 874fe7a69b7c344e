"""The kernel of `triton_losses.py`."""

from __future__ import annotations

# The body is Triton's language, not Python's: its tensors have no types that mypy could check.
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def losses_kernel(logits, targets, ignored, scale, losses, V, row_stride, BLOCK: tl.constexpr, TYPE: tl.constexpr):
    """One row: its loss and, with scale, in place of the logits their gradient. Twice through the row, which a cache
    holds the second time; largest and total are those of every BLOCK-th logit until the first walk ends."""
    row = tl.cast(tl.program_id(0), tl.int64)
    logits += row * row_stride
    skipped = tl.load(ignored + row) != 0
    target = tl.load(targets + row)
    largest, total = tl.full((BLOCK,), -1e38, TYPE), tl.zeros((BLOCK,), TYPE)
    for v0 in range(0, V, BLOCK):
        v = v0 + tl.arange(0, BLOCK)
        x = tl.load(logits + v, mask=v < V, other=-1e38).to(TYPE)
        now = tl.maximum(largest, x)
        total = total * tl.exp(largest - now) + tl.where(v < V, tl.exp(x - now), 0.0)
        largest = now
    most = tl.max(largest, axis=0)
    total = tl.sum(total * tl.exp(largest - most), axis=0)
    log_total = most + tl.log(total)
    of_target = tl.load(logits + target).to(TYPE)
    tl.store(losses + row, tl.where(skipped, 0.0, log_total - of_target))
    if scale is not None:
        factor = tl.load(scale + row).to(TYPE)
        tl.debug_barrier()  # the target's logit is read before it is overwritten
        for v0 in range(0, V, BLOCK):
            v = v0 + tl.arange(0, BLOCK)
            x = tl.load(logits + v, mask=v < V, other=0.0).to(TYPE)
            slope = tl.exp(x - log_total) * factor - tl.where(v == target, factor, 0.0)
            slope = tl.where(skipped, 0.0, slope)
            tl.store(logits + v, slope.to(logits.dtype.element_ty), mask=v < V)
