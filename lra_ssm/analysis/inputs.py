"""Inputs to measure a network on: parts of batches."""

from typing import Any

from torch import Tensor


def part_of_batch(batch: Any, examples: slice, length: int) -> Any:
    """Return some examples of a batch, cut to their first positions.

    batch: a NamedTuple with `inputs`, `lengths` and targets, as data modules give; or a plain tuple, whose tensors keep
        all positions.
    """
    if not hasattr(batch, "_fields"):
        return tuple(x[examples] if isinstance(x, Tensor) else x for x in batch)
    inputs = batch.inputs[examples]
    axis = 2 if batch.lengths is not None and batch.lengths.dim() == 2 else 1  # pairs are (B, 2, L)
    longest = inputs.shape[axis]
    cut = {"inputs": inputs.narrow(axis, 0, min(length, longest))}
    for name in set(batch._fields) - {"inputs"}:
        value = getattr(batch, name)
        if not isinstance(value, Tensor):
            continue
        value = value[examples]
        if name == "lengths":
            value = value.clamp(max=length)
        elif value.dim() > 1 and value.shape[1] == longest:
            value = value[:, :length]
        cut[name] = value
    return batch._replace(**cut)
