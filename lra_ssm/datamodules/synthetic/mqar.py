"""Multi-query associative recall (MQAR) as a LightningDataModule: which value followed each of these keys?

Source: Arora et al. 2024, "Zoology: Measuring and Improving Recall in Efficient Language Models", section 4 and
appendix E; HazyResearch/zoology, zoology/data/multiquery_ar.py. The public code draws by numpy's generator; these
examples have the same distribution, drawn by counters.

B batch, L length, K pairs.
"""

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.batches import NOT_SCORED
from lra_ssm.datamodules.synthetic.base import ExampleRandom, SyntheticData

IntegerArray = npt.NDArray[np.int64]


class MQAR(SyntheticData):
    """K pairs of a key and a value, then each key once more, at random places: its value is the target there.

    Batches are `TokenBatch`: inputs and targets (B, L) int64, scored only where a key is queried. Keys are tokens 1
    to vocab_size / 2 − 1, values the upper half, both without replacement; 0 fills the places between queries. The
    distance between the pairs and a query follows a power law.

    Zoology's difficulty rises with the length: a pair for every 16 positions at 64, 128 and 256, and 64 pairs at 512
    (its figure 2).

    Args:
        length: L, even.
        num_pairs: K; None for L / 16.
        vocab_size: V, even.
        power: a of the power law: gap g has a weight of a · g^(a − 1); 1 is uniform.
        test_length: L of the test split; None for the same.

    Raises:
        InputError: an odd length, more pairs than fit (pairs and queries take 4 K positions), or too few tokens.
    """

    dataset = "mqar"

    length: int = 64
    num_pairs: int | None = None
    vocab_size: int = 8_192
    power: float = 0.01
    test_length: int | None = None
    num_train: int = 100_000
    num_val: int = 3_000
    num_test: int = 3_000
    batch_size: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, length in {"length": self.length, "test_length": self.test_length or self.length}.items():
            K = self.pairs(length)
            self.require(length % 2 == 0 and K >= 1, name, "must be even, and at least 16 without num_pairs")
            self.require(4 * K <= length, name, f"must be at least {4 * K}: {K} pairs, and a query for each")
            enough = self.vocab_size % 2 == 0 and self.vocab_size >= 2 * K + 2
            self.require(enough, "vocab_size", f"must be even and at least {2 * K + 2} for {K} pairs")
        self.num_outputs = self.vocab_size

    def pairs(self, length: int) -> int:
        """Return K for a length."""
        return length // 16 if self.num_pairs is None else self.num_pairs

    def make(self, draws: ExampleRandom) -> tuple[IntegerArray, IntegerArray]:
        """Return inputs (B, L) and targets (B, L)."""
        L = (self.test_length or self.length) if draws.split == 2 else self.length
        B, K, half = len(draws.examples), self.pairs(L), self.vocab_size // 2
        keys = 1 + _first_of_a_permutation(draws.words(0, half - 1), K)
        values = half + _first_of_a_permutation(draws.words(1, half), K)
        inputs, targets = np.zeros((B, L), np.int64), np.full((B, L), NOT_SCORED)
        inputs[:, : 2 * K : 2], inputs[:, 1 : 2 * K : 2] = keys, values
        # Weighted sampling without replacement: the K largest of log weight + Gumbel noise (Efraimidis and Spirakis).
        places = (L - 2 * K) // 2
        weights = np.arange(1, places + 1) ** (self.power - 1.0)
        uniform = ((draws.words(2, places) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        gaps = np.argsort(np.log(-np.log(uniform)) - np.log(weights), axis=1, kind="stable")[:, :K]
        queries = 2 * K + 2 * gaps
        np.put_along_axis(inputs, queries, keys, axis=1)
        np.put_along_axis(targets, queries, values, axis=1)
        return inputs, targets


def _first_of_a_permutation(words: npt.NDArray[np.uint64], count: int) -> IntegerArray:
    """Return (B, count) different numbers below n in random order, from random words (B, n)."""
    first = np.argpartition(words, count - 1, axis=1)[:, :count] if count < words.shape[1] else words.argsort(1)
    order = np.take_along_axis(words, first, 1).argsort(1, kind="stable")
    return np.take_along_axis(first, order, 1).astype(np.int64)
