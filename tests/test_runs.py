"""A run without the commands: a notebook's own Trainer, in three lines."""

import csv
import json
import os
import re
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, LearningRateFinder, ModelCheckpoint, StochasticWeightAveraging

from lra_ssm.datamodules import ListOps
from lra_ssm.errors import InputError
from lra_ssm.layers import B2S6, BlockSpec, LayerSpec, NetworkSpec, S4Block
from lra_ssm.models import Classifier
from lra_ssm.runs import CheckpointSettings, Run
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
        self.at = at

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.at:
            raise RuntimeError("stopped here")


def made(root, checkpoints=CheckpointSettings(), **trainer):  # noqa: B008
    """A run of one epoch, and what fits it: the same task at every call."""
    task, data = parts(root)
    run = Run.of(task, data, trainer={**QUIET, "max_epochs": 1, **trainer}, checkpoints=checkpoints)
    return run, lambda: run.fit(Trainer(**run.trainer_arguments()), task, data)


def fit(root, fresh=False, **settings):
    task, data = parts(root, **settings)
    run = Run.of(task, data, trainer={**QUIET, "max_epochs": 2}, experiment="mine", fresh=fresh)
    return run, run.fit(Trainer(**run.trainer_arguments()), task, data)


def weights(run):
    return torch.load(run.last, weights_only=True)["state_dict"]


def test_a_run_leaves_what_the_commands_leave_and_is_not_trained_twice(tmp_path, data, curves, capsys, recwarn):
    run, metrics = fit(data)
    assert not [one for one in recwarn if re.search("many workers|LeafSpec|srun", str(one.message))]
    assert run.path.parent == tmp_path.joinpath("runs/mine").relative_to(tmp_path)
    assert {p.name for p in run.path.iterdir() if p.name[0] != "."} == {
        "config.yaml", "run.json", "progress.json", "metrics.csv", "curves.png", "checkpoints",
    }  # fmt: skip
    record = json.loads((run.path / "run.json").read_text())
    assert record["status"] == "finished" and record["metrics"] == metrics
    assert record["inputs"] == {"data": {}, "weights": {}}  # a publisher's data is not looked at
    assert 0 <= metrics["best val/accuracy"] <= 1 and record["data"]["dataset"] == "listops"
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    assert config["model"]["init_args"]["network"]["init_args"]["d_model"] == 8 and config["seed_everything"] == 1
    with open(run.path / "metrics.csv", newline="") as file:
        assert max(int(row["step"]) for row in csv.DictReader(file)) == 11
    out = capsys.readouterr().out
    assert "recurrent, delta" in out and f"finished: {run.path}" in out
    before = run.last.stat().st_mtime_ns
    again, repeated = fit(data)
    assert again.path == run.path and repeated == metrics and run.last.stat().st_mtime_ns == before
    assert "is finished" in capsys.readouterr().out
    other, _ = fit(data, fresh=True)
    assert other.path.name == f"{run.path.name}-2"
    assert "LRA_SSM_RUN_PATH" not in os.environ


def test_a_run_that_was_cut_off_ends_as_one_that_was_not(root):
    whole, expected = fit(root)
    stop = Stop(7)
    resumed, start = made(root, CheckpointSettings(every_n_steps=2), max_epochs=2, callbacks=[stop])
    with pytest.raises(RuntimeError, match="stopped here"):
        start()
    assert resumed.record["status"] == "failed" and "raised RuntimeError: stopped here" in resumed.record["reason"]
    stop.at = None
    metrics = start()
    assert resumed.finished and len(resumed.record["starts"]) == 2
    ours, theirs = weights(resumed), weights(whole)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    timed = "train/samples_per_s"
    assert {**metrics, timed: 0} == {**expected, timed: 0}


def test_what_decides_the_result_decides_the_run(tmp_path):
    def of(trainer=None, settings=None, **changed):
        task, data = parts(tmp_path, **changed)
        return Run.of(task, data, trainer={**QUIET, "max_epochs": 2, **(trainer or {})}, settings=settings).path.name

    same = of()
    assert of({"enable_progress_bar": True, "logger": False}) == same
    callbacks = [[Stop(3)], [Stop(4)], [EarlyStopping("val/loss", patience=1)], [EarlyStopping("val/loss", patience=2)]]
    others = [of(seed=2), of(lr=0.02), of({"max_epochs": 3}), *(of({"callbacks": c}) for c in callbacks)]
    values = [1, np.float32(0.1), np.float32(0.2), Path("a"), Path("b"), {1, 2}, sum, max, {"b": 1}]
    others += [of(settings={"a": value}) for value in values]
    assert len({same, *others}) == 1 + len(others)
    assert of({"callbacks": [Stop(3)]}) == others[3]  # not by where it lies in memory
    assert of({"max_steps": -1, "strategy": "auto"}) == same  # the Trainer's own defaults
    with pytest.raises(InputError, match=r"settings.a is a Tensor: give it as plain values"):
        of(settings={"a": torch.zeros(2)})
    elsewhere, data = parts(tmp_path)
    data.root = tmp_path / "elsewhere"
    assert Run.of(elsewhere, data, trainer={**QUIET, "max_epochs": 2}).path.name == same


def test_objects_in_settings_are_told_apart_or_refused(tmp_path):
    class Turn:
        def __init__(self, degrees):
            self.degrees = degrees

    def of(value):
        return Run.of(*parts(tmp_path), trainer={"max_epochs": 1}, settings={"a": value}).path.name

    values = [[Turn(10)], [Turn(20)], partial(pow, 1), partial(pow, 2), {1: 2, "1": 3}, {"1": 3}, timedelta(1)]
    assert len({of(value) for value in values}) == len(values) and of([Turn(10)]) == of([Turn(10)])
    for value in (lambda: 1, Turn(1).__init__, np.zeros(2), object()):
        with pytest.raises(InputError, match="settings.a is a .*: give it as plain values"):
            of(value)
    stop = EarlyStopping("val/loss", patience=1)
    before = Run.of(*parts(tmp_path), trainer={"max_epochs": 1, "callbacks": [stop]}).path
    stop.wait_count, stop.stopped_epoch = 7, 3  # what a fit makes of it
    again = {"max_epochs": 1, "callbacks": [stop], "max_time": timedelta(hours=1)}
    assert Run.of(*parts(tmp_path), trainer=again).path == before


def test_a_run_within_a_run_and_beside_one_is_its_own(root, monkeypatch):
    task, data = parts(root)
    trainer = {**QUIET, "max_epochs": 1}
    outer = Run.of(task, data, trainer=trainer, experiment="outer")
    data.prepare_data()
    outer.begin(Trainer(**outer.trainer_arguments()), task, data)
    other, _ = parts(root, lr=0.5)
    inner = Run.of(other, data, trainer=trainer, experiment="inner")
    assert inner.path.parts[-2] == "inner"
    inner.begin(Trainer(**inner.trainer_arguments()), other, data)
    inner.close()
    assert os.environ["LRA_SSM_RUN_PATH"] == str(outer.path)
    monkeypatch.setenv("LOCAL_RANK", "1")  # what Lightning starts beside the first process
    assert Run.find("runs", "outer", outer.path.name).path == outer.path
    assert Run.find("runs", "other", "0123456789").path.parts[-2] == "other"
    outer.close()
    assert "LRA_SSM_RUN_PATH" not in os.environ


def test_a_task_that_was_trained_is_not_a_fresh_one(root):
    _, start = made(root, CheckpointSettings(100), callbacks=[Stop(1)])
    with pytest.raises(RuntimeError, match="stopped here"):
        start()
    with pytest.raises(InputError, match="this task was trained before, and there is no checkpoint .* build it anew"):
        start()
    run, start = made(root)
    longer = Trainer(**{**run.trainer_arguments(), "max_epochs": 5})
    with pytest.raises(InputError, match="this Trainer's max_epochs is 5, the run's another"):
        run.fit(longer, *parts(root))
    seed_everything(7, verbose=False)
    with pytest.raises(InputError, match="the seed is 7, the run's is 1"):
        start()


def test_what_does_not_fit_is_said_before_anything_is_written(tmp_path, root):
    with pytest.raises(InputError, match="model.network.vocab_size is 17, but ListOps has 18"):
        fit(root, vocab_size=17)
    assert not (tmp_path / "runs").exists()
    os.environ.pop("PL_GLOBAL_SEED")
    with pytest.raises(InputError, match="call lightning.seed_everything"):
        Run.of(LightningModule(), LightningDataModule(), trainer={})
    with pytest.raises(InputError, match="checkpoint.every_n_steps is 0"):
        CheckpointSettings(every_n_steps=0)


class Own(LightningDataModule):
    def __init__(self, scale=1):
        super().__init__()


def test_data_that_says_nothing_of_itself_is_refused_or_told_by_settings(tmp_path):
    task, _ = parts(tmp_path)
    with pytest.raises(InputError, match="Own takes arguments and keeps none, .* call save_hyperparameters"):
        Run.of(task, Own(2), trainer={"max_epochs": 1})
    one, two = (Run.of(task, Own(s), trainer={"max_epochs": 1}, settings={"scale": s}).path.name for s in (1, 2))
    assert one != two


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"max_epochs": -1, "max_time": "00:01:00:00"}, "give trainer.max_epochs or trainer.max_steps"),
        ({"fast_dev_run": True}, "fast_dev_run leaves nothing"),
    ],
)
def test_trainers_that_make_no_run(trainer, message, tmp_path):
    with pytest.raises(InputError, match=message):
        Run.of(*parts(tmp_path), trainer=trainer)


def test_a_run_takes_no_other_parts(tmp_path, root):
    task, data = parts(root)
    run = Run.of(task, data, trainer={**QUIET, "max_epochs": 2})
    with pytest.raises(InputError, match="this Trainer keeps nothing in the run"):
        run.fit(Trainer(**QUIET, max_epochs=2, logger=False), task, data)
    with pytest.raises(InputError, match="is a run of another Classification"):
        run.fit(Trainer(**run.trainer_arguments()), parts(root, lr=0.3)[0], data)
    assert not (tmp_path / "runs").exists()


def test_what_numpy_computed_is_a_plain_value(root):
    task, data = parts(root, lr=np.geomspace(1e-3, 1e-2, 3)[1])
    arguments = {**QUIET, "max_epochs": 1, "gradient_clip_val": np.float64(0.5)}
    settings = {"grid": np.float64(0.25), "at": np.int64(3)}
    run = Run.of(task, data, trainer=arguments, checkpoints=CheckpointSettings(np.int64(2)), settings=settings)
    run.fit(Trainer(**run.trainer_arguments()), task, data)
    assert yaml.safe_load((run.path / "config.yaml").read_text())["settings"] == {"grid": 0.25, "at": 3}
    saved = torch.load(run.last, weights_only=True)["hyper_parameters"]["optimizer"]
    assert saved["lr"] == pytest.approx(10**-2.5) and type(saved["lr"]) is float


def test_a_start_that_fails_gives_the_directory_back_and_leaves_no_reason(root, monkeypatch):
    run, start = made(root)
    with monkeypatch.context() as broken:
        broken.setattr(Run, "save_config", lambda *_: (_ for _ in ()).throw(InputError("the disk is full")))
        with pytest.raises(InputError, match="the disk is full"):
            start()
    assert not run.held and "LRA_SSM_RUN_PATH" not in os.environ
    assert run.record == {"status": "failed", "reason": "the disk is full"}
    run, start = made(root)
    start()
    assert run.finished and "reason" not in run.record


def test_the_record_says_how_large_it_is_and_when_each_attempt_ended(root):
    task, data = parts(root)
    trainer = {**QUIET, "max_epochs": 1, "callbacks": [Stop(2)]}
    run = Run.of(task, data, trainer=trainer, checkpoints=CheckpointSettings(1))
    with pytest.raises(RuntimeError, match="stopped here"):
        run.fit(Trainer(**run.trainer_arguments()), task, data)
    (start,) = run.record["starts"]
    assert run.record["status"] == "failed" and start["time"] <= start["ended"] <= now()
    assert run.record["parameters"] == sum(p.numel() for p in task.parameters())
    assert run.record["neutral"] == list(data.neutral_settings)
    # Killed, it would have written no end: that is when it wrote last how far it was.
    last = (datetime.fromisoformat(start["time"]) + timedelta(hours=1)).isoformat()
    run.write_record(status="started", starts=[{k: v for k, v in start.items() if k != "ended"}])
    progress = json.loads((run.path / "progress.json").read_text())
    (run.path / "progress.json").write_text(json.dumps(progress | {"time": last}))
    trainer = {**QUIET, "max_epochs": 1, "callbacks": [Stop(100)]}
    again = Run.of(task, data, trainer=trainer, checkpoints=CheckpointSettings(1))
    again.path = run.path
    again.fit(Trainer(**again.trainer_arguments()), task, data)
    killed, finished = again.record["starts"]
    assert killed["ended"] == last and finished["ended"] >= finished["time"]


def test_a_checkpoint_of_ones_own_stands_beside_the_runs(tmp_path, root):
    own = [ModelCheckpoint(dirpath=tmp_path / "own", monitor="val/loss"), ModelCheckpoint(save_last=True)]
    run, start = made(root, callbacks=own)
    metrics = start()
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


def test_the_code_version_is_of_what_computes(tmp_path, monkeypatch):
    from lra_ssm.runs import provenance

    package = tmp_path / "lra_ssm"
    files = ("ops/a.py", "ops/backends/native/a.cpp", "callbacks.py", "tables.py", "cli/output.py", "runs/run.py")
    for name in files:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("1")
    monkeypatch.setattr(provenance, "__file__", str(package / "runs/provenance.py"))
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
    run, start = made(root, callbacks=[Failing(error)])
    with pytest.raises(type(error)) as raised:
        start()
    assert raised.value is error and isinstance(error.__context__, KeyError)
    assert run.record["status"] == "failed"


def test_callbacks_that_would_overrule_the_run_are_refused():
    task, data = parts("data")
    for callback in (LearningRateFinder(), StochasticWeightAveraging(swa_lrs=0.1)):
        with pytest.raises(InputError, match=f"{type(callback).__name__} sets .* and would overrule"):
            Run.of(task, data, {"max_epochs": 1, "callbacks": [callback]}).trainer_arguments()
