"""A fit that is told to stop saves its step, says so in one line, and resumes as if nobody had told it.

tiny.yaml has 2 epochs of 6 batches and validates at the end of each.
"""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything

from lra_ssm.runs import Run
from lra_ssm.runs.record import read_metrics
from tests.interrupted import ENDS, assert_same, outcome, scontrol, state
from tests.runner import FIT, only_run, run, run_here, succeed
from tests.test_runs import QUIET, parts

SAVES_NEVER = "--checkpoint.every_n_steps=1000"  # but around validations and at the end of an epoch
SLOW = pytest.mark.slow


# moment -> the step that is saved, with tiny.yaml's six batches an epoch
MOMENTS = {
    "train_batch_end:4": 4,
    "train_batch_start:4": 3,  # before a batch: it has not begun
    "train_batch_end:6": 6,  # before the validation at the end of an epoch, whose end is waited for
    "validation_batch_start:2": 6,
    "validation_batch_end:3": 6,
    "save_checkpoint:1": 5,
    "train_epoch_end:1": 6,
    "train_batch_end:7": 7,
    "validation_end:1": 6,
}
SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1")
ENDED_BY = ("epochs", "steps", "validation within epochs", "accumulated")
CASES = [  # one by one across the table by default, the others with `pytest -m slow` and `-m trials`
    pytest.param(
        end,
        moment,
        SIGNALS[i % 3],
        marks=[] if (i + j) % 8 == 3 and i > 2 else [(pytest.mark.trials, SLOW)[(i + j) % 4 == 1]],
    )
    for j, end in enumerate(ENDED_BY)
    for i, moment in enumerate(MOMENTS)
]


def signalled(command: list[str], folder: Path, moment: str, name: str = "SIGTERM") -> str:
    """What a command in this process says of its end by a signal: one line, the last one."""
    with mock.patch.dict(os.environ, KILL_AT=moment, KILL_WITH=name):
        result = run_here(command, folder)
    assert result.code == 128 + signal.Signals[name], result.err[-2000:]
    (line,) = [line for line in result.err.splitlines() if line.startswith("lra-ssm: ")]
    assert result.err.strip().endswith(line) and "Traceback" not in result.err, result.err
    return line.removeprefix("lra-ssm: ")


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize(("end", "moment", "name"), CASES)
def test_a_signal_saves_the_step_and_the_run_resumes_bit_identical(end, moment, name, tmp_path, data, uninterrupted):
    command = [*FIT, f"--data.root={data}", SAVES_NEVER, *ENDS[end]]
    line = signalled(command, tmp_path, moment, name)
    record, step = state(tmp_path)
    assert line.startswith(f"stopped by {name} at step {step}, saved; the same command resumes from ")
    assert record["status"] == "interrupted" and not list(tmp_path.rglob(".unfinished-*"))
    if end == "epochs":
        assert step == MOMENTS[moment]
    succeed(command, tmp_path)
    assert_same(outcome(tmp_path), uninterrupted(end).outcome)


@pytest.mark.parametrize(
    "averages", [pytest.param("--trainer.callbacks+=lightning.pytorch.callbacks.EMAWeightAveraging", marks=SLOW),
                 "--model.optimizer.ema_decay=0.9"]
)  # fmt: skip
def test_a_signal_while_averaged_weights_are_validated_exchanges_nothing(averages, tmp_path, data):
    """The model has the average then, and the callback the weights."""
    command, ends = [*FIT, f"--data.root={data}", SAVES_NEVER, averages], []
    for folder in (tmp_path / "whole", tmp_path / "stopped"):
        folder.mkdir()
        if folder.name == "stopped":
            signalled(command, folder, "validation_batch_start:3")
        succeed(command, folder)
        ends.append(outcome(folder))
    assert_same(*ends)
    assert any(name.startswith("trained ") for name in ends[0].last)


def test_slurm_queues_the_job_again_when_it_is_saved(tmp_path, data):
    slurm = {"SLURM_NTASKS": "1", "SLURM_JOB_NAME": "fit", "SLURM_JOB_ID": "12", "SLURM_PROCID": "0",
             "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_ARRAY_JOB_ID": "11", "SLURM_ARRAY_TASK_ID": "3",
             **scontrol(tmp_path)}  # fmt: skip
    command, asked = [*FIT, f"--data.root={data}"], tmp_path / "asked"
    with mock.patch.dict(os.environ, slurm):
        line = signalled(command, tmp_path, "train_batch_end:4", "SIGUSR1")
        assert line.startswith("stopped by SIGUSR1 at step 4, saved; ")
        assert asked.read_text().startswith("requeue 11_3\n") and '"status": "interrupted"' in asked.read_text()
        assert not list(tmp_path.rglob("hpc_ckpt*"))
        asked.unlink()
        signalled(command, tmp_path, "train_batch_end:2")
        assert not asked.exists()  # scancel: nobody wants it again


@pytest.mark.parametrize(
    "flags",
    [
        ["--trainer.max_steps=3"],
        ["--trainer.max_steps=3", "--trainer.val_check_interval=7", "--trainer.check_val_every_n_epoch=null"],
        pytest.param(["--trainer.max_steps=8", "--trainer.max_epochs=-1"], marks=SLOW),
        ["--trainer.max_epochs=1", "--trainer.check_val_every_n_epoch=5"],
        pytest.param(["--trainer.max_steps=4", "--trainer.val_check_interval=4"], marks=SLOW),
    ],
)
def test_a_run_validates_at_its_last_step_once_and_its_best_is_found(flags, tmp_path, data):
    command = [*FIT[1:], f"--data.root={data}", *flags]
    succeed(["fit", *command], tmp_path)
    steps = [int(row["step"]) for row in read_metrics(only_run(tmp_path) / "metrics.csv") if row["val/loss"]]
    record, end = state(tmp_path)
    assert steps[-1] == end - 1 and len(set(steps)) == len(steps)
    assert {"val/accuracy", "best val/accuracy"} <= record["metrics"].keys() and "stop" not in record
    assert "test/accuracy" in succeed(["test", *command], tmp_path).out


EARLY = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/loss", "--trainer.callbacks.patience=1",
         "--trainer.callbacks.mode=max", "--trainer.callbacks.min_delta=9", "--trainer.max_epochs=9"]  # fmt: skip


def test_a_run_that_stopped_early_and_was_killed_before_its_end_does_not_train_on(tmp_path, data):
    command = [*FIT, f"--data.root={data}", *EARLY]
    assert run(command, tmp_path, {"KILL_AT": "train_end:1"}).code == -signal.SIGKILL
    assert state(tmp_path)[0]["status"] == "started" and state(tmp_path)[1] == 12
    result = succeed(command, tmp_path)
    reason = "stopped at step 12: val/loss did not improve in 1 validation"
    record, step = state(tmp_path)
    assert (record["status"], record["stop"], step) == ("finished", reason, 12) and reason in result.out
    assert "val/loss" in record["metrics"]
    assert reason in succeed(command, tmp_path).out  # it is finished


def handlers() -> dict:
    return {name: signal.getsignal(signal.Signals[name]) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")}


class Raise(Callback):
    """Sends this process signals after a step; keeps the handlers that it finds after every step."""

    def __init__(self, at: int = 0, *names: str) -> None:
        self.at, self.names, self.handlers = at, names, []

    def on_train_batch_end(self, trainer, *args):
        self.handlers.append(handlers())
        for name in self.names if trainer.global_step == self.at else ():
            signal.raise_signal(signal.Signals[name])


@pytest.fixture
def notebook(tmp_path, data, monkeypatch):
    """A run in a working folder of its own and its fit in this process, with a callback."""

    def made(name: str, callback: Callback) -> tuple[Run, Callable[[], dict]]:
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / name)
        seed_everything(0, verbose=False)
        task, module = parts(data)
        run = Run("runs/mine/a")
        own = run.trainer_arguments(**QUIET, max_epochs=2)
        own["callbacks"].append(callback)  # no setting of the run
        return run, lambda: run.fit(Trainer(**own), task, module)

    return made


def test_a_fit_in_python_is_saved_too_and_gets_its_handlers_back(notebook, capfd):
    before, ends = handlers(), []
    for name, error in (("none", None), ("SIGINT", KeyboardInterrupt), ("SIGTERM", SystemExit)):
        if error is not None:
            run, fit = notebook(name, stop := Raise(4, name))
            with pytest.raises(error):
                fit()
            assert f"lra-ssm: stopped by {name} at step 4, saved; " in capfd.readouterr().err
            assert handlers() == before and before not in stop.handlers and run.record["status"] == "interrupted"
            assert torch.load(run.last, weights_only=True)["global_step"] == 4
        run, fit = notebook(name, Raise())
        fit()
        assert handlers() == before
        ends.append(torch.load(run.last, weights_only=True)["state_dict"])
    assert all(torch.equal(each[name], ends[0][name]) for each in ends for name in ends[0])


def test_ctrl_c_a_second_time_has_its_usual_effect(notebook):
    """At once, also in a step that does not come to its end."""
    run, fit = notebook("twice", Raise(2, "SIGINT", "SIGINT"))
    with pytest.raises(KeyboardInterrupt):
        fit()
    assert not run.last.exists()


def test_a_fit_in_a_thread_takes_no_handlers(notebook):
    run, fit = notebook("thread", watch := Raise())
    thread = threading.Thread(target=fit)
    thread.start()
    thread.join()
    assert run.record["status"] == "finished" and watch.handlers == 12 * [handlers()]
