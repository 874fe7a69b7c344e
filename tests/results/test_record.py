"""RunRecord reads a run's directory, whatever is missing in it, without torch."""

import json
from pathlib import Path

import pytest
import torch

from lra_ssm.runs.directory import RunDirectory
from lra_ssm.runs.record import RunRecord, changed_data, find_runs
from tests.results.made import DATA, make_run, read


def test_runs_behind_links_are_found_once(tmp_path):
    here = make_run(tmp_path)
    there = make_run(tmp_path / "other disk", "lra/text/b2s6", run_id="a")
    (tmp_path / "runs/lra/archive").symlink_to(tmp_path / "other disk/runs")
    (tmp_path / "other disk/runs/back").symlink_to(tmp_path / "runs")
    assert sorted(run.resolve() for run in find_runs(tmp_path / "runs")) == sorted([here, there])


def test_a_record_has_what_a_real_run_leaves(finished):
    (run,) = read("runs")
    assert run.path == finished.relative_to(Path.cwd())
    assert (run.task, run.model, run.seed) == ("tiny", "tiny", 1)
    state = torch.load(run.path / "checkpoints/last.ckpt", weights_only=True)
    assert run.step == state["global_step"] and run.status == "finished" and run.missing == "finished, not tested"
    assert 0 <= run.seconds < 600
    assert run.data[0] == "generated" and "sha" not in run.data[0] and len(run.data[1]) > 64
    assert run.code.startswith("0.1.0+") and "cores" in run.hardware
    assert run.settings["model.network.layer.num_blocks"] == 2 and "seed_everything" not in run.settings
    assert run.all_settings["model.network.layer.bias"] is True  # a default
    assert run.curve("val/accuracy").keys() == {2}


@pytest.mark.parametrize(
    ("score", "why"),
    [
        ({}, None),
        # The test began while the fit still trained.
        ({"began": "2026-01-01T00:05:00+00:00"}, "a run that was not finished"),
        ({"batches": 2}, "2 of 9 batches"),
        ({"settings": {"trainer.precision": "16-mixed"}}, "other settings (trainer.precision 16-mixed)"),
        ({"checkpoint": "r/own_checkpoints/best.ckpt", "checkpoint_sha256": "bb"},
         "r/own_checkpoints/best.ckpt, not the run's best.ckpt"),
        ({"checkpoint": "r/checkpoints/last.ckpt"}, "r/checkpoints/last.ckpt, not the run's best.ckpt"),
    ],
)  # fmt: skip
def test_only_a_complete_score_of_the_best_checkpoint_counts(score, why, tmp_path):
    path = make_run(tmp_path, tested=False, best={"file": "best.ckpt", "sha256": "aa"})
    own = {"checkpoint": "r/checkpoints/best.ckpt", "checkpoint_sha256": "aa", "began": "2026-01-01T00:15:00+00:00",
           "batches": 9, "of_batches": 9, "settings": {}, "metrics": {"test/accuracy": 0.5}}  # fmt: skip
    RunDirectory(path).record_score("test", own | score, object())
    run = read(tmp_path)[0]
    assert run.missing == (f"finished, tested only with {why}" if why else "")
    assert run.tested.get("metrics") == (None if why else {"test/accuracy": 0.5})


def test_a_run_that_has_not_begun_has_the_names_of_its_folders(tmp_path):
    run = RunRecord.read(tmp_path / "lra/listops/s4d/0123456789")
    assert (run.task, run.model, run.config, run.problem) == ("listops", "s4d", {}, "")
    assert run.status == run.missing == "not started"


HOUR = {"time": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T01:00:00+00:00"}
HALF = {"time": "2026-01-02T00:00:00+00:00", "ended": "2026-01-02T00:30:00+00:00"}


@pytest.mark.parametrize(
    ("starts", "wrote", "seconds"),
    [
        ([HOUR, HALF], None, 5400.0),
        ([{"time": HOUR["time"]}], "2026-01-01T00:10:00+00:00", 600.0),
        # Killed at once: progress.json is of the attempt before.
        ([HOUR, {"time": HALF["time"]}], "2026-01-01T00:10:00+00:00", 3600.0),
    ],
)
def test_time_is_of_all_attempts_and_of_a_killed_one_to_its_last_progress(starts, wrote, seconds, tmp_path):
    path = make_run(tmp_path, starts=starts)
    (path / "progress.json").write_text(json.dumps({"time": wrote}))
    assert read(tmp_path)[0].seconds == seconds


@pytest.mark.parametrize("content", ["", "{", "[]", "a: [", None])
@pytest.mark.parametrize("name", ["run.json", "config.yaml", "test.json"])
def test_a_damaged_file_is_named(name, content, tmp_path):
    path = make_run(tmp_path)
    (path / name).unlink()
    (path / name).mkdir() if content is None else (path / name).write_text(content)
    run = RunRecord.read(path)
    assert name in run.missing and run.status == "damaged"
    for what in ("seconds", "step", "settings", "data", "code", "hardware", "experiment", "weights", "parameters"):
        getattr(run, what)


def test_data_is_compared_by_its_files_and_named_in_words(tmp_path):
    arrays = {"train": {"arrays": {"labels": {"file": "a.npy", "sha256": "1"}}}}
    own = {"source": {"kind": "files", "limit": 400}, "splits": arrays, "inputs": "unit"}
    changed = json.loads(json.dumps(own).replace('"1"', '"2"'))
    for data in (DATA, own, changed):
        make_run(tmp_path, data=data)
    runs = read(tmp_path)
    assert [run.data[0] for run in runs] == ["generated"] + 2 * ["own files, limit 400"]
    assert len({run.data[1] for run in runs}) == 3
    assert (changed_data(own, own), changed_data(own, changed), changed_data(DATA, own)) == ("", "a differ", "")
