"""Cosines: recover the coefficients of their sum, with or without noise.

Source: B2S6 (Yu and Erichson 2025), figure 3: u(t; g) = Σ_i g_i cos(p_i t), p_i the ten smallest primes, g to be
recovered, without noise. The paper does not state the distribution of g, the times t or the number of
examples.
"""

from collections.abc import Sequence

import numpy as np

from lra_ssm.datamodules.synthetic.base import ExampleRandom, FloatArray, SyntheticData

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)


class NoisyCosines(SyntheticData):
    """The coefficients g ~ N(0, I) of a sum of cosines over one period. Batches are `Batch` with real targets.

    Without noise it is solvable exactly: the cosines are orthogonal on these times.

    Args:
        length: times in [0, 2π): more than twice the highest frequency.
        frequencies: p, whole and distinct, at least 1.
        noise: standard deviation of white noise on the sum; the paper has none.
    """

    dataset = "noisy_cosines"
    d_input = 1

    length: int = 256
    frequencies: Sequence[int] = PRIMES
    noise: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        highest = max(self.frequencies)
        self.require(self.length > 2 * highest, "length", f"must be more than twice the highest frequency, {highest}")
        self.num_outputs = len(self.frequencies)

    def make(self, draws: ExampleRandom) -> tuple[FloatArray, FloatArray]:
        """Return u (B, L, 1) at t = 2πk / L, k < L, and g (B, number of frequencies)."""
        coefficients = draws.normal(0, len(self.frequencies))
        times = 2 * np.pi * np.arange(self.length) / self.length
        # A sum in a fixed order: a matrix product's may depend on the size of the batch.
        inputs = sum(g[:, None] * np.cos(p * times) for g, p in zip(coefficients.T, self.frequencies, strict=True))
        if self.noise:
            inputs = inputs + self.noise * draws.normal(1, self.length)
        return np.asarray(inputs)[..., None], coefficients
