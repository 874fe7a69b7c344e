"""Checkpoints that are damaged, cut off, or come from elsewhere: one line, and other weights never."""

import os
import shutil

import pytest
import torch

from lra_ssm.errors import InputError
from lra_ssm.runs.checkpoints import AtomicCheckpointIO, load_checkpoint
from tests.runner import FIT, SHORT, everything_below, in_process, only_run, refused, succeed

pytestmark = pytest.mark.usefixtures("read_once")
TEST = ["test", *FIT[1:]]


@pytest.fixture
def checkpoints(uninterrupted, data, tmp_path, monkeypatch):
    """The checkpoints of a run, in the working folder, that was killed at step 9 of 12: last.ckpt has step 8."""
    monkeypatch.chdir(tmp_path)
    os.symlink(data, "data")
    shutil.copytree(uninterrupted("epochs").copies / "train_batch_start:10", "runs")
    return only_run(tmp_path) / "checkpoints"


def changed(path, change):
    """Write the checkpoint as another program may have changed it."""
    state = torch.load(path, weights_only=True)
    result = change(state)
    torch.save(state if result is None else result, path)


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path, io = tmp_path / "deep" / "a.ckpt", AtomicCheckpointIO()
    io.save_checkpoint({"state_dict": {"w": torch.ones(3)}}, path)
    monkeypatch.setattr(os, "replace", lambda *args: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match=r"full: .* MB free: '.*a.ckpt'"):
        io.save_checkpoint({"state_dict": {}}, path)
    assert load_checkpoint(path)["state_dict"]["w"].sum() == 3
    assert everything_below(tmp_path) == ["deep", "deep/a.ckpt"]


@pytest.mark.parametrize("how", ["cut", "text"])
def test_a_damaged_last_checkpoint_is_one_line_that_names_the_other_one(how, checkpoints, capsys):
    last = checkpoints / "last.ckpt"
    last.write_bytes(last.read_bytes()[:7000] if how == "cut" else b"checkpoint")
    line = refused(FIT, capsys)
    assert "last.ckpt is " in line and "best.ckpt is a complete checkpoint" in line and "copy it over" in line
    shutil.copy(checkpoints / "best.ckpt", last)
    assert in_process(FIT, capsys)[0] == 0


def test_scoring_and_init_from_refuse_a_damaged_one(checkpoints, capsys):
    os.truncate(checkpoints / "best.ckpt", 7000)
    assert "best.ckpt is damaged" in refused(TEST, capsys)
    given = [*FIT, "--seed_everything=3", f"--init_from={checkpoints / 'best.ckpt'}"]
    assert "best.ckpt is damaged" in refused(given, capsys)


# What another program makes of a checkpoint, and what the line says.
MALFORMED = {
    "no loops": (lambda s: s.pop("loops") and None, "it has no loops; --init_from starts from its weights"),
    "no optimizers": (lambda s: s.pop("optimizer_states") and None, "it has no optimizer_states"),
    "no weights": (lambda s: s.pop("state_dict") and None, "it has no state_dict"),
    "one weight less": (lambda s: s["state_dict"].popitem() and None, "last.ckpt"),
    "a tensor": (lambda s: torch.zeros(3), "it has no state_dict"),
}


@pytest.mark.parametrize("how", MALFORMED)
def test_what_a_fit_cannot_resume_from_is_one_line(how, checkpoints, capsys):
    change, message = MALFORMED[how]
    changed(checkpoints / "last.ckpt", change)
    before = (checkpoints / "last.ckpt").read_bytes()
    assert message in refused(FIT, capsys)
    assert (checkpoints / "last.ckpt").read_bytes() == before  # nothing was trained


def test_a_file_with_only_weights_can_be_scored(tmp_path, trained):
    command = [*FIT, *SHORT, f"--data.root={trained[0] / 'data'}"]
    state = torch.load(only_run(trained[0]) / "checkpoints/best.ckpt", weights_only=True)
    torch.save({key: state[key] for key in ("state_dict", "hyper_parameters")}, tmp_path / "weights.ckpt")
    scored = succeed(["test", *command[1:], "--ckpt_path=weights.ckpt"], tmp_path)
    assert "test/loss" in scored.out


def test_what_cannot_be_read_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="none.ckpt cannot be read: No such file"):
        load_checkpoint(tmp_path / "none.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "a.ckpt")
    assert load_checkpoint(tmp_path / "a.ckpt") == {"state_dict": {}}
    with pytest.raises(InputError, match="cannot be resumed from: it has no loops"):
        load_checkpoint(tmp_path / "a.ckpt", resuming=True)
