"""Cosines as a LightningDataModule: coefficients of their sum, noisy or not.

Source: B2S6 (Yu and Erichson 2025), figure 3: u(t; g) = Σ_i g_i cos(p_i t), p_i the ten smallest primes, g to be
recovered; there without noise. The distribution of g, times t and the number of examples are not given there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lra_ssm.datamodules.synthetic.base import Draws, FloatArray, SyntheticDataModule, Task

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)


@dataclass(frozen=True)
class Cosines(Task):
    """Fields as `NoisyCosines` has them."""

    length: int
    frequencies: tuple[int, ...]
    noise: float

    def make(self, draws: Draws) -> tuple[FloatArray, FloatArray]:
        """u (B, L, 1) at t = 2πk / L, k < L, and g (B, number of frequencies)."""
        coefficients = draws.normal(0, len(self.frequencies))
        times = 2 * np.pi * np.arange(self.length) / self.length
        # A sum in a fixed order: a matrix product's may depend on the size of the batch.
        inputs = sum(g[:, None] * np.cos(p * times) for g, p in zip(coefficients.T, self.frequencies, strict=True))
        if self.noise:
            inputs = inputs + self.noise * draws.normal(1, self.length)
        return np.asarray(inputs)[..., None], coefficients


class NoisyCosines(SyntheticDataModule):
    """The coefficients g ~ N(0, I) of a sum of cosines over one period. Batches are `batches.Batch` with real targets.

    Without noise it is solvable exactly: the cosines are orthogonal on these times.

    Args:
        length: times in [0, 2π): more than twice the highest frequency.
        frequencies: p, whole and distinct, at least 1.
        noise: standard deviation of white noise on the sum; the paper has none.
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

    dataset = "noisy_cosines"
    d_input = 1

    def __init__(
        self,
        length: int = 256,
        frequencies: Sequence[int] = PRIMES,
        noise: float = 0.0,
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
        self.length, self.frequencies, self.noise = length, tuple(frequencies), noise
        distinct = len(set(frequencies)) == len(frequencies) > 0 and min(frequencies) >= 1
        self.require(distinct, "frequencies", "must be distinct whole numbers from 1 on")
        highest = max(frequencies)
        self.require(length > 2 * highest, "length", f"must be more than twice the highest frequency, {highest}")
        self.require(noise >= 0, "noise", "must be at least 0")
        self.num_outputs = len(frequencies)
        self.task = Cosines(length, self.frequencies, noise)
