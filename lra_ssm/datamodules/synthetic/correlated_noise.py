"""Correlated noise: predict Gaussian noise with autocorrelation ρ^|Δ| from its past.

Source of the noise: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025
submission), proposition 1 and figure 1: R_u(Δ) = ρ^|Δ|, ρ = 0.95. The paper feeds it to fixed systems; predicting it
is our task, whose best loss is known.
"""

from lra_ssm.datamodules.synthetic.base import ExampleRandom, FloatArray, SyntheticData
from lra_ssm.datamodules.synthetic.filters import correlated


class CorrelatedNoise(SyntheticData):
    """Predict u_{t + horizon} from u_0 … u_t. Batches are `Batch` with a real target at every position.

    The best guess is ρ^horizon · u_t, its squared error 1 − ρ^(2 · horizon) on average.

    Args:
        length: length of the sequences.
        correlation: ρ, correlation of neighboring values.
        horizon: number of steps ahead; 0 for the value itself.
    """

    dataset = "correlated_noise"
    d_input, num_outputs = 1, 1

    length: int = 1024
    correlation: float = 0.95
    horizon: int = 1
    resample: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(-1 < self.correlation < 1, "correlation", "must be between -1 and 1, without them")

    def make(self, draws: ExampleRandom) -> tuple[FloatArray, FloatArray]:
        """Return u_0 … u_{L−1} (B, L, 1) and, at each, the value horizon steps later (B, L, 1)."""
        noise = correlated(draws.normal(0, self.length + self.horizon), self.correlation)[..., None]
        return noise[:, : self.length], noise[:, self.horizon :]
