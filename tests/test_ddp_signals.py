"""Two processes (DDP on gloo) of which one is told to stop, stop at the same step, and resume bit for bit."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interrupted import Outcome, assert_same, outcome, scontrol, state
from tests.runner import FIT, TINY, run_by

LIMIT = 300  # seconds for a command, of which most is imports: other tests may be running
# Batches that two and three processes can share; long enough that a signal meets the training.
FLAGS = ["--data.batch_size=6", "--checkpoint.every_n_steps=3", "--trainer.max_epochs=3", "--trainer.strategy=ddp"]


def fit(folder: Path, root: Path, *flags: str, **env: str) -> tuple[int, list[str]]:
    """The exit code of a real command, which starts its second process itself, and its lines of errors and stops.

    Both have ended then: each holds the pipe that is read to its end.
    """
    line = [sys.executable, "-m", "lra_ssm", *FIT, f"--data.root={root}", *FLAGS, *flags, "--trainer.devices=2"]
    environment = {"PYTHONPATH": str(TINY.parents[1]), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **env}
    with subprocess.Popen(line, cwd=folder, env=os.environ | environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, start_new_session=True) as process:  # fmt: skip
        try:
            out, _ = process.communicate(timeout=LIMIT)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, [
        line for line in out.splitlines() if line.startswith("lra-ssm: ") or "Traceback" in line
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Outcome:
    folder = tmp_path_factory.mktemp("by-2")
    assert fit(folder, data) == (0, [])
    return outcome(folder)


@pytest.mark.slow
def test_sigterm_to_one_process_stops_all_at_the_same_step(tmp_path: Path, data: Path, undisturbed: Outcome) -> None:
    """The second process is sent it, in a batch in the middle of the second epoch."""
    code, lines = fit(tmp_path, data, KILL_AT="train_batch_end:10", KILL_WITH="SIGTERM", KILL_RANK="1")
    assert code == 143 and len(lines) == 1
    assert lines[0].startswith("lra-ssm: stopped by SIGTERM at step 10, saved; the same command")
    record, step = state(tmp_path)
    assert record["status"] == "interrupted" and step == 10
    assert fit(tmp_path, data) == (0, [])
    assert_same(outcome(tmp_path), undisturbed)


@pytest.mark.slow
def test_sigterm_to_a_process_while_lightning_sets_it_up_ends_the_run(tmp_path: Path, data: Path) -> None:
    """Lightning's own handler would wait for the other process then: neither would end."""
    at = {"KILL_AT": "sanity_check_start:1", "KILL_WITH": "SIGTERM", "KILL_RANK": "1"}
    assert fit(tmp_path, data, "--trainer.num_sanity_val_steps=1", **at)[0] != 0
    assert state(tmp_path)[1] == -1


@pytest.mark.slow
def test_processes_that_srun_starts_stop_together_and_the_first_queues_the_job(tmp_path: Path, data: Path) -> None:
    env = {"KILL_AT": "train_batch_end:3", "KILL_WITH": "SIGUSR1", "KILL_RANK": "1", **scontrol(tmp_path)}
    command = [*FIT, "--trainer.strategy=ddp", f"--data.root={data}"]
    ends = run_by(2, command, tmp_path, env, srun=True)
    assert [each.code for each in ends] == [138, 0], ends
    assert "stopped by SIGUSR1 at step 3, saved" in ends[0].err and "stopped by" not in ends[1].err
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("requeue 12\n{") and asked.count("requeue") == 1
    ends = run_by(2, command, tmp_path, srun=True)
    assert [each.code for each in ends] == [0, 0] and state(tmp_path)[0]["status"] == "finished"


@pytest.mark.trials
@pytest.mark.parametrize("seed", range(12))
def test_signals_at_random_moments(seed: int, tmp_path: Path, data: Path, undisturbed: Outcome) -> None:
    """To one process or to both, in training, in validation and while saving."""
    draw = random.Random(seed)
    name = draw.choice(["SIGTERM", "SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP", "SIGKILL"])
    event = draw.choice(["train_batch_start", "train_batch_end", "validation_batch_start", "save_checkpoint"])
    rank = {"KILL_RANK": draw.choice("01")} if draw.random() < 0.7 else {}
    moment = f"{event}:{draw.randint(1, 6 if 'train' in event else 3)}"
    code, lines = fit(tmp_path, data, KILL_AT=moment, KILL_WITH=name, **rank)
    print(f"seed {seed}: {name} at {moment} {rank}, ended with {code}: {lines}")
    if name != "SIGKILL":
        assert state(tmp_path)[0]["status"] == ("finished" if code == 0 else "interrupted")
        assert len(lines) == (code != 0), lines
    assert fit(tmp_path, data)[0] == 0
    assert_same(outcome(tmp_path), undisturbed)
