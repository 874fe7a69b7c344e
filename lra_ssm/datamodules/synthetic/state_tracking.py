"""State tracking as a LightningDataModule: the product of all elements of a group so far, at every position.

Sources: Merrill, Petty & Sabharwal 2024, "The Illusion of State in State-Space Models", section 6, for products in
groups; Liu et al. 2023, "Transformers Learn Shortcuts to Automata", for parity.

B batch, L length, G elements of the group.
"""

from functools import cache
from itertools import permutations
from typing import Literal

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.synthetic.base import ExampleRandom, SyntheticData

IntegerArray = npt.NDArray[np.int64]
Group = Literal["Z2", "Z60", "S3", "S5"]


class StateTracking(SyntheticData):
    """Which element do the elements so far multiply to? x_t = x_{t−1} · g_t, x_0 the identity.

    Batches are `TokenBatch`: inputs g (B, L) and targets x (B, L), int64 from 0 to G − 1, scored at every position;
    token 0 is the identity. Elements are uniform, so guessing is right once in G.

    Args:
        group: "Z2", whose product is parity; "Z60", the integers modulo 60; "S3" and "S5", permutations of 3 and 5.
            S5 is the smallest symmetric group that is not solvable: tracking it is complete for NC¹ (Barrington).
        length: L.
        test_length: L of the test split; None for the same.

    Raises:
        InputError: a length is below 1.
    """

    dataset = "state_tracking"

    group: Group = "S5"
    length: int = 64
    test_length: int | None = None
    num_train: int = 100_000
    batch_size: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, length in {"length": self.length, "test_length": self.test_length}.items():
            self.require(length is None or length >= 1, name, "must be at least 1")
        self.vocab_size = self.num_outputs = len(product_table(self.group))
        self.inputs = "tokens"

    def make(self, draws: ExampleRandom) -> tuple[IntegerArray, IntegerArray]:
        """Return inputs (B, L) and targets (B, L)."""
        length = (self.test_length or self.length) if draws.split == 2 else self.length
        table = product_table(self.group)
        inputs = draws.integers(0, length, len(table))
        targets, state = np.empty_like(inputs), np.zeros(len(inputs), np.int64)
        for t in range(length):
            state = table[state, inputs[:, t]]
            targets[:, t] = state
        return inputs, targets


@cache
def product_table(group: Group) -> IntegerArray:
    """Return the products of a group's elements: (G, G), element 0 the identity.

    A permutation p · q applies p first: (p · q)(i) = q(p(i)). Permutations are in lexicographic order.
    """
    if group in ("Z2", "Z60"):
        elements = np.arange(int(group[1:]))
        return (elements[:, None] + elements) % len(elements)
    every = np.array(list(permutations(range(int(group[1:])))))
    products = np.stack([q[every] for q in every], 1)  # products[p, q] = q(p(·))
    index = {tuple(p): i for i, p in enumerate(every.tolist())}
    return np.array([[index[tuple(pq)] for pq in row] for row in products.tolist()])
