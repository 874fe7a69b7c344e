"""Parts, tasks and datasets of another kind: one new file, nothing of ours changes. More: test_extending.py."""

import csv
import json

import pytest
import torch
import yaml

from tests.runner import FIT, SHORT, only_run, succeed

MINE = '''
import lightning as L, numpy as np, torch
from torch import nn
from torch.nn import functional as F
from lra_ssm.datamodules import SequenceData
from lra_ssm.layers import NetworkSpec
from lra_ssm.layers.spec import BlockFactory, LayerFactory, NetworkFactory
from lra_ssm.models import Backbone
from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.optim import optimizer_and_schedule


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


class Counting(SequenceData):
    """A dataset without labels: every sequence counts up."""

    sources, vocab_size = ("generated",), 70_000

    source: str = "generated"
    batch_size: int = 4

    def examples(self):
        for name in ("train", "val", "test"):
            for start in range(20):
                yield name, np.arange(9) + 3_000 * start, None
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


OWN = {
    "block": ["--model.network.block=tests.helpers.PlainBlock", "--model.network.block.scale=0.5"],
    "network": ["--model.network=tests.helpers.Bag", "--model.network.layer=tests.helpers.Smooth",
                "--model.network.width=6", "--check_layer=false"],
    "head": ["--model.network.head=tests.helpers.Deep", "--model.network.head.width=7"],
}  # fmt: skip


@pytest.mark.parametrize("part", [pytest.param("block", marks=pytest.mark.slow), "network", "head"])
def test_parts_of_ones_own_by_class_path(part, tmp_path):
    from lra_ssm.layers import NetworkSpec

    succeed([*FIT, *SHORT, *OWN[part]], tmp_path)
    saved = yaml.safe_load((only_run(tmp_path) / "config.yaml").read_text())["model"]["init_args"]["network"]
    checkpoint = torch.load(only_run(tmp_path) / "checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["hyper_parameters"]["network"] == NetworkSpec.of(saved).as_dict()
    if part == "block":
        assert saved["init_args"]["block"] == {"class_path": "tests.helpers.PlainBlock", "init_args": {"scale": 0.5}}
    elif part == "head":
        assert checkpoint["state_dict"]["network.head.0.weight"].shape == (7, 8)
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
