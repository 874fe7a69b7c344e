"""Two and three processes (DDP on gloo) that are told to stop, or of which one dies, end in seconds, with one line.

The processes are those of a real command in a session of its own: what is sent to all is sent to its process group.
"""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lra_ssm.cli import main
from lra_ssm.runs import peers
from tests.interrupted import Outcome, assert_same, outcome
from tests.runner import FIT, SHORT, TINY, Command, Result, bare, free_port, only_run

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
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:  # it has ended meanwhile
                continue
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


@pytest.fixture(scope="session")
def root(data: Path) -> Path:
    return data


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


@pytest.mark.trials
@pytest.mark.parametrize(("rank", "devices"), [(0, 3), (1, 2)])
def test_the_other_processes_end_when_one_is_killed(rank: int, devices: int, tmp_path: Path, root: Path) -> None:
    env = {"KILL_AT": "train_batch_end:10", "KILL_RANK": str(rank)}
    code, lines = Processes(tmp_path, root, devices, env).end(120)
    assert code == (137 if rank else -9)
    who = f"process {rank} of the run was killed by SIGKILL" if rank else "the first process of the run has died"
    assert len(lines) == 1 and lines[0].startswith(f"lra-ssm: {who}; the same command goes on from ")
    assert record(tmp_path)["status"] == "interrupted" and last_step(tmp_path) == 9


# --- processes that srun starts, of which Slurm ends none when another one ends ---


def ends(commands: list[Command], seconds: float = 60) -> tuple[list[int], list[str]]:
    """Exit codes by rank, and the lines that this package printed at the end, of all together."""
    try:
        results: list[Result] = [command.wait(seconds) for command in commands]
    finally:
        for command in commands:
            command.process.kill()
    assert not any("Traceback" in result.err for result in results), results
    lines = [line for result in results for line in result.err.splitlines() if line.startswith("lra-ssm: ")]
    return [result.code for result in results], lines


def holds_back(pid: int, sent: signal.Signals) -> bool:
    mask = re.search(r"^SigBlk:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return bool(int(mask[1], 16) >> sent - 1 & 1)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.trials)])
def test_a_signal_as_a_bare_process_starts_ends_the_other_too(rank: int, tmp_path: Path, root: Path) -> None:
    """At its first line: long before it is known to torch, or to the other one."""
    commands = bare([0, 1], [*FIT, *SHORT, f"--data.root={root}"], tmp_path)
    pid, until = commands[rank].process.pid, time.monotonic() + 10
    while not holds_back(pid, signal.SIGTERM) and time.monotonic() < until:
        time.sleep(0.001)
    os.kill(pid, signal.SIGTERM)
    codes, lines = ends(commands)
    who = "process 1 of the run was " if rank else ""
    assert codes == [143, 143]
    assert lines == [f"lra-ssm: {who}stopped by SIGTERM; the same command goes on: nothing was saved yet"]


PREPARES = """
import os, signal
from lra_ssm.datamodules import ListOps
from lra_ssm.errors import InputError

class Dying(ListOps):
    def prepare_data(self):
        if os.environ["SLURM_PROCID"] == os.environ["KILL_RANK"]:
            if os.environ["KILL_WITH"] == "error":
                raise InputError("no data on this node")
            os.kill(os.getpid(), signal.Signals[os.environ["KILL_WITH"]])
        super().prepare_data()
"""


@pytest.mark.parametrize(
    ("rank", "end", "codes", "said"),
    [
        (0, "SIGKILL", [-9, 1], "the first process of the run has died; the same command goes on: nothing was saved"),
        pytest.param(
            1, "SIGKILL", [1, -9], "process 1 of the run has died; the same command goes on: nothing was saved yet",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            1, "SIGTERM", [143, 143], "process 1 of the run was stopped by SIGTERM; the same command goes on: nothing",
            marks=pytest.mark.slow,
        ),
        pytest.param(1, "error", [2, 2], "error: no data on this node", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_bare_process_that_ends_before_they_met_in_torch_ends_the_other(
    rank: int, end: str, codes: list[int], said: str, tmp_path: Path
) -> None:
    (tmp_path / "data.py").write_text(PREPARES)
    commands = bare([0, 1], [*FIT, *SHORT, "--data=data.Dying"], tmp_path, {"KILL_RANK": str(rank), "KILL_WITH": end})
    found, (line,) = ends(commands)
    assert found == codes and line.startswith(f"lra-ssm: {said}")


def impatient(arguments: list[str]) -> int:
    peers.COMING = 1.0
    return main(arguments)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.trials), pytest.param(1, marks=pytest.mark.slow)])
def test_a_bare_process_does_not_wait_for_ever_for_one_that_never_comes(rank: int, tmp_path: Path, root: Path) -> None:
    commands = bare([rank], [*FIT, *SHORT, f"--data.root={root}"], tmp_path, call=impatient)
    who = "the first process" if rank else "process 1"
    said = f"lra-ssm: {who} of the run did not come within 1 s; the same command goes on: nothing was saved yet"
    assert ends(commands) == ([1], [said])


def test_bare_processes_that_nobody_disturbs_train_and_end(tmp_path: Path, root: Path) -> None:
    assert ends(bare([0, 1], [*FIT, *SHORT, f"--data.root={root}"], tmp_path)) == ([0, 0], [])
    assert record(tmp_path)["status"] == "finished"


def test_a_bare_process_that_is_killed_in_training_ends_the_other(tmp_path: Path, root: Path) -> None:
    env = {"KILL_AT": "train_batch_end:3", "KILL_RANK": "1"}
    codes, lines = ends(bare([0, 1], [*FIT, f"--data.root={root}"], tmp_path, env))
    assert codes == [1, -9] and len(lines) == 1
    assert lines[0].startswith("lra-ssm: process 1 of the run has died; the same command goes on from ")
    assert record(tmp_path)["status"] == "interrupted"


HANGS = """
import subprocess, sys, time
from types import SimpleNamespace
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from lra_ssm.runs import signals

torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
with signals.listening() as heard:
    died = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    heard._launcher = SimpleNamespace(procs=[died])
    time.sleep(signals._PATIENCE * 0.75)  # a collective that does not come back
    print("came back")
"""


@pytest.mark.slow
def test_a_process_lost_under_nccl_ends_the_others_whose_collectives_hang() -> None:
    """Nothing raises in the main thread, as with gloo; it is not waited for as long as there."""
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (137, "")
    assert done.stderr.splitlines() == ["lra-ssm: process 1 of the run was killed by SIGKILL"]


def test_every_process_knows_which_one_is_gone() -> None:
    """Three of them; strangers at their port are nobody."""
    port = free_port()
    first = peers.Peers(0, 3, "localhost", port)
    stranger = socket.create_connection(("localhost", port))
    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    others = [peers.Peers(rank, 3, "localhost", port) for rank in (1, 2)]

    def look(*which: peers.Peers) -> list[tuple[int, int] | None]:
        return [each.look() for each in which]

    assert look(others[0], first) == [None, None] and not first.met.is_set()
    assert look(others[1], first, *others) == [None] * 4
    assert all(each.met.is_set() for each in (first, *others))
    socket.create_server(("", port)).close()  # torch's place
    others[0].leave(0)
    others[0].close()
    assert look(first, others[1]) == [None, None]
    others[1].close()
    assert look(first) == [(2, peers.DIED)]
    first.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[int, Outcome]:
    """The outcome of a run by two and by three processes."""
    outcomes = {}
    for devices in (2, 3):
        folder = tmp_path_factory.mktemp(f"by-{devices}")
        assert Processes(folder, root, devices).end(120) == (0, [])
        outcomes[devices] = outcome(folder)
    return outcomes


@pytest.mark.trials
@pytest.mark.parametrize("seed", range(30))
def test_signals_at_random_moments(seed: int, tmp_path: Path, root: Path, undisturbed: dict[int, Outcome]) -> None:
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
        assert [row["step"] for row in ours.rows] == [row["step"] for row in theirs.rows]
        for name in ours.last:
            torch.testing.assert_close(ours.last[name], theirs.last[name], rtol=1e-3, atol=1e-4, msg=name)
