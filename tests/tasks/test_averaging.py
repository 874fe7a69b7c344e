"""Averages of weights: their values, where they are used, and that a resumed fit continues them."""

from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from lra_ssm.errors import InputError
from lra_ssm.layers import LayerSpec, NetworkSpec
from lra_ssm.models import Classifier
from lra_ssm.tasks import Classification, OptimizerSettings
from lra_ssm.tasks.averaging import AverageWeights
from tests.models.cases import Turn
from tests.ops.scan_cases import widened
from tests.tasks import fits


class Normed(nn.Module):
    """A BatchNorm, whose statistics and count of batches are buffers, a linear map, and a constant buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.map = nn.BatchNorm1d(3), nn.Linear(3, 2)
        self.register_buffer("constant", torch.tensor(0.1))

    def forward(self, inputs, lengths=None):
        return self.map(self.norm(inputs.mean(1)))


COMPLEX = NetworkSpec(Classifier, layer=LayerSpec(Turn), num_classes=2, d_input=3, d_model=4, n_layers=1)


class Watch(Callback):
    """Records the weights at the start and after each step, and the model's in each validation."""

    def __init__(self):
        self.start, self.trained, self.validated = {}, [], []

    def on_train_start(self, trainer, module):
        self.start = copied(module)

    def on_train_batch_end(self, trainer, module, *args):
        self.trained.append(copied(module))

    def on_validation_epoch_end(self, trainer, module):
        self.validated.append(copied(module))


def copied(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def batches(count):
    torch.manual_seed(3)
    return fits.loader([(torch.randn(4, 5, 3), torch.randint(2, (4,))) for _ in range(count)])


def task(decay=0.9, network=Normed):
    torch.manual_seed(0)
    return Classification(network, OptimizerSettings(lr=0.1, warmup_steps=0, ema_decay=decay, schedule="constant"))


def trainer(*callbacks, **settings):
    return fits.trainer(**{"max_epochs": 1, "callbacks": [*callbacks], **settings})


def expected(start, trained, decay):
    """Compute the averages by the formula, in float64; integers are those of the last step."""
    averages = widened(start)
    for weights in trained:
        for name, value in widened(weights).items():
            inexact = weights[name].is_floating_point() or weights[name].is_complex()
            averages[name] = decay * averages[name] + (1 - decay) * value if inexact else value
    return averages


close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_averages_are_validated_with_their_buffers_and_remain_after_a_fit_that_trains_as_without_them(accumulate):
    """Accumulated gradients make one step of the average."""
    module, watch, plain = task(), Watch(), Watch()
    settings = {"val_check_interval": 2, "accumulate_grad_batches": accumulate}
    trainer(watch, **settings).fit(module, batches(4), batches(1))
    trainer(plain, **settings).fit(task(None), batches(4), batches(1))
    assert len(watch.trained) == 4 and len(watch.validated) == 2
    for ends, validated in zip((2, 4), watch.validated, strict=True):
        close(validated, expected(watch.start, watch.trained[accumulate - 1 : ends : accumulate], 0.9))
    close(module.state_dict(), watch.validated[-1])
    assert torch.equal(module.network.constant, watch.start["network.constant"])  # to the last bit
    assert not torch.equal(watch.start["network.norm.running_mean"], module.network.norm.running_mean)
    torch.testing.assert_close(watch.trained, plain.trained, rtol=0, atol=0)


@pytest.mark.parametrize(("decay", "precision", "accumulate"), [
    (None, "64-true", 1), (0.9, "64-true", 1), (0.9, "bf16-true", 1), (0.9, "64-true", 2),
])  # fmt: skip
def test_a_resumed_fit_continues_the_averages_or_starts_from_the_weights(decay, precision, accumulate, tmp_path):
    """A test of the checkpoint has the averages; those of bfloat16 weights are continued without rounding."""
    first, watch, files = trainer(precision=precision), Watch(), (tmp_path / "a.ckpt", tmp_path / "b.ckpt")
    first.fit(task(decay), batches(4))
    first.save_checkpoint(files[0])
    resumed = trainer(watch, max_epochs=2, precision=precision, accumulate_grad_batches=accumulate)
    resumed.fit(task(), batches(4), ckpt_path=files[0], weights_only=True)
    resumed.save_checkpoint(files[1])
    saved, again = (torch.load(file, weights_only=True) for file in files)
    assert len(watch.trained) == 4
    close(watch.start, saved["current_model_state"] if decay else saved["state_dict"])
    close(again["state_dict"], expected(saved["state_dict"], watch.trained[accumulate - 1 :: accumulate], 0.9))
    assert torch.equal(watch.start["network.map.bias"], saved["state_dict"]["network.map.bias"]) == (decay is None)
    scoring = trainer()
    scoring.test(tested := task(), batches(2), ckpt_path=files[0], verbose=False)
    close(tested.state_dict(), saved["state_dict"])
    assert not [c for c in scoring.callbacks if isinstance(c, AverageWeights)]


def test_a_validation_after_the_fit_leaves_what_trains_and_scores_the_checkpoint_that_it_names(tmp_path):
    fitted, module, watch = trainer(watcher := Watch()), task(), Watch()
    fitted.fit(module, batches(3), batches(1))
    fitted.save_checkpoint(tmp_path / "a.ckpt")
    averages = copied(module)
    fitted.callbacks.append(watch)
    fitted.validate(module, batches(1), verbose=False)
    fitted.save_checkpoint(tmp_path / "b.ckpt")
    before, after = (torch.load(tmp_path / f"{name}.ckpt", weights_only=True) for name in "ab")
    for key, expected in {"state_dict": averages, "current_model_state": watcher.trained[-1]}.items():
        close(before[key], expected)
        close(after[key], expected)
    torch.save({**before, "state_dict": {k: v * 2 for k, v in before["state_dict"].items()}}, tmp_path / "c.ckpt")
    fitted.validate(module, batches(1), ckpt_path=tmp_path / "c.ckpt", verbose=False, weights_only=True)
    for validated, factor in zip(watch.validated, (1, 2), strict=True):
        close(validated, {name: value * factor for name, value in averages.items()})


@pytest.mark.parametrize(("network", "precision", "dtype"), [
    (Normed, "bf16-true", torch.float32), (COMPLEX, "32-true", torch.complex64),
])  # fmt: skip
def test_averages_of_bfloat16_and_complex_weights_move(network, precision, dtype, tmp_path):
    """At decay 0.999 a step's share of a weight is below bfloat16's rounding."""
    module, watch = task(0.999, network), Watch()
    fitting = trainer(watch, precision=precision)
    fitting.fit(module, batches(6))
    fitting.save_checkpoint(tmp_path / "last.ckpt")
    averages = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    weight = next(name for name, value in averages.items() if name.endswith(("map.weight", "w")))
    assert averages[weight].dtype == dtype
    close(averages, expected(watch.start, watch.trained, 0.999))
    assert not torch.equal(averages[weight], watch.start[weight].to(dtype))
    assert torch.equal(module.state_dict()[weight], averages[weight].to(module.state_dict()[weight].dtype))


def test_sharded_weights_are_not_averaged(monkeypatch):
    sharded = trainer()
    monkeypatch.setattr("lra_ssm.tasks.averaging.ModelParallelStrategy", type(sharded.strategy))
    with pytest.raises(InputError, match="sharded weights cannot be averaged"):
        sharded.fit(task(), batches(1))
