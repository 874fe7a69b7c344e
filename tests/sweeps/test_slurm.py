"""Sweeps on a real Slurm: one machine's is enough. Tasks are real processes that Slurm starts, stops and loses."""

import json
import subprocess
import time
from pathlib import Path

import pytest
import torch
import yaml

from lra_ssm.sweeps.submit import SweepFolder
from tests.runner import TINY, fail, succeed

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
def folder(tmp_path, monkeypatch):
    """A working folder whose jobs see the tests' helpers."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_sweep(folder, name, **parts):
    content = {"configs": [str(TINY)], "set": SETTINGS, **parts}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))


def submit(folder, name, *lines, options=(), more="", devices="", one=""):
    """Submits with a template that has these lines; returns the job."""
    (folder / "mine.sbatch").write_text(TEMPLATE.format(lines="\n".join(lines), more=more, devices=devices, one=one))
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


def runs_of(folder, name):
    return SweepFolder.find(f"{name}.yaml").runs


def states(folder, name):
    found = json.loads(succeed(["status", f"{name}.yaml", "--json"], folder).out)
    return [(run["state"], run["reason"]) for run in found]


def weights(run):
    return torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def assert_same_weights(run, other):
    ours, theirs = weights(run), weights(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def test_an_array_with_a_requeue_a_kill_and_a_missing_data_root(folder, tmp_path_factory):
    """Four runs, two at a time: one undisturbed, one queued again in its middle, one killed, one without its data."""
    write_sweep(folder, "four", seeds=[1, 2, 3, 4], set=SETTINGS | {"data.root": None})
    again = "scontrol requeue ${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}; sleep 60"  # until Slurm ends it
    job = submit(
        folder,
        "four",
        only(2, f"export KILL_AT=train_batch_end:4 RUN='{again}'"),
        only(3, "export KILL_AT=train_batch_end:4"),
        only(4, "export LRA_SSM_DATA=/no/such/folder"),
        options=["--concurrency=2"],
    )
    assert wait_for(job) == 2
    runs = runs_of(folder, "four")
    first, second, third, fourth = states(folder, "four")
    assert [state for state, _ in (first, second, third, fourth)] == ["done", "done", "killed", "failed"]
    assert [len(run.record.record.get("starts", [])) for run in runs[:3]] == [1, 2, 1]
    assert "/no/such/folder" in fourth[1] and not runs[3].path.exists()
    log = runs[1].log.read_text()
    assert "stopped by SIGTERM at step 4, saved" in log and "going on from" in log
    said = succeed(["results", "four.yaml", "--format=markdown"], folder).out
    assert "| 2 of 3 |" in said and "not finished (killed, step " in said and "not started: tiny/" in said

    # Only what is left; both go on, and all ends as if nothing had happened.
    wait_for(submit(folder, "four", options=["--resume"]))
    assert "runs 3-4\n" in (SweepFolder.find("four.yaml").path / "jobs.txt").read_text()
    assert {state for state, _ in states(folder, "four")} == {"done"}
    undisturbed = tmp_path_factory.mktemp("undisturbed")
    for run in runs:
        options = [f"--{key}={value}" for key, value in SETTINGS.items()]
        succeed(["fit", "--config", str(TINY), *options, f"--seed_everything={run.index}"], undisturbed)
        assert_same_weights(run.path, undisturbed / "runs/tiny" / run.path.name)
    assert "nothing is left to run" in succeed(["submit", "four.yaml", "--resume"], folder).err


def test_the_time_limit(folder, tmp_path_factory):
    """Slurm's signal comes before it, up to a minute early: the run saves, is queued again, and ends."""
    write_sweep(folder, "long")
    slow = '[ -n "$SLURM_RESTART_COUNT" ] || export KILL_AT=train_batch_start:3 RUN="sleep 170"'  # the signal ends it
    wait_for(submit(folder, "long", slow, options=["--sbatch=--time=3"]))
    (run,) = runs_of(folder, "long")
    assert states(folder, "long")[0][0] == "done" and len(run.record.record["starts"]) == 2
    assert "stopped by SIGUSR1 at step" in run.log.read_text()
    undisturbed = tmp_path_factory.mktemp("undisturbed")
    succeed(["fit", "--config", str(TINY), *(f"--{k}={v}" for k, v in SETTINGS.items())], undisturbed)
    assert_same_weights(run.path, undisturbed / "runs/tiny" / run.path.name)


def test_two_processes_under_srun_of_which_one_dies(folder):
    """The same run twice: one is disturbed."""
    ddp = {"more": "--kill-on-bad-exit=1", "devices": "--trainer.devices=2",
           "one": "--trainer.devices=1 --trainer.strategy=auto"}  # fmt: skip
    write_sweep(folder, "whole", set=SETTINGS | {"trainer.strategy": "ddp"})
    write_sweep(folder, "broken", set=SETTINGS | {"trainer.strategy": "ddp"}, runs_dir="others")
    two = ["--sbatch=--ntasks-per-node=2"]
    job = submit(folder, "whole", options=two, **ddp)
    kill = only(1, "export KILL_AT=train_batch_end:4 KILL_RANK=1")
    wait_for(job, submit(folder, "broken", kill, options=two, **ddp))
    state, reason = states(folder, "broken")[0]
    assert state in ("failed", "killed", "stopped") and reason
    wait_for(submit(folder, "broken", options=["--resume", *two], **ddp))
    whole, broken = (runs_of(folder, name)[0].path for name in ("whole", "broken"))
    assert (whole / "test.json").is_file() and (broken / "test.json").is_file()
    assert_same_weights(whole, broken)


def test_an_impossible_request_is_refused_in_slurms_words(folder):
    write_sweep(folder, "large")
    said = fail(["submit", "large.yaml", "--template=cpu", "--sbatch=--nodes=99"], folder)
    assert said.startswith("sbatch refuses: Batch job submission failed: ")
    assert not (SweepFolder.find("large.yaml").path / "jobs.txt").exists()
