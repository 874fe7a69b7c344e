"""Self-pretraining: a network predicts a dataset's inputs in place of the labels.

Source: Amos, Berant & Gupta 2024, "Never Train from Scratch", section 3, and its public code, IdoAmos/not-from-scratch,
src/dataloaders/base.py (MaskedSequenceDatasetWrapper).

B batch, L length, C features per position.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view

from lra_ssm.datamodules.batches import NOT_SCORED, SPLITS, AnyBatch, BatchDataset, TokenBatch
from lra_ssm.datamodules.counter_random import counter_random
from lra_ssm.datamodules.storage import IntArray
from lra_ssm.errors import InputError

MASK_TOKEN = 0  # replaces a hidden token: here the padding token; the public code has one for the mask only
PIXEL_VALUES = 256


@dataclass(frozen=True)
class Pretraining:
    """Which parts of the inputs a network predicts.

    Args:
        objective: "masked": hidden positions are predicted from the others. "causal": each position predicts the next.
        share: the expected share of hidden positions; each is hidden independently of all others. Published: 0.5 of
            pixels, 0.15 of text, 0.1 of ListOps.
        span: positions that are hidden together; `share` stays the expected share.
        targets: "classes": the token, or one of 256 values of a pixel. "values": the features as numbers.
        seed: seed of the hidden positions, which depend only on it, the split, the example and the epoch;
            in validation and test they are the same in every epoch.

    Raises:
        InputError: share is not between 0 and 1, or span is below 1.
    """

    objective: Literal["masked", "causal"] = "masked"
    share: float = 0.15
    span: int = 1
    targets: Literal["classes", "values"] = "classes"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise InputError(f"pretrain.share is {self.share}; it must be between 0 and 1, both excluded")
        if self.span < 1:
            raise InputError(f"pretrain.span is {self.span}; it must be at least 1")

    def describe(self) -> str:
        if self.objective == "causal":
            return f"pretraining: each position predicts the next; targets are {self.targets}"
        spans = f" in spans of {self.span}" if self.span > 1 else ""
        return f"pretraining: {self.share:.0%} of positions hidden{spans}; targets are {self.targets}"

    def hidden(self, split: int, sequences: IntArray, epoch: int, length: int) -> npt.NDArray[np.bool_]:
        """Return which positions are hidden: (B, length) bool. They do not depend on the length.

        A span starts at each position with probability q, so a position is seen with probability (1 − q)^span.
        """
        starts = np.arange(1 - self.span, length)
        # Two's complement makes large numbers of the starts before position 0.
        words = counter_random(self.seed, split, sequences[:, None], epoch, starts.astype(np.uint64))
        q = 1 - (1 - self.share) ** (1 / self.span)
        is_start = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53 < q
        return np.logical_or.reduce(sliding_window_view(is_start, self.span, axis=1), axis=-1)

    def with_targets(
        self, batch: AnyBatch, split: int, examples: IntArray, epoch: int, pixels: torch.Tensor | None
    ) -> TokenBatch:
        """Return the batch with targets in place of its labels.

        Hidden tokens become token 0. Hidden features become 0, and a further feature is 1 where they are hidden. Each
        sequence of a pair becomes a separate example.

        split, examples (B,), epoch: what decides which positions are hidden.
        pixels: (B, L) int64, the pixels of feature inputs as one of 256 values; None for other inputs.

        Raises:
            InputError: the targets are classes, and the inputs are features of which no values are known; or the
                targets are values, and the inputs are tokens.
        """
        inputs, lengths, reset = batch.inputs, batch.lengths, getattr(batch, "reset", None)
        if inputs.dim() == 3 + inputs.is_floating_point():  # pairs
            examples = (examples[:, None] * inputs.shape[1] + np.arange(inputs.shape[1])).ravel()
            inputs, lengths = inputs.flatten(0, 1), None if lengths is None else lengths.flatten()
        targets = self._targets(inputs, pixels)
        L, ignored = inputs.shape[1], torch.nan if targets.is_floating_point() else NOT_SCORED
        valid = torch.arange(L) < (torch.full((len(inputs),), L) if lengths is None else lengths)[:, None]
        if self.objective == "causal":
            valid = torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], 1)
            targets = torch.roll(targets, -1, 1)
            if reset is not None:  # the last position of a document does not predict the next document
                valid &= ~torch.roll(reset, -1, 1)
            return TokenBatch(inputs, _masked_fill(targets, ~valid, ignored), reset, lengths)
        hidden = torch.from_numpy(self.hidden(split, examples, epoch, L)) & valid
        inputs = _masked_fill(inputs, hidden, MASK_TOKEN)
        if inputs.is_floating_point():
            inputs = torch.cat([inputs, hidden[..., None].to(inputs.dtype)], -1)
        return TokenBatch(inputs, _masked_fill(targets, ~hidden, ignored), reset, lengths)

    def _targets(self, inputs: torch.Tensor, pixels: torch.Tensor | None) -> torch.Tensor:
        """Return targets: (B, L) int64 or (B, L, C) float32."""
        is_float, kind = inputs.is_floating_point(), self.targets
        if kind == "values" and not is_float:
            raise InputError("pretrain.targets is 'values', but the inputs are tokens: use 'classes'")
        if kind == "classes" and is_float and pixels is None:
            raise InputError(
                "pretrain.targets is 'classes', but the inputs are not pixels of one channel: use 'values'"
            )
        return inputs if not is_float or kind == "values" else pixels  # type: ignore[return-value]


class PretrainingDataset(BatchDataset):
    """Another dataset's inputs, some of them hidden, with the original inputs as targets: `TokenBatch`.

    Args:
        dataset: whose inputs are predicted.
        settings: what is hidden.
        split: its number, for the random numbers.
    """

    def __init__(self, dataset: BatchDataset, settings: Pretraining, split: int) -> None:
        self.dataset, self.pretraining, self.split = dataset, settings, split

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def lengths(self) -> IntArray | None:
        return self.dataset.lengths

    def batch(self, examples: IntArray, epoch: int) -> TokenBatch:
        batch, pixels = self.dataset.batch(examples, epoch), self.dataset.pixel_values(examples)
        # The Trainer counts epochs of validation too, but its scores are compared with each other.
        hidden_in = epoch if self.split == SPLITS.index("train") else 0
        return self.pretraining.with_targets(batch, self.split, examples, hidden_in, pixels)


def _masked_fill(x: torch.Tensor, where: torch.Tensor, value: float) -> torch.Tensor:
    """Return x (B, L) or (B, L, C) with a value at the positions `where` (B, L)."""
    return x.masked_fill(where if x.dim() == 2 else where[..., None], value)
