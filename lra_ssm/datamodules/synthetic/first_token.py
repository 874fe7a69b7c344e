"""The first token: report its size, however large the last one is.

Source: B2S6 (Yu and Erichson 2025), figure 4: u = (u_1·1, 0, …, 0, u_L) with u_1 ~ N(0, σ1), u_L ~ N(0, σ2 I) in 32
dimensions, target |u_1|. The paper does not state the grid of σ, the length or the number of
examples.
"""

import numpy as np

from lra_ssm.datamodules.synthetic.base import ExampleRandom, FloatArray, SyntheticData


class FirstToken(SyntheticData):
    """Predict |u_1| of sequences that are 0 except at the first and the last position.

    Batches are `Batch` with a real target. The error that the paper shows, |G − G̃| / σ1, is
    `relative_error` of `Regression`.

    Args:
        length: length of the sequences.
        d_input: features per position, the same in all of the first one.
        sigma_first: σ1, standard deviation of u_1.
        sigma_last: σ2, standard deviation of every feature of the last position.
    """

    dataset = "first_token"
    num_outputs = 1

    length: int = 100
    d_input: int = 32
    sigma_first: float = 1.0
    sigma_last: float = 1.0

    def make(self, draws: ExampleRandom) -> tuple[FloatArray, FloatArray]:
        """Return u (B, L, d_input) and |u_1| (B, 1)."""
        first = self.sigma_first * draws.normal(0, 1)
        inputs = np.zeros((len(first), self.length, self.d_input))
        inputs[:, 0] = first
        inputs[:, -1] = self.sigma_last * draws.normal(1, self.d_input)
        return inputs, np.abs(first)
