"""A mistake in a class of the user's own: what it returns is one line, its own error Python's traceback."""

import json
import random
import sys

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer, seed_everything

import lra_ssm.runs.checks
from lra_ssm.datamodules import ListOps
from lra_ssm.errors import InputError
from lra_ssm.layers import S4D, BlockSpec, LayerSpec, NetworkSpec, S4Block
from lra_ssm.layers.blocks import run_with_state
from lra_ssm.models import Classifier
from lra_ssm.runs.checks import try_network
from lra_ssm.runs.run import Run
from lra_ssm.tasks import Classification, OptimizerSettings
from tests.runner import FIT, in_process, only_run

FILE = """\
import os
import torch
from lightning.pytorch import Callback, LightningDataModule
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
LAYERS = {
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


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A data root for all of tiny.yaml's fits here."""
    return tmp_path_factory.mktemp("data") / "root"


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


@pytest.mark.parametrize("flag", [*(f"model.network.layer=user_code.{name}" for name in LAYERS), *OTHERS])
def test_what_is_broken_is_one_line_before_the_run_begins(flag, folder, root, capsys):
    code, _, said = in_process([*FIT, f"--data.root={root}", f"--{flag}"], capsys)
    expected = {f"model.network.layer=user_code.{name}": line for name, line in LAYERS.items()} | OTHERS
    assert code == 2 and said[-1] == f"lra-ssm: error: {expected[flag]}"
    assert not any("Traceback" in line for line in said) and not (folder / "runs").exists()


@pytest.mark.parametrize("flag", TRACEBACKS)
def test_an_error_of_the_users_class_is_its_own_before_the_run_begins(flag, folder, root, capsys):
    code, _, said = in_process([*FIT, f"--data.root={root}", f"--{flag}"], capsys)
    line, error = TRACEBACKS[flag]
    assert code == 1 and any(line in each for each in said) and any(each.startswith(error) for each in said)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("flag", TRAINING)
def test_what_breaks_in_training_is_recorded(flag, folder, root, capsys):
    code, _, said = in_process([*FIT, f"--data.root={root}", f"--{flag}"], capsys)
    line, error = TRAINING[flag]
    assert code == 1 and any(line in each for each in said) and any(each.startswith(error) for each in said)
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


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "64-true"])
def test_nothing_of_the_trial_stays(precision, tmp_path, root):
    task, data = parts(root)
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


def test_a_run_ends_as_it_does_without_the_trial(tmp_path, root, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = []
    for experiment in ("with", "without"):
        if experiment == "without":
            monkeypatch.setattr(lra_ssm.runs.checks, "try_network", lambda *_: None)
        task, data = parts(root)
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        run = Run(f"runs/mine/{experiment}")
        run.fit(Trainer(**run.trainer_arguments(max_epochs=1, **quiet)), task, data)
        found.append(torch.load(run.last, weights_only=True)["state_dict"])
    assert found[0].keys() == found[1].keys() and all(torch.equal(found[0][k], found[1][k]) for k in found[0])


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


@pytest.mark.slow
def test_the_checks_can_be_compiled(root):
    task, data = parts(root)
    data.prepare_data()
    block = BlockSpec(S4Block, norm="layer")
    network = Classifier(LayerSpec(S4D), 10, vocab_size=18, d_model=8, n_layers=1, block=block)
    batch = data.sample(3)
    expected = network(batch.inputs, batch.lengths)
    torch._dynamo.reset()
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch.inputs, batch.lengths), expected)
