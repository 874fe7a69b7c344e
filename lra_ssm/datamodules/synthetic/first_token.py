"""The first token as a LightningDataModule: its size, whatever came last.

Source: B2S6 (Yu and Erichson 2025), figure 4: u = (u_1·1, 0, …, 0, u_L) with u_1 ~ N(0, σ1), u_L ~ N(0, σ2 I) in 32
dimensions, target |u_1|. The grid of σ, the length and the number of examples are not given there.
"""

from dataclasses import dataclass

import numpy as np

from lra_ssm.datamodules.synthetic.base import Draws, FloatArray, SyntheticDataModule, Task


@dataclass(frozen=True)
class First(Task):
    """Fields as `FirstToken` has them."""

    length: int
    d_input: int
    sigma_first: float
    sigma_last: float

    def make(self, draws: Draws) -> tuple[FloatArray, FloatArray]:
        """u (B, L, d_input) and |u_1| (B, 1)."""
        first = self.sigma_first * draws.normal(0, 1)
        inputs = np.zeros((len(first), self.length, self.d_input))
        inputs[:, 0] = first
        inputs[:, -1] = self.sigma_last * draws.normal(1, self.d_input)
        return inputs, np.abs(first)


class FirstToken(SyntheticDataModule):
    """|u_1| of sequences that are 0 but for the first and the last position. Batches are `batches.Batch` with a real
    target. The error that the paper shows, |G − G̃| / σ1, is `relative_error` of `Regression`.

    Args:
        length: of the sequences.
        d_input: features per position, the same in all of the first one.
        sigma_first: σ1, standard deviation of u_1.
        sigma_last: σ2, standard deviation of every feature of the last position.
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

    dataset = "first_token"
    num_outputs = 1

    def __init__(
        self,
        length: int = 100,
        d_input: int = 32,
        sigma_first: float = 1.0,
        sigma_last: float = 1.0,
        num_train: int = 10_000,
        num_val: int = 1_000,
        num_test: int = 1_000,
        resample: bool = False,
        generator_seed: int = 0,
        batch_size: int = 64,
        eval_batch_size: int | None = None,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
        pin_memory: bool | None = None,
    ) -> None:
        super().__init__(
            num_train, num_val, num_test, resample, generator_seed, batch_size, eval_batch_size, shuffle_seed,
            num_workers, pin_memory,
        )  # fmt: skip
        self.length, self.d_input, self.sigma_first, self.sigma_last = length, d_input, sigma_first, sigma_last
        self.require(length >= 2, "length", "must be at least 2: a first and a last position")
        self.require(d_input >= 1, "d_input", "must be at least 1")
        self.require(sigma_first > 0, "sigma_first", "must be above 0")
        self.require(sigma_last >= 0, "sigma_last", "must be at least 0")
        self.task = First(length, d_input, sigma_first, sigma_last)
