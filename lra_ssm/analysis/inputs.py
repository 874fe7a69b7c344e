"""Inputs to measure a network on: parts of batches, or random ones of the network's sizes.

Shapes: B batch, L length.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lra_ssm.errors import InputError


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


class RandomInputs:
    """Random inputs and labels for a network, with the sizes that a data module would have.

    Args:
        network: its attribute `per_example` says whether it takes pairs.
        specification: of the network; its arguments vocab_size, d_input, num_classes and num_outputs are the sizes.

    Raises:
        InputError: the network says no size of its inputs.
    """

    def __init__(self, network: nn.Module, specification: Mapping[str, Any]) -> None:
        sizes = specification.get("init_args") or {}
        self.vocab_size, self.d_input = sizes.get("vocab_size"), sizes.get("d_input")
        self.num_classes, self.num_outputs = sizes.get("num_classes"), sizes.get("num_outputs")
        self.per_example = getattr(network, "per_example", 1)
        self._generator = torch.Generator().manual_seed(0)
        if not self.vocab_size and not self.d_input:
            raise InputError(f"{type(network).__name__} has neither vocab_size nor d_input: no random inputs for it")

    def draw(self, examples: int, length: int) -> tuple[Tensor, Tensor | None]:
        """Return inputs (B, L) int64, (B, L, d_input) float32 or pairs (B, 2, …); and labels (B,), None if no classes.

        Tokens leave out 0, which is padding."""
        shape = (examples, *((2,) if self.per_example == 2 else ()), length)
        if self.vocab_size:
            lowest = min(1, self.vocab_size - 1)
            inputs = torch.randint(lowest, self.vocab_size, shape, generator=self._generator)
        else:
            assert self.d_input
            inputs = torch.rand(*shape, self.d_input, generator=self._generator)
        if not self.num_classes:
            return inputs, None
        return inputs, torch.randint(0, self.num_classes, (examples,), generator=self._generator)

    def values(self, *shape: int) -> Tensor:
        """Return random real targets of any shape."""
        return torch.randn(shape, generator=self._generator)
