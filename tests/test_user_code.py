"""A mistake in a class of the user's own: what it returns is one line, its own error Python's traceback."""

import json
import random
import sys

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import Trainer, seed_everything

from lra_ssm.datamodules import ListOps
from lra_ssm.errors import InputError
from lra_ssm.layers import LayerSpec, NetworkSpec
from lra_ssm.layers.blocks import run_with_state
from lra_ssm.models import Classifier
from lra_ssm.runs.checks import try_network
from lra_ssm.tasks import Classification, OptimizerSettings
from tests.runner import FIT, SHORT, in_process, only_run, refused, succeed

FILE = """\
import os
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from torch import nn
from torch.utils.data import DataLoader
from lra_ssm.models import Backbone

class Base(nn.Module):
    def __init__(self, d_model: int):
        super().__init__()
        self.mix = nn.Linear(d_model, d_model)

class Narrow(Base):
    def forward(self, x, lengths=None): return self.mix(x)[:, :, :3]
class Pair(Base):
    def forward(self, x, lengths=None): return self.mix(x), None
class Nothing(Base):
    def forward(self, x, lengths=None): self.mix(x)
class Whole(Base):
    def forward(self, x, lengths=None): return x.long()
class NoLengths(Base):
    def forward(self, x): return self.mix(x)
class NoForward(Base):
    pass
class BadInit(Base):
    def __init__(self, d_model: int):
        super().__init__(d_modle)
class BadForward(Base):
    def forward(self, x, lengths=None):
        return self.mix(x.transpose(1, 2))
class BadRoles(Base):
    def forward(self, x, lengths=None): return self.mix(x)
    def optim_roles(self): return self.roles
class Block(nn.Module):
    def __init__(self, d_model, layer):
        super().__init__()
    def forward(self, x, lengths=None): return x.mean(1)
class Pooling(Base):
    def forward(self, x, lengths=None): return x
class Head(nn.Module):
    def __init__(self, d_model: int, num_classes: int):
        super().__init__()
        self.map = nn.Linear(d_model, num_classes + 1)
    def forward(self, x): return self.map(x)
class Network(nn.Module):
    def __init__(self, num_classes: int, vocab_size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 3)
    def forward(self, inputs, lengths): return self.embedding(inputs)
class Few(Network):
    def forward(self, inputs, lengths): return self.embedding(inputs).mean(1)
class Wrong(nn.Module):
    def __init__(self, num_classes: int, vocab_size: int, layer=Base):
        super().__init__()
        self.backbone = Backbone(layer, d_model=8)
class Untyped(LightningModule):
    def __init__(self, network): super().__init__()
class Bare(LightningModule):
    def __init__(self): super().__init__()
class WithModule(LightningModule):
    def __init__(self, net: nn.Module):
        super().__init__()
        assert isinstance(net, NoForward)
class Derived(WithModule):
    def __init__(self, **kwargs): super().__init__(**kwargs)
class Later(Base):
    calls = 0
    def forward(self, x, lengths=None):
        self.calls += self.training
        if self.calls > 3 or "BROKEN" in os.environ:
            raise KeyError("later")
        return self.mix(x)
class Callback(Callback):
    def on_train_batch_end(self, *args): {}["missing"]
class Data(LightningDataModule):
    def __init__(self, num_workers: int = 0):
        super().__init__()
        self.num_workers = num_workers
    def __getitem__(self, i): return self.missing
    def __len__(self): return 8
    def train_dataloader(self): return DataLoader(self, 8, num_workers=self.num_workers)
    val_dataloader = train_dataloader
"""
KEPT = "layers and blocks keep (batch, length, d_model)"
LAYERS = {  # what is broken before a run begins, in one line
    "Narrow": f"user_code.Narrow returned (3, 17, 3) for x (3, 17, 8): {KEPT} (user_code.py:14)",
    "Pair": f"user_code.Pair returned a tuple of (3, 17, 8) and None for x (3, 17, 8): {KEPT} (user_code.py:16)",
    "Nothing": f"user_code.Nothing returned None for x (3, 17, 8): {KEPT} (user_code.py:18)",
    "Whole": f"user_code.Whole returned (3, 17, 8) torch.int64 for x (3, 17, 8): {KEPT} (user_code.py:20)",
    "NoLengths": "user_code.NoLengths.forward takes (x): a layer is called with (x, lengths) (user_code.py:22)",
    "NoForward": "user_code.NoForward has no forward: a layer is called with (x, lengths) (user_code.py:9)",
}  # fmt: skip
OTHERS = {
    "model.network.block=user_code.Block": "user_code.Block returned (3, 8) for x (3, 17, 8):"
    f" {KEPT} (user_code.py:37)",
    "model.network.pooling=user_code.Pooling": "user_code.Pooling returned (3, 17, 8) for x (3, 17, 8): a pooling gives"
    " (batch, d_model) (user_code.py:39)",
    "model.network.head=user_code.Head": "user_code.Head returned (3, 11) for x (3, 8): this head gives"
    " (batch, num_classes) (3, 10) (user_code.py:44)",
    "model.network=user_code.Network": "user_code.Network returned (3, 17, 3) for inputs (3, 17): a network gives"
    " logits (batch, num_classes) (user_code.py:49)",
    "model.network=user_code.Few": "user_code.Few returned (3, 3) for inputs (3, 17): the data has 10 classes, and each"
    " has a logit (user_code.py:51)",
    "model.network=user_code.Wrong": "give vocab_size for token inputs or d_input for feature inputs, and not both",
    "model.network.layer=user_import.Mine": "model.network.layer: No module named 'no_such_library'",
}  # fmt: skip
TRACEBACKS = {  # before a run begins: the line of the file, and the error
    "model.network.layer=user_code.BadInit": ("super().__init__(d_modle)", "NameError: name 'd_modle' is not defined"),
    "model.network.layer=user_code.BadForward": ("self.mix(x.transpose(1, 2))", "RuntimeError: mat1 and mat2 shapes"),
    "model.network.layer=user_code.BadRoles": ("return self.roles", "AttributeError: 'BadRoles' object has no"),
    "model.network.layer=user_syntax.Mine": ("def a(self:", "SyntaxError: '(' was never closed"),
    "trainer.callbacks=user_syntax.Mine": ("def a(self:", "SyntaxError: '(' was never closed"),
}
TRAINING = {  # what shows only once the run has begun
    "model.network.layer=user_code.Later": ('raise KeyError("later")', "KeyError: 'later'"),
    "trainer.callbacks=user_code.Callback": ('{}["missing"]', "KeyError: 'missing'"),
    "data=user_code.Data": ("return self.missing", "AttributeError: 'Data' object has no attribute 'missing'"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with the user's files in it."""
    (tmp_path / "user_code.py").write_text(FILE)
    (tmp_path / "user_import.py").write_text("import no_such_library\n")
    (tmp_path / "user_syntax.py").write_text("class Mine:\n    def a(self:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    for name in ("user_code", "user_import", "user_syntax"):
        sys.modules.pop(name, None)


EXPECTED = {f"model.network.layer=user_code.{name}": line for name, line in LAYERS.items()} | OTHERS


@pytest.mark.parametrize("flag", EXPECTED)
def test_what_is_broken_is_one_line_before_the_run_begins(flag, folder, data, capsys):
    assert refused([*FIT, f"--data.root={data}", f"--{flag}"], capsys) == EXPECTED[flag]
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("flag", [*TRACEBACKS, *TRAINING])
def test_an_error_of_the_users_class_is_its_own_and_in_training_it_is_recorded(flag, folder, data, capsys):
    code, _, errors = in_process([*FIT, f"--data.root={data}", f"--{flag}"], capsys)
    line, error = {**TRACEBACKS, **TRAINING}[flag]
    assert code == 1 and any(line in each for each in errors) and any(each.startswith(error) for each in errors)
    if flag in TRACEBACKS:
        assert not (folder / "runs").exists()
    else:
        record = json.loads((only_run(folder) / "run.json").read_text())
        assert record["status"] == "failed" and error.partition(": ")[2].strip("'") in record["reason"]


class Counting(torch.nn.Module):
    """Draws, counts in a buffer, replaces another, and has a part that is never trained."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(d_model).eval()
        self.scale = torch.nn.Parameter(torch.ones(d_model))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        self.calls += 1
        self.last = x.mean()
        random.random(), np.random.rand()
        return self.norm(x.transpose(1, 2)).transpose(1, 2) * self.scale + torch.randn(()) / 10


def parts(root):
    seed_everything(1, verbose=False)
    network = NetworkSpec(
        Classifier, layer=LayerSpec(Counting), num_classes=10, vocab_size=18, d_model=8, n_layers=1,
    )  # fmt: skip
    counts = {"num_train": 44, "num_val": 20, "num_test": 20}
    data = ListOps(root=str(root), batch_size=8, length_bounds=(3, 20), max_depth=3, **counts)
    return Classification(network, OptimizerSettings(warmup_steps=2)), data


def state(task):
    drawn = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    return (
        {name: value.clone() for name, value in task.state_dict().items()},
        [m.training for m in task.modules()],
        drawn,
    )


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_nothing_of_the_trial_stays(precision, data):
    task, data = parts(data)
    data.prepare_data()
    trainer = Trainer(accelerator="cpu", precision=precision, logger=False, enable_checkpointing=False)
    trainer.precision_plugin.convert_module(task)  # the Trainer's own doing
    before = state(task)
    try_network(task, data, trainer)
    after = state(task)
    for name, value in before[0].items():
        assert torch.equal(value, after[0][name]) and value.dtype == after[0][name].dtype, name
    assert before[1] == after[1] and torch.equal(before[2][0], after[2][0]) and before[2][1:] == after[2][1:]
    assert all(p.grad is None and not p.is_inference() for p in task.parameters())


def test_states_that_are_asked_for_and_no_module_at_all():
    class Stateless(torch.nn.Module):
        def forward(self, x, lengths=None, return_last_state=False):
            return x

    with pytest.raises(
        InputError, match=r"Stateless returned \(1, 4, 2\) .*: with return_last_state it returns \(y, state\)"
    ):
        run_with_state(Stateless(), torch.zeros(1, 4, 2), return_last_state=True)
    with pytest.raises(InputError, match="Plain is not a torch.nn.Module, and a layer has to be one"):
        Classifier(LayerSpec(type("Plain", (), {"__init__": lambda self, d_model: None})), 2, vocab_size=3)


def test_classes_of_lightnings_kind_are_built_from_their_annotations(folder, capsys):
    line = refused(["fit", "--config=quickstart", "--model=user_code.Untyped"], capsys)
    assert "Untyped takes 'network' without a type" in line and "`network: NetworkFactory`" in line
    for model in (["Bare"], ["Derived", "--model.net=user_code.NoForward", "--model.net.d_model=2"]):
        options = [f"--model=user_code.{model[0]}", *model[1:], "--data=FirstToken"]
        code, _, errors = in_process(["fit", *options], capsys)
        assert code == 1 and "No `training_step()` method" in errors[-1]  # Lightning's own word: they were built


OWN = """
import lightning as L, torch
from torch.utils.data import DataLoader, TensorDataset

class Module(L.LightningModule):
    def __init__(self, width: int = 3):
        super().__init__()
        self.linear = torch.nn.Linear(width, 2)
    def training_step(self, batch, i):
        return torch.nn.functional.cross_entropy(self.linear(batch[0]), batch[1])
    def validation_step(self, batch, i):
        self.log("val/accuracy", (self.linear(batch[0]).argmax(-1) == batch[1]).float().mean())
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(8, 3), torch.zeros(8, dtype=torch.long)), batch_size=4)
    val_dataloader = train_dataloader
"""


def test_a_module_and_data_of_ones_own_and_a_network_of_ones_own_is_stored_whole(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    monitor = "--trainer.callbacks=lightning.pytorch.callbacks.LearningRateMonitor"
    trainer = ["--trainer.accelerator=cpu", "--trainer.max_epochs=1", "--trainer.log_every_n_steps=1", monitor]
    out = succeed(["fit", "--model=own.Module", "--data=own.Data", "--experiment=own", *trainer], tmp_path).out
    assert "group 0" in out and "val/accuracy" in out
    assert (only_run(tmp_path, "own") / "checkpoints/best.ckpt").is_file()
    bag = ["--model.network=tests.helpers.Bag", "--model.network.layer=tests.helpers.Smooth", "--model.network.width=6"]
    bag.append("--check_layer=false")
    succeed([*FIT, *SHORT, *bag], tmp_path)
    succeed(["test", *FIT[1:], *SHORT, *bag], tmp_path)
    saved = yaml.safe_load((only_run(tmp_path) / "config.yaml").read_text())["model"]["init_args"]["network"]
    checkpoint = torch.load(only_run(tmp_path) / "checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["hyper_parameters"]["network"] == NetworkSpec.of(saved).as_dict()
    assert saved["class_path"] == "tests.helpers.Bag" and saved["init_args"]["width"] == 6
    assert checkpoint["state_dict"]["network.head.weight"].shape == (10, 6)
