"""Checkpoints that are damaged, cut off, or come from elsewhere: one line, and never other weights."""

import os
import shutil

import pytest
import torch

from lra_ssm.errors import InputError
from lra_ssm.runs.checkpoints import AtomicCheckpointIO, load_checkpoint
from tests.runner import FIT, SHORT, everything_below, only_run, printed, refused, run, succeed

pytestmark = pytest.mark.usefixtures("read_once")
TEST = ["test", *FIT[1:]]


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A folder with data and a run that was killed at step 9 of 12, of which last.ckpt has step 8."""
    folder = tmp_path_factory.mktemp("started")
    assert run(FIT, folder, {"KILL_AT": "train_batch_start:10"}).code == -9
    return folder


@pytest.fixture
def checkpoints(started, tmp_path, monkeypatch):
    """The checkpoints of a copy of that run, in the working folder."""
    monkeypatch.chdir(tmp_path)
    os.symlink(started / "data", "data")
    shutil.copytree(started / "runs", "runs")
    return only_run(tmp_path) / "checkpoints"


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path, io = tmp_path / "deep" / "a.ckpt", AtomicCheckpointIO()
    io.save_checkpoint({"state_dict": {"w": torch.ones(3)}}, path)
    monkeypatch.setattr(os, "replace", lambda *args: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match=r"full: .* MB free: '.*a.ckpt'"):
        io.save_checkpoint({"state_dict": {}}, path)
    assert load_checkpoint(path)["state_dict"]["w"].sum() == 3
    assert everything_below(tmp_path) == ["deep", "deep/a.ckpt"]


@pytest.mark.parametrize("how", ["cut", "empty", "a list"])
def test_a_damaged_last_checkpoint_is_one_line_that_names_the_other_one(how, checkpoints, capsys):
    last = checkpoints / "last.ckpt"
    if how == "a list":
        torch.save([1], last)
    else:
        os.truncate(last, 0 if how == "empty" else 7000)
    line = refused(FIT, capsys)
    assert "last.ckpt is " in line and "best.ckpt is a complete checkpoint" in line and "copy it over" in line


def test_scoring_and_init_from_refuse_a_damaged_one_and_a_run_goes_on_without_its_best(checkpoints, capsys):
    best = checkpoints / "best.ckpt"
    shutil.copy(best, "whole.ckpt")
    os.truncate(best, 7000)
    assert "best.ckpt is damaged" in refused(TEST, capsys)
    assert "best.ckpt is damaged" in refused([*FIT, "--seed_everything=3", f"--init_from={best}"], capsys)
    best.unlink()
    shutil.copy("whole.ckpt", checkpoints / "last.ckpt")  # as the message has it
    assert "best.ckpt is missing; the next validation counts as the best" in printed(FIT, capsys)


# What another program makes of a checkpoint, and what the line says.
MALFORMED = {
    "no loops": (lambda s: s.pop("loops") and s, "it has no loops; --init_from starts from its weights"),
    "no optimizers": (lambda s: s.pop("optimizer_states") and s, "it has no optimizer_states"),
    "no weights": (lambda s: s.pop("state_dict") and s, "it has no state_dict"),
    "one weight less": (lambda s: s["state_dict"].popitem() and s, "last.ckpt"),
    "a tensor": (lambda s: torch.zeros(3), "it has no state_dict"),
}


@pytest.mark.parametrize("how", MALFORMED)
def test_what_a_fit_cannot_resume_from_is_one_line(how, checkpoints, capsys):
    (change, message), last = MALFORMED[how], checkpoints / "last.ckpt"
    torch.save(change(torch.load(last, weights_only=True)), last)
    before = last.read_bytes()
    assert message in refused(FIT, capsys)
    assert last.read_bytes() == before  # nothing was trained


def test_only_weights_can_be_scored_and_a_run_fitted_without_lightnings_checkpoints(tmp_path):
    command = [*FIT, *SHORT, "--trainer.enable_checkpointing=false"]
    succeed(command, tmp_path)
    state = torch.load(only_run(tmp_path) / "checkpoints/best.ckpt", weights_only=True)
    torch.save({key: state[key] for key in ("state_dict", "hyper_parameters")}, tmp_path / "weights.ckpt")
    assert "test/loss" in succeed(["test", *command[1:], "--ckpt_path=weights.ckpt"], tmp_path).out
    with pytest.raises(InputError, match="none.ckpt cannot be read: No such file"):
        load_checkpoint(tmp_path / "none.ckpt")
    with pytest.raises(InputError, match="cannot be resumed from: it has no loops"):
        load_checkpoint(tmp_path / "weights.ckpt", resuming=True)
