"""Sweeps on a real Slurm: one machine's is enough. Tasks are real processes that Slurm starts, stops and loses."""

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
import torch
import yaml

from lra_ssm.sweeps.submit import SweepFolder
from tests.runner import TINY, succeed

pytestmark = pytest.mark.slurm

SETTINGS = {"data.num_train": 24, "trainer.max_epochs": 2}  # six steps
ROOT = Path(__file__).parents[2]
TEMPLATE = """#!/bin/bash
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=SIGUSR1@60
#SBATCH --time=10
#SBATCH --cpus-per-task=1
{lines}
srun {more} python -m lra_ssm fit "$@" {devices} || exit
srun --nodes=1 --ntasks=1 --ntasks-per-node=1 python -m lra_ssm test "$@" {one}
"""


@pytest.fixture
def folder(here, monkeypatch):
    """A working folder whose jobs see the tests' helpers."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return here


def write_sweep(name, **parts):
    Path(f"{name}.yaml").write_text(yaml.safe_dump({"configs": [str(TINY)], "set": SETTINGS, **parts}))


def submit(folder, name, *lines, options=(), more="", devices="", one=""):
    """Submits with a template that has these lines; returns the job."""
    Path("mine.sbatch").write_text(TEMPLATE.format(lines="\n".join(lines), more=more, devices=devices, one=one))
    out = succeed(["submit", f"{name}.yaml", "--template=mine.sbatch", *options], folder).out
    return out.split()[1].rstrip(":")


def only(index, then):
    """A line of the script that is for one task only, in its first attempt."""
    return f'if [ "$SLURM_ARRAY_TASK_ID$SLURM_RESTART_COUNT" = {index} ]; then {then}; fi'


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


def runs_of(name):
    return SweepFolder.find(f"{name}.yaml").runs


def states(folder, name):
    found = json.loads(succeed(["status", f"{name}.yaml", "--json"], folder).out)
    return [(run["state"], run["reason"]) for run in found]


def assert_same_weights(path, other):
    ours, theirs = (torch.load(p / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for p in (path, other))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def assert_undisturbed(runs, folder):
    """Each run ended as one that is trained here, in an empty folder."""
    for run in runs:
        options = [f"--{key}={value}" for key, value in {**SETTINGS, "seed_everything": run.index}.items()]
        succeed(["fit", "--config", str(TINY), *options], folder)
        assert_same_weights(run.path, folder / "runs/tiny" / run.path.name)


def test_an_array_with_a_requeue_a_kill_and_a_missing_data_root(folder, tmp_path_factory):
    """Four runs, two at a time: one undisturbed, one queued again in its middle, one killed, one without its data."""
    write_sweep("four", seeds=[1, 2, 3, 4], set=SETTINGS | {"data.root": None})
    again = "scontrol requeue ${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}; sleep 60"  # until Slurm ends it
    lines = (
        only(2, f"export KILL_AT=train_batch_end:4 RUN='{again}'"),
        only(3, "export KILL_AT=train_batch_end:4"),
        only(4, "export LRA_SSM_DATA=/no/such/folder"),
    )
    assert wait_for(submit(folder, "four", *lines, options=["--concurrency=2"])) == 2
    runs, found = runs_of("four"), states(folder, "four")
    assert [state for state, _ in found] == ["done", "done", "killed", "failed"]
    assert [len(run.record.record.get("starts", [])) for run in runs[:3]] == [1, 2, 1]
    assert "/no/such/folder" in found[3][1] and not runs[3].path.exists()
    log = runs[1].log.read_text()
    # Slurm's signal ends the `sleep` too, perhaps a step before it reaches the task.
    assert re.search("stopped by SIGTERM at step [45], saved", log) and "going on from" in log
    out = succeed(["results", "four.yaml", "--format=markdown"], folder).out
    assert "| 2 of 3 |" in out and "not finished (killed, step " in out and "not started: tiny/" in out

    # Only what is left; both go on, and all ends as if nothing had happened.
    wait_for(submit(folder, "four", options=["--resume"]))
    assert "runs 3-4\n" in (SweepFolder.find("four.yaml").path / "jobs.txt").read_text()
    assert {state for state, _ in states(folder, "four")} == {"done"}
    assert_undisturbed(runs, tmp_path_factory.mktemp("undisturbed"))
    assert "nothing is left to run" in succeed(["submit", "four.yaml", "--resume"], folder).err


def test_the_time_limit(folder, tmp_path_factory):
    """Slurm's signal comes before it, up to a minute early: the run saves, is queued again, and ends."""
    write_sweep("long")
    slow = '[ -n "$SLURM_RESTART_COUNT" ] || export KILL_AT=train_batch_start:3 RUN="sleep 170"'  # the signal ends it
    wait_for(submit(folder, "long", slow, options=["--sbatch=--time=3"]))
    (run,) = runs_of("long")
    assert states(folder, "long")[0][0] == "done" and len(run.record.record["starts"]) == 2
    assert "stopped by SIGUSR1 at step" in run.log.read_text()
    assert_undisturbed([run], tmp_path_factory.mktemp("undisturbed"))


def test_two_processes_under_srun_of_which_one_dies(folder):
    """The same run twice: one is disturbed."""
    ddp = {"more": "--kill-on-bad-exit=1", "devices": "--trainer.devices=2",
           "one": "--trainer.devices=1 --trainer.strategy=auto"}  # fmt: skip
    for name, runs_dir in (("whole", "runs"), ("broken", "others")):
        write_sweep(name, set=SETTINGS | {"trainer.strategy": "ddp"}, runs_dir=runs_dir)
    two = ["--sbatch=--ntasks-per-node=2"]
    job = submit(folder, "whole", options=two, **ddp)
    kill = only(1, "export KILL_AT=train_batch_end:4 KILL_RANK=1")
    wait_for(job, submit(folder, "broken", kill, options=two, **ddp))
    state, reason = states(folder, "broken")[0]
    assert state in ("failed", "killed", "stopped") and reason
    wait_for(submit(folder, "broken", options=["--resume", *two], **ddp))
    whole, broken = (runs_of(name)[0].path for name in ("whole", "broken"))
    assert (whole / "test.json").is_file() and (broken / "test.json").is_file()
    assert_same_weights(whole, broken)
