"""Classes and data of a user's own: what a class returns wrongly is one line, its own error Python's traceback."""

import json
import random
import sys

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer

from lra_ssm.errors import InputError
from lra_ssm.layers import LayerSpec, NetworkSpec
from lra_ssm.layers.blocks import run_with_state
from lra_ssm.models import Classifier
from lra_ssm.runs.checks import try_network
from lra_ssm.tasks import Classification, OptimizerSettings
from tests.runner import FIT, in_process, only_run, refused, succeed
from tests.test_runs import parts

FILE = """\
import os
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from lra_ssm.models import Backbone

class Base(nn.Module):
    def __init__(self, d_model: int):
        super().__init__()
        self.mix = nn.Linear(d_model, d_model)
class Returns(nn.Module):
    def __init__(self, d_model: int, what: str = "x"):
        super().__init__()
        self.mix, self.what = nn.Linear(d_model, d_model), what
    def forward(self, x, lengths=None): return eval(self.what)
class Block(Returns):
    def __init__(self, d_model, layer): super().__init__(d_model, "x.mean(1)")
class NoLengths(Base):
    def forward(self, x): return self.mix(x)
class NoForward(Base):
    pass
class Head(nn.Module):
    def __init__(self, d_model: int, num_classes: int):
        super().__init__()
        self.map = nn.Linear(d_model, num_classes + 1)
    def forward(self, x): return self.map(x)
class Network(nn.Module):
    def __init__(self, num_classes: int, vocab_size: int, pooled: bool = False):
        super().__init__()
        self.embedding, self.pooled = nn.Embedding(vocab_size, 3), pooled
    def forward(self, inputs, lengths): return self.embedding(inputs).mean(1) if self.pooled else self.embedding(inputs)
class Wrong(nn.Module):
    def __init__(self, num_classes: int, vocab_size: int, layer=Base):
        super().__init__()
        self.backbone = Backbone(layer, d_model=8)
class Untyped(LightningModule):
    def __init__(self, network): super().__init__()
class Module(LightningModule):
    def __init__(self, width: int = 3):
        super().__init__()
        self.linear = nn.Linear(width, 2)
    def training_step(self, batch, i):
        return nn.functional.cross_entropy(self.linear(batch[0]), batch[1])
    def validation_step(self, batch, i):
        self.log("val/accuracy", (self.linear(batch[0]).argmax(-1) == batch[1]).float().mean())
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
class Later(Base):
    calls = 0
    def forward(self, x, lengths=None):
        self.calls += self.training
        if self.calls > 3:
            raise KeyError("later")
        return self.mix(x)
class Data(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(8, 3), torch.zeros(8, dtype=torch.long)), batch_size=4)
    val_dataloader = train_dataloader
class BadData(LightningDataModule):
    def __getitem__(self, i): return self.missing
    def __len__(self): return 8
    def train_dataloader(self): return DataLoader(self, 8)
"""


@pytest.fixture
def folder(here, monkeypatch):
    """A working folder with the user's files in it."""
    (here / "own.py").write_text(FILE)
    (here / "own_import.py").write_text("import no_such_library\n")
    (here / "own_syntax.py").write_text("class Mine:\n    def a(self:\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(here)])
    return here


RETURNS, RETURNED = "network.layer=own.Returns|network.layer.what=", "own.Returns returned {} for x (3, 17, 8): "
KEPT = "layers and blocks keep (batch, length, d_model)"
BROKEN = {  # below model
    f"{RETURNS}self.mix(x)[:, :, :3]": RETURNED.format("(3, 17, 3)") + KEPT,
    f"{RETURNS}(x, None)": RETURNED.format("a tuple of (3, 17, 8) and None") + KEPT,
    f"{RETURNS}None": RETURNED.format("None") + KEPT,
    f"{RETURNS}x.long()": RETURNED.format("(3, 17, 8) torch.int64") + KEPT,
    "network.block=own.Block": f"own.Block returned (3, 8) for x (3, 17, 8): {KEPT}",
    "network.pooling=own.Returns": RETURNED.format("(3, 17, 8)") + "a pooling gives (batch, d_model)",
    "network.layer=own.NoLengths": "own.NoLengths.forward takes (x): a layer is called with (x, lengths)",
    "network.layer=own.NoForward": "own.NoForward has no forward: a layer is called with (x, lengths)",
    "network.head=own.Head": "own.Head returned (3, 11) for x (3, 8): this head gives (batch, num_classes) (3, 10)",
    "network=own.Network": "own.Network returned (3, 17, 3) for inputs (3, 17): a network gives logits"
    " (batch, num_classes)",
    "network=own.Network|network.pooled=true": "own.Network returned (3, 3) for inputs (3, 17): the data has 10"
    " classes, and each has a logit",
    "network=own.Wrong": "give vocab_size for token inputs or d_input for feature inputs, and not both",
    "=own.Untyped": "Untyped takes 'network' without a type, so that it is not built: annotate it, `network:"
    " NetworkFactory` (from lra_ssm.layers.spec import NetworkFactory)",
    "network.layer=own_import.Mine": "model.network.layer: No module named 'no_such_library'",
}
TRACEBACKS = {  # before a run begins: the line of the file, and the error
    "model.network.layer=own.Returns|model.network.layer.what=self.mix(x.mT)":
        ("return eval(self.what)", "RuntimeError: mat1 and mat2 shapes"),
    "model.network.layer=own_syntax.Mine": ("def a(self:", "SyntaxError: '(' was never closed"),
}  # fmt: skip
TRAINING = {  # what shows only once the run has begun
    "model.network.layer=own.Later": ('raise KeyError("later")', "KeyError: 'later'"),
    "data=own.BadData": ("return self.missing", "AttributeError: 'BadData' object has no attribute 'missing'"),
}


@pytest.mark.parametrize("flags", BROKEN)
def test_what_is_broken_is_one_line_before_the_run_begins(flags, folder, data, capsys):
    options = [f"--model.{flag}".replace(".=", "=") for flag in flags.split("|")]
    assert refused([*FIT, f"--data.root={data}", *options], capsys) == BROKEN[flags]
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("flags", [*TRACEBACKS, *TRAINING])
def test_an_error_of_the_users_class_is_its_own_and_in_training_it_is_recorded(flags, folder, data, capsys):
    options = [f"--{flag}" for flag in flags.split("|")]
    code, _, errors = in_process([*FIT, f"--data.root={data}", *options], capsys)
    line, error = {**TRACEBACKS, **TRAINING}[flags]
    assert code == 1 and any(line in each for each in errors) and any(each.startswith(error) for each in errors)
    if flags in TRACEBACKS:
        assert not (folder / "runs").exists()
    else:
        record = json.loads((only_run(folder) / "run.json").read_text())
        assert record["status"] == "failed" and error.partition(": ")[2].strip("'") in record["reason"]


class Drawing(torch.nn.Module):
    """Draws, and has a part that is never trained."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(d_model).eval()
        self.scale = torch.nn.Parameter(torch.ones(d_model))

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        random.random(), np.random.rand()
        return self.norm(x.transpose(1, 2)).transpose(1, 2) * self.scale + torch.randn(()) / 10


def state(task):
    drawn = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()
    return [m.training for m in task.modules()], drawn


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_nothing_of_the_trial_stays(precision, data):
    _, examples = parts(data)
    sizes = {"num_classes": 10, "vocab_size": 18, "d_model": 8, "n_layers": 1}
    task = Classification(NetworkSpec(Classifier, layer=LayerSpec(Drawing), **sizes), OptimizerSettings())
    examples.prepare_data()
    trainer = Trainer(accelerator="cpu", precision=precision, logger=False, enable_checkpointing=False)
    trainer.precision_plugin.convert_module(task)  # the Trainer's own doing
    before, values = state(task), {name: value.clone() for name, value in task.state_dict().items()}
    try_network(task, examples, trainer)
    assert state(task) == before
    for name, value in task.state_dict().items():
        assert torch.equal(value, values[name]) and value.dtype == values[name].dtype, name
    assert all(p.grad is None and not p.is_inference() for p in task.parameters())


def test_states_that_are_asked_for_and_no_module_at_all():
    class Stateless(torch.nn.Module):
        def forward(self, x, lengths=None, return_last_state=False):
            return x

    message = r"Stateless returned \(1, 4, 2\) .*: with return_last_state it returns \(y, state\)"
    with pytest.raises(InputError, match=message):
        run_with_state(Stateless(), torch.zeros(1, 4, 2), return_last_state=True)
    with pytest.raises(InputError, match="Plain is not a torch.nn.Module, and a layer has to be one"):
        Classifier(LayerSpec(type("Plain", (), {"__init__": lambda self, d_model: None})), 2, vocab_size=3)


def test_a_lightning_module_and_its_data_are_trained(folder):
    """A network, a dataset, a task, a callback: docs/extending.md, in test_examples.py."""
    monitor = "--trainer.callbacks=lightning.pytorch.callbacks.LearningRateMonitor"
    trainer = ["--trainer.accelerator=cpu", "--trainer.max_epochs=1", "--trainer.log_every_n_steps=1", monitor]
    out = succeed(["fit", "--model=own.Module", "--data=own.Data", "--experiment=own", *trainer], folder).out
    assert "group 0" in out and "val/accuracy" in out
    assert (only_run(folder, "own") / "checkpoints/best.ckpt").is_file()
