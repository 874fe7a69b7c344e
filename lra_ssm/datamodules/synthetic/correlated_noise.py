"""Correlated noise as a LightningDataModule: its future from its past.

Gaussian noise with autocorrelation ρ^|Δ|.

Source of the noise: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025
submission), proposition 1 and figure 1: R_u(Δ) = ρ^|Δ|, ρ = 0.95. The paper feeds it to given systems; to predict it is
our task, one whose best loss is known.
"""

from dataclasses import dataclass

from lra_ssm.datamodules.synthetic.base import Draws, FloatArray, SyntheticDataModule, Task
from lra_ssm.datamodules.synthetic.filters import correlated


@dataclass(frozen=True)
class Noise(Task):
    """Fields as `CorrelatedNoise` has them."""

    length: int
    correlation: float
    horizon: int

    def make(self, draws: Draws) -> tuple[FloatArray, FloatArray]:
        """u_0 … u_{L−1} (B, L, 1) and, at each, the value horizon steps later (B, L, 1)."""
        noise = correlated(draws.normal(0, self.length + self.horizon), self.correlation)[..., None]
        return noise[:, : self.length], noise[:, self.horizon :]


class CorrelatedNoise(SyntheticDataModule):
    """u_{t + horizon} from u_0 … u_t. Batches are `batches.Batch` with a real target at every position.

    The best guess is ρ^horizon · u_t, its squared error 1 − ρ^(2 · horizon) on average.

    Args:
        length: of the sequences.
        correlation: ρ, of neighbouring values.
        horizon: steps ahead; 0 for the value itself.
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

    dataset = "correlated_noise"
    d_input, num_outputs = 1, 1

    def __init__(
        self,
        length: int = 1024,
        correlation: float = 0.95,
        horizon: int = 1,
        num_train: int = 10_000,
        num_val: int = 1_000,
        num_test: int = 1_000,
        resample: bool = True,
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
        self.length, self.correlation, self.horizon = length, correlation, horizon
        self.require(length >= 1, "length", "must be at least 1")
        self.require(-1 < correlation < 1, "correlation", "must be between -1 and 1, without them")
        self.require(horizon >= 0, "horizon", "must be at least 0")
        self.task = Noise(length, correlation, horizon)
