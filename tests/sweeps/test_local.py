"""lra-ssm submit --local: runs here, some at a time, and how signals stop them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lra_ssm.sweeps.submit import SweepFolder
from tests.runner import TINY

CHECKOUT = Path(__file__).parents[2]

# An interpreter that knows only fit and test, and trains nothing: what a run with seed N does is in the file seedN.
INTERPRETER = """#!/bin/bash
command=$3 seed=${5#*=}
echo "$command $seed $OMP_NUM_THREADS" >> calls
directory=runs/mine/$(printf %010d $seed)
mkdir -p $directory
echo "{model: {}}" > $directory/config.yaml
record() { echo "{\\"status\\": \\"$1\\"}" > $directory/run.json; }
[ ! -f seed$seed ] || . ./seed$seed
[ $command = fit ] && record finished
[ $command = test ] && echo '{"metrics": {"test/accuracy": 0.75}}' > $directory/test.json
exit 0
"""
SAVES = """
record started
trap 'record interrupted; echo "lra-ssm: stopped by SIGTERM at step 7, saved"; echo stopped >> calls; exit 143' TERM
touch ready$seed
while true; do sleep 0.05; done
"""
STUBBORN = "record started; trap '' TERM; touch ready$seed; while true; do sleep 0.05; done"


def sweep_folder(base: Path, count: int) -> SweepFolder:
    """A sweep of so many seeds of one config."""
    path = base / "runs/sweeps/mine-01234567"
    path.mkdir(parents=True)
    lines = [f"mine/{i:010d} --config=mine.yaml --seed_everything={i}\n" for i in range(1, count + 1)]
    (path / "runs.txt").write_text("".join(lines))
    return SweepFolder(path)


def start(folder: SweepFolder, at_a_time: int, **env: str) -> subprocess.Popen:
    """`run_local` in its own process, with the interpreter above."""
    base = folder.path.parents[2]
    (base / "python").write_text(INTERPRETER)
    (base / "python").chmod(0o755)
    code = (
        "import sys\nfrom pathlib import Path\nfrom lra_ssm.sweeps import local, submit\n"
        "sys.executable = './python'\n"
        f"folder = submit.SweepFolder(Path('runs/sweeps/{folder.path.name}'))\n"
        "left = [run.index for run in folder.runs if run.record.missing]\n"
        f"sys.exit(local.run_local(folder, left, {at_a_time}))"
    )
    given = {**os.environ, "PYTHONPATH": str(CHECKOUT), **env}
    if "OMP_NUM_THREADS" not in env:
        given.pop("OMP_NUM_THREADS", None)
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=base, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(*files: Path) -> None:
    until = time.monotonic() + 30
    while not all(file.exists() for file in files):
        assert time.monotonic() < until, files
        time.sleep(0.02)


def calls(base: Path) -> list[str]:
    return (base / "calls").read_text().splitlines()


def test_each_run_is_trained_and_tested_so_many_at_a_time(tmp_path):
    folder = sweep_folder(tmp_path, 4)
    for seed in (1, 2, 3):
        (tmp_path / f"seed{seed}").write_text("echo begins >> times; sleep 0.3; echo ends >> times")
    said, _ = (process := start(folder, 2)).communicate(timeout=60)
    assert process.returncode == 0, said
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert sorted(calls(tmp_path)) == sorted(f"{c} {i} {threads}" for c in ("fit", "test") for i in (1, 2, 3, 4))
    running, most = 0, 0
    for line in (tmp_path / "times").read_text().splitlines():
        running += 1 if line == "begins" else -1
        most = max(most, running)
    assert most == 2
    assert "run 4 begins: mine" in said
    assert re.search(r"run 4 done after [\d.]+ s: test/accuracy 0.75", said)
    assert all(not run.record.missing for run in SweepFolder(folder.path).runs)


def test_the_users_own_number_of_threads_stays(tmp_path):
    process = start(sweep_folder(tmp_path, 1), 1, OMP_NUM_THREADS="3")
    assert process.wait(60) == 0 and calls(tmp_path) == ["fit 1 3", "test 1 3"]


def test_a_failed_run_stops_no_other_and_the_same_command_goes_on(tmp_path):
    folder = sweep_folder(tmp_path, 4)
    (tmp_path / "seed1").write_text("echo 'lra-ssm: error: no data root'; exit 2")
    (tmp_path / "seed2").write_text("[ $command = fit ] || { echo 'lra-ssm: error: the disk is full'; exit 2; }")
    (tmp_path / "seed3").write_text("record started; kill -KILL $$")
    said, _ = (process := start(folder, 1)).communicate(timeout=60)
    assert process.returncode == 1
    log = folder.runs[0].log.relative_to(tmp_path)
    assert re.search(rf"run 1 not done after [\d.]+ s: no data root \({log}\)", said)
    assert re.search(r"run 2 not done after [\d.]+ s: the disk is full", said)
    assert re.search(r"run 3 not done after [\d.]+ s: ", said) and "run 4 done" in said
    for seed in (1, 2, 3):
        (tmp_path / f"seed{seed}").unlink()
    assert start(folder, 4).wait(60) == 0
    assert sum(line.startswith("fit 4 ") for line in calls(tmp_path)) == 1


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_once_and_waited_for(tmp_path, signum):
    folder = sweep_folder(tmp_path, 3)
    for seed in (1, 2):
        (tmp_path / f"seed{seed}").write_text(SAVES)
    process = start(folder, 2)
    wait_for(tmp_path / "ready1", tmp_path / "ready2")
    process.send_signal(signum)
    if signum == signal.SIGTERM:
        process.send_signal(signum)  # as `timeout` does, which signals a process and its group
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signum, said
    assert calls(tmp_path).count("stopped") == 2 and "test 1" not in said and "run 3 begins" not in said
    assert re.search(r"run 1 not done after [\d.]+ s: stopped by SIGTERM at step 7, saved", said)


def test_a_second_ctrl_c_kills_all(tmp_path):
    folder = sweep_folder(tmp_path, 1)
    (tmp_path / "seed1").write_text(STUBBORN)
    process = start(folder, 1)
    wait_for(tmp_path / "ready1")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130 and SweepFolder(folder.path).runs[0].record.record["status"] == "started"


@pytest.mark.trials  # the commands themselves; above, what starts and ends them
def test_real_fits(tmp_path):
    """By the command: one finishes, one cannot start."""
    content = {
        "name": "two", "configs": [str(TINY)], "set": {"trainer.max_epochs": 1, "data.num_train": 16},
        "grid": {"model.network.layer.num_blocks": [2, 7]},
    }  # fmt: skip
    (tmp_path / "sweep.yaml").write_text(json.dumps(content))
    command = [sys.executable, "-m", "lra_ssm", "submit", "sweep.yaml", "--local=2"]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "run 2 not done after" in done.stdout and "is not divisible by num_blocks 7" in done.stdout
    (path,) = (tmp_path / "runs/sweeps").iterdir()
    first = SweepFolder(path).runs[0].record
    assert not first.missing and first.step == 2 and first.value("test/accuracy") is not None
