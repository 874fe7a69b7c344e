"""What a run leaves about itself: a directory that moves, records that are damaged."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

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


# -- a directory that moves --


@pytest.mark.parametrize("how", ["moved", "another working folder"])
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
    else:
        (tmp_path / "sub").mkdir()
        monkeypatch.chdir(tmp_path / "sub")
        command += ["--runs_dir=../runs", f"--data.root={tmp_path / 'data'}"]
    code, out, said = in_process(command, capsys)
    (path,) = tmp_path.rglob("best.ckpt")
    assert code == 0 and "going on from" in out, said
    assert path.read_bytes() == before
    assert json.loads((path.parents[1] / "run.json").read_text())["metrics"]["best val/accuracy"] == 2.0


def test_a_run_without_its_best_gets_one(interrupted, capsys):
    (interrupted / "checkpoints/best.ckpt").unlink()
    code, out, _ = in_process(FIT, capsys)
    assert code == 0 and "best.ckpt is missing; the next validation counts as the best" in out
    assert (interrupted / "checkpoints/best.ckpt").is_file()


# -- what is damaged --


@pytest.mark.parametrize("text", ["", '{"status": "fini', "[]"])
def test_a_damaged_record_is_named_and_not_repaired(text, finished, capsys):
    expected = json.loads((finished / "run.json").read_text())["metrics"]
    (finished / "run.json").write_text(text)
    said = refused([*FIT, *SHORT], capsys)
    assert said.startswith(f"{finished.relative_to(Path.cwd())}/run.json is damaged: ")
    assert said.endswith("; remove it to go on without it")
    assert (finished / "run.json").read_text() == text
    assert RunRecord.read(finished).status == "damaged" and "run.json" in printed(["status"], capsys)
    (finished / "run.json").unlink()
    printed([*FIT, *SHORT], capsys)  # goes on from the checkpoint
    record = json.loads((finished / "run.json").read_text())
    assert record["status"] == "finished" and record["metrics"] == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "[]", "model: {"])
def test_a_damaged_configuration_is_named(text, finished, capsys):
    (finished / "config.yaml").write_text(text)
    for command in ("fit", "test"):  # before anything is scored
        code, out, errors = in_process([command, *FIT[1:], *SHORT], capsys)
        assert code == 2 and not out and "config.yaml is " in errors[-1] and "remove it" in errors[-1]


FILES = ("run.json", ".holder.json", "config.yaml", "metrics.csv", "test.json", "checkpoints/last.ckpt",
         "checkpoints/best.ckpt")  # fmt: skip


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 7))])
def test_any_damage_ends_well_or_with_one_line(seed, interrupted, capsys):
    """A run with one or two damaged files is fitted, fitted again, and tested."""
    random_ = random.Random(seed)
    damaged = random_.sample(FILES, random_.choice([1, 1, 2]))
    for name in damaged:
        path = interrupted / name
        raw = path.read_bytes() if path.is_file() else b"{}"
        cut = raw[: random_.randrange(len(raw))]
        path.write_bytes(random_.choice([cut, cut, b"", random_.randbytes(200), bytes(len(raw))]))
    for command in random_.sample(["fit", "test", "fit"], 3):
        code, _, said = in_process([command, *FIT[1:]], capsys)
        assert not any("Traceback" in line for line in said), (seed, damaged, said)
        assert code in (0, 2) and len([line for line in said if "error: " in line]) == (code == 2), (seed, damaged)
