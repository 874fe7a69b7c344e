"""lra-ssm submit --local: runs here, some at a time, and how signals stop them."""

import os
import re
import signal
import sys
import time
from itertools import accumulate
from pathlib import Path

import pytest

from lra_ssm.sweeps.local import run_local
from lra_ssm.sweeps.submit import SweepFolder
from tests.runner import Command

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
# It works until a signal comes, and does then what stands in its place.
WORKS = """
record started
trap '{}' TERM
touch ready$seed
while true; do sleep 0.05; done
"""
SAVES = 'record interrupted; echo "lra-ssm: stopped by SIGTERM at step 7, saved"; echo stopped >> calls; exit 143'
SWEEP = Path("runs/sweeps/mine-01234567")


@pytest.fixture
def folder(tmp_path):
    """A sweep of four seeds of one config."""
    path = tmp_path / SWEEP
    path.mkdir(parents=True)
    lines = [f"mine/{i:010d} --config=mine.yaml --seed_everything={i}\n" for i in range(1, 5)]
    (path / "runs.txt").write_text("".join(lines))
    (tmp_path / "python").write_text(INTERPRETER)
    (tmp_path / "python").chmod(0o755)
    return SweepFolder(path)


def train(arguments: list[str]) -> int:
    """Run what is missing of that sweep with the interpreter above: so many at a time, with so many threads."""
    sys.executable = "./python"
    os.environ.pop("OMP_NUM_THREADS")
    if arguments[1:]:
        os.environ["OMP_NUM_THREADS"] = arguments[1]
    return run_local([run for run in SweepFolder(SWEEP).runs if run.record.missing], int(arguments[0]))


def wait_for(*files: Path) -> None:
    until = time.monotonic() + 30
    while not all(file.exists() for file in files):
        assert time.monotonic() < until, files
        time.sleep(0.02)


def calls(base: Path) -> list[str]:
    return (base / "calls").read_text().splitlines()


def test_each_run_is_trained_and_tested_so_many_at_a_time(tmp_path, folder):
    for seed in (1, 2, 3):
        (tmp_path / f"seed{seed}").write_text("echo 1 >> times; sleep 0.3; echo -1 >> times")
    code, out, _ = Command(["2"], tmp_path, call=train).wait()
    assert code == 0, out
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert sorted(calls(tmp_path)) == sorted(f"{c} {i} {threads}" for c in ("fit", "test") for i in (1, 2, 3, 4))
    assert max(accumulate(map(int, (tmp_path / "times").read_text().split()))) == 2
    assert "run 4 begins: mine" in out
    assert re.search(r"run 4 done after [\d.]+ s: test/accuracy 0.75", out)
    assert all(not run.record.missing for run in SweepFolder(folder.path).runs)


def test_a_failed_run_stops_no_other_and_the_same_command_goes_on(tmp_path, folder):
    (tmp_path / "seed1").write_text("echo 'lra-ssm: error: no data root'; exit 2")
    (tmp_path / "seed2").write_text("[ $command = fit ] || { echo 'lra-ssm: error: the disk is full'; exit 2; }")
    (tmp_path / "seed3").write_text("record started; kill -KILL $$")
    code, out, _ = Command(["1"], tmp_path, call=train).wait()
    assert code == 1 and "run 4 done" in out
    log = folder.runs[0].log.relative_to(tmp_path)
    for number, reason in enumerate((rf"no data root \({log}\)", "the disk is full", ""), 1):
        assert re.search(rf"run {number} not done after [\d.]+ s: {reason}", out)
        (tmp_path / f"seed{number}").unlink()
    assert Command(["4", "3"], tmp_path, call=train).wait().code == 0  # the user's own number of threads stays
    assert sum(line.startswith("fit 4 ") for line in calls(tmp_path)) == 1 and "test 1 3" in calls(tmp_path)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_once_and_waited_for(tmp_path, folder, signum):
    for seed in (1, 2):
        (tmp_path / f"seed{seed}").write_text(WORKS.format(SAVES))
    command = Command(["2"], tmp_path, call=train)
    wait_for(tmp_path / "ready1", tmp_path / "ready2")
    for _ in range(2 if signum == signal.SIGTERM else 1):  # twice as of `timeout`: to a process and to its group
        os.kill(command.process.pid, signum)
    code, out, _ = command.wait()
    assert code == 128 + signum, out
    assert calls(tmp_path).count("stopped") == 2 and "test 1" not in out and "run 3 begins" not in out
    assert re.search(r"run 1 not done after [\d.]+ s: stopped by SIGTERM at step 7, saved", out)


def test_a_second_ctrl_c_kills_all(tmp_path, folder):
    (tmp_path / "seed1").write_text(WORKS.format("touch asked$seed"))
    command = Command(["1"], tmp_path, call=train)
    for file in ("ready1", "asked1"):
        wait_for(tmp_path / file)
        assert command.process.is_alive()
        os.kill(command.process.pid, signal.SIGINT)
    assert command.wait().code == 130 and SweepFolder(folder.path).runs[0].record.record["status"] == "started"
