"""Associative recall: pairs of a key and a value, then a key, whose value is the class.

Sources: StableSSM's table 7 (Wang and Li 2024) names only lengths and vocabularies; the layout is that of the public
code of H3 and Hyena (HazyResearch/safari), which has both: 20 tokens of 10, 131,072 tokens of 30.
"""

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.synthetic.base import ExampleRandom, SyntheticData


class AssociativeRecall(SyntheticData):
    """Which value followed this key? Batches are `Batch`; every token is a class.

    Every example has a dictionary of its own, which gives each key a random value. Pairs are drawn with replacement,
    and the last key is one of those that occurred, all equally likely. Guessing a value is right once in
    (vocab_size − 2) / 2.

    Args:
        length: tokens in pairs, before the mark and the queried key.
        vocab_size: (vocab_size − 2) / 2 keys, the other tokens values, one mark, and one token that is not used: the
            public code has it for a key without a value, and counts it.
    """

    dataset = "associative_recall"

    length: int = 20
    vocab_size: int = 10
    num_train: int = 5_000
    num_val: int = 500
    num_test: int = 500
    batch_size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        even = self.length >= 2 and self.length % 2 == 0
        self.require(even, "length", "must be even and at least 2: keys and their values")
        enough = self.vocab_size >= 4
        self.require(enough, "vocab_size", "must be at least 4: a key, a value, the mark and an unused token")
        self.num_classes = self.vocab_size

    @property
    def num_keys(self) -> int:
        """Tokens 0 … num_keys − 1 are keys, those from there to vocab_size − 3 values."""
        return (self.vocab_size - 2) // 2

    def make(self, draws: ExampleRandom) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return tokens (B, length + 2): key, value, …, =>, key; and classes (B,), the token of that key's value."""
        rows = np.arange(len(draws.examples))[:, None]
        values = self.num_keys + draws.integers(0, self.num_keys, self.vocab_size - 2 - self.num_keys)
        keys = draws.integers(1, self.length // 2, self.num_keys)
        seen = np.zeros((len(rows), self.num_keys), dtype=bool)
        seen[rows, keys] = True
        queries = np.where(seen, draws.words(2, self.num_keys) | np.uint64(1), np.uint64(0)).argmax(1)
        tokens = np.empty((len(rows), self.length + 2), dtype=np.int64)
        tokens[:, :-2:2], tokens[:, 1:-2:2] = keys, values[rows, keys]
        tokens[:, -2], tokens[:, -1] = self.vocab_size - 2, queries
        return tokens, values[rows[:, 0], queries]
