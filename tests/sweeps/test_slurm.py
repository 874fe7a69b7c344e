"""Sweeps on a real Slurm: one machine's is enough. Tasks are real processes that Slurm starts, stops and loses."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from tests.runner import TINY, fail, succeed

pytestmark = pytest.mark.slurm

SETTINGS = {"data.num_train": 24, "trainer.max_epochs": 2}  # six steps
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder whose jobs see the tests' helpers, and run nothing of an environment that a test left."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def write_sweep(folder, name, **parts):
    content = {"configs": [str(TINY)], "set": SETTINGS, **parts}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return f"{name}.yaml"


def submit(folder, *options):
    """Submits, and gives the jobs' ids, the array's last."""
    out = succeed(["submit", "--cpus=1", "--time=10", f"--python={sys.executable}", *options], folder).out
    return [line.split()[1].rstrip(":") for line in out.splitlines() if line.startswith("job ")]


def wait_for(*jobs, seconds=420):
    """Until Slurm has none of them left; gives the most tasks that it ran at a time."""
    most, until = 0, time.monotonic() + seconds
    while True:
        asked = ["squeue", "--noheader", "--array", f"--jobs={','.join(jobs)}", "--format=%T"]
        states = subprocess.run(asked, capture_output=True, text=True).stdout.split()
        most = max(most, states.count("RUNNING"))
        if not states:
            return most
        assert time.monotonic() < until, f"still {states} after {seconds} s"
        time.sleep(0.5)


def sweep_folder(folder, name):
    (found,) = (folder / "runs/sweeps").glob(f"{name}-*")
    return found


def runs_of(folder, name):
    """Directories of the runs by their number."""
    content = json.loads((sweep_folder(folder, name) / "runs.json").read_text())
    return {run["index"]: folder / "runs" / run["path"] for run in content["runs"]}


def states(folder, name):
    found = json.loads(succeed(["status", f"{name}.yaml", "--json"], folder).out)
    return {run["index"]: run for run in found}


def weights(run):
    return torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def assert_same_weights(run, other):
    ours, theirs = weights(run), weights(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def only(index, then):
    """A line of the script that is for one task alone, in its first attempt."""
    return f'--before=if [ "$SLURM_ARRAY_TASK_ID$SLURM_RESTART_COUNT" = {index} ]; then {then}; fi'


def test_an_array_with_a_requeue_a_kill_and_a_missing_data_root(folder, tmp_path_factory):
    """Four runs, two at a time: one undisturbed, one queued again in its middle, one killed, one without its data."""
    write_sweep(folder, "four", seeds=[1, 2, 3, 4], set=SETTINGS | {"data.root": None})
    again = "scontrol requeue ${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}; sleep 1"
    jobs = submit(
        folder,
        "four.yaml",
        "--concurrency=2",
        "--results",
        only(2, f"export KILL_AT=train_batch_end:4 RUN='{again}'"),
        only(3, "export KILL_AT=train_batch_end:4"),
        only(4, "export LRA_SSM_DATA=/no/such/folder"),
    )
    assert wait_for(*jobs) == 2
    runs, found = runs_of(folder, "four"), states(folder, "four")
    assert [found[i]["state"] for i in runs] == ["done", "done", "lost", "failed"]
    assert [found[i]["attempts"] for i in (1, 2, 3)] == [1, 2, 1]
    assert "/no/such/folder" in found[4]["reason"] and not runs[4].exists()
    log = (sweep_folder(folder, "four") / "logs/2.log").read_text()
    assert "stopped by SIGTERM at step 4, saved" in log and "going on from" in log
    said = (sweep_folder(folder, "four") / "results.md").read_text()  # of the job that waited for the array
    assert "| 2 of 4 |" in said and "not finished (killed, step " in said and "not started" in said

    # What is left, alone; both go on, and all ends as if nothing had happened.
    jobs = submit(folder, "four.yaml", "--resume", "--before=true")  # else as it was submitted before
    assert json.loads((sweep_folder(folder, "four") / "submissions.json").read_text())[-1]["indices"] == [3, 4]
    wait_for(*jobs)
    assert {run["state"] for run in states(folder, "four").values()} == {"done"}
    undisturbed = tmp_path_factory.mktemp("undisturbed")
    for index, run in runs.items():
        options = [f"--{key}={value}" for key, value in SETTINGS.items()]
        succeed(["fit", "--config", str(TINY), *options, f"--seed_everything={index}"], undisturbed)
        assert_same_weights(run, undisturbed / "runs/tiny" / run.name)
    assert "nothing is left to run" in succeed(["submit", "four.yaml", "--resume"], folder).err


def test_the_time_limit(folder, tmp_path_factory):
    """Slurm's signal comes before it, up to a minute early: the run saves, is queued again, and ends."""
    write_sweep(folder, "long")
    slow = 'export DELAY=$([ -z "$SLURM_RESTART_COUNT" ] && echo 30 || echo 0)'
    jobs = submit(folder, "long.yaml", "--time=3", "--grace=60", f"--before={slow}")
    wait_for(*jobs)
    (run,), found = runs_of(folder, "long").values(), states(folder, "long")[1]
    assert (found["state"], found["attempts"]) == ("done", 2)
    assert "stopped by SIGUSR1 at step" in (sweep_folder(folder, "long") / "logs/1.log").read_text()
    undisturbed = tmp_path_factory.mktemp("undisturbed")
    succeed(["fit", "--config", str(TINY), *(f"--{k}={v}" for k, v in SETTINGS.items())], undisturbed)
    assert_same_weights(run, undisturbed / "runs/tiny" / run.name)


def test_two_processes_under_srun_of_which_one_dies(folder):
    """The same run twice: one is disturbed."""
    ddp = SETTINGS | {"trainer.strategy": "ddp"}
    write_sweep(folder, "whole", set=ddp)
    write_sweep(folder, "broken", set=ddp, runs_dir="others")
    jobs = submit(folder, "whole.yaml", "--tasks=2")
    kill = only(1, "export KILL_AT=train_batch_end:4 KILL_RANK=1")
    jobs += submit(folder, "broken.yaml", "--tasks=2", kill)
    wait_for(*jobs)
    found = json.loads(succeed(["status", "broken.yaml", "--json"], folder).out)[0]
    assert found["state"] in ("failed", "lost", "stopped") and found["reason"]
    wait_for(*submit(folder, "broken.yaml", "--resume", "--before=true"))
    (whole,) = runs_of(folder, "whole").values()
    broken = folder / "others" / whole.relative_to(folder / "runs")
    assert (whole / "test.json").is_file() and (broken / "test.json").is_file()
    assert_same_weights(whole, broken)


def test_an_impossible_request_is_refused_in_slurms_words(folder):
    write_sweep(folder, "large")
    said = fail(["submit", "large.yaml", "--nodes=99"], folder)
    assert said.startswith("Slurm refuses submit.sbatch: Batch job submission failed: ")
    # What would have prepared its data is cancelled; where it ran already, in a moment.
    asked = ["squeue", "--noheader", "--states=all", "--name=large-prepare,large", "--format=%i %T"]
    wait_for(*subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[::2])
    assert set(subprocess.run(asked, capture_output=True, text=True).stdout.split()[1::2]) == {"CANCELLED"}
    assert not (sweep_folder(folder, "large") / "submissions.json").exists()
