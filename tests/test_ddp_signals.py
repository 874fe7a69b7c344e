"""Two and three processes (DDP on gloo) that are told to stop, or of which one dies, end in seconds, with one line.

The processes are those of a real command in a session of its own: what is sent to all is sent to its process group.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.runner import TINY, only_run
from tests.test_resume import assert_same, outcome

# Batches that two and three processes can share; long enough that a signal meets the training.
FLAGS = ["--data.batch_size=6", "--checkpoint.every_n_steps=3", "--trainer.max_epochs=3", "--trainer.strategy=ddp"]


class Processes:
    """A command of several processes; its output, and all that is left of it in the end."""

    def __init__(self, folder: Path, root: Path, devices: int, env: dict[str, str] | None = None, *flags: str) -> None:
        line = [sys.executable, "-m", "lra_ssm", "fit", "--config", str(TINY), f"--data.root={root}", *FLAGS, *flags]
        environment = {"PYTHONPATH": str(TINY.parents[1]), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.log = folder / "log.txt"
        with open(self.log, "w") as log:
            self.first = subprocess.Popen(
                [*line, f"--trainer.devices={devices}"], cwd=folder, stdout=log, stderr=subprocess.STDOUT,
                env=os.environ | environment | (env or {}), start_new_session=True,
            )  # fmt: skip
        self.folder, self.devices = folder, devices

    def ranks(self) -> list[int]:
        """The process ids, the first process's first, as many as there are by now."""
        children = Path(f"/proc/{self.first.pid}/task/{self.first.pid}/children").read_text().split()
        by_rank = {}
        for pid in map(int, children):
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if rank := re.search(rb"\0LOCAL_RANK=(\d+)", environment):
                by_rank[int(rank[1])] = pid
        return [self.first.pid, *(by_rank[rank] for rank in sorted(by_rank))]

    def wait_for_rows(self, count: int) -> None:
        """Until metrics.csv has so many rows: the run is at about that step."""
        until = time.monotonic() + 120
        while self.first.poll() is None and time.monotonic() < until:
            for file in self.folder.glob("runs/tiny/*/metrics.csv"):
                if len(file.read_text().splitlines()) > count:
                    return
            time.sleep(0.02)
        raise AssertionError(f"the run did not come so far:\n{self.log.read_text()}")

    def end(self, seconds: float) -> tuple[int, list[str]]:
        """The exit code and the lines that this package printed at the end; all processes end in that time."""
        try:
            code = self.first.wait(seconds)
            until = time.monotonic() + seconds
            while alive := self.alive():
                assert time.monotonic() < until, f"{alive} live on:\n{self.log.read_text()}"
                time.sleep(0.05)
        finally:
            self.kill()
        text = self.log.read_text()
        assert "Traceback" not in text, text
        return code, [line for line in text.splitlines() if line.startswith("lra-ssm: ")]

    def alive(self) -> list[int]:
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.first.pid and fields[0] != "Z":  # of this session
                found.append(int(stat.parent.name))
        return found

    def kill(self) -> None:
        try:
            os.killpg(self.first.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.first.wait()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data") / "root"


def record(folder: Path) -> dict:
    return json.loads((only_run(folder) / "run.json").read_text())


def last_step(folder: Path) -> int:
    return torch.load(only_run(folder) / "checkpoints/last.ckpt", weights_only=True)["global_step"]


@pytest.mark.slow
def test_sigterm_to_one_process_stops_all_at_the_same_step_and_saves_it(tmp_path: Path, root: Path) -> None:
    """The second process is sent it, in a batch in the middle of the second epoch."""
    env = {"KILL_AT": "train_batch_end:10", "KILL_WITH": "SIGTERM", "KILL_RANK": "1"}
    code, lines = Processes(tmp_path, root, 2, env).end(120)
    assert code == 143
    assert len(lines) == 1 and lines[0].startswith("lra-ssm: stopped by SIGTERM at step 10, saved; the same command")
    assert record(tmp_path)["status"] == "interrupted" and last_step(tmp_path) == 10


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_the_other_processes_end_when_one_is_killed(rank: int, tmp_path: Path, root: Path) -> None:
    env = {"KILL_AT": "train_batch_end:10", "KILL_RANK": str(rank)}
    code, lines = Processes(tmp_path, root, 3, env).end(120)
    assert code == (137 if rank else -9)
    who = f"process {rank} of the run was killed by SIGKILL" if rank else "the first process of the run has died"
    assert len(lines) == 1 and lines[0].startswith(f"lra-ssm: {who}; the same command goes on from ")
    assert record(tmp_path)["status"] == "interrupted" and last_step(tmp_path) == 9


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[int, tuple]:
    """The outcome of a run by two and by three processes."""
    outcomes = {}
    for devices in (2, 3):
        folder = tmp_path_factory.mktemp(f"by-{devices}")
        assert Processes(folder, root, devices).end(120) == (0, [])
        outcomes[devices] = outcome(folder)
    return outcomes


@pytest.mark.trials
@pytest.mark.parametrize("seed", range(30))
def test_signals_at_random_moments(seed: int, tmp_path: Path, root: Path, undisturbed: dict[int, tuple]) -> None:
    """To one process, to every one, or to the process group; before training, in it, in validation and while saving."""
    draw = random.Random(seed)
    devices, name = draw.choice([2, 3]), draw.choice(["SIGTERM", "SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP", "SIGKILL"])
    rows, delay = draw.choice([0, 0, 3, 8, 12]), draw.uniform(0, 0.5)
    processes = Processes(tmp_path, root, devices)
    if rows:
        processes.wait_for_rows(rows)
        time.sleep(delay)
    else:  # in the imports and the set-up
        time.sleep(draw.uniform(4, 12))
    to = draw.choice(["group", "all", *range(devices)])
    pids = processes.ranks()
    started = time.monotonic()
    sent = signal.Signals[name]
    print(f"seed {seed}: {devices} processes, {name} to {to} after {rows} rows")
    if to == "group" or name == "SIGKILL" and to == "all":
        to = 0 if name == "SIGKILL" else "group"
    if to == "group":
        os.killpg(processes.first.pid, sent)
    else:
        for pid in pids if to == "all" else pids[to : to + 1] or pids[:1]:
            os.kill(pid, sent)
    code, lines = processes.end(40)
    print(f"ended with {code} in {time.monotonic() - started:.1f} s: {lines}")
    if (tmp_path / "runs").is_dir() and list((tmp_path / "runs/tiny").iterdir()):
        status = record(tmp_path)["status"]
        assert status == ("finished" if code == 0 else "interrupted")
        assert len(lines) == (code != 0), lines
    assert Processes(tmp_path, root, devices).end(120)[0] == 0
    ours, theirs = outcome(tmp_path), undisturbed[devices]
    if devices == 2:
        assert_same(ours, theirs)
    else:  # torch packs the gradients otherwise in a process's first step: a sum of three has another order then
        assert [row["step"] for row in ours[2]] == [row["step"] for row in theirs[2]]
        for name in ours[0]:
            torch.testing.assert_close(ours[0][name], theirs[0][name], rtol=1e-3, atol=1e-4, msg=name)
