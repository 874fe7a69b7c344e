"""Associative recall as a LightningDataModule: what stood behind this key?

Examples are pairs of a key and a value, then a key; its value is the class.

Sources: StableSSM's table 7 (Wang and Li 2024) names lengths and vocabularies alone; the layout is that of the public
code of H3 and Hyena (HazyResearch/safari), which has both: 20 tokens of 10, 131,072 tokens of 30.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.synthetic.base import Draws, SyntheticDataModule, Task


@dataclass(frozen=True)
class Recall(Task):
    """length: tokens before the question; vocab_size: keys, as many values, the mark => and one that nothing uses."""

    length: int
    vocab_size: int

    @property
    def num_keys(self) -> int:
        """Tokens 0 … num_keys − 1 are keys, those from there to vocab_size − 3 values."""
        return (self.vocab_size - 2) // 2

    def make(self, draws: Draws) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Tokens (B, length + 2): key, value, key, value, …, =>, key; classes (B,), the token of that key's value."""
        rows = np.arange(len(draws.examples))[:, None]
        values = self.num_keys + draws.integers(0, self.num_keys, self.vocab_size - 2 - self.num_keys)
        keys = draws.integers(1, self.length // 2, self.num_keys)
        seen = np.zeros((len(rows), self.num_keys), dtype=bool)
        seen[rows, keys] = True
        asked = np.where(seen, draws.words(2, self.num_keys) | np.uint64(1), np.uint64(0)).argmax(1)
        tokens = np.empty((len(rows), self.length + 2), dtype=np.int64)
        tokens[:, :-2:2], tokens[:, 1:-2:2] = keys, values[rows, keys]
        tokens[:, -2], tokens[:, -1] = self.vocab_size - 2, asked
        return tokens, values[rows[:, 0], asked]


class AssociativeRecall(SyntheticDataModule):
    """Which value stood behind this key? Batches are `batches.Batch` with a class, of as many as there are tokens.

    Every example has a dictionary of its own: to each key a random value. Pairs are drawn with replacement; asked is
    one of the keys that occurred, each as likely. Guessing among the values is right once in (vocab_size − 2) / 2.

    Args:
        length: tokens in pairs, before the mark and the key that is asked for.
        vocab_size: half of it but two are keys, half values; one is the mark. One is used by nothing: the public code
            has it for a key without a value, and counts it.
        num_train: training examples in an epoch.
        num_val: validation examples.
        num_test: test examples.
        resample: whether every epoch has other training examples, never seen before, or the same ones.
        generator_seed: of the examples; the run's seed does not change them.
        batch_size: examples per optimizer batch over all devices together.
        eval_batch_size: the same for validation, test and prediction; None for batch_size.
        shuffle_seed: of the order of training examples; None for the run's seed (PL_GLOBAL_SEED, which
            seed_everything sets), else 0.
        num_workers: processes that make batches ahead.
        pin_memory: copy batches to pinned memory; None where there is a CUDA device.

    Raises:
        InputError: settings that cannot be met.
    """

    dataset = "associative_recall"

    def __init__(
        self,
        length: int = 20,
        vocab_size: int = 10,
        num_train: int = 5_000,
        num_val: int = 500,
        num_test: int = 500,
        resample: bool = False,
        generator_seed: int = 0,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
        pin_memory: bool | None = None,
    ) -> None:
        super().__init__(
            num_train, num_val, num_test, resample, generator_seed, batch_size, eval_batch_size, shuffle_seed,
            num_workers, pin_memory,
        )  # fmt: skip
        self.length, self.vocab_size, self.num_classes = length, vocab_size, vocab_size
        self.require(length >= 2 and length % 2 == 0, "length", "must be even and at least 2: keys and their values")
        self.require(vocab_size >= 4, "vocab_size", "must be at least 4: a key, a value, the mark and an unused token")
        self.task = Recall(length, vocab_size)
