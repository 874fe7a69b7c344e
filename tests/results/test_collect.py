"""Run directories are read, whatever is missing in them, and never by torch."""

import json
import shutil
import socket
import subprocess
import sys
import time

import pytest

from lra_ssm.errors import InputError
from lra_ssm.results.collect import collect
from lra_ssm.results.groups import group
from lra_ssm.runs.directory import RunDirectory
from tests.results.made import DATA, make_run, read
from tests.runner import only_run


def test_runs_are_found_by_folder_glob_and_sweep_each_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = make_run(tmp_path), make_run(tmp_path, "lra/text/b2s6", seed=1)
    assert [run.path.resolve() for run in read("runs")] == [first, second]
    given = ["runs/lra/*", str(first), "runs/lra/listops/s4d"]
    assert {run.path.resolve() for run in read(*given)} == {first, second} and len(read(*given)) == 2
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/runs.json").touch()
    missing = tmp_path / "runs/lra/image/lru/0123456789"
    of_sweep = collect(["sweep"], lambda path: [(first, {}), (missing, {"seed_everything": 3})])
    assert [(run.task, run.model, run.seed, run.missing) for run in of_sweep] == [
        ("listops", "s4d", 0, ""), ("image", "lru", 3, "not started")
    ]  # fmt: skip
    with pytest.raises(InputError, match="runs/none: there is no such folder"):
        read("runs/none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty: holds no runs"):
        read("empty")


def test_runs_behind_links_are_found_once(tmp_path):
    here = make_run(tmp_path)
    there = make_run(tmp_path / "other disk", "lra/text/b2s6", run_id="a")
    (tmp_path / "runs/lra/archive").symlink_to(tmp_path / "other disk/runs")
    (tmp_path / "runs/a-link-to-a-run").symlink_to(here)
    (tmp_path / "other disk/runs/back").symlink_to(tmp_path / "runs")
    (tmp_path / "runs/gone").symlink_to(tmp_path / "nothing")
    found = [run.path for run in read(tmp_path / "runs")]
    assert found == [here, tmp_path / "runs/lra/archive" / there.relative_to(tmp_path / "other disk/runs")]


def test_a_record_has_what_a_real_run_leaves(trained, tmp_path):
    shutil.copytree(trained[0] / "runs", tmp_path / "runs")
    (only_run(tmp_path) / "test.json").unlink(missing_ok=True)  # other tests score the run that all share
    (run,) = read(tmp_path / "runs")
    assert run.path == only_run(tmp_path) and (run.task, run.model, run.seed) == ("tiny", "tiny", 1)
    import torch

    state = torch.load(run.path / "checkpoints/last.ckpt", weights_only=True)
    counts = [value.numel() for name, value in state["state_dict"].items() if "running_" not in name]
    assert run.parameters == sum(counts) - sum(n.endswith("num_batches_tracked") for n in state["state_dict"])
    assert run.step == state["global_step"] and run.status == "finished" and run.missing == "finished, not tested"
    took, more = run.seconds
    assert 0 <= took < 600 and not more
    assert run.data[0] == "generated" and "sha" not in run.data[0] and len(run.data[1]) > 64
    assert run.code.startswith("0.1.0+") and "cores" in run.hardware


@pytest.mark.parametrize(
    ("made", "missing"),
    [
        ({}, ""),
        ({"tested": False}, "finished, not tested"),
        ({"status": "failed", "reason": "the loss is nan"}, "failed: the loss is nan"),
        ({"status": "interrupted", "step": 40}, "not finished (interrupted, step 40 of 80,000)"),
        ({"tested": {"time": "2026-01-01T00:05:00+00:00"}}, "tested before it was finished"),
        ({"tested": {"time": "2026-01-01T00:15:00+00:00"}}, ""),
    ],
)
def test_what_cannot_be_counted_says_why(made, missing, tmp_path):
    make_run(tmp_path, **made)
    assert read(tmp_path)[0].missing == missing


def test_a_run_that_has_not_ended_is_running_or_killed(tmp_path):
    path = make_run(tmp_path, status="started", tested=False)
    assert read(tmp_path)[0].status == "started"  # nobody knows where
    (path / ".holder.json").write_text(json.dumps({"pid": 1, "host": "another"}))
    assert read(tmp_path)[0].status == "started"
    (path / ".holder.json").write_text(json.dumps({"pid": 1, "host": socket.gethostname()}))
    assert read(tmp_path)[0].status == "killed"
    run = RunDirectory(path)
    run.lock()
    assert read(tmp_path)[0].status == "running"
    run.release()
    assert read(tmp_path)[0].status == "killed"


def test_time_is_of_all_attempts_and_a_bound_where_one_left_no_end(tmp_path):
    hour = [{"time": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T01:00:00+00:00"}]
    path = make_run(
        tmp_path, starts=[*hour, {"time": "2026-01-02T00:00:00+00:00", "ended": "2026-01-02T00:30:00+00:00"}]
    )
    assert read(tmp_path)[0].seconds == (5400.0, False)
    record = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(record | {"starts": [{"time": "2026-01-01T00:00:00+00:00"}]}))
    (path / "progress.json").write_text('{"time": "2026-01-01T00:10:00+00:00"}')
    assert read(tmp_path)[0].seconds == (600.0, True)
    killed_at_once = [*hour, {"time": "2026-01-02T00:00:00+00:00"}]  # progress.json is of the attempt before
    (path / "run.json").write_text(json.dumps(record | {"starts": killed_at_once}))
    assert read(tmp_path)[0].seconds == (3600.0, True)


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "test.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", "3", "\x00", '{"status": 3}', "a: [", "- a\n- b"])
def test_damaged_files_are_told_and_nothing_fails(name, content, tmp_path):
    path = make_run(tmp_path)
    (path / name).write_text(content)
    run = read(tmp_path)[0]
    assert run.missing
    for what in ("seconds", "step", "settings", "data", "code", "hardware", "experiment", "contradiction", "progress"):
        getattr(run, what)


@pytest.mark.parametrize(
    ("key", "value"),
    [("trainer", None), ("trainer", [1]), ("trainer.callbacks", [1]), ("data", "x"), ("data.init_args", None),
     ("checkpoint", 3), ("model.init_args", [5]), ("seed_everything", [1])],
)  # fmt: skip
def test_a_config_of_another_form_leaves_out_its_run_alone(key, value, tmp_path):
    make_run(tmp_path, seed=0, value=0.5)
    wrong = make_run(tmp_path, seed=1, value=0.9, changes={key: value})
    (found,) = group(read(tmp_path))
    assert found.values == [50.0]
    assert f"{wrong}: config.yaml is not as a fit writes it" in found.notes[0]
    assert key.partition(".")[0] in found.notes[0]


@pytest.mark.parametrize("name", ["config.yaml", "test.json"])
def test_a_file_that_cannot_be_read_is_told(name, tmp_path):
    file = make_run(tmp_path) / name
    file.unlink()
    file.mkdir()
    assert read(tmp_path)[0].missing == f"{name} cannot be read"


def test_data_is_told_apart_by_its_files_and_named_in_words(tmp_path):
    arrays = {"train": {"arrays": {"labels": {"file": "a.bin", "sha256": "1"}}}}
    lossy = {"source": {"kind": "files", "lossy": True, "limit": 400}, "splits": arrays, "inputs": "unit"}
    make_run(tmp_path, data=DATA)
    make_run(tmp_path, data=lossy)
    arrays["train"]["arrays"]["labels"]["sha256"] = "2"
    make_run(tmp_path, data=lossy)
    runs = read(tmp_path)
    assert [run.data[0] for run in runs] == ["generated"] + 2 * ["own files, lossy, limit 400"]
    assert len({run.data[1] for run in runs}) == 3


def test_a_task_that_stands_for_other_data_is_told(tmp_path):
    make_run(tmp_path, changes={"experiment": "lra/text/s4d"})
    make_run(tmp_path, "lra/pathx/s4d")
    make_run(tmp_path, changes={"experiment": "mine/s4d"})
    found = {run.task: run.contradiction for run in read(tmp_path)}
    assert found == {"text": "its data is ListOps, not Text", "pathx": "", "mine": ""}


def test_many_runs_are_read_in_about_a_second_without_torch(tmp_path):
    for seed in range(60):
        make_run(tmp_path, seed=seed, run_id=f"{seed:010x}", curve=[(100 * i, 0.5) for i in range(100)])
    code = "import sys; from lra_ssm.cli import main; assert main(sys.argv[2:]) == 0; " \
        "assert not set(sys.argv[1].split()) & set(sys.modules)"  # fmt: skip
    for command, without in (("results", "torch lightning matplotlib"), ("runs", "torch lightning numpy pandas")):
        start = time.perf_counter()
        started = [sys.executable, "-c", code, without, command, "runs"]
        subprocess.run(started, cwd=tmp_path, check=True, capture_output=True)
        assert time.perf_counter() - start < 10  # about one; the machine may be busy
