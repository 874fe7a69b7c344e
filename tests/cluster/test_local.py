"""lra-ssm submit --local: runs here, some at a time; how they are stopped, and that none outlives its parent."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lra_ssm.cluster.folder import SweepFolder
from lra_ssm.cluster.status import run_state
from tests.cluster.sweeps import held, run_left, sweep_folder
from tests.runner import TINY

CHECKOUT = Path(__file__).parents[2]

# An interpreter that knows two commands alone, and trains nothing: what a run with seed N does stands in seedN.
INTERPRETER = """#!/bin/bash
[ $1 != -Ic ] || exec PYTHON "$@"  # which becomes this script, with the command
command=$3 seed=${5#*=}
echo "$command $seed $OMP_NUM_THREADS" >> calls
directory=runs/mine/$(printf %010d $seed)
mkdir -p $directory
record() { echo "{\\"status\\": \\"$1\\", \\"starts\\": [{\\"time\\": \\"$(date -u +%Y-%m-%dT%H:%M:%S+00:00)\\"}]}" > $directory/run.json; }
[ ! -f seed$seed ] || . ./seed$seed
[ $command = fit ] && record finished
[ $command = test ] && echo '{"metrics": {"test/accuracy": 0.75}}' > $directory/test.json
exit 0
"""  # noqa: E501
SAVES = """
record started
trap 'record interrupted; echo "lra-ssm: stopped by SIGTERM at step 7, saved"; echo stopped >> calls; exit 143' TERM
touch ready$seed
while true; do sleep 0.05; done
"""
TOLD = "for i in {1..600}; do [ -f told ] && break; sleep 0.05; done"  # until the test says so
STUBBORN = "record started; trap '' TERM; touch ready$seed; while true; do sleep 0.05; done"


def start(folder: SweepFolder, at_a_time: int, **env: str) -> subprocess.Popen:
    """The command in a process of its own, with the interpreter above."""
    base = folder.path.parents[2]
    (base / "python").write_text(INTERPRETER.replace("PYTHON", sys.executable))
    (base / "python").chmod(0o755)
    code = (
        "import sys\nfrom lra_ssm.cli import main\nfrom lra_ssm.cluster import local\n"
        "sys.executable = './python'\nlocal._SAID_EVERY = 0.5\n"
        f"sys.exit(main(['submit', {str(folder.path.relative_to(base))!r}, '--local={at_a_time}']))"
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


def alive(base: Path) -> bool:
    """Whether a process of the sweep's runs in this folder is there."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                if (process / "cwd").resolve() == base and b"./python" in (process / "cmdline").read_bytes():
                    return True
            except OSError:
                continue
    return False


def test_each_run_is_trained_and_tested_so_many_at_a_time(tmp_path):
    folder = sweep_folder(tmp_path, 5)
    run_left(folder, 2, "finished", tested=True)
    run_left(folder, 3, "finished")  # trained, and its test is missing
    for seed in (1, 4, 5):
        (tmp_path / f"seed{seed}").write_text(f'echo "$command $seed begins" >> times\n{TOLD}\necho ends >> times')
    process, said = start(folder, 2), ""
    for line in process.stdout:
        said += line
        if re.search(r"\d running", line):  # a line every so often
            (tmp_path / "told").touch()
    assert process.wait(60) == 0, said
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert sorted(calls(tmp_path)) == sorted(f"{c} {i} {threads}" for c, i in
        [("fit", 1), ("test", 1), ("test", 3), ("fit", 4), ("test", 4), ("fit", 5), ("test", 5)])  # fmt: skip
    running = 0
    for line in (tmp_path / "times").read_text().splitlines():
        running += 1 if "begins" in line else -1
        assert running <= 2
    assert all(run.done for run in folder.runs)
    assert "run 4 begins: seed 4" in said and re.search(r"run 4 done after [\d.]+ s, test/accuracy 0.75", said)
    assert said.endswith("5 runs: 5 done\n") and (tmp_path / "told").exists()
    assert "== attempt " in folder.log(1).read_text()


def test_the_users_own_number_of_threads_stays(tmp_path):
    process = start(sweep_folder(tmp_path), 1, OMP_NUM_THREADS="3")
    assert process.wait(60) == 0 and calls(tmp_path) == ["fit 1 3", "test 1 3"]


def test_a_failed_run_stops_no_other_and_is_told_in_a_line(tmp_path):
    folder = sweep_folder(tmp_path, 4)
    (tmp_path / "seed1").write_text("echo 'lra-ssm: error: no data root'; exit 2")
    (tmp_path / "seed2").write_text("[ $command = fit ] || { echo 'lra-ssm: error: the disk is full'; exit 2; }")
    (tmp_path / "seed3").write_text("record started; kill -KILL $$")
    said, _ = (process := start(folder, 1)).communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(rf"run 1 failed after [\d.]+ s: no data root \({folder.log(1).relative_to(tmp_path)}\)", said)
    assert re.search(r"run 2 failed after [\d.]+ s: the disk is full", said)
    assert re.search(r"run 3 lost after [\d.]+ s: killed by SIGKILL", said)
    assert said.endswith("4 runs: 1 done, 2 failed, 1 lost\n")
    for seed in (1, 2, 3):
        (tmp_path / f"seed{seed}").unlink()
    assert start(folder, 4).wait(60) == 0  # the same again goes on with what is left
    assert [run_state(folder, run).state for run in folder.runs] == ["done"] * 4
    assert sum(line.startswith("fit 4 ") for line in calls(tmp_path)) == 1
    assert sum(line.startswith("fit 2 ") for line in calls(tmp_path)) == 1


def test_data_is_prepared_once_and_first(tmp_path):
    folder = sweep_folder(tmp_path, 2)
    (folder.path / "prepare.txt").write_text("--config=a.yaml --seed=7\n--config=b.yaml --seed=8\n")
    (tmp_path / "seed8").write_text("echo 'lra-ssm: error: no LRA release at x'; exit 2")
    said, _ = (process := start(folder, 2)).communicate(timeout=60)
    assert process.returncode == 2 and [line[:9] for line in calls(tmp_path)] == ["prepare 7", "prepare 8"]
    where = folder.path.relative_to(tmp_path) / "logs/prepare.log"
    assert said.splitlines()[-1] == f"lra-ssm: error: data is not prepared: no LRA release at x ({where})"
    (tmp_path / "seed8").unlink()
    assert start(folder, 2).wait(60) == 0
    assert [line.split()[0] for line in calls(tmp_path)[2:5]] == ["prepare", "prepare", "fit"]


def test_logs_that_were_removed_are_written_again(tmp_path):
    folder = sweep_folder(tmp_path)
    (folder.path / "prepare.txt").write_text("--config=a.yaml --seed=7\n")
    (folder.path / "logs").rmdir()
    said, _ = (process := start(folder, 1)).communicate(timeout=60)
    assert process.returncode == 0 and folder.log(1).is_file(), said


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_once_and_waited_for(tmp_path, signum):
    folder = sweep_folder(tmp_path, 3)
    for seed in (1, 2):
        (tmp_path / f"seed{seed}").write_text(SAVES)
    process = start(folder, 2)
    wait_for(tmp_path / "ready1", tmp_path / "ready2")
    process.send_signal(signum)
    process.send_signal(signum)  # as a launcher does that asks the leader and its group
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signum, said
    assert calls(tmp_path).count("stopped") == 2 and "test 1" not in said and "run 3 begins" not in said
    assert re.search(r"run 1 stopped after [\d.]+ s: by SIGTERM at step 7, saved", said)
    assert said.endswith("3 runs: 1 waiting, 2 stopped\n") and not alive(tmp_path)


def test_a_second_signal_ends_all_at_once(tmp_path):
    folder = sweep_folder(tmp_path, 1)
    (tmp_path / "seed1").write_text(STUBBORN)
    process = start(folder, 1)
    wait_for(tmp_path / "ready1")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130 and not alive(tmp_path)
    assert run_state(folder, folder.runs[0]).reason == "killed by SIGKILL"


@pytest.mark.skipif(sys.platform != "linux", reason="the system's own signal at a parent's death")
def test_runs_save_and_end_when_their_parent_is_killed(tmp_path):
    folder = sweep_folder(tmp_path, 2)
    for seed in (1, 2):
        (tmp_path / f"seed{seed}").write_text(SAVES)
    process = start(folder, 2)
    wait_for(tmp_path / "ready1", tmp_path / "ready2")
    assert run_state(folder, folder.runs[0]).state == "running"  # by the lock on its log
    process.kill()
    until = time.monotonic() + 10
    while alive(tmp_path):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert calls(tmp_path).count("stopped") == 2
    assert run_state(folder, folder.runs[0]).state == "stopped"


def test_a_run_that_another_process_works_at_is_left_alone(tmp_path):
    folder = sweep_folder(tmp_path, 2)
    folder.log(1).touch()
    with held(folder.log(1)):
        said, _ = (process := start(folder, 2)).communicate(timeout=60)
    assert "run 1 is left alone: another process works at it" in said and process.returncode == 0
    assert [line.split()[1] for line in calls(tmp_path)] == ["2", "2"]


@pytest.mark.trials  # the commands themselves; above, what starts and ends them
def test_real_fits(tmp_path):
    """By the command: one finishes, one cannot start."""
    (tmp_path / "sweep.yaml").write_text(
        json.dumps(
            {
                "name": "two",
                "configs": [str(TINY)],
                "set": {"trainer.max_epochs": 1, "data.num_train": 16},
                "grid": {"model.network.layer.num_blocks": [2, 7]},
            }
        )
    )
    command = [sys.executable, "-m", "lra_ssm", "submit", "sweep.yaml", "--local", "2"]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "run 2 failed after" in done.stdout and "is not divisible by num_blocks 7" in done.stdout
    assert done.stdout.endswith("2 runs: 1 done, 1 failed\n")
    (path,) = (tmp_path / "runs/sweeps").iterdir()
    folder = SweepFolder(path)
    found = run_state(folder, folder.runs[0])
    assert (found.state, found.step, found.of, found.attempts) == ("done", 2, 2, 1)
    assert found.test.keys() == {"test/accuracy"} and found.val.keys() == {"val/accuracy"}
    assert folder.log(1).read_text().count("finished: ") == 1
