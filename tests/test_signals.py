"""A run that is told to stop saves its step, says so in one line, and goes on as if nobody had told it.

tiny.yaml has 2 epochs of 6 batches and validates at the end of each.
"""

import csv
import json
import os
import signal
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from lightning.pytorch import Callback, Trainer, callbacks
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lra_ssm.cli import main
from lra_ssm.errors import InputError
from lra_ssm.runs import Run
from lra_ssm.runs.ending import ending
from tests.interrupted import ENDS, assert_same, outcome
from tests.runner import FIT, SHORT, Command, Result, only_run, run, run_here, succeed
from tests.test_runs import QUIET, parts

SAVES_NEVER = "--checkpoint.every_n_steps=1000"  # but at the end of an epoch: what is saved within was saved to stop


def state(folder: Path) -> tuple[dict, int]:
    """What the record says, and the step of last.ckpt (−1 for none)."""
    (run_folder,) = (folder / "runs/tiny").iterdir()
    last = run_folder / "checkpoints/last.ckpt"
    step = torch.load(last, weights_only=True)["global_step"] if last.is_file() else -1
    return json.loads((run_folder / "run.json").read_text()), step


def only_line(err: str) -> str:
    """What the command says of its end, in one line, the last one; before it Lightning says what it found."""
    (line,) = [line for line in err.splitlines() if line.startswith("lra-ssm: ")]
    assert err.strip().endswith(line) and "Traceback" not in err, err
    return line.removeprefix("lra-ssm: ")


# moment: what is done then, with tiny.yaml's six batches an epoch; the step that is saved where it is the same always
MOMENTS = {
    "train_batch_end:4": 4,
    "train_batch_start:4": 3,  # before a batch: it is not begun
    "train_batch_end:6": 6,  # before the validation at the end of an epoch
    "validation_batch_start:2": 6,
    "validation_batch_end:3": 6,
    "save_checkpoint:1": 6,
    "train_epoch_end:1": 6,
    "train_batch_end:7": 7,
    "validation_end:1": 6,
}
SIGNALS = {"SIGTERM": 143, "SIGINT": 130, "SIGUSR1": 138}
ENDED_BY = ("epochs", "steps", "validation within epochs", "accumulated")
CASES = [  # one by one across the table by default, the others with `pytest -m slow` and `-m trials`
    pytest.param(
        end,
        moment,
        list(SIGNALS)[i % 3],
        marks=[] if (i + j) % 8 == 3 and i > 2 else [(pytest.mark.trials, pytest.mark.slow)[(i + j) % 4 == 1]],
    )
    for j, end in enumerate(ENDED_BY)
    for i, moment in enumerate(MOMENTS)
]


def signalled(command: list[str], folder: Path, moment: str, name: str = "SIGTERM") -> Result:
    """A command in this process, which a signal ends."""
    with mock.patch.dict(os.environ, KILL_AT=moment, KILL_WITH=name):
        return run_here(command, folder)


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize(("end", "moment", "name"), CASES)
def test_a_signal_saves_the_step_and_the_run_goes_on_bit_identical(end, moment, name, tmp_path, data, uninterrupted):
    command = [*FIT, f"--data.root={data}", SAVES_NEVER, *ENDS[end]]
    result = signalled(command, tmp_path, moment, name)
    record, step = state(tmp_path)
    assert result.code == SIGNALS[name], result.err[-2000:]
    line = only_line(result.err)
    assert line.startswith(f"stopped by {name} at step {step}, saved; the same command goes on from ")
    assert record["status"] == "interrupted" and not list(tmp_path.rglob(".unfinished-*"))
    if end == "epochs":
        assert step == MOMENTS[moment]
    succeed(command, tmp_path)
    assert_same(outcome(tmp_path), uninterrupted(end).outcome)


CALLBACK = "--trainer.callbacks+="
MINE = """
from lightning.pytorch.callbacks import EMAWeightAveraging

class Mine(EMAWeightAveraging):
    def on_validation_epoch_start(self, *args):
        pass

    on_validation_epoch_end = on_validation_epoch_start

    def on_validation_start(self, trainer, pl_module):
        self._swap_models(pl_module)

    on_validation_end = on_validation_start
"""


@pytest.mark.skipif(not hasattr(callbacks, "EMAWeightAveraging"), reason="from Lightning 2.6 on")
@pytest.mark.parametrize(
    ("averages", "flags"),
    [
        pytest.param(f"{CALLBACK}lightning.pytorch.callbacks.EMAWeightAveraging", [], marks=pytest.mark.slow),
        pytest.param(
            f"{CALLBACK}lightning.pytorch.callbacks.WeightAveraging",
            ["--trainer.precision=64-true"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            f"{CALLBACK}mine.Mine",
            ["--trainer.val_check_interval=2", "--trainer.max_epochs=1"],
            marks=pytest.mark.slow,
        ),
        ("--model.optimizer.ema_decay=0.9", ["--model.optimizer.algorithm=Muon"]),
    ],
)
def test_a_signal_while_averaged_weights_are_validated_exchanges_nothing(averages, flags, tmp_path, data):
    """The model has the average then, and the callback (ours, Lightning's, or one of a user's, made of it) the
    weights."""
    command = [*FIT, f"--data.root={data}", SAVES_NEVER, averages, *flags]
    ends = []
    for folder in (tmp_path / "whole", tmp_path / "stopped"):
        folder.mkdir()
        (folder / "mine.py").write_text(MINE)
        if folder.name == "stopped":
            result = signalled(command, folder, "validation_batch_start:3")
            assert only_line(result.err).startswith("stopped by SIGTERM at step ")
        succeed(command, folder)
        last = torch.load(only_run(folder) / "checkpoints/last.ckpt", weights_only=True)
        both = last["state_dict"] | {f"raw {k}": w for k, w in last["current_model_state"].items()}
        ends.append(outcome(folder)._replace(last=both))
    assert_same(*ends)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("moment", "name"), [pytest.param("setup:1", "SIGINT", marks=SLOW), ("train_start:1", "SIGTERM")]
)
def test_a_signal_before_the_first_step_ends_the_command_and_nothing_is_lost(moment, name, tmp_path, data):
    command = [*FIT, f"--data.root={data}", *SHORT]
    result = run(command, tmp_path, {"KILL_AT": moment, "KILL_WITH": name})
    assert result.code == SIGNALS[name]
    assert only_line(result.err) == f"stopped by {name}; the same command goes on: nothing was saved yet"
    record, step = state(tmp_path)
    assert record["status"] == "interrupted" and step == -1
    succeed(command, tmp_path)


@pytest.mark.parametrize("command", ["test", pytest.param("validate", marks=SLOW), pytest.param("predict", marks=SLOW)])
def test_a_signal_ends_what_scores_a_run(command, trained):
    folder, _ = trained
    before = sorted(os.listdir(only_run(folder)))
    result = run([command, *FIT[1:], *SHORT], folder, {"KILL_AT": "setup:1", "KILL_WITH": "SIGTERM"})
    assert result.code == 143 and only_line(result.err) == "stopped by SIGTERM"
    assert sorted(os.listdir(only_run(folder))) == before


def started(arguments: list[str], folder: Path, env: dict[str, str]) -> Command:
    """The command, when it has printed "here"; when a signal comes is then no matter of speed."""
    command = Command(arguments, folder, env)
    while "here" not in command.out():
        assert command.process.is_alive(), command.wait()
        time.sleep(0.02)
    return command


def test_a_second_signal_ends_at_once_what_does_not_come_to_its_end(tmp_path, data):
    """Not even Python's handlers run where the main thread waits in a library, for processes that will not come."""
    waits = "echo here; sleep 60"  # os.system waits in C, whatever signal comes
    command = started([*FIT, f"--data.root={data}"], tmp_path, {"KILL_AT": "train_batch_end:4", "RUN": waits})
    os.kill(command.process.pid, signal.SIGTERM)
    time.sleep(0.5)  # two within a third of a second are one: launchers send two
    os.kill(command.process.pid, signal.SIGTERM)
    result = command.wait(timeout=20)
    assert result.code == 143 and only_line(result.err).startswith("ended at once by a second SIGTERM; the same comma")
    record, step = state(tmp_path)
    assert record["status"] == "interrupted" and step == 2


def lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False


@pytest.mark.slow
def test_what_is_sent_to_all_processes_of_a_run_leaves_its_loaders_to_it(tmp_path, data):
    """Slurm and Ctrl-C reach the workers too; the step that is under way needs them still."""
    env = {"KILL_AT": "train_batch_end:4", "RUN": "echo here; sleep 1"}
    command = started([*FIT, f"--data.root={data}", "--data.num_workers=2"], tmp_path, env)
    pid = command.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    workers = [int(child) for child in children if "data_worker" in Path(f"/proc/{child}/comm").read_text()]
    assert len(workers) == 2
    for process in (*workers, pid):
        os.kill(process, signal.SIGTERM)
    result = command.wait()
    assert result.code == 143 and only_line(result.err).startswith("stopped by SIGTERM at step 4, saved; ")
    until = time.monotonic() + 20  # torch's workers look after their parent every five seconds
    while any(lives(worker) for worker in workers):
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.slow
def test_slurm_queues_the_job_again_when_it_is_saved(tmp_path, data):
    tools = tmp_path / "bin"
    tools.mkdir()
    scontrol = tools / "scontrol"
    scontrol.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/runs/tiny/*/run.json >> {tmp_path}/asked\n'
    )
    scontrol.chmod(0o755)
    slurm = {"SLURM_NTASKS": "1", "SLURM_JOB_NAME": "fit", "SLURM_JOB_ID": "12", "SLURM_PROCID": "0",
             "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_ARRAY_JOB_ID": "11", "SLURM_ARRAY_TASK_ID": "3",
             "PATH": f"{tools}:{os.environ['PATH']}"}  # fmt: skip
    command = [*FIT, f"--data.root={data}"]
    result = run(command, tmp_path, {"KILL_AT": "train_batch_end:4", "KILL_WITH": "SIGUSR1", **slurm})
    assert result.code == 138 and only_line(result.err).startswith("stopped by SIGUSR1 at step 4, saved; ")
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("requeue 11_3\n") and '"status": "interrupted"' in asked
    assert not list(tmp_path.rglob("hpc_ckpt*"))
    (tmp_path / "asked").unlink()
    succeed(command, tmp_path)
    test = ["test", *command[1:]]
    result = run(test, tmp_path, {"KILL_AT": "test_batch_start:2", "KILL_WITH": "SIGUSR1", **slurm})
    assert result.code == 138 and (tmp_path / "asked").read_text().startswith("requeue 11_3\n")


@pytest.mark.parametrize(
    "flags",
    [
        ["--trainer.max_steps=3"],
        pytest.param(["--trainer.max_steps=8", "--trainer.max_epochs=-1"], marks=SLOW),
        pytest.param(["--trainer.max_epochs=1", "--trainer.check_val_every_n_epoch=5"], marks=SLOW),
        pytest.param(["--trainer.max_steps=4", "--trainer.val_check_interval=4"], marks=SLOW),
    ],
)
def test_a_run_validates_at_its_last_step_once_and_its_best_is_found(flags, tmp_path, data):
    command = [*FIT[1:], f"--data.root={data}", *flags]
    succeed(["fit", *command], tmp_path)
    folder = only_run(tmp_path)
    with open(folder / "metrics.csv", newline="") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file) if row["val/loss"]]
    end = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["global_step"]
    assert steps[-1] == end - 1 and len(set(steps)) == len(steps)
    metrics = json.loads((folder / "run.json").read_text())["metrics"]
    assert "val/accuracy" in metrics and "best val/accuracy" in metrics
    assert "test/accuracy" in succeed(["test", *command], tmp_path).out


class Raise(Callback):
    """Sends this process a signal after a step; keeps the handlers that it finds then."""

    def __init__(self, at: int, name: str = "SIGINT") -> None:
        self.at, self.name, self.handlers = at, name, {}

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.at:
            self.handlers = handlers()
            signal.raise_signal(signal.Signals[self.name])


def handlers() -> dict:
    return {name: signal.getsignal(signal.Signals[name]) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")}


def fit_in_python(root: Path, stop: Raise | None = None):
    task, data = parts(root)
    # A callback without settings that differ: the run is the same one.
    arguments = {**QUIET, "max_epochs": 2}
    run = Run("runs/mine/a")
    own = run.trainer_arguments(**arguments)
    own["callbacks"].append(stop or Raise(0))
    return run, lambda: run.fit(Trainer(**own), task, data)


@pytest.mark.parametrize(
    ("name", "error"), [("SIGINT", KeyboardInterrupt), pytest.param("SIGTERM", SystemExit, marks=SLOW)]
)
def test_a_fit_of_ones_own_is_saved_too_and_gets_its_handlers_back(name, error, tmp_path, data, monkeypatch, capfd):
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    before = handlers()
    for folder in ("whole", "stopped"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    whole, fit = fit_in_python(data)
    fit()
    monkeypatch.chdir(tmp_path / "stopped")
    stop = Raise(4, name)
    run, fit = fit_in_python(data, stop)
    with pytest.raises(error):
        fit()
    assert f"lra-ssm: stopped by {name} at step 4, saved; " in capfd.readouterr().err
    assert handlers() == before and stop.handlers != before and run.record["status"] == "interrupted"
    assert torch.load(run.last, weights_only=True)["global_step"] == 4
    run, fit = fit_in_python(data)
    fit()
    ours, theirs = (
        torch.load(folder / whole.last, weights_only=True)["state_dict"]
        for folder in (tmp_path / "stopped", tmp_path / "whole")
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs) and handlers() == before


def test_a_fit_in_a_thread_takes_no_handlers(tmp_path, data, monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.chdir(tmp_path)
    before, seen = handlers(), []
    watch = Raise(3)
    watch.on_train_batch_end = lambda *args: seen.append(handlers())
    run, fit = fit_in_python(data, watch)
    thread = threading.Thread(target=fit)
    thread.start()
    thread.join()
    assert run.record["status"] == "finished" and len(seen) == 12 and all(each == before for each in seen)


def test_what_lightning_refuses_is_one_line_of_a_command_and_itself_in_python():
    for command, raised in (("fit", InputError), (None, MisconfigurationException)):
        with pytest.raises(raised, match="no such thing"), ending(command):
            raise MisconfigurationException("no such thing")


def test_the_processes_beside_the_first_say_nothing_of_ctrl_c(monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("lra_ssm.cli.import_module", interrupted)
    for rank, said in (("0", "lra-ssm: error: interrupted\n"), ("1", "")):
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert main(["fit"]) == 130 and capsys.readouterr().err == said


DYING = """
import os, signal
from torch.utils.data import get_worker_info
from lra_ssm.datamodules import ListOps

class Dying(ListOps):
    def make_dataset(self, split, name):
        data = super().make_dataset(split, name)
        whole = type(data)
        class Killed(whole):
            def __getitems__(self, numbers):
                if get_worker_info() is not None and name == "train":
                    os.kill(os.getpid(), signal.SIGKILL)
                return whole.__getitems__(self, numbers)
        data.__class__ = Killed
        return data
"""


def test_a_loader_that_is_killed_is_one_line(tmp_path):
    """As the kernel does it when memory is short."""
    (tmp_path / "short_of_memory.py").write_text(DYING)
    result = run([*FIT, "--data=short_of_memory.Dying", "--data.num_workers=1"], tmp_path)
    lines = [line for line in result.err.splitlines() if "error" in line or "Traceback" in line]
    assert len(lines) == 1, result.err[-3000:]
    line = lines[0]
    assert result.code == 2 and line.startswith("lra-ssm: error: DataLoader worker") and "num_workers 0" in line
    (record,) = tmp_path.glob("runs/tiny/*/run.json")
    assert json.loads(record.read_text())["status"] == "failed"
