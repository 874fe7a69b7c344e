"""lra-ssm status: the state of every run, by what it has left, its locks, its log and Slurm's queue."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from lra_ssm.cli import main
from lra_ssm.cluster.folder import SweepFolder
from lra_ssm.cluster.slurm import NO_QUEUE, queue_of
from lra_ssm.cluster.status import RunState, run_state, seconds_left, states
from lra_ssm.cluster.table import status_table, summary, titles
from lra_ssm.runs.directory import RunDirectory, is_held
from tests.cluster.sweeps import HERE, at, held, log_left, run_left, sweep_folder


@pytest.fixture
def folder(tmp_path):
    return sweep_folder(tmp_path, 3)


def only(folder):
    return run_state(folder, folder.runs[0])


def test_a_run_of_which_there_is_nothing_waits(folder):
    found = only(folder)
    assert found.state == "waiting" and found.attempts == 0 and found.step is None and not found.reason


def test_a_run_that_is_trained_and_tested_is_done(folder):
    run_left(folder, 1, "finished", step=100, tested=True)
    found = only(folder)
    assert found.state == "done" and found.test == {"test/accuracy": 0.75} and found.seconds_left is None
    assert (found.step, found.of, found.attempts) == (100, 100, 1)


def test_a_run_whose_directory_is_held_is_training(folder):
    path = run_left(folder, 1, starts=2)
    progress = json.loads((path / "progress.json").read_text())
    with held(path / ".lock"):
        found = only(folder)
        (path / "progress.json").write_text(json.dumps({**progress, "validating": True}))
        assert only(folder).phase == "validating"
    assert found.state == "running" and found.phase == "training" and found.attempts == 2
    assert (found.step, found.of, found.rate, found.seconds_left) == (40, 100, 2.0, 30.0)
    assert found.train == {"train/loss": 1.5} and found.val == {"val/accuracy": 0.5}  # half a row is none
    assert only(folder).state == "lost"  # when it is let go of, nobody works at it


@pytest.mark.parametrize("status, phase", [(None, "starting"), ("finished", "testing"), ("started", "starting")])
def test_a_run_whose_log_is_held_is_before_or_after_its_training(folder, status, phase):
    if status:
        run_left(folder, 1, status, ago=200)
    with held(log_left(folder, 1, "step 1")):
        found = only(folder)
    assert (found.state, found.phase, found.seconds_left) == ("running", phase, None)


def test_a_killed_run_is_lost_and_what_is_known_of_its_end_is_said(folder):
    run_left(folder, 1)
    assert only(folder).reason == "its process ended without a word"
    log_left(folder, 1, "run runs/mine/1", "step 40/100", ago=110)
    assert (only(folder).state, only(folder).reason) == ("lost", "its process ended without a word")
    slurm = "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-11-22T10:00:00 DUE TO NODE FAILURE, SEE LOG ***"
    log_left(folder, 1, slurm, "srun: error: node1: task 0: Killed", ago=105)
    assert only(folder).state == "lost" and "DUE TO NODE FAILURE" in only(folder).reason
    log_left(folder, 1, "step 40/100", "== ended: killed by SIGKILL", ago=102)
    assert (only(folder).state, only(folder).reason) == ("lost", "killed by SIGKILL")


def test_a_run_that_saved_for_a_signal_is_stopped(folder):
    run_left(folder, 1, "interrupted")
    said = "lra-ssm: stopped by SIGTERM at step 40, saved; the same command goes on from runs/mine/1/last.ckpt"
    log_left(folder, 1, "step 40/100", said, ago=101)
    assert (only(folder).state, only(folder).reason) == ("stopped", "stopped by SIGTERM at step 40, saved")
    run_left(folder, 2, "stopped by max_time")
    assert run_state(folder, folder.runs[1]).state == "stopped"
    log_left(folder, 3, "lra-ssm: stopped by SIGTERM")  # it had not come to its directory
    assert run_state(folder, folder.runs[2]).state == "stopped"


def test_a_failure_is_that_of_the_record_or_of_the_last_attempt(folder):
    run_left(folder, 1, "failed", reason="loss is nan at step 7")
    assert (only(folder).state, only(folder).reason) == ("failed", "loss is nan at step 7")
    log_left(folder, 1, "lra-ssm: error: no data root", ago=90)  # the attempt after it did not come so far
    assert (only(folder).state, only(folder).reason) == ("failed", "no data root")
    log_left(folder, 1, "step 50/100", ago=80)  # and the one after that was killed
    assert (only(folder).state, only(folder).reason) == ("failed", "its log ends with: step 50/100")


@pytest.mark.parametrize(
    "said, reason",
    [
        (["lra-ssm: error: unknown option --x", "srun: error: n: task 0: Exited with exit code 2"],
         "unknown option --x"),
        (["Traceback (most recent call last):", '  File "a.py", line 1', "    import x", "ImportError: no x"],
         "ImportError: no x"),
        (["slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."],
         "Slurm: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."),
        (["/usr/bin/python: No module named lra_ssm"], "its log ends with: /usr/bin/python: No module named lra_ssm"),
    ],
)  # fmt: skip
def test_a_failure_before_the_directory_is_there_is_read_from_the_log(folder, said, reason):
    log_left(folder, 1, "lra-ssm: error: of the attempt before", ago=500)
    log_left(folder, 1, "note: generating", *said)
    assert (only(folder).state, only(folder).reason) == ("failed", reason)


def test_a_run_started_by_hand_after_its_log_is_judged_by_its_record(folder):
    log = log_left(folder, 1, "lra-ssm: error: no data root", ago=500)
    os.utime(log, (time.time() - 400,) * 2)
    path = run_left(folder, 1, ago=50)
    with held(path / ".lock"):
        assert only(folder).state == "running"
    assert only(folder).state == "lost"
    (path / "run.json").write_text(json.dumps({"status": "finished", "starts": [{"time": at(50)}]}))
    assert only(folder).state == "lost"  # it was never tested
    for untested in ("{}", "cut off"):
        (path / "test.json").write_text(untested)
        assert only(folder).state == "lost"
    (path / "test.json").write_text('{"metrics": {}}')
    assert only(folder).state == "done"


def test_a_test_that_fails_is_the_runs_failure(folder):
    run_left(folder, 1, "finished")
    log_left(folder, 1, "finished: runs/mine/1", "lra-ssm: error: the disk is full", ago=101)
    assert (only(folder).state, only(folder).reason) == ("failed", "the disk is full")


def test_a_run_on_another_machine_is_believed_while_it_gives_signs(folder):
    """Where locks do not reach: here nobody holds one."""
    run_left(folder, 1, host="elsewhere", ago=9000, quiet=5)
    assert (only(folder).state, only(folder).silent) == ("running", None)
    run_left(folder, 2, host="elsewhere", ago=9000, quiet=300)
    second = run_state(folder, folder.runs[1])
    assert second.state == "running" and second.silent == pytest.approx(300, abs=5)
    assert "2 running: no sign for 5." in status_table(folder, [second], [second], 100)
    run_left(folder, 3, host="elsewhere", ago=9000, quiet=700)
    assert run_state(folder, folder.runs[2]).state == "lost"


def test_an_attempt_on_another_machine_is_over_when_its_log_says_so(folder):
    log = log_left(folder, 1, "note: generating", host="elsewhere")
    assert (only(folder).state, only(folder).phase) == ("running", "starting")
    log.write_text(log.read_text() + "lra-ssm: error: no data root\n")
    assert only(folder).state == "failed"
    log_left(folder, 2, "note: generating", host=HERE)
    assert run_state(folder, folder.runs[1]).state == "failed"


def test_what_files_hold_breaks_nothing(folder):
    noise = [b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b'{"status": 3}', b'{"status": "started", "starts": [{}]}',
             b'{"step": "x", "of": [], "rate": {}, "monitor": 3}', b"step,epoch\nx,y\n", b'"' * 50_000]  # fmt: skip
    path = run_left(folder, 1)
    log = log_left(folder, 1)
    for text in noise:
        for name in ("run.json", "progress.json", "metrics.csv", "test.json", ".holder.json"):
            (path / name).write_bytes(text)
        log.write_bytes(text)
        assert status_table(folder, states(folder), states(folder), 80)
    path = run_left(folder, 2, "finished", step=100, tested=True)
    (path / "progress.json").write_text('{"step": 100, "of": 100, "monitor": 3}')
    for metrics in ('{"test/accuracy": "high", "test/loss": 0.5}', "3", "[]"):
        (path / "test.json").write_text(f'{{"metrics": {metrics}}}')
        assert states(folder)[1].test in ({"test/loss": 0.5}, {})


def test_the_reason_in_a_long_log_is_found_from_its_end(folder):
    log = log_left(folder, 1, ago=500)
    with open(log, "a") as file:
        file.write("lra-ssm: error: of long ago\n" + "x" * 99 + "\n" + "step\n" * 1_000_000)
    log_left(folder, 1, *["step 1"] * 30_000, "lra-ssm: error: the last one")
    began = time.perf_counter()
    assert only(folder).reason == "the last one" and time.perf_counter() - began < 1


# --- Slurm ---


def slurm(folder, monkeypatch, script):
    """A submission of runs 1 and 2, and a squeue that is this shell script."""
    (folder.path / "submissions.json").write_text(
        json.dumps([{"job": "70", "indices": [1]}, {"job": "71", "indices": [1, 2]}])
    )
    bin_ = folder.path / "bin"
    bin_.mkdir(exist_ok=True)
    (bin_ / "squeue").write_text(f"#!/bin/sh\n{script}\n")
    (bin_ / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")


def test_slurm_knows_what_waits_and_what_runs(folder, monkeypatch):
    slurm(
        folder, monkeypatch, 'echo "$@" >> ' + f"{folder.path}/asked; echo '1|RUNNING|None'; echo '2|PENDING|BeginTime'"
    )
    run_left(folder, 1, host="elsewhere", ago=9000, quiet=5000)
    run_left(folder, 2, ago=100)
    first, second, third = states(folder, queue_of(folder))
    assert first.state == "running" and (second.state, second.reason) == ("waiting", "BeginTime")
    assert third.state == "waiting"  # never submitted
    (asked,) = (folder.path / "asked").read_text().splitlines()  # one call for both jobs
    assert "--jobs=70,71" in asked


def test_what_slurm_has_no_more_is_not_believed(folder, monkeypatch):
    slurm(folder, monkeypatch, "true")
    run_left(folder, 1, host="elsewhere", ago=9000, quiet=5)
    first, second, _ = states(folder, queue_of(folder))
    assert first.state == "lost" and (second.state, second.reason) == (
        "lost", "Slurm has it no more: cancelled before it started"
    )  # fmt: skip
    log_left(folder, "prepare", "lra-ssm: error: no LRA release at x")
    _, second, _ = states(folder, queue_of(folder))
    assert second.state == "failed" and "no LRA release at x" in second.reason


@pytest.mark.parametrize(
    "script, note",
    [("echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1", "Unable to contact"),
     ("sleep 60", "did not answer within 0.3 s"), ("echo '1|'; echo '|||'; echo nonsense", "")],
)  # fmt: skip
def test_a_squeue_that_fails_or_hangs_changes_nothing_but_a_note(folder, monkeypatch, script, note):
    slurm(folder, monkeypatch, f"exec {script}" if "sleep" in script else script)
    run_left(folder, 1, host="elsewhere", ago=9000, quiet=5)
    queue = queue_of(folder, 0.3)
    assert note in queue.note and bool(note) == bool(queue.note)
    assert [run.state for run in states(folder, queue)][1:] == ["waiting" if note else "lost", "waiting"]
    monkeypatch.setenv("PATH", str(folder.path))
    assert queue_of(folder) == NO_QUEUE  # no squeue here


# --- the lock ---


def test_a_look_at_the_lock_does_not_disturb_a_start(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.lock()
    directory.release()
    stop = threading.Event()

    def look():
        while not stop.is_set():
            is_held(tmp_path / ".lock")

    lookers = [threading.Thread(target=look) for _ in range(4)]
    for thread in lookers:
        thread.start()
    try:
        for _ in range(5):
            directory.lock()
            directory.release()
    finally:
        stop.set()
        for thread in lookers:
            thread.join()
    assert not is_held(tmp_path / ".lock") and not is_held(tmp_path / "nothing")
    with held(tmp_path / ".lock"):
        assert is_held(tmp_path / ".lock")


# --- the command ---


def test_the_command_shows_filters_and_prints_records(folder, capsys):
    run_left(folder, 1, "finished", step=100, tested=True)
    run_left(folder, 2, "failed", reason="loss is nan")
    assert main(["status", str(folder.path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == "run what state step val accuracy test accuracy train loss attempts".split()
    assert out[1].split() == ["1", "seed", "1", "done", "100/100", "0.5", "0.75", "1.5", "1"]
    assert out[-3:] == ["2 failed: loss is nan", f"log of run N: {folder.path}/logs/N.log",
                        "3 runs: 1 done, 1 waiting, 1 failed"]  # fmt: skip
    assert main(["status", str(folder.path), "--state=failed,lost"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 5 and out[1].startswith("2 ") and out[-1] == "3 runs: 1 done, 1 waiting, 1 failed"
    assert main(["status", str(folder.path), "--json", "--state", "failed"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["index"] == 2 and record["state"] == "failed" and record["reason"] == "loss is nan"
    assert record["log"] == f"{folder.path}/logs/2.log" and record["changes"] == {"seed_everything": 2}
    assert record["val"] == {"val/accuracy": 0.5} and record["options"] == folder.runs[1].options


@pytest.mark.parametrize(
    "arguments, said",
    [(["nowhere"], "nowhere is neither a sweep file"), (["nowhere.yaml"], "no sweep nowhere.yaml: neither"),
     (["FOLDER", "--state=faild"], "there is no state 'faild'; did you mean 'failed'?"),
     (["FOLDER", "--watch=0"], "--watch draws"), (["FOLDER", "--watch", "--json"], "--watch draws")],
)  # fmt: skip
def test_bad_input_is_one_line(folder, arguments, said, capsys):
    assert main(["status", *(str(folder.path) if a == "FOLDER" else a for a in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_watch_ends_with_the_last_run(folder, capsys):
    for index in (1, 2, 3):
        run_left(folder, index, "finished", tested=True)
    assert main(["status", "--watch", str(folder.path)]) == 0  # its seconds left out, before the sweep
    assert capsys.readouterr().out.count("3 runs: 3 done") == 1


def test_many_runs_are_quick_and_load_no_torch(tmp_path):
    folder = sweep_folder(tmp_path, 200)
    for index in range(1, 201):
        path = run_left(folder, index)
        (path / "metrics.csv").write_text("step,epoch,train/loss,val/accuracy\n" + "19,0,2.5,0.25\n" * 2000)
        log_left(folder, index, *["step 1/100, epoch 1, loss 2.3"] * 500, ago=101)
    code = (
        "import sys, time; began = time.perf_counter()\nfrom lra_ssm.cli import main\n"
        f"assert main(['status', {str(folder.path)!r}]) == 0\n"
        "assert not {'torch', 'lightning', 'numpy'} & set(sys.modules)\nprint(time.perf_counter() - began)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *shown, seconds = done.stdout.splitlines()
    assert len(shown) > 200 and shown[-1] == "200 runs: 200 lost"
    assert float(seconds) < 10  # half of one on an idle machine


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_keeps_to_its_terminal(folder, width):
    path = run_left(folder, 1)
    run_left(folder, 2, "failed", reason="a long reason " * 20)
    with held(path / ".lock"):
        found = states(folder)
    table = status_table(folder, found, found, width).split("2 failed: ")[0].splitlines()
    assert max(map(len, table)) <= width
    thousand = [RunState(i, "lost" if i % 9 else "running", phase="training") for i in (1, 2, 3) for _ in range(40)]
    assert len(status_table(folder, thousand, thousand, width, height=24).splitlines()) <= 24


def test_time_left_is_that_of_the_slowest_or_of_all_who_wait():
    def running(step):
        return RunState(1, "running", phase="training", step=step, of=100, rate=1.0, seconds_left=100.0 - step)

    waiting, done = RunState(2, "waiting"), RunState(3, "done", step=100, of=100, rate=1.0)
    assert seconds_left([running(40), running(90), done]) == 60
    assert seconds_left([running(40), running(90), *[waiting] * 4]) == (60 + 10 + 400) / 2
    assert seconds_left([waiting, done]) is None
    assert summary([running(40), done]) == "2 runs: 1 done, 1 running; about 60 s left"


def test_a_run_is_called_by_what_tells_it_from_the_others(tmp_path):
    def named(runs):
        folder = sweep_folder(tmp_path / str(len(list(tmp_path.iterdir()))))
        given = [
            {"index": i, "options": [f"--config=c/{config}.yaml"], "changes": changes, "path": f"{experiment}/{i}"}
            for i, (config, experiment, changes) in enumerate(runs, 1)
        ]
        (folder.path / "runs.json").write_text(json.dumps({"name": "mine", "source": "mine.yaml", "runs": given}))
        return list(titles(SweepFolder(folder.path)).values())

    lr = "model.optimizer.lr"
    assert named([("s4d", "cpu", {lr: 0.1, "x": 1}), ("s4d", "cpu", {lr: 0.2, "x": 1})]) == ["lr 0.1", "lr 0.2"]
    assert named([("s4d", "cpu", {lr: 0.1}), ("s6", "cpu", {lr: 0.2})]) == ["s4d", "s6"]
    assert named([("s4d", "cpu", {})]) == ["s4d"]
    variants = [("tiny", f"cpu/{name}", {"experiment": name, "blocks": blocks, "seed_everything": seed})
                for seed in (0, 1) for name, blocks in (("one", 1), ("two", 2))]  # fmt: skip
    assert named(variants) == ["one seed 0", "two seed 0", "one seed 1", "two seed 1"]
