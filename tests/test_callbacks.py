"""The callbacks of a run, each under a small Trainer."""

import random
import warnings

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lra_ssm.analysis.flops import training_flops_per_token
from lra_ssm.callbacks import (
    LogEpochMeans,
    LogGradientNorm,
    LogGradientOverWeight,
    SeedByStep,
    ShowBackends,
    StopOnNonFinite,
    Throughput,
    _known_peak,
)
from lra_ssm.errors import InputError
from lra_ssm.layers import S4D, S6, LayerSpec, NetworkSpec
from lra_ssm.models import LanguageModel
from lra_ssm.ops import prefer_backend
from lra_ssm.runs.checkpoints import SaveBest, SaveLast
from lra_ssm.tasks import LanguageModelling


class Line(LightningModule):
    """y = w x; the loss is infinite, or its gradient, at the step that it is told."""

    def __init__(self, bad_loss=None, bad_gradient=None):
        super().__init__()
        self.linear, self.bad_loss, self.bad_gradient = nn.Linear(1, 3), bad_loss, bad_gradient

    def training_step(self, batch, i):
        loss = self.linear(batch[0]).square().mean()
        self.log("train/loss", loss, batch_size=len(batch[0]))
        if self.global_step == self.bad_gradient:
            self.linear.weight.register_hook(lambda grad: grad * torch.inf)
        return loss * (torch.nan if self.global_step == self.bad_loss else 1)

    def validation_step(self, batch, i):
        self.log("val/loss", self.linear(batch[0]).square().mean(), prog_bar=True)

    def predict_step(self, batch, i):
        return self.linear(batch[0]).softmax(-1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader(count=8):
    return DataLoader(TensorDataset(torch.linspace(0.1, 1, count)[:, None]), batch_size=2)


QUIET = {
    "accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
    "enable_checkpointing": False, "num_sanity_val_steps": 0,
}  # fmt: skip


def fit(tmp_path, *callbacks, model=None, **settings):
    given = {**QUIET, "max_epochs": 1, "log_every_n_steps": 1, **settings}
    trainer = Trainer(default_root_dir=tmp_path, callbacks=list(callbacks), **given)
    torch.manual_seed(0)
    trainer.fit(model or Line(), loader(), loader())
    return trainer


class Each(Callback):
    """Keeps what a function gives after each training batch."""

    def __init__(self, look):
        self.look, self.seen = look, []

    def on_train_batch_end(self, trainer, *args):
        self.seen.append(self.look(trainer))


def test_randomness_belongs_to_the_step_and_the_seed(tmp_path):
    draws = []
    for seed in (3, 3, 4):
        torch.manual_seed(len(draws))
        draws.append(Each(lambda trainer: (torch.rand(()).item(), np.random.rand(), random.random())))
        fit(tmp_path, SeedByStep(seed), draws[-1])
    one, same, other = (d.seen for d in draws)
    assert one == same and len(one) == 4
    assert all(len({a[i] for a in one}) == 4 and not {a[i] for a in one} & {a[i] for a in other} for i in range(3))


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"bad_loss": 0}, r"loss is nan at step 0 \(epoch 0\); no gradient was computed before"),
        ({"bad_loss": 1}, "loss is nan at step 1 .*; the largest gradient of the step before"),
        ({"bad_loss": 3}, "loss is nan at step 3 "),  # the last one of the epoch: validation comes after it
        ({"bad_gradient": 1}, r"at step 1 \(epoch 0\), but the largest gradient is inf in linear.weight"),
    ],
)
def test_a_loss_or_gradient_that_is_not_finite_names_step_and_parameter(bad, message, waits, tmp_path, monkeypatch):
    """A GPU is not waited for: the line comes a step later, and before anything is saved or validated."""
    monkeypatch.setattr("lra_ssm.callbacks._is_waited_for", lambda x: waits)
    model, steps, last = Line(**bad), Each(lambda trainer: trainer.global_step), SaveLast(tmp_path / "last.ckpt", 2)
    with pytest.raises(InputError, match=message):
        fit(tmp_path, steps, StopOnNonFinite(), last, model=model, enable_checkpointing=True)
    (step,) = bad.values()
    assert len(steps.seen) == step + (not waits) and "val/loss" not in model.trainer.callback_metrics
    assert last.path.exists() == (step == 3)
    if waits or step == 3:
        weights = torch.load(last.path, weights_only=True)["state_dict"] if step == 3 else model.state_dict()
        assert all(weight.isfinite().all() for weight in weights.values())


def test_the_mean_of_an_epoch_counts_every_example_once(tmp_path, monkeypatch):
    """Of a run that is resumed within an epoch too: test_resume.py, whose metrics.csv are compared."""
    batches = []

    class Logged(Line):
        def training_step(self, batch, i):
            batches.append(loss := super().training_step(batch, i))
            self.log("train/both", loss, on_step=True, on_epoch=True, batch_size=len(batch[0]))
            if i % 2 == 0:
                self.log("train/rare", loss)
            return loss

    uneven = loader(7)
    monkeypatch.setattr("tests.test_callbacks.loader", lambda: uneven)
    found = fit(tmp_path, LogEpochMeans(), model=Logged(), max_epochs=2).callback_metrics
    expected = torch.stack(batches).view(2, 4) @ torch.tensor([2.0, 2, 2, 1]) / 7
    assert found["train/loss_epoch"].item() == pytest.approx(expected[1].item())
    assert "train/both_epoch_epoch" not in found  # Lightning's own
    assert found["train/rare_epoch"].item() == pytest.approx((batches[4] + batches[6]).item() / 2)


def test_speed_is_counted_without_padding_and_utilization_by_the_peak_of_a_gpu(tmp_path, monkeypatch):
    """Two batches of 2 × 6 tokens, 4 of the second padding; the clock is read at their starts and at each log step."""
    clock = iter(range(100))
    monkeypatch.setattr("lra_ssm.callbacks.time.perf_counter", lambda: float(next(clock)))
    ids, lengths = torch.arange(14).view(2, 7) % 11, torch.tensor([6, 2])
    targets = ids[:, 1:].masked_fill(torch.arange(6) >= lengths[:, None], -100)
    batches = [(ids[:, :-1], ids[:, 1:], None, None), (ids[:, :-1], targets, None, lengths)]
    network = NetworkSpec(LanguageModel, layer=LayerSpec(S6, d_state=4), vocab_size=11, d_model=8, n_layers=1)
    with torch.device("meta"):
        needed = training_flops_per_token(network(), 6)
    for peak in (None, 1e6):  # nothing is assumed about a CPU
        monkeypatch.setattr("lra_ssm.callbacks._known_peak", lambda *_, peak=peak: peak)
        trainer = Trainer(
            **QUIET, log_every_n_steps=2, default_root_dir=tmp_path, callbacks=[Throughput()], max_steps=2
        )
        trainer.fit(LanguageModelling(network), DataLoader(batches, batch_size=None))
        metrics = trainer.callback_metrics
        assert metrics["train/tokens_per_s"] == 20.0 and metrics["train/samples_per_s"] == 4.0
        assert metrics.get("train/mfu") == (peak and pytest.approx(20 * needed / peak))


def test_the_peak_is_what_lightning_knows_of_a_gpu(monkeypatch):
    trainer = Trainer(accelerator="cpu", precision="bf16-mixed", logger=False)
    for name, peak in {"NVIDIA H100 80GB HBM3": 989.4e12, "NVIDIA B300": None}.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        with warnings.catch_warnings(action="error"):
            assert _known_peak(trainer, torch.device("cuda")) == peak
    assert _known_peak(trainer, torch.device("cpu")) is None


def test_the_gradient_norm_is_of_before_clipping(tmp_path):
    norms = []

    class Norms(Callback):
        def on_after_backward(self, trainer, model):
            norms.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())

    logged = Each(lambda trainer: trainer.callback_metrics["train/grad_norm"].item())
    fit(tmp_path, LogGradientNorm(), Norms(), logged, gradient_clip_val=0.01)
    assert logged.seen == pytest.approx(norms) and len(norms) == 4 and min(norms) > 0.02


def test_last_is_kept_every_few_steps_and_best_by_its_metric(tmp_path):
    last = SaveLast(tmp_path / "last.ckpt", 3, {"made_by": "code"})
    best = SaveBest(dirpath=tmp_path, filename="best", monitor="val/loss", mode="min", save_on_train_epoch_end=False)
    saved = Each(lambda _: torch.load(last.path, weights_only=True)["global_step"] if last.path.is_file() else None)
    stop = EarlyStopping("train/loss")  # which no validation logs
    fit(tmp_path, last, best, saved, stop, max_epochs=2, enable_checkpointing=True, num_sanity_val_steps=1)
    # Every third step, before the last batch of an epoch (a validation follows) and at its end.
    assert saved.seen == [None, None, None, 3, 4, 4, 4, 7]
    state = torch.load(last.path, weights_only=True)
    assert state["global_step"] == 8 and state["made_by"] == "code"
    assert (tmp_path / "best.ckpt").is_file() and best.best_model_score is not None


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_stop_within_an_accumulation_comes_when_its_step_is_made(tmp_path, at):
    """Of Trainer(max_time=…), say: gradients that were summed up are in no checkpoint."""

    def stop(trainer):
        trainer.should_stop |= trainer.fit_loop.batch_idx == at

    last = SaveLast(tmp_path / "last.ckpt", 100)
    fit(tmp_path, last, Each(stop), accumulate_grad_batches=3, max_epochs=3, enable_checkpointing=True)
    state = torch.load(last.path, weights_only=True)
    batches = state["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["completed"]
    assert (batches, state["global_step"]) == ((3, 1) if at < 3 else (4, 2))


def test_gradient_over_weight_is_logged(tmp_path):
    def look(trainer):
        weight = trainer.lightning_module.linear.weight
        return dict(trainer.callback_metrics), float((weight.grad / weight).abs().max())

    each, model = Each(look), Line()
    model.configure_optimizers = lambda: torch.optim.SGD(model.parameters(), lr=0.0)
    fit(tmp_path, LogGradientOverWeight(roles=("base",)), each, model=model)
    for metrics, expected in each.seen:
        assert metrics["grad_over_weight/linear.weight"] == pytest.approx(expected)
        assert "grad_over_weight/linear.bias" not in metrics
    last = fit(tmp_path, LogGradientOverWeight()).callback_metrics  # nothing of this model is recurrent
    assert not any(name.startswith("grad_over") for name in last)
    with pytest.raises(InputError, match="role 'recurent'"):
        fit(tmp_path, LogGradientOverWeight(roles=("recurent",)))


def test_a_fit_prints_once_which_backends_run(tmp_path, capsys):
    class Scans(Line):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*(layer(3, d_state=2) for layer in (S6, S4D, S6)))

        def training_step(self, batch, i):
            return self.layers(self.linear(batch[0])[:, None]).square().mean()

    with prefer_backend("eager"):
        fit(tmp_path, ShowBackends(), model=Scans(), max_steps=3)
    lines = [text for text in capsys.readouterr().out.splitlines() if " by " in text]
    assert lines == ["selective scan by eager; S4D's kernel by eager"]
