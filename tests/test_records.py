"""What a run leaves about itself: a directory that moves, records that are damaged."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from lra_ssm.errors import InputError
from lra_ssm.runs import Run
from lra_ssm.runs.directory import RunDirectory
from lra_ssm.runs.record import RunRecord
from tests.runner import FIT, SHORT, in_process, only_run, printed, refused


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

FILES = ("run.json", ".holder.json", "config.yaml", "metrics.csv", "test.json")


def damage(path, random_):
    """Cut, emptied, overwritten or with one bit flipped."""
    raw = path.read_bytes() if path.is_file() else b"{}"
    kind = random_.choice(["cut", "cut", "empty", "noise", "zeros"])
    if kind == "cut":
        raw = raw[: random_.randrange(len(raw))]
    else:
        raw = {"empty": b"", "noise": random_.randbytes(200), "zeros": bytes(len(raw))}[kind]
    path.write_bytes(raw)
    return kind


@pytest.mark.parametrize("text", ["", '{"status": "fini', "[]", "{}"])
def test_a_damaged_record_is_named_and_not_repaired(text, finished, capsys):
    expected = json.loads((finished / "run.json").read_text())["metrics"]
    (finished / "run.json").write_text(text)
    said = refused([*FIT, *SHORT], capsys)
    assert said.startswith(f"{finished.relative_to(Path.cwd())}/run.json is damaged: ")
    assert said.endswith("; remove it to go on from the checkpoint")
    assert (finished / "run.json").read_text() == text
    assert RunRecord.read(finished).status == "damaged" and "run.json" in printed(["status"], capsys)
    (finished / "run.json").unlink()
    printed([*FIT, *SHORT], capsys)
    record = json.loads((finished / "run.json").read_text())
    assert record["status"] == "finished" and record["metrics"] == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "[]", "trainer: {}\nmodel: lra", "checkpoint: {}\ncompute: reco", "model: {"])
def test_a_damaged_configuration_is_named(text, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(InputError, match=r"config\.yaml is (damaged: its end is missing|not valid YAML)"):
        Run(tmp_path).changed_settings()


def test_a_damaged_configuration_is_named_before_a_score(finished, capsys):
    (finished / "config.yaml").write_text("model: {")
    code, out, errors = in_process(["test", *FIT[1:], *SHORT], capsys)
    assert code == 2 and not out and "config.yaml" in errors[-1]


@pytest.mark.parametrize("text", ["{", "", "[]", "null", "\x00"])
def test_a_holder_that_cannot_be_read_is_a_question_mark(text, tmp_path):
    """It waits a second for the name of the holder."""
    held = RunDirectory(tmp_path)
    held.lock()
    (tmp_path / ".holder.json").write_text(text)
    with pytest.raises(ValueError, match=r"in use by process \? on \? since \?"):
        RunDirectory(tmp_path).lock()
    held.release()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 9))])
def test_any_damage_ends_well_or_with_one_line(seed, interrupted, capsys):
    """A run with one or two damaged files is fitted, fitted again, and tested."""
    random_ = random.Random(seed)
    names = random_.sample([*FILES, "checkpoints/last.ckpt", "checkpoints/best.ckpt"], random_.choice([1, 1, 2]))
    what = [(name, damage(interrupted / name, random_)) for name in names]
    for command in random_.sample(["fit", "test", "fit"], 3):
        code, _, said = in_process([command, *FIT[1:]], capsys)
        assert not any("Traceback" in line for line in said), (seed, what, said)
        assert code in (0, 2) and len([line for line in said if "error: " in line]) == (code == 2), (seed, what, said)
