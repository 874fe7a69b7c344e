"""What a run leaves about itself: a directory that moves, records that are damaged."""

import json
import os
import random
import shutil

import pytest
import torch

from lra_ssm.runs.directory import RunDirectory
from tests.runner import FIT, SHORT, in_process, only_run, warning


@pytest.fixture
def finished(tmp_path, monkeypatch, trained, read_once):
    """A copy of a finished run."""
    monkeypatch.chdir(tmp_path)
    os.symlink(trained[0] / "data", "data")
    shutil.copytree(trained[0] / "runs", "runs")
    return only_run(tmp_path)


@pytest.fixture
def interrupted(uninterrupted, data, tmp_path, monkeypatch, read_once):
    """A run of two epochs that was killed in the second one."""
    monkeypatch.chdir(tmp_path)
    os.symlink(data, "data")
    shutil.copytree(uninterrupted("epochs").copies / "train_batch_start:10", "runs")
    return only_run(tmp_path)


# --- a directory that moves ---


def best_score(path):
    state = torch.load(path / "checkpoints/last.ckpt", weights_only=True)["callbacks"]
    return next(float(value["best_model_score"]) for name, value in state.items() if "SaveBest" in name)


@pytest.mark.parametrize(
    "how", ["moved", pytest.param("through a link", marks=pytest.mark.slow), "another working folder"]
)
def test_a_run_that_is_reached_by_another_path_keeps_its_best(how, interrupted, tmp_path, monkeypatch, capsys):
    """The best so far is set to a score that no later one reaches: its weights must stay."""
    best, last = interrupted / "checkpoints/best.ckpt", interrupted / "checkpoints/last.ckpt"
    for path in (best, last):
        state = torch.load(path, weights_only=True)
        (own,) = [value for name, value in state["callbacks"].items() if "SaveBest" in name]
        own.update(best_model_score=torch.tensor(2.0), kth_value=torch.tensor(2.0))
        own["best_k_models"] = {key: torch.tensor(2.0) for key in own["best_k_models"]}
        torch.save(state, path)
    before = best.read_bytes()
    command = [*FIT]
    if how == "moved":
        shutil.move("runs", "elsewhere")
        command += ["--runs_dir=elsewhere"]
    elif how == "through a link":
        os.symlink("runs", "link")
        command += ["--runs_dir=link"]
    else:
        (tmp_path / "sub").mkdir()
        monkeypatch.chdir(tmp_path / "sub")
        command += ["--runs_dir=../runs", f"--data.root={tmp_path / 'data'}"]
    code, out, said = in_process(command, capsys)
    (path,) = {p.resolve() for p in tmp_path.rglob("best.ckpt")}
    assert code == 0 and "going on from" in out, said
    assert path.read_bytes() == before and best_score(path.parents[1]) == 2.0
    assert json.loads((path.parents[1] / "run.json").read_text())["metrics"]["best val/accuracy"] == 2.0


def test_a_run_without_its_best_gets_one(interrupted, capsys):
    (interrupted / "checkpoints/best.ckpt").unlink()
    code, out, _ = in_process(FIT, capsys)
    assert code == 0 and "best.ckpt is missing; the next validation counts as the best" in out
    assert (interrupted / "checkpoints/best.ckpt").is_file()


# --- what is damaged ---

SLOW, TRIALS = pytest.mark.slow, pytest.mark.trials
FILES = ("run.json", ".holder.json", "config.yaml", "metrics.csv", "test.json")
JSON = ["null", "[]", '"finished"', "1", "{}", '{"status": 3}', '{"status": "finished", "metrics": null}',
        '{"status": "finished", "metrics": {"a": "b"}}', '{"status": "finished", "starts": [1]}',
        '{"status": "finished", "data": {"splits": {"train": 1}}}', '{"status": "finished", "data": []}',
        "[" * 100_000]  # fmt: skip


def damage(path, random_):
    """Cut, emptied, overwritten or with one bit flipped."""
    raw = path.read_bytes() if path.is_file() else b"{}"
    kind = random_.choice(["cut", "cut", "empty", "noise", "bit", "zeros"])
    if kind == "bit":
        at = random_.randrange(8 * len(raw))
        raw = raw[: at // 8] + bytes([raw[at // 8] ^ 1 << at % 8]) + raw[at // 8 + 1 :]
    elif kind == "cut":
        raw = raw[: random_.randrange(len(raw))]
    else:
        raw = {"empty": b"", "noise": random_.randbytes(200), "zeros": bytes(len(raw))}[kind]
    path.write_bytes(raw)
    return kind


@pytest.mark.parametrize("text", [pytest.param("", marks=SLOW), '{"status": "fini', pytest.param(JSON[6], marks=SLOW)])
def test_a_damaged_record_is_made_anew(text, finished, capsys):
    expected = json.loads((finished / "run.json").read_text())["metrics"]
    (finished / "run.json").write_text(text)
    assert in_process(["test", *FIT[1:], *SHORT], capsys)[0] == 0
    assert "test/accuracy" in json.loads((finished / "test.json").read_text())["metrics"]
    code, out, said = in_process([*FIT, *SHORT], capsys)
    line = warning(out)
    assert code == 0 and "run.json is damaged: " in line and "made anew" in line, said
    record = json.loads((finished / "run.json").read_text())
    assert record["status"] == "finished" and record["metrics"] == pytest.approx(expected)
    assert "is finished" in in_process([*FIT, *SHORT], capsys)[1]


def test_records_by_every_wrong_type_are_none(tmp_path):
    for text in JSON:
        (tmp_path / "run.json").write_text(text)
        run_ = RunDirectory(tmp_path)
        assert run_.record == {} and not run_.finished
        run_.set_damaged_record_aside()
        assert not (tmp_path / "run.json").exists()
    kept = [file.read_text() for file in tmp_path.glob("run.damaged*.json")]
    assert sorted(kept) == sorted(JSON)


@pytest.mark.parametrize("text", ["{", *(pytest.param(text, marks=SLOW) for text in ("", "[]", "null", "\x00"))])
def test_a_holder_that_cannot_be_read_is_a_question_mark(text, tmp_path):
    """It waits a second for the name of the holder."""
    held = RunDirectory(tmp_path)
    held.lock()
    (tmp_path / ".holder.json").write_text(text)
    with pytest.raises(ValueError, match=r"in use by process \? on \? since \?"):
        RunDirectory(tmp_path).lock()
    held.release()


def test_what_a_test_beside_the_fit_is_writing_stays(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    theirs, old = tmp_path / ".unfinished-test.json-1", tmp_path / ".unfinished-predictions-val.csv-2"
    ours = [tmp_path / ".unfinished-run.json-3", tmp_path / "checkpoints/.unfinished-last.ckpt-4"]
    for path in (theirs, old, *ours):
        path.touch()
    os.utime(old, (1, 1))
    held = RunDirectory(tmp_path)
    held.lock()
    held.release()
    assert [path.exists() for path in (theirs, old, *ours)] == [True, False, False, False]


def fuzzed(seeds, slow):
    """The first so many for `pytest -m slow`, the others for `-m trials`."""
    return [pytest.param(seed, marks=SLOW if i < slow else TRIALS) for i, seed in enumerate(seeds)]


@pytest.mark.parametrize("seed", [1, *fuzzed(range(2, 60), 6), *fuzzed(range(60, 80), 2)])
def test_any_damage_ends_well_or_with_one_line(seed, interrupted, capsys):
    """A run, from 60 on a finished one, with one or two damaged files is fitted, fitted again, and tested."""
    if seed >= 60:
        assert in_process(FIT, capsys)[0] == 0
    random_ = random.Random(seed)
    names = random_.sample([*FILES, "checkpoints/last.ckpt", "checkpoints/best.ckpt"], random_.choice([1, 1, 2]))
    what = [(name, damage(interrupted / name, random_)) for name in names]
    for command in random_.sample(["fit", "test", "fit"], 3):
        code, _, said = in_process([command, *FIT[1:]], capsys)
        assert not any("Traceback" in line for line in said), (seed, what, said)
        assert code in (0, 2) and len([line for line in said if "error: " in line]) == (code == 2), (seed, what, said)
