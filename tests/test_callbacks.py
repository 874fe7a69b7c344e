"""The callbacks and plugins of a run, each by itself under a small Trainer."""

import csv
import random
import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lra_ssm.analysis.flops import training_flops_per_token
from lra_ssm.callbacks import (
    LogEpochMeans,
    LogGradientNorm,
    LogGradientOverWeight,
    LogLearningRates,
    SeedByStep,
    ShowBackends,
    StopOnNonFinite,
    Throughput,
    _known_peak,
    fit_callbacks,
)
from lra_ssm.cli.write_predictions import WritePredictions
from lra_ssm.errors import InputError
from lra_ssm.layers import S4D, S6, LayerSpec, NetworkSpec
from lra_ssm.models import LanguageModel
from lra_ssm.ops import prefer_backend
from lra_ssm.runs.checkpoints import SaveBest, SaveLast
from lra_ssm.runs.identity import run_identity
from lra_ssm.runs.loggers import CSVRunLogger
from lra_ssm.tasks import LanguageModelling


class Line(LightningModule):
    """y = w x; the loss is infinite, or its gradient, at the step that it is told."""

    def __init__(self, bad_loss=None, bad_gradient=None):
        super().__init__()
        self.linear, self.bad_loss, self.bad_gradient = nn.Linear(1, 3), bad_loss, bad_gradient

    def training_step(self, batch, i):
        loss = self.linear(batch[0]).square().mean()
        if self.global_step == self.bad_gradient:
            self.linear.weight.register_hook(lambda grad: grad * torch.inf)
        return loss * (torch.nan if self.global_step == self.bad_loss else 1)

    def validation_step(self, batch, i):
        self.log("val/loss", self.linear(batch[0]).square().mean())

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


class Draws(Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, *args):
        self.seen.append((torch.rand(()).item(), np.random.rand(), random.random()))


def test_randomness_belongs_to_the_step_and_the_seed(tmp_path):
    draws = []
    for seed in (3, 3, 4):
        torch.manual_seed(len(draws))
        draws.append(Draws())
        fit(tmp_path, SeedByStep(seed), draws[-1])
    one, same, other = (d.seen for d in draws)
    assert one == same and len(one) == 4
    assert all(len({a[i] for a in one}) == 4 and not {a[i] for a in one} & {a[i] for a in other} for i in range(3))


def test_a_loss_or_gradient_that_is_not_finite_names_step_and_parameter(tmp_path):
    with pytest.raises(InputError, match=r"loss is nan at step 2 \(epoch 0\); the largest gradient of the step before"):
        fit(tmp_path, StopOnNonFinite(), model=Line(bad_loss=2))
    with pytest.raises(InputError, match="loss is nan at step 0 .*; no gradient was computed before"):
        fit(tmp_path, StopOnNonFinite(), model=Line(bad_loss=0))
    model = Line(bad_gradient=1)
    with pytest.raises(InputError, match=r"at step 1 \(epoch 0\), but the largest gradient is inf in linear.weight"):
        fit(tmp_path, StopOnNonFinite(), model=model)
    assert model.linear.weight.isfinite().all()


def test_a_gpu_that_is_not_waited_for_says_so_a_step_later(tmp_path, monkeypatch):
    """The same line, of the step where it was; and before anything is saved or validated."""
    monkeypatch.setattr("lra_ssm.callbacks._is_waited_for", lambda x: False)
    steps = Draws()
    with pytest.raises(InputError, match=r"loss is nan at step 1 \(epoch 0\); the largest gradient of the step before"):
        fit(tmp_path, steps, StopOnNonFinite(), model=Line(bad_loss=1))
    assert len(steps.seen) == 2
    with pytest.raises(InputError, match=r"at step 1 \(epoch 0\), but the largest gradient is inf in linear.weight"):
        fit(tmp_path, StopOnNonFinite(), model=Line(bad_gradient=1))
    steps = Draws()  # the last one of the epoch: validation comes behind it
    with pytest.raises(InputError, match="loss is nan at step 3 "):
        fit(tmp_path, steps, StopOnNonFinite(), model=Line(bad_loss=3))
    assert len(steps.seen) == 4
    last = SaveLast(tmp_path / "last.ckpt", 2)
    with pytest.raises(InputError, match="loss is nan at step 1 "):
        fit(tmp_path, StopOnNonFinite(), last, model=Line(bad_loss=1), enable_checkpointing=True)
    assert not (tmp_path / "last.ckpt").exists()


def test_what_stops_a_fit_waits_for_the_step_whose_gradients_accumulate(tmp_path):
    last = SaveLast(tmp_path / "last.ckpt", 100)
    loop = SimpleNamespace()
    trainer = SimpleNamespace(
        global_step=3, should_stop=True, fit_loop=loop, max_steps=-1, max_epochs=9, current_epoch=0, is_last_batch=False
    )
    stopped = []
    for accumulates in (True, True, False):
        loop._should_accumulate = partial(bool, accumulates)
        last.on_train_batch_end(trainer, None, None, None, 0)
        stopped.append(trainer.should_stop)
    assert stopped == [False, False, True]


class Logged(Line):
    """Keeps what it logs of each batch."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def training_step(self, batch, i):
        self.batches.append(loss := self.linear(batch[0]).square().mean())
        self.log("train/loss", loss, batch_size=len(batch[0]))
        self.log("train/both", loss, on_step=True, on_epoch=True, batch_size=len(batch[0]))
        if i % 2 == 0:
            self.log("train/rare", loss)
        return loss


def test_the_mean_of_an_epoch_counts_every_example_once(tmp_path, monkeypatch):
    """Of a run that is resumed within an epoch too: test_resume.py, whose metrics.csv are compared."""
    uneven = loader(7)
    monkeypatch.setattr("tests.test_callbacks.loader", lambda: uneven)
    model = Logged()
    found = fit(tmp_path, LogEpochMeans(), model=model, max_epochs=2).callback_metrics
    expected = torch.stack(model.batches).view(2, 4) @ torch.tensor([2.0, 2, 2, 1]) / 7
    assert found["train/loss_epoch"].item() == pytest.approx(expected[1].item())
    assert "train/both_epoch_epoch" not in found  # Lightning's own
    assert found["train/rare_epoch"].item() == pytest.approx((model.batches[4] + model.batches[6]).item() / 2)


def test_throughput_is_samples_over_seconds(tmp_path, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("lra_ssm.callbacks.time.perf_counter", lambda: float(next(clock)))
    trainer = fit(tmp_path, Throughput(), max_steps=1)
    assert trainer.callback_metrics["train/samples_per_s"] == 2.0  # two samples; the clock was read a second apart


TEXT = NetworkSpec(LanguageModel, layer=LayerSpec(S6, d_state=4), vocab_size=11, d_model=8, n_layers=1)


class Uncountable(nn.Module):
    """Looks at the values of its inputs, which a device without any does not have."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 11)

    def forward(self, inputs, lengths=None):
        return self.table(inputs) * (1 if inputs.max().item() else 2)


def text_fit(tmp_path, monkeypatch, *callbacks, network=TEXT):
    """Two batches of 2 × 6 tokens, 4 of the second padding; the clock is read at their starts and at each log step."""
    clock = iter(range(100))
    monkeypatch.setattr("lra_ssm.callbacks.time.perf_counter", lambda: float(next(clock)))
    ids, lengths = torch.arange(14).view(2, 7) % 11, torch.tensor([6, 2])
    targets = ids[:, 1:].masked_fill(torch.arange(6) >= lengths[:, None], -100)
    trainer = Trainer(**QUIET, log_every_n_steps=2, default_root_dir=tmp_path, callbacks=list(callbacks), max_steps=2)
    batches = [(ids[:, :-1], ids[:, 1:], None, None), (ids[:, :-1], targets, None, lengths)]
    trainer.fit(LanguageModelling(network), DataLoader(batches, batch_size=None))
    return trainer.callback_metrics


def test_tokens_are_counted_without_padding(tmp_path, monkeypatch):
    metrics = text_fit(tmp_path, monkeypatch, Throughput())
    assert metrics["train/tokens_per_s"] == 20.0 and metrics["train/samples_per_s"] == 4.0
    assert "train/mfu" not in metrics  # nothing is assumed of a CPU


def test_model_flops_utilisation_is_of_the_peak_that_is_given(tmp_path, monkeypatch):
    metrics = text_fit(tmp_path, monkeypatch, Throughput(peak_flops=1e6))
    with torch.device("meta"):
        needed = training_flops_per_token(TEXT(), 6)
    assert metrics["train/mfu"] == pytest.approx(20 * needed / 1e6)
    with pytest.warns(UserWarning, match="train/mfu is not logged, the network cannot be counted"):
        metrics = text_fit(tmp_path, monkeypatch, Throughput(peak_flops=1e6), network=Uncountable)
    assert "train/mfu" not in metrics and metrics["train/tokens_per_s"] == 20.0


def test_what_lightning_knows_of_a_gpu_is_taken(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    trainer = Trainer(accelerator="cpu", precision="bf16-mixed", logger=False)
    assert _known_peak(trainer, torch.device("cuda")) == 989.4e12
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA B300")
    with warnings.catch_warnings(action="error"):
        assert _known_peak(trainer, torch.device("cuda")) is None
    assert _known_peak(trainer, torch.device("cpu")) is None


def test_throughput_with_settings_takes_the_place_of_ours():
    own = Throughput(peak_flops=1e12)
    assert sum(isinstance(c, Throughput) for c in fit_callbacks(0)) == 1
    assert not any(isinstance(c, Throughput) for c in fit_callbacks(0, [own]))
    given = {"callbacks": [{"class_path": "lra_ssm.callbacks.Throughput", "init_args": {"peak_flops": 1e12}}]}
    assert run_identity({"seed_everything": 0, "trainer": given}, {}) == run_identity(
        {"seed_everything": 0, "trainer": {}}, {}
    )


def test_the_gradient_norm_is_of_before_clipping(tmp_path):
    class Norms(Callback):
        def __init__(self):
            self.whole, self.clipped, self.logged = [], [], []

        def on_after_backward(self, trainer, model):
            self.whole.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())

        def on_before_zero_grad(self, trainer, model, optimizer):
            if model.linear.weight.grad is not None:
                self.clipped.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())

        def on_train_batch_end(self, trainer, *args):
            self.logged.append(trainer.callback_metrics["train/grad_norm"].item())

    norms = Norms()
    fit(tmp_path, LogGradientNorm(), norms, gradient_clip_val=0.01)
    assert norms.logged == pytest.approx(norms.whole) and len(norms.logged) == 4
    assert min(norms.whole) > 0.02 and max(norms.clipped) < 0.011


def test_last_is_kept_every_few_steps_and_best_by_its_metric(tmp_path):
    last = SaveLast(tmp_path / "last.ckpt", 3, {"made_by": "code"})
    best = SaveBest(dirpath=tmp_path, filename="best", monitor="val/loss", mode="min", save_on_train_epoch_end=False)
    saved = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer, *args):
            at = torch.load(last.path, weights_only=True)["global_step"] if last.path.is_file() else None
            saved.append((trainer.global_step, at))

    fit(tmp_path, last, best, Watch(), max_epochs=2, enable_checkpointing=True)
    # Every third step, before the last batch of an epoch (a validation follows) and at its end.
    assert [at for _, at in saved] == [None, None, None, 3, 4, 4, 4, 7]
    state = torch.load(last.path, weights_only=True)
    assert state["global_step"] == 8 and state["made_by"] == "code"
    assert (tmp_path / "best.ckpt").is_file() and best.best_model_score is not None
    wrong = SaveBest(dirpath=tmp_path, monitor="val/acc", mode="max", save_on_train_epoch_end=False)
    with pytest.raises(InputError, match="checkpoint.monitor is 'val/acc', which validation does not log; "):
        fit(tmp_path, wrong, enable_checkpointing=True, num_sanity_val_steps=1)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_stop_within_an_accumulation_comes_when_its_step_is_made(tmp_path, at):
    """Of Trainer(max_time=…), say: gradients that were summed up are in no checkpoint."""

    class Stop(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            trainer.should_stop |= batch_idx == at

    last = SaveLast(tmp_path / "last.ckpt", 100)
    fit(tmp_path, last, Stop(), accumulate_grad_batches=3, max_epochs=3, enable_checkpointing=True)
    state = torch.load(last.path, weights_only=True)
    batches = state["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["completed"]
    assert (batches, state["global_step"]) == ((3, 1) if at < 3 else (4, 2))


def test_learning_rates_are_those_a_step_is_made_with(tmp_path):
    class Groups(Line):
        def configure_optimizers(self):
            groups = [{"params": [self.linear.weight], "name": "recurrent, delta"},
                      {"params": [self.linear.bias], "lr": 0.0}]  # fmt: skip
            optimizer = torch.optim.SGD(groups, lr=0.008)
            halved = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": halved, "interval": "step"}}

    path = tmp_path / "exp" / "run" / "metrics.csv"
    path.parent.mkdir(parents=True)
    settings = {"logger": CSVRunLogger(path), "log_every_n_steps": 2, "limit_val_batches": 0}
    fit(tmp_path, LogLearningRates(), model=Groups(), **settings)
    with open(path, newline="") as file:
        rows = [(row["step"], float(row["lr/recurrent-delta"]), row["lr/1"]) for row in csv.DictReader(file)]
    assert rows == [("1", 0.004, "0.0"), ("3", 0.001, "0.0")]


def predicted(tmp_path, model, data):
    """The rows of the file that predictions are written to."""
    path = tmp_path / "predictions.csv"
    Trainer(**QUIET, callbacks=[WritePredictions(path)]).predict(model, data)
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("labels", [None, torch.tensor([0, 1, 2, 1, 0])])
def test_predictions_have_a_row_each(labels, tmp_path, capsys):
    inputs, model = torch.linspace(0.1, 1, 5)[:, None], Line()
    data = TensorDataset(inputs) if labels is None else TensorDataset(inputs, labels)
    rows = predicted(tmp_path, model, DataLoader(data, batch_size=2))
    said = "5 predictions in" if labels is None else "5 predictions, "
    assert len(rows) == 5 and said in capsys.readouterr().out
    assert [row.get("label") for row in rows] == ([None] * 5 if labels is None else [str(int(i)) for i in labels])
    for row, x in zip(rows, torch.linspace(0.1, 1, 5), strict=True):
        expected = model.linear(x[None]).softmax(-1)
        assert int(row["prediction"]) == expected.argmax() and float(row["p_0"]) == pytest.approx(
            expected[0].item(), 1e-4
        )


def test_predictions_call_classes_by_the_names_that_the_data_has(tmp_path):
    class Named(LightningDataModule):
        class_names = ("cat", "dog", "frog")

        def predict_dataloader(self):
            return DataLoader(
                TensorDataset(torch.linspace(-1, 1, 4)[:, None], torch.tensor([0, 1, 2, 0])), batch_size=4
            )

    rows = predicted(tmp_path, Line(), Named())
    columns = [f"p_{name}" for name in Named.class_names]
    assert list(rows[0]) == ["example", "label", "prediction", *columns]
    assert [row["label"] for row in rows] == ["cat", "dog", "frog", "cat"]
    for row in rows:
        assert f"p_{row['prediction']}" == max(columns, key=lambda column: float(row[column]))


def test_predicted_values_have_a_column_each_and_no_class(tmp_path):
    class Values(Line):
        predicts_classes = False

        def predict_step(self, batch, batch_idx):
            return self.linear(batch[0])

    rows = predicted(tmp_path, Values(), loader(5))
    assert list(rows[0])[:2] == ["example", "y0"] and "prediction" not in rows[0]
    assert [row["example"] for row in rows] == ["0", "1", "2", "3", "4"]


def test_the_log_grows_by_columns_and_forgets_what_will_be_made_again(tmp_path):
    path = tmp_path / "exp" / "run" / "metrics.csv"
    path.parent.mkdir(parents=True)
    log = CSVRunLogger(path)
    assert (log.name, log.version) == ("exp", "run")
    log.log_metrics({"a": 1.0, "epoch": 0}, step=0)
    log.log_metrics({"b": 2.0, "epoch": 1}, step=1)
    with open(path, "a") as file:
        file.write("2")  # a kill within a row
    CSVRunLogger(path).forget_from(1)
    with open(path, newline="") as file:
        assert list(csv.DictReader(file)) == [{"step": "0", "epoch": "0", "a": "1.0", "b": ""}]


def test_gradient_over_weight_is_logged(tmp_path):
    class Keeps(Callback):
        def __init__(self):
            self.seen = []

        def on_train_batch_end(self, trainer, model, outputs, batch, i):
            weight, grad = model.linear.weight.detach(), model.linear.weight.grad
            self.seen.append((dict(trainer.callback_metrics), (grad / weight).abs().max()))

    keeps, model = Keeps(), Line()
    model.configure_optimizers = lambda: torch.optim.SGD(model.parameters(), lr=0.0)
    fit(tmp_path, LogGradientOverWeight(roles=("base",)), keeps, model=model)
    for metrics, expected in keeps.seen:
        assert metrics["grad_over_weight/linear.weight"] == pytest.approx(float(expected))
        assert "grad_over_weight/linear.bias" not in metrics
    keeps.seen.clear()
    fit(tmp_path, LogGradientOverWeight(), keeps)  # nothing of this model is recurrent
    assert not any(name.startswith("grad_over") for metrics, _ in keeps.seen for name in metrics)
    with pytest.raises(InputError, match="role 'recurent'"):
        fit(tmp_path, LogGradientOverWeight(roles=("recurent",)))


class Scans(Line):
    """A loss of an S6 and an S4D, or of a linear map only."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layer(3, d_state=2) for layer in layers)

    def training_step(self, batch, i):
        x = self.linear(batch[0])[:, None]
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


@pytest.mark.parametrize(
    ("layers", "line"), [((S6, S4D, S6), ["selective scan by eager; S4D's kernel by eager"]), ((), [])]
)
def test_a_fit_prints_once_which_backends_run(layers, line, tmp_path, capsys):
    with prefer_backend("eager"):
        fit(tmp_path, ShowBackends(), model=Scans(*layers), max_steps=3)
    assert [text for text in capsys.readouterr().out.splitlines() if " by " in text] == line
