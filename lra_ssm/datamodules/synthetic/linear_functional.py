"""Linear functionals: white noise, and its convolution with a memory function ρ.

Sources: StableSSM (Wang and Li 2024), section 4.1 and appendix F.1: ρ(t) = (t + 1)^−1.1, sequences of 100, 153,600 in
all; split, and ρ's timescale as a setting, are those of its public code (radarFudan/StableSSM). The random ρ is figure
6 of B2S6 (Yu and Erichson 2025, appendix E): a fixed linear combination of the inputs.
"""

from typing import Literal

import numpy as np

from lra_ssm.datamodules.batches import SPLITS
from lra_ssm.datamodules.synthetic.base import ExampleRandom, FloatArray, SyntheticData
from lra_ssm.datamodules.synthetic.filters import Float64, causal_filter

Memory = Literal["polynomial", "exponential", "random"]


class LinearFunctional(SyntheticData):
    """y_t = Σ_{k ≤ t} ρ(k) x_{t−k} of white noise x. Batches are `Batch` with real targets.

    Args:
        length: length of the sequences.
        memory: ρ(t): "polynomial" (1 + t / timescale)^−exponent, "exponential" e^(−t / timescale), or "random": fixed
            numbers from N(0, 1 / length).
        exponent: of the polynomial memory.
        timescale: in steps. (The public code of StableSSM has 10 for its polynomial memory, the paper 1.)
        targets: at "all" positions, or y at the "last" one.
        memory_seed: seed of the random memory.
    """

    dataset = "linear_functional"
    d_input, num_outputs = 1, 1

    length: int = 100
    memory: Memory = "polynomial"
    exponent: float = 1.1
    timescale: float = 1.0
    targets: Literal["all", "last"] = "all"
    memory_seed: int = 0
    num_train: int = 128_000
    num_val: int = 12_800
    num_test: int = 12_800
    batch_size: int = 512

    def response(self) -> Float64:
        """Return ρ(0), …, ρ(length − 1)."""
        times = np.arange(self.length) / self.timescale
        if self.memory == "polynomial":
            return (1 + times) ** -self.exponent
        if self.memory == "exponential":
            return np.exp(-times)
        # Drawn for a split that does not exist, so that no example has the same numbers.
        return (
            ExampleRandom(self.memory_seed, len(SPLITS), np.zeros(1, int)).normal(0, self.length)[0] / self.length**0.5
        )

    def make(self, draws: ExampleRandom) -> tuple[FloatArray, FloatArray]:
        """Return x (B, L, 1) from N(0, 1) and y (B, L, 1), or (B, 1) for the last one."""
        inputs = draws.normal(0, self.length)
        outputs = causal_filter(inputs, self.response())
        return inputs[..., None], outputs[..., None] if self.targets == "all" else outputs[:, -1:]
