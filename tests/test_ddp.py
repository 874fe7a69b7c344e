"""Two processes (DDP on gloo) train, validate and test as one does with the same global batch."""

import json
from pathlib import Path

import pytest
import torch

from tests.runner import TINY, only_run, run_by, succeed

# 43 training examples in batches of 8 leave 3, 19 for validation and test leave 3: shares of two and one.
UNEVEN = ["--data.num_train=43", "--data.num_val=19", "--data.num_test=19", "--data.generator_seed=4"]
F1 = ["--model.metrics.f1=torchmetrics.classification.MulticlassF1Score", "--model.metrics.f1.num_classes=10"]
LOSS = ["--model.label_smoothing=0.1", "--model.class_weights=[1,2,3,4,5,5,4,3,2,1]", "--model.optimizer.ema_decay=0.5"]
# Dropout draws other masks in every process; float64 so that the order of sums hardly shows.
FLAGS = [*UNEVEN, *F1, *LOSS, "--model.network.block.dropout=0", "--trainer.precision=64-true"]
DEVICES = {1: ["--trainer.devices=1"], 2: ["--trainer.devices=2", "--trainer.strategy=ddp"]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The run directories of a fit and a test by one process and by two."""
    root, found = tmp_path_factory.mktemp("data") / "root", {}
    for devices, flags in DEVICES.items():
        folder = tmp_path_factory.mktemp(f"by-{devices}")
        for command in ("fit", "test"):
            line = [command, "--config", str(TINY), f"--data.root={root}", *FLAGS, *flags]
            if devices == 1:
                succeed(line, folder)
            else:
                assert all(result.code == 0 for result in run_by(devices, line, folder))
        found[devices] = only_run(folder)
    return found


def test_the_run_and_its_weights_are_the_same(runs: dict[int, Path]) -> None:
    assert runs[1].name == runs[2].name
    one, two = (torch.load(runs[n] / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for n in (1, 2))
    assert one.keys() == two.keys() and len(one) > 10
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-9, atol=1e-10, msg=name)


def test_the_means_of_an_epoch_count_every_example_once(runs: dict[int, Path]) -> None:
    one, two = (json.loads((runs[n] / "run.json").read_text())["metrics"] for n in (1, 2))
    means = {name: value for name, value in one.items() if name.endswith("_epoch")}
    assert means.keys() == {"train/loss_epoch", "train/accuracy_epoch"}
    assert {name: two[name] for name in means} == pytest.approx(means, rel=1e-6)
    assert means["train/accuracy_epoch"] * 43 == pytest.approx(round(means["train/accuracy_epoch"] * 43), abs=1e-5)


def test_every_example_is_scored_once(runs: dict[int, Path]) -> None:
    def metrics(devices: int) -> dict[str, float]:
        fit = json.loads((runs[devices] / "run.json").read_text())["metrics"]
        test = json.loads((runs[devices] / "test.json").read_text())
        assert test["data"]["examples"]["test"] == 19 and test["data"]["inputs"] == "tokens"
        return {name: value for name, value in fit.items() if name.startswith("val/")} | test["metrics"]

    one, two = metrics(1), metrics(2)
    assert {"val/accuracy", "val/loss", "test/accuracy", "test/loss"} <= one.keys()
    assert two == pytest.approx(one, rel=1e-6)
    assert one["test/accuracy"] * 19 == pytest.approx(round(one["test/accuracy"] * 19), abs=1e-5)
