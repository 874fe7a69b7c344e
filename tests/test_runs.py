"""A run without the commands: a notebook's own Trainer, in three lines."""

import json
import os
import re
from datetime import datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

from lra_ssm.datamodules import ListOps
from lra_ssm.errors import InputError
from lra_ssm.layers import B2S6, BlockSpec, LayerSpec, NetworkSpec, S4Block
from lra_ssm.models import Classifier
from lra_ssm.runs import CheckpointSettings, Run, provenance
from lra_ssm.runs.directory import RunDirectory
from lra_ssm.tasks import Classification, OptimizerSettings

QUIET = {
    "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def alone(monkeypatch, here):
    """A working folder and a seed of its own; tests before have left theirs in the environment."""
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")


def parts(root, lr=0.01, seed=1):
    seed_everything(seed, verbose=False)
    network = NetworkSpec(
        Classifier, layer=LayerSpec(B2S6, num_blocks=2, d_state=4), num_classes=10, vocab_size=18, d_model=8,
        n_layers=1, block=BlockSpec(S4Block, dropout=0.2),
    )  # fmt: skip
    task = Classification(network, OptimizerSettings(lr=lr, warmup_steps=2))
    data = ListOps(
        root=str(root), batch_size=8, length_bounds=(3, 20), max_depth=3, num_train=44, num_val=20, num_test=20
    )
    return task, data


def fit(root, path="runs/mine/a", checkpoints=None, trainer=None, **settings):
    """Fit the run of a path; return it and the metrics."""
    task, data = parts(root, **settings)
    run = Run(path, checkpoints)
    return run, run.fit(Trainer(**run.trainer_arguments(**{**QUIET, "max_epochs": 2, **(trainer or {})})), task, data)


def test_a_run_leaves_what_the_commands_leave_and_is_not_trained_twice(data, curves, tmp_path, capsys, recwarn):
    own = [ModelCheckpoint(dirpath=tmp_path / "own", monitor="val/loss"), ModelCheckpoint(save_last=True)]
    run, metrics = fit(data, trainer={"callbacks": own})
    assert not [one for one in recwarn if re.search("many workers|LeafSpec|srun", str(one.message))]
    assert {p.name for p in run.path.iterdir() if p.name[0] != "."} == {
        "config.yaml", "run.json", "progress.json", "metrics.csv", "curves.png", "checkpoints", "own_checkpoints",
    }  # fmt: skip
    assert list((tmp_path / "own").glob("*.ckpt")) and Path(own[1].last_model_path).parent.name == "own_checkpoints"
    record, (task, _) = run.record, parts(data)
    assert record["status"] == "finished" and record["metrics"] == metrics and "stop" not in record
    assert "train/loss_epoch" in metrics and not {"train/loss", "lr/base"} & metrics.keys()
    assert record["parameters"] == sum(p.numel() for p in task.parameters())
    assert record["weights"] == {}
    assert run.began_with["model"]["init_args"]["network"]["init_args"]["d_model"] == 8
    assert f"finished: {run.path}" in capsys.readouterr().out
    before = run.last.stat().st_mtime_ns
    assert fit(data, trainer={"callbacks": own})[1] == metrics and run.last.stat().st_mtime_ns == before
    assert "is finished" in capsys.readouterr().out


def test_a_run_of_other_settings_needs_another_name(data):
    fit(data)
    for changed, difference in (
        ({"lr": 0.02}, "model.optimizer.lr 0.01 there, 0.02 here"),
        ({"trainer": {"max_epochs": 3}}, "trainer.max_epochs 2 there, 3"),
        ({"seed": 2}, "seed_everything 1 there, 2 here"),
    ):
        line = f"runs/mine/a began with other settings: {difference}.*; give this one another name"
        with pytest.raises(InputError, match=line):
            fit(data, **changed)


def test_a_run_records_how_each_attempt_ended(data):
    def stop_at_7(trainer, *_):
        if trainer.global_step == 7:
            raise failure from KeyError("the first cause")

    failure, callback = RuntimeError("stopped here"), Callback()
    callback.on_train_batch_end = stop_at_7
    given = ("runs/mine/cut", CheckpointSettings(every_n_steps=2), {"callbacks": [callback]})
    with pytest.raises(RuntimeError, match="stopped here") as raised:
        fit(data, *given)
    assert raised.value is failure and isinstance(raised.value.__cause__, KeyError)  # Python's own traceback
    run = Run(given[0])
    record, (start,) = run.record, run.record["starts"]
    assert record["status"] == "failed" and "stopped here" in record["reason"] and start["time"] <= start["ended"]
    # A killed attempt has written no end: that is when it last wrote how far it was.
    last = (datetime.fromisoformat(start.pop("ended")) + timedelta(hours=1)).isoformat()
    (run.path / "run.json").write_text(json.dumps({**record, "status": "started", "starts": [start]}))
    progress = json.loads((run.path / "progress.json").read_text())
    assert progress["step"] == 7 and progress["of"] == 12 and progress["rate"] > 0
    (run.path / "progress.json").write_text(json.dumps(progress | {"time": last}))
    del callback.on_train_batch_end
    resumed, _ = fit(data, *given)
    killed, finished = resumed.record["starts"]
    assert resumed.finished and killed["ended"] == last and finished["ended"] >= finished["time"]
    assert "reason" not in resumed.record


def test_what_does_not_fit_is_said_before_anything_is_written(tmp_path, data):
    for arguments, message in (
        ({"max_epochs": -1, "max_time": "00:01:00:00"}, "give trainer.max_epochs or trainer.max_steps"),
        ({"fast_dev_run": True}, "fast_dev_run saves nothing"),
    ):
        with pytest.raises(InputError, match=message):
            fit(data, trainer=arguments)
    with pytest.raises(InputError, match="this Trainer saves nothing in the run"):
        Run("runs/mine/a").fit(Trainer(**QUIET, max_epochs=2, logger=False), *parts(data))
    os.environ.pop("PL_GLOBAL_SEED")
    run = Run("runs/mine/a")
    trainer = Trainer(**run.trainer_arguments(max_epochs=1, accelerator="cpu"))
    with pytest.raises(InputError, match="call lightning.seed_everything"):
        run.fit(trainer, LightningModule(), LightningDataModule())
    assert not (tmp_path / "runs").exists()


def test_a_start_that_fails_gives_the_directory_back_and_leaves_no_reason(data):
    full = mock.Mock(side_effect=InputError("the disk is full"))
    with mock.patch("lra_ssm.runs.run.environment", full), pytest.raises(InputError, match="the disk is full"):
        fit(data)
    assert Run("runs/mine/a").record == {"status": "failed", "reason": "the disk is full"}
    run, _ = fit(data)
    assert run.finished and "reason" not in run.record
    RunDirectory(run.path).lock()  # it is free


def test_a_held_run_names_its_holder(tmp_path):
    held = RunDirectory(tmp_path)
    held.lock()
    for holder in (f"process {os.getpid()} on .* since 20", r"process \? on \? since \?"):
        with pytest.raises(InputError, match=f"{tmp_path} is in use by {holder}"):
            RunDirectory(tmp_path).lock()
        (tmp_path / ".holder.json").write_text("{")  # damaged
    held.release()
    RunDirectory(tmp_path).lock()


def test_the_code_version_is_of_what_computes(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    computes = ("ops/a.py", "ops/backends/native/a.cpp", "callbacks.py")
    versions = {provenance.code_version.__wrapped__()}
    for name in (*computes, "tables.py", "cli/help.py", "runs/run.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
        versions.add(provenance.code_version.__wrapped__())
    assert len(versions) == 1 + len(computes)
