"""Two processes (DDP on gloo) of which one is told to stop, stop at the same step, and resume bit for bit.

The processes are those of a real command in a session of its own.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.interrupted import Outcome, assert_same, outcome
from tests.runner import FIT, SHORT, TINY, only_run, run_by_srun

LIMIT = 300  # seconds for a command, of which most is imports: other tests may be running
# Batches that two and three processes can share; long enough that a signal meets the training.
FLAGS = ["--data.batch_size=6", "--checkpoint.every_n_steps=3", "--trainer.max_epochs=3", "--trainer.strategy=ddp"]


class Processes:
    """A command of several processes, started; its output, and what is left of it in the end."""

    def __init__(self, folder: Path, root: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        line = [sys.executable, "-m", "lra_ssm", "fit", "--config", str(TINY), f"--data.root={root}", *FLAGS, *flags]
        environment = {"PYTHONPATH": str(TINY.parents[1]), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.log, self.folder = folder / "log.txt", folder
        with open(self.log, "w") as log:
            self.first = subprocess.Popen(
                [*line, "--trainer.devices=2"], cwd=folder, stdout=log, stderr=subprocess.STDOUT,
                env=os.environ | environment | (env or {}), start_new_session=True,
            )  # fmt: skip

    def end(self, seconds: float = LIMIT) -> tuple[int, list[str]]:
        """The exit code and the lines that this package printed at the end; all processes end in that time."""
        try:
            code = self.first.wait(seconds)
            until = time.monotonic() + seconds
            while alive := self.alive():
                assert time.monotonic() < until, f"{alive} live on:\n{self.log.read_text()}"
                time.sleep(0.05)
        finally:
            try:
                os.killpg(self.first.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.first.wait()
        return code, [line for line in self.log.read_text().splitlines() if line.startswith("lra-ssm: ")]

    def alive(self) -> list[int]:
        """The processes of this session."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.first.pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
        return found


def record(folder: Path) -> dict:
    return json.loads((only_run(folder) / "run.json").read_text())


def last_step(folder: Path) -> int:
    return torch.load(only_run(folder) / "checkpoints/last.ckpt", weights_only=True)["global_step"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Outcome:
    folder = tmp_path_factory.mktemp("by-2")
    assert Processes(folder, data).end() == (0, [])
    return outcome(folder)


@pytest.mark.slow
def test_sigterm_to_one_process_stops_all_at_the_same_step(tmp_path: Path, data: Path, undisturbed: Outcome) -> None:
    """The second process is sent it, in a batch in the middle of the second epoch."""
    env = {"KILL_AT": "train_batch_end:10", "KILL_WITH": "SIGTERM", "KILL_RANK": "1"}
    code, lines = Processes(tmp_path, data, env=env).end()
    assert code == 143 and "Traceback" not in (tmp_path / "log.txt").read_text()
    assert len(lines) == 1 and lines[0].startswith("lra-ssm: stopped by SIGTERM at step 10, saved; the same command")
    assert record(tmp_path)["status"] == "interrupted" and last_step(tmp_path) == 10
    assert Processes(tmp_path, data).end() == (0, [])
    assert_same(outcome(tmp_path), undisturbed)


@pytest.mark.slow
def test_sigterm_to_a_process_while_lightning_sets_it_up_ends_the_run(tmp_path: Path, data: Path) -> None:
    """Lightning's own handler would wait for the other process then: neither would end."""
    env = {"KILL_AT": "sanity_check_start:1", "KILL_WITH": "SIGTERM", "KILL_RANK": "1"}
    code, _ = Processes(tmp_path, data, "--trainer.num_sanity_val_steps=1", env=env).end()
    assert code != 0 and not (only_run(tmp_path) / "checkpoints/last.ckpt").exists()


@pytest.mark.trials
def test_the_first_process_ends_when_the_other_is_killed(tmp_path: Path, data: Path) -> None:
    """Lightning sees to it, within seconds."""
    code, _ = Processes(tmp_path, data, env={"KILL_AT": "train_batch_end:10", "KILL_RANK": "1"}).end()
    assert code != 0 and last_step(tmp_path) in (9, 8)
    assert Processes(tmp_path, data).end() == (0, [])


@pytest.mark.slow
def test_processes_that_srun_starts_stop_together_and_the_first_queues_the_job(tmp_path: Path, data: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    (tools / "scontrol").chmod(0o755)
    env = {"KILL_AT": "train_batch_end:3", "KILL_WITH": "SIGUSR1", "KILL_RANK": "1",
           "PATH": f"{tools}:{os.environ['PATH']}"}  # fmt: skip
    command = [*FIT, f"--data.root={data}"]
    ends = run_by_srun(command, tmp_path, env)
    assert [each.code for each in ends] == [138, 0], ends
    assert "stopped by SIGUSR1 at step 3, saved" in ends[0].err and "stopped by" not in ends[1].err
    assert (tmp_path / "asked").read_text() == "requeue 12\n"
    ends = run_by_srun(command, tmp_path)
    assert [each.code for each in ends] == [0, 0] and record(tmp_path)["status"] == "finished"


def test_processes_that_srun_starts_train_and_end(tmp_path: Path, data: Path) -> None:
    ends = run_by_srun([*FIT, *SHORT, f"--data.root={data}"], tmp_path)
    assert [each.code for each in ends] == [0, 0], ends
    assert record(tmp_path)["status"] == "finished"


@pytest.mark.trials
@pytest.mark.parametrize("seed", range(12))
def test_signals_at_random_moments(seed: int, tmp_path: Path, data: Path, undisturbed: Outcome) -> None:
    """To one process or to both, in training, in validation and while saving."""
    draw = random.Random(seed)
    name = draw.choice(["SIGTERM", "SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP", "SIGKILL"])
    event = draw.choice(["train_batch_start", "train_batch_end", "validation_batch_start", "save_checkpoint"])
    rank = {"KILL_RANK": draw.choice("01")} if draw.random() < 0.7 else {}
    moment = f"{event}:{draw.randint(1, 6 if 'train' in event else 3)}"
    code, lines = Processes(tmp_path, data, env={"KILL_AT": moment, "KILL_WITH": name, **rank}).end()
    print(f"seed {seed}: {name} at {moment} {rank}, ended with {code}: {lines}")
    if name != "SIGKILL":
        assert record(tmp_path)["status"] == ("finished" if code == 0 else "interrupted")
        assert len(lines) == (code != 0), lines
    assert Processes(tmp_path, data).end()[0] == 0
    assert_same(outcome(tmp_path), undisturbed)
