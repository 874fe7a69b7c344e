"""A run without the commands: a notebook's own Trainer, in three lines."""

import csv
import json
import os
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import LearningRateFinder, ModelCheckpoint, StochasticWeightAveraging

from lra_ssm.datamodules import ListOps
from lra_ssm.errors import InputError
from lra_ssm.layers import B2S6, BlockSpec, LayerSpec, NetworkSpec, S4Block
from lra_ssm.models import Classifier
from lra_ssm.runs import CheckpointSettings, Run
from lra_ssm.runs.directory import choose_directory
from lra_ssm.runs.provenance import now
from lra_ssm.tasks import Classification, OptimizerSettings

QUIET = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
}


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """A working folder and a seed of its own; tests before have left theirs in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")


@pytest.fixture
def root(data):
    return data


def parts(root, lr=0.01, vocab_size=18, seed=1):
    seed_everything(seed, verbose=False)
    network = NetworkSpec(
        Classifier, layer=LayerSpec(B2S6, num_blocks=2, d_state=4), num_classes=10, vocab_size=vocab_size, d_model=8,
        n_layers=1, block=BlockSpec(S4Block, dropout=0.2),
    )  # fmt: skip
    task = Classification(network, OptimizerSettings(lr=lr, warmup_steps=2))
    data = ListOps(
        root=str(root), batch_size=8, length_bounds=(3, 20), max_depth=3, num_train=44, num_val=20, num_test=20
    )
    return task, data


class Stop(Callback):
    def __init__(self, at=None):
        self.step = at  # not a setting, by its name: the run stays the same

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.step:
            raise RuntimeError("stopped here")


def fit(root, path="runs/mine/a", checkpoints=CheckpointSettings(), trainer=None, **settings):  # noqa: B008
    """Fit the run of a path; return it and the metrics."""
    task, data = parts(root, **settings)
    run = Run(path, checkpoints)
    return run, run.fit(Trainer(**run.trainer_arguments(**{**QUIET, "max_epochs": 2, **(trainer or {})})), task, data)


def weights(run):
    return torch.load(run.last, weights_only=True)["state_dict"]


def test_a_run_leaves_what_the_commands_leave_and_is_not_trained_twice(data, curves, capsys, recwarn):
    run, metrics = fit(data)
    assert not [one for one in recwarn if re.search("many workers|LeafSpec|srun", str(one.message))]
    assert {p.name for p in run.path.iterdir() if p.name[0] != "."} == {
        "config.yaml", "run.json", "progress.json", "metrics.csv", "curves.png", "checkpoints",
    }  # fmt: skip
    record = json.loads((run.path / "run.json").read_text())
    assert record["status"] == "finished" and record["metrics"] == metrics
    assert record["inputs"] == {"data": {}, "weights": {}}  # a publisher's data is not looked at
    assert 0 <= metrics["best val/accuracy"] <= 1 and record["data"]["dataset"] == "listops"
    assert record["best"]["file"] == "best.ckpt" and len(record["best"]["sha256"]) == 64
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    assert config["model"]["init_args"]["network"]["init_args"]["d_model"] == 8 and config["seed_everything"] == 1
    network = record["identity"]["model"]["init_args"]["network"]["init_args"]
    assert network["d_model"] == 8 and "padding" not in network  # which is as by default
    with open(run.path / "metrics.csv", newline="") as file:
        assert max(int(row["step"]) for row in csv.DictReader(file)) == 11
    out = capsys.readouterr().out
    assert "recurrent, delta" in out and f"finished: {run.path}" in out
    before = run.last.stat().st_mtime_ns
    _, repeated = fit(data)
    assert repeated == metrics and run.last.stat().st_mtime_ns == before
    assert "is finished" in capsys.readouterr().out


@pytest.mark.parametrize(("changed", "told"), [({"lr": 0.02}, "model.optimizer.lr 0.01 there, 0.02 here"),
                                               ({"trainer": {"max_epochs": 3}}, "trainer.max_epochs 2 there, 3"),
                                               ({"seed": 2}, "seed_everything 1 there, 2 here")])  # fmt: skip
def test_a_run_of_other_settings_needs_another_name(changed, told, data):
    fit(data)
    with pytest.raises(
        InputError, match=f"runs/mine/a began with other settings: {told}.*; give this one another name"
    ):
        fit(data, **changed)


def test_fresh_runs_are_numbered(tmp_path):
    folder = tmp_path / "runs"
    assert choose_directory(folder, "id") == folder / "id" and choose_directory(folder, "id", True) == folder / "id-2"
    (folder / "id-2").mkdir(parents=True)
    assert choose_directory(folder, "id", True) == folder / "id-2"  # begun, and resumed by the same command
    (folder / "id-2/run.json").write_text('{"status": "finished"}')
    assert choose_directory(folder, "id", True) == folder / "id-3"


def test_a_run_that_was_cut_off_ends_as_one_that_was_not(root):
    whole, expected = fit(root, "runs/mine/whole")
    stop = Stop(7)
    given = ("runs/mine/cut", CheckpointSettings(every_n_steps=2), {"callbacks": [stop]})
    with pytest.raises(RuntimeError, match="stopped here"):
        fit(root, *given)
    record = Run(given[0]).record
    assert record["status"] == "failed" and "stopped here" in record["reason"]
    stop.step = None
    resumed, metrics = fit(root, *given)
    assert resumed.finished and len(resumed.record["starts"]) == 2
    ours, theirs = weights(resumed), weights(whole)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    timed = "train/samples_per_s"
    assert {**metrics, timed: 0} == {**expected, timed: 0}


def test_what_does_not_fit_is_said_before_anything_is_written(tmp_path, root):
    with pytest.raises(InputError, match="model.network.vocab_size is 17, but ListOps has 18"):
        fit(root, vocab_size=17)
    task, data = parts(root)
    with pytest.raises(InputError, match="this Trainer keeps nothing in the run"):
        Run("runs/mine/a").fit(Trainer(**QUIET, max_epochs=2, logger=False), task, data)
    os.environ.pop("PL_GLOBAL_SEED")
    run = Run("runs/mine/a")
    trainer = Trainer(**run.trainer_arguments(max_epochs=1, accelerator="cpu"))
    with pytest.raises(InputError, match="call lightning.seed_everything"):
        run.fit(trainer, LightningModule(), LightningDataModule())
    assert not (tmp_path / "runs").exists()
    with pytest.raises(InputError, match="checkpoint.every_n_steps is 0"):
        CheckpointSettings(every_n_steps=0)


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"max_epochs": -1, "max_time": "00:01:00:00"}, "give trainer.max_epochs or trainer.max_steps"),
        ({"fast_dev_run": True}, "fast_dev_run leaves nothing"),
        ({"max_epochs": 1, "callbacks": [LearningRateFinder()]}, "LearningRateFinder sets .* and would override"),
        ({"max_epochs": 1, "callbacks": [StochasticWeightAveraging(swa_lrs=0.1)]}, "sets .* and would override"),
    ],
)
def test_trainers_that_make_no_run(trainer, message):
    with pytest.raises(InputError, match=message):
        Run("runs/mine/a").trainer_arguments(**trainer)


def test_a_start_that_fails_gives_the_directory_back_and_leaves_no_reason(root, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(Run, "_record_of_start", lambda *_: (_ for _ in ()).throw(InputError("the disk is full")))
        with pytest.raises(InputError, match="the disk is full"):
            fit(root)
    assert Run("runs/mine/a").record == {"status": "failed", "reason": "the disk is full"}
    run, _ = fit(root)
    assert run.finished and not run.held and "reason" not in run.record


def test_the_record_says_how_large_it_is_and_when_each_attempt_ended(root):
    stop = Stop(2)
    given = ("runs/mine/a", CheckpointSettings(1), {"callbacks": [stop], "max_epochs": 1})
    with pytest.raises(RuntimeError, match="stopped here"):
        fit(root, *given)
    run = Run("runs/mine/a")
    (start,) = run.record["starts"]
    assert run.record["status"] == "failed" and start["time"] <= start["ended"] <= now()
    task, data = parts(root)
    assert run.record["parameters"] == sum(p.numel() for p in task.parameters())
    assert run.record["neutral"] == list(data.neutral_settings)
    # Killed, it would have written no end: that is when it wrote last how far it was.
    last = (datetime.fromisoformat(start["time"]) + timedelta(hours=1)).isoformat()
    run.write_record(status="started", starts=[{k: v for k, v in start.items() if k != "ended"}])
    progress = json.loads((run.path / "progress.json").read_text())
    (run.path / "progress.json").write_text(json.dumps(progress | {"time": last}))
    stop.step = None
    again, _ = fit(root, *given)
    killed, finished = again.record["starts"]
    assert killed["ended"] == last and finished["ended"] >= finished["time"]


def test_a_checkpoint_of_ones_own_stands_beside_the_runs(tmp_path, root):
    own = [ModelCheckpoint(dirpath=tmp_path / "own", monitor="val/loss"), ModelCheckpoint(save_last=True)]
    run, metrics = fit(root, trainer={"callbacks": own, "max_epochs": 1})
    assert "best val/accuracy" in metrics and list((tmp_path / "own").glob("*.ckpt")) and run.best.is_file()
    assert Path(own[1].last_model_path).parent == run.path / "own_checkpoints"


def test_a_held_run_names_its_holder_and_a_failed_one_its_reason(root):
    run, _ = fit(root)
    first, second = Run(run.path), Run(run.path)
    first.lock()
    with pytest.raises(InputError, match=f"in use by process {os.getpid()} on "):
        second.lock()
    first.fail("no disk")
    second.fail("not mine to say")
    first.close()
    record = json.loads((run.path / "run.json").read_text())
    assert record["status"] == "failed" and record["reason"] == "no disk"


def test_a_damaged_record_is_named_and_not_repaired(tmp_path):
    (tmp_path / "run.json").write_text('{"status": "fini')
    with pytest.raises(InputError, match="run.json is damaged: it is cut off or overwritten"):
        _ = Run(tmp_path).finished
    assert (tmp_path / "run.json").read_text() == '{"status": "fini'


def test_the_code_version_is_of_what_computes(tmp_path, monkeypatch):
    from lra_ssm.runs import provenance

    package = tmp_path / "lra_ssm"
    files = ("ops/a.py", "ops/backends/native/a.cpp", "callbacks.py", "tables.py", "cli/help.py", "runs/run.py")
    for name in files:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("1")
    monkeypatch.setattr(provenance, "_ROOT", package)
    seen = {}
    for name in (None, *files):
        if name:
            (package / name).write_text("2")
        provenance.code_version.cache_clear()
        seen[name] = provenance.code_version()
        if name:
            (package / name).write_text("1")
    provenance.code_version.cache_clear()
    changed = {name for name in files if seen[name] != seen[None]}
    assert changed == {"ops/a.py", "ops/backends/native/a.cpp", "callbacks.py"}


class Failing(Callback):
    def __init__(self, error):
        self.error = error

    def on_train_batch_start(self, *args):
        try:
            {}["the first cause"]
        except KeyError:
            raise self.error  # noqa: B904


@pytest.mark.parametrize("error", [RuntimeError("broken"), FileNotFoundError(2, "No such file", "x")], ids=repr)
def test_an_error_reaches_a_notebook_as_itself_with_its_context(error, root):
    with pytest.raises(type(error)) as raised:
        fit(root, trainer={"callbacks": [Failing(error)]})
    assert raised.value is error and isinstance(error.__context__, KeyError)
    assert Run("runs/mine/a").record["status"] == "failed"
