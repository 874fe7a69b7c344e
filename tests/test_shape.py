"""Layers, blocks, poolings, heads, networks, tasks, datasets of another kind: one new file, nothing of ours changes."""

import csv
import json
from pathlib import Path

import pytest
import torch
import yaml

from tests.runner import FIT, SHORT, TINY, only_run, succeed

MINE = '''
from dataclasses import dataclass
import lightning as L, numpy as np, torch
from torch import nn
from torch.nn import functional as F
from lra_ssm.datamodules.base import PreparedDataModule
from lra_ssm.datamodules.storage.writer import DatasetWriter
from lra_ssm.layers import Block, NetworkSpec
from lra_ssm.layers.spec import BlockFactory, LayerFactory, NetworkFactory
from lra_ssm.models import Backbone
from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.optim import optimizer_and_schedule


class Plain(Block):
    """A block form: the layer and nothing else."""

    def __init__(self, d_model: int, layer: LayerFactory) -> None:
        super().__init__(d_model, "rms", prenorm=True)
        self.layer = layer(d_model)

    def inner(self, x, lengths, reset, initial_state, return_last_state):
        out = self.layer(x, lengths, reset=reset, initial_state=initial_state, return_last_state=return_last_state)
        return out if return_last_state else (out, None)

    def inner_step(self, x_t, state):
        return self.layer.step(x_t, state)

    def initial_state(self, batch_size):
        return self.layer.initial_state(batch_size)


class Attention(nn.Module):
    """A pooling with parameters."""

    def __init__(self, d_model: int, sharpness: float = 1.0) -> None:
        super().__init__()
        self.score, self.sharpness = nn.Linear(d_model, 1), sharpness

    def forward(self, x, lengths=None):
        scores = self.sharpness * self.score(x)
        if lengths is not None:
            real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
            scores = scores.masked_fill(~real[..., None], -torch.inf)
        return (scores.softmax(1) * x).sum(1)


class Deep(nn.Sequential):
    """A head."""

    def __init__(self, d_model: int, num_classes: int, width: int = 5) -> None:
        super().__init__(nn.Linear(d_model, width), nn.ReLU(), nn.Linear(width, num_classes))


class NextToken(nn.Module):
    """A network for another task: the backbone, and logits at every position."""

    def __init__(self, layer: LayerFactory, vocab_size: int, d_model: int, n_layers: int, block: BlockFactory) -> None:
        super().__init__()
        self.backbone = Backbone(layer, vocab_size, None, d_model, n_layers, block)
        self.head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, ids, lengths=None, *, reset=None):
        return self.head(self.backbone(ids, lengths, reset=reset))


class Language(L.LightningModule):
    """A task: batches are `TokenBatch`."""

    def __init__(self, network: NetworkFactory, optimizer: OptimizerSettings) -> None:
        super().__init__()
        self.save_hyperparameters({"network": NetworkSpec.of(network).as_dict()})
        self.network, self.settings = NetworkSpec.of(network)(), optimizer

    def loss(self, batch):
        logits = self.network(batch.inputs, batch.lengths, reset=batch.reset)
        return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())

    def training_step(self, batch, i):
        loss = self.loss(batch)
        self.log("train/loss", loss, batch_size=len(batch.inputs))
        return loss

    def validation_step(self, batch, i):
        self.log("val/loss", self.loss(batch), batch_size=len(batch.inputs))

    def configure_optimizers(self):
        return optimizer_and_schedule(self.network, self.settings, int(self.trainer.estimated_stepping_batches))


@dataclass(kw_only=True, eq=False, repr=False)
class Counting(PreparedDataModule):
    """A dataset without labels: every sequence counts up."""

    dataset, sources, vocab_size, num_classes = "counting", ("generated",), 70_000, None

    source: str = "generated"
    batch_size: int = 4

    def build(self, folder):
        writer = DatasetWriter(folder, dataset="counting", num_classes=None, vocab_size=70_000, max_length=9)
        for name in ("train", "val", "test"):
            split = writer.split(name)
            for start in range(20):
                split.extend(np.arange(9) + 3_000 * start, [9])
        writer.finish({"kind": "generated"})
'''
TRAINER = {
    "accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1, "enable_progress_bar": False,
    "enable_model_summary": False, "num_sanity_val_steps": 0, "callbacks": [{"class_path": "tests.helpers.KillMe"}],
}  # fmt: skip
LAYER = {"class_path": "lra_ssm.layers.S6", "init_args": {"d_state": 2}}


def write(folder, **config):
    (folder / "mine.py").write_text(MINE)
    (folder / "mine.yaml").write_text(yaml.safe_dump({"experiment": "tiny", "trainer": TRAINER, **config}))
    return ["fit", "--config", "mine.yaml"]


def test_a_block_a_pooling_and_a_head(tmp_path):
    network = {
        "class_path": "lra_ssm.models.Classifier",
        "init_args": {
            "num_classes": 10, "vocab_size": 18, "d_model": 4, "n_layers": 2, "layer": LAYER, "block": "mine.Plain",
            "pooling": {"class_path": "mine.Attention", "init_args": {"sharpness": 2.0}}, "head": "mine.Deep",
        },
    }  # fmt: skip
    data = {
        "class_path": "lra_ssm.datamodules.ListOps",
        "init_args": {"root": "data", "batch_size": 8, "length_bounds": [3, 20], "max_depth": 3, "num_train": 16,
                      "num_val": 8, "num_test": 8},
    }  # fmt: skip
    model = {"class_path": "lra_ssm.tasks.Classification", "init_args": {"network": network}}
    command = [*write(tmp_path, model=model, data=data), "--model.network.head.width=7"]
    succeed(command, tmp_path)
    state = torch.load(only_run(tmp_path) / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert state["network.head.0.weight"].shape == (7, 4) and state["network.pooling.score.weight"].shape == (1, 4)
    assert "network.backbone.blocks.1.layer.A_log" in state and "network.backbone.norm.weight" in state


@pytest.mark.slow
def test_a_task_with_its_network_and_data_without_labels(tmp_path, monkeypatch):
    network = {
        "class_path": "mine.NextToken",
        "init_args": {"vocab_size": 70_000, "d_model": 4, "n_layers": 1, "layer": LAYER,
                      "block": "lra_ssm.layers.MambaBlock"},
    }  # fmt: skip
    model = {"class_path": "mine.Language", "init_args": {"network": network, "optimizer": {"lr": 0.1}}}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        command = write(
            folder, model=model, data={"class_path": "mine.Counting", "init_args": {"root": str(tmp_path / "data")}},
            checkpoint={"monitor": "val/loss", "mode": "min", "every_n_steps": 2},
        )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setenv("KILL_AT", "train_batch_end:7")
        patch.setenv("RUN", f"cp -r runs {killed}")  # what a kill would leave
        assert "delta" in succeed(command, whole).out
    assert "going on from" in succeed(command, killed).out
    path = only_run(killed)
    resumed = torch.load(path / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert json.loads((path / "run.json").read_text())["metrics"].keys() >= {"train/loss", "val/loss", "best val/loss"}
    with open(path / "metrics.csv", newline="") as file:
        losses = [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]
    assert len(losses) == 10 and all(loss < 12 for loss in losses)  # log 70,000 = 11.2
    expected = torch.load(only_run(whole) / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)


# --- one part of one's own, the rest ours ---


def test_a_layer_of_ones_own_by_class_path(tmp_path):
    (tmp_path / "my_layer.py").write_text((Path(__file__).parent / "helpers.py").read_text())
    config = yaml.safe_load(TINY.read_text())
    own = {"class_path": "my_layer.Smooth", "init_args": {"width": 5}}
    config["model"]["init_args"]["network"]["init_args"]["layer"] = own
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(config))
    succeed(["fit", "--config", "own.yaml", *SHORT], tmp_path)
    saved = yaml.safe_load((only_run(tmp_path) / "config.yaml").read_text())
    assert saved["model"]["init_args"]["network"]["init_args"]["layer"] == own


OWN = {
    "block": ["--model.network.block=tests.helpers.PlainBlock", "--model.network.block.scale=0.5"],
    "network": ["--model.network=tests.helpers.Bag", "--model.network.layer=tests.helpers.Smooth",
                "--model.network.width=6"],
}  # fmt: skip


@pytest.mark.parametrize("part", [pytest.param("block", marks=pytest.mark.slow), "network"])
def test_a_block_and_a_network_of_ones_own_by_class_path(part, tmp_path):
    from lra_ssm.layers import NetworkSpec

    succeed([*FIT, *SHORT, *OWN[part]], tmp_path)
    saved = yaml.safe_load((only_run(tmp_path) / "config.yaml").read_text())["model"]["init_args"]["network"]
    checkpoint = torch.load(only_run(tmp_path) / "checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["hyper_parameters"]["network"] == NetworkSpec.of(saved).as_dict()
    if part == "block":
        assert saved["init_args"]["block"] == {"class_path": "tests.helpers.PlainBlock", "init_args": {"scale": 0.5}}
    else:
        assert saved["class_path"] == "tests.helpers.Bag" and saved["init_args"]["width"] == 6
        assert checkpoint["state_dict"]["network.head.weight"].shape == (10, 6)
    succeed(["test", *FIT[1:], *SHORT, *OWN[part]], tmp_path)


def test_a_module_and_data_of_ones_own(tmp_path):
    (tmp_path / "own.py").write_text(
        """
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
    )
    monitor = "--trainer.callbacks=lightning.pytorch.callbacks.LearningRateMonitor"
    trainer = ["--trainer.accelerator=cpu", "--trainer.max_epochs=1", "--trainer.log_every_n_steps=1", monitor]
    out = succeed(["fit", "--model=own.Module", "--data=own.Data", "--experiment=tiny", *trainer], tmp_path).out
    assert "group 0" in out and "val/accuracy" in out
    assert (only_run(tmp_path) / "checkpoints/best.ckpt").is_file()
