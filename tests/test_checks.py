"""What is refused before a run starts: Slurm's tasks, and layers that look ahead or read padding."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn

from lra_ssm.datamodules.batches import Batch, TokenBatch
from lra_ssm.errors import InputError
from lra_ssm.layers import B2S6, LRU, S4D, S5, S6, Attention, LayerSpec, NetworkSpec
from lra_ssm.models import Classifier, LanguageModel
from lra_ssm.runs.checks import check_layers, make_trainer
from lra_ssm.tasks import Classification, LanguageModelling
from tests.helpers import Smooth


def test_tasks_of_slurm_that_lightning_refuses_are_an_input_error(monkeypatch):
    slurm = {"JOB_ID": "7", "NTASKS": "4", "NNODES": "1", "JOB_NAME": "train", "NODELIST": "localhost"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    with pytest.raises(InputError, match="Slurm: .*--ntasks-per-node=4"):
        make_trainer({"accelerator": "cpu", "logger": False})


# -- layers --


class Mean(Smooth):
    """Adds the mean over all positions, padding among them."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        return x + super().forward(x).mean(1, keepdim=True)


class Careful(Smooth):
    """Adds the mean over what is not padding."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        valid = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
        return x + (x.cos() * valid).sum(1, keepdim=True) / lengths[:, None, None]


class Causal(Smooth):
    """Sees two positions before."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(nn.functional.pad(x, (0, 0, 1, 0)))[:, : x.shape[1]]


SIZES = {"d_model": 8, "n_layers": 2}


def check(layer, causal, precision="32-true", **settings):
    """Check the layer in a language model, or in a classifier on padded sequences."""
    torch.manual_seed(0)
    if causal:
        task = LanguageModelling(NetworkSpec(LanguageModel, layer=layer, vocab_size=11, **SIZES))
        batch = TokenBatch(torch.randint(11, (3, 20)), torch.randint(11, (3, 20)), None, None)
    else:
        task = Classification(NetworkSpec(Classifier, layer=layer, num_classes=3, vocab_size=11, **SIZES, **settings))
        batch = Batch(torch.randint(11, (3, 20)), torch.tensor([20, 9, 4]), torch.zeros(3, dtype=torch.int64))
    trainer = Trainer(accelerator="cpu", logger=False, precision=precision, enable_progress_bar=False)
    data = SimpleNamespace(sample=lambda count: batch)
    state, weights = torch.random.get_rng_state(), {k: v.clone() for k, v in task.state_dict().items()}
    try:
        check_layers(task, data, trainer)
    finally:
        assert torch.equal(torch.random.get_rng_state(), state) and task.training
        if precision == "32-true":
            assert all(torch.equal(value, weights[name]) for name, value in task.state_dict().items())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layer", [S4D, S6, B2S6, LRU, S5, Attention])
def test_our_layers_keep_future_and_padding_out(layer, causal):
    settings = {"n_heads": 2} if layer is Attention else {}
    check(LayerSpec(layer, **settings), causal)
    if not causal:
        both = {"causal": False} if layer is Attention else {"bidirectional": True}
        check(LayerSpec(layer, **settings, **both), causal)


AHEAD = r"model.network.backbone.blocks.0.layer \(Smooth\) looks ahead: .* --check_layer=false"
PADDED = r"model.network.backbone.blocks.0.layer \(Mean\) lets padding into its outputs"


@pytest.mark.parametrize(
    ("layer", "good", "message", "precision"),
    [*((Smooth, Causal, AHEAD, precision) for precision in ("32-true", "bf16-mixed", "64-true")),
     (Mean, Careful, PADDED, "32-true")],
)  # fmt: skip
def test_a_layer_that_looks_ahead_or_reads_padding_is_named(layer, good, message, precision):
    with pytest.raises(InputError, match=message):
        check(LayerSpec(layer), good is Causal, precision)
    check(LayerSpec(good), good is Causal, precision)
    if layer is Mean:
        check(LayerSpec(Mean), False, padding="seen")  # it is meant to
