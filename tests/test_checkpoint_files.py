"""Checkpoints that were damaged, cut off, changed by hand, or come from elsewhere: no other weights, one line."""

import os
import random
import re
import shutil
import warnings

import pytest
import torch
from torch import Tensor

from lra_ssm.errors import InputError
from lra_ssm.runs.checkpoints import AtomicCheckpointIO, DamagedCheckpoint, load_checkpoint
from lra_ssm.runs.saving import keep_as_previous
from tests.runner import FIT, SHORT, in_process, only_run, refused, run, succeed, warning

pytestmark = pytest.mark.usefixtures("read_once")
TEST = ["test", *FIT[1:]]


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A folder with data and a run that was killed at step 8 of 12: last.ckpt is of step 8, the one before of 6."""
    folder = tmp_path_factory.mktemp("started")
    assert run(FIT, folder, {"KILL_AT": "train_batch_start:10"}).code == -9
    return folder


@pytest.fixture(scope="module")
def expected(started, tmp_path_factory):
    """The weights at the end of a run that was not."""
    folder = tmp_path_factory.mktemp("whole")
    succeed([*FIT, f"--data.root={started / 'data'}"], folder)
    return torch.load(only_run(folder) / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


@pytest.fixture
def checkpoints(started, tmp_path, monkeypatch):
    """The checkpoints of a copy of that run, in the working folder."""
    monkeypatch.chdir(tmp_path)
    os.symlink(started / "data", "data")
    shutil.copytree(started / "runs", "runs")
    return only_run(tmp_path) / "checkpoints"


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def weights(folder):
    return torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]


def flip(path, at):
    raw = bytearray(path.read_bytes())
    raw[at // 8] ^= 1 << at % 8
    path.write_bytes(raw)


def changed(path, change):
    """Writes the checkpoint anew, changed by hand, as torch.save does."""
    state = torch.load(path, weights_only=True)
    result = change(state)
    torch.save(state if result is None else result, path)


def equal(a, b):
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def test_no_flipped_bit_gives_other_values(tmp_path):
    """It is refused, or nothing that is read is another."""
    path, random_ = tmp_path / "a.ckpt", random.Random(0)
    AtomicCheckpointIO().save_checkpoint({"state_dict": {"w": torch.randn(9, 5)}, "x": [1, "a"]}, path)
    whole, raw = load_checkpoint(path), path.read_bytes()
    for at in [*range(8 * len(raw) - 8 * 120, 8 * len(raw), 7), *random_.sample(range(8 * len(raw)), 100)]:
        flip(path, at)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                read = load_checkpoint(path)
            except InputError as error:
                assert "\n" not in str(error)
            else:
                assert equal(read, whole), f"bit {at}"
        path.write_bytes(raw)


def test_every_cut_is_refused(tmp_path):
    path = tmp_path / "a.ckpt"
    AtomicCheckpointIO().save_checkpoint({"state_dict": {"w": torch.randn(9, 5)}}, path)
    raw = path.read_bytes()
    for size in (0, 1, 30, len(raw) // 2, len(raw) - 200, len(raw) - 100):
        path.write_bytes(raw[:size])
        with pytest.raises(DamagedCheckpoint):
            load_checkpoint(path)


def test_a_checkpoint_from_elsewhere_is_read(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "a.ckpt")
    assert load_checkpoint(tmp_path / "a.ckpt") == {"state_dict": {}}
    AtomicCheckpointIO().save_checkpoint({"a": torch.ones(3)}, tmp_path / "b.ckpt")
    for mmap in (False, True):
        assert torch.load(tmp_path / "b.ckpt", mmap=mmap)["a"].sum() == 3  # by whoever knows nothing of the digest


def test_at_every_moment_one_of_the_two_is_whole(tmp_path, monkeypatch):
    last, before = tmp_path / "last.ckpt", tmp_path / "last.previous.ckpt"
    last.write_text("1")
    keep_as_previous(last)
    assert last.read_text() == before.read_text() == "1"
    last.unlink()
    last.write_text("2")
    keep_as_previous(last)
    keep_as_previous(last)
    assert before.read_text() == "2" and len(list(tmp_path.iterdir())) == 2
    last.unlink()
    keep_as_previous(last)  # somebody removed it: the one before stays
    assert before.read_text() == "2"
    last.write_text("3")
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    keep_as_previous(last)
    assert before.read_text() == "3" and not last.exists()


@pytest.mark.parametrize(
    "how", ["a bit", "gone", *(pytest.param(how, marks=pytest.mark.slow) for how in ("cut", "empty", "a list"))]
)
def test_a_run_goes_on_from_the_one_before_and_ends_the_same(how, checkpoints, expected, capsys):
    last = checkpoints / "last.ckpt"
    steps = [torch.load(p, weights_only=True)["global_step"] for p in (last, checkpoints / "last.previous.ckpt")]
    assert steps == [8, 6]
    if how == "gone":
        last.unlink()
    elif how == "a list":
        torch.save([1], last)
    else:
        flip(last, 8 * 5000) if how == "a bit" else os.truncate(last, 0 if how == "empty" else 7000)
    code, out, _ = in_process(FIT, capsys)
    assert code == 0 and re.search("going on from the one before, .*last.previous.ckpt", warning(out))
    assert same(weights(checkpoints), expected)
    assert {p.name for p in checkpoints.iterdir()} == {"last.ckpt", "best.ckpt"}


def test_a_damaged_last_one_never_takes_the_place_of_the_one_before(checkpoints, monkeypatch, capsys):
    """Killed at the first save after it went on from the one before."""
    flip(checkpoints / "last.ckpt", 8 * 5000)
    whole = (checkpoints / "last.previous.ckpt").read_bytes()
    assert run(FIT, checkpoints.parents[3], {"KILL_AT": "save_checkpoint:1"}).code == -9
    assert (checkpoints / "last.previous.ckpt").read_bytes() == whole


def test_without_a_whole_one_a_run_says_what_to_do(checkpoints, capsys):
    for path in (checkpoints / "last.ckpt", checkpoints / "last.previous.ckpt"):
        flip(path, 8 * 5000)
    line = refused(FIT, capsys)
    assert "last.ckpt is damaged" in line and "remove it to start the run anew" in line


def test_scoring_and_init_from_refuse_a_damaged_one(checkpoints, capsys):
    for name in ("best.ckpt", "last.ckpt"):
        flip(checkpoints / name, 8 * 5000)
    assert "best.ckpt is damaged" in refused(TEST, capsys)
    assert "last.ckpt is damaged" in refused([*TEST, "--ckpt_path=last"], capsys)
    assert "best.ckpt is damaged" in refused([*TEST, f"--ckpt_path={checkpoints / 'best.ckpt'}"], capsys)
    given = [*FIT, "--seed_everything=3", f"--init_from={checkpoints / 'best.ckpt'}"]
    assert "best.ckpt is damaged" in refused(given, capsys)
    with pytest.raises(DamagedCheckpoint):  # Lightning's own way
        AtomicCheckpointIO().load_checkpoint(checkpoints / "best.ckpt")


def first_group(state):
    return state["optimizer_states"][0]["param_groups"][0]


# What a hand, or another program, makes of a checkpoint: nothing that a fit could be resumed from.
MALFORMED = {
    "no optimizers": lambda s: s.update(optimizer_states=[]),
    "no schedules": lambda s: s.update(lr_schedulers=[]),
    "no loops": lambda s: s.pop("loops") and None,
    "empty loops": lambda s: s.update(loops={}),
    "a step of text": lambda s: s.update(global_step="8"),
    "no version": lambda s: s.pop("pytorch-lightning_version") and None,
    "a version that is none": lambda s: s.update({"pytorch-lightning_version": "new"}),
    "momentum of another shape": lambda s: s["optimizer_states"][0]["state"][0].update(exp_avg=torch.zeros(3)),
    "fewer groups": lambda s: s["optimizer_states"][0]["param_groups"].pop() and None,
    "fewer parameters": lambda s: first_group(s)["params"].pop() and None,
    "groups of text": lambda s: s["optimizer_states"][0].update(param_groups="all"),
    "a schedule of text": lambda s: s.update(lr_schedulers=["cosine"]),
    "an empty schedule": lambda s: s["lr_schedulers"][0].clear(),
    "no weights": lambda s: s.pop("state_dict") and None,
    "one weight less": lambda s: s["state_dict"].popitem() and None,
    "a weight of text": lambda s: s["state_dict"].update({next(iter(s["state_dict"])): "w"}),
    "a list": lambda s: [s],
    "a tensor": lambda s: torch.zeros(3),
    "nothing": lambda s: {},
    "text": lambda s: "checkpoint",
}  # fmt: skip
NEEDED_TO_SCORE = ("no weights", "one weight less", "a weight of text", "a list", "a tensor", "nothing", "text")
OFTEN = ("no optimizers", "no loops", "empty loops", "fewer groups", "a tensor")


@pytest.mark.parametrize("how", [h if h in OFTEN else pytest.param(h, marks=pytest.mark.slow) for h in MALFORMED])
def test_what_a_fit_cannot_go_on_from_is_one_line(how, checkpoints, capsys):
    (checkpoints / "last.previous.ckpt").unlink()
    changed(checkpoints / "last.ckpt", MALFORMED[how])
    before = weights(checkpoints) if how not in NEEDED_TO_SCORE else None
    line = refused(FIT, capsys)
    assert "last.ckpt" in line and len(line) < 500, line
    if before is not None:
        assert same(weights(checkpoints), before)  # nothing was trained
    else:
        refused([*TEST, "--ckpt_path=last"], capsys)


def test_a_plain_lightning_checkpoint_of_the_same_task_is_gone_on_from(checkpoints, expected, capsys):
    (checkpoints / "last.previous.ckpt").unlink()
    changed(checkpoints / "last.ckpt", lambda s: None)
    assert in_process(FIT, capsys)[0] == 0 and same(weights(checkpoints), expected)


def test_weights_alone_can_be_scored_and_a_run_fitted_without_lightnings_checkpoints(tmp_path):
    command = [*FIT, *SHORT, "--trainer.enable_checkpointing=false"]
    succeed(command, tmp_path)
    state = torch.load(only_run(tmp_path) / "checkpoints/best.ckpt", weights_only=True)
    torch.save({key: state[key] for key in ("state_dict", "hyper_parameters")}, tmp_path / "weights.ckpt")
    scored = succeed(["test", *command[1:], "--ckpt_path=weights.ckpt"], tmp_path)
    assert "test/loss" in scored.out
