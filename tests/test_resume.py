"""A fit that is killed at any moment and started again ends as one that never was.

tiny.yaml has 2 epochs of 6 batches and saves every second step.
"""

import json
import os
import shutil
from unittest import mock

import pytest
import torch
import yaml

from tests.interrupted import ENDS, assert_same, outcome
from tests.runner import FIT, SHORT, everything_below, fail, only_run, run, succeed

pytestmark = pytest.mark.usefixtures("read_once")
SLOW = pytest.mark.slow

# Before the first save, between saves, at and around the end of an epoch, in validation, while saving, at the end.
MOMENTS = [
    *(f"train_batch_start:{k}" for k in (1, 2, 3, 4, 6, 7, 8, 9, 12)),
    *(f"train_batch_end:{k}" for k in (2, 5, 6, 11)),
    "validation_batch_end:2", "validation_end:1", "train_epoch_end:1", "train_epoch_start:2", "train_epoch_end:2",
    *(f"save_checkpoint:{k}" for k in (1, 2, 3, 4, 5)),
]  # fmt: skip


# By default: before the first save, after a step, after a validation and while saving; with other ends a moment each.
QUICK = {
    ("epochs", "train_batch_start:1"), ("epochs", "train_batch_end:6"), ("epochs", "validation_end:1"),
    ("epochs", "save_checkpoint:5"), ("steps", "train_batch_start:2"), ("accumulated", "train_batch_start:7"),
}  # fmt: skip


def marks(i, end, j, moment):
    """Each moment with one of the other ends is slow; the rest is for `pytest -m trials`."""
    if (end, moment) in QUICK:
        return []
    slow = (i + j) % len(ENDS) == 1 or (end, moment) == ("validation within epochs", "validation_end:1")
    return [SLOW if slow else pytest.mark.trials]


CASES = [
    pytest.param(end, moment, marks=marks(i, end, j, moment))
    for i, end in enumerate(ENDS)
    for j, moment in enumerate(MOMENTS)
]


@pytest.mark.parametrize(("end", "moment"), CASES)
def test_killed_and_started_again_ends_bit_identical(end, moment, tmp_path, data, uninterrupted):
    """By what is on the disk at that moment, which a kill leaves: see the next test."""
    whole = uninterrupted(end)
    shutil.copytree(whole.copies / moment, tmp_path / "runs")
    succeed([*FIT, f"--data.root={data}", *ENDS[end]], tmp_path)
    assert_same(outcome(tmp_path), whole.outcome)


@pytest.mark.parametrize(
    ("end", "moment"),
    [
        ("epochs", "save_checkpoint:4"),
        pytest.param("steps", "train_batch_start:7", marks=SLOW),
        pytest.param("accumulated", "train_batch_end:2", marks=SLOW),
        pytest.param("validation within epochs", "validation_batch_end:2", marks=SLOW),
        pytest.param("validation across epochs", "train_epoch_end:1", marks=SLOW),
    ],
)
def test_a_killed_process_leaves_what_it_had_written_and_can_be_started_again(
    end, moment, tmp_path, data, uninterrupted
):
    whole, command = uninterrupted(end), [*FIT, f"--data.root={data}", *ENDS[end]]
    assert run(command, tmp_path, {"KILL_AT": moment}).code == -9
    assert everything_below(tmp_path / "runs") == everything_below(whole.copies / moment)
    succeed(command, tmp_path)
    assert_same(outcome(tmp_path), whole.outcome)


@pytest.mark.slow
def test_killed_again_and_again(tmp_path, data, uninterrupted):
    """Each start comes to its fifth batch, saves every second step, and is killed there."""
    starts, moment = 0, "train_batch_end:5"
    while not starts or (tmp_path / f"{starts}" / moment).is_dir():
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        if starts:
            shutil.copytree(tmp_path / f"{starts}" / moment, tmp_path / "runs")
        starts += 1
        with mock.patch.dict(os.environ, COPY_TO=str(tmp_path / f"{starts}")):
            succeed([*FIT, f"--data.root={data}"], tmp_path)
    assert starts == 3
    assert_same(outcome(tmp_path), uninterrupted("epochs").outcome)


OTHERS_THAN_USUAL = [
    "--model.optimizer.algorithm=Muon", "--model.optimizer.ema_decay=0.9", "--model.optimizer.schedule=wsd",
    "--model.metrics.f1=torchmetrics.classification.MulticlassF1Score", "--model.metrics.f1.num_classes=10",
    "--checkpoint.monitor=val/f1",
]  # fmt: skip


@pytest.mark.parametrize(
    "moments", [("train_batch_start:5",), pytest.param(("validation_batch_end:2", "save_checkpoint:5"), marks=SLOW)]
)
def test_muon_averages_and_metrics_end_bit_identical_too(moments, tmp_path, data):
    command, whole = [*FIT, f"--data.root={data}", *OTHERS_THAN_USUAL], tmp_path / "whole"
    whole.mkdir()
    with mock.patch.dict(os.environ, COPY_TO=str(tmp_path / "copies")):
        succeed(command, whole)
    expected = outcome(whole)
    trained = {name.removeprefix("trained "): w for name, w in expected.last.items() if name.startswith("trained ")}
    assert any(not torch.equal(weight, expected.last[name]) for name, weight in trained.items())
    for moment in moments:
        folder = tmp_path / moment.partition(":")[0]
        shutil.copytree(tmp_path / "copies" / moment, folder / "runs")
        succeed(command, folder)
        assert_same(outcome(folder), expected)


@pytest.mark.slow
def test_other_workers_and_save_intervals_change_nothing(tmp_path, data, uninterrupted):
    """Neither is part of the run's identity; a run may be resumed under other ones."""
    command = [*FIT, f"--data.root={data}"]
    assert run([*command, "--data.num_workers=2"], tmp_path, {"KILL_AT": "train_batch_start:9"}).code == -9
    assert "going on from" in succeed([*command, "--checkpoint.every_n_steps=1"], tmp_path).out
    config = yaml.safe_load((only_run(tmp_path) / "config.yaml").read_text())  # of the last start
    assert config["checkpoint"]["every_n_steps"] == 1 and config["data"]["init_args"]["num_workers"] == 0
    assert_same(outcome(tmp_path), uninterrupted("epochs").outcome)


def test_a_finished_run_prints_its_metrics_and_a_fresh_one_stands_beside_it(tmp_path, finished):
    command, first, runs = [*FIT, *SHORT], finished.name, tmp_path / "runs/tiny"
    again = succeed(command, tmp_path)
    assert "is finished" in again.out and "val/accuracy" in again.out
    assert "is finished" in succeed([*command, "--data.root=not-prepared"], tmp_path).out
    with mock.patch.dict(os.environ, COPY_TO=str(tmp_path / "copies")):
        succeed([*command, "--fresh", "--checkpoint.every_n_steps=1"], tmp_path)
    ends = (runs / name / "checkpoints/last.ckpt" for name in (first, f"{first}-2"))
    one, two = (torch.load(file, weights_only=True)["state_dict"] for file in ends)
    assert all(torch.equal(one[k], two[k]) for k in one)
    shutil.rmtree(runs)
    shutil.copytree(tmp_path / "copies/train_batch_end:2/tiny", runs)  # killed, it goes on
    assert "going on from" in succeed([*command, "--fresh"], tmp_path).out
    assert {p.name for p in runs.iterdir()} == {first, f"{first}-2"}
    succeed([*command, "--fresh"], tmp_path)
    assert {p.name for p in runs.iterdir()} == {first, f"{first}-2", f"{first}-3"}


def test_a_run_goes_on_only_with_the_data_it_was_begun_with_and_names_other_code(interrupted, tmp_path):
    record, last = interrupted / "run.json", interrupted / "checkpoints/last.ckpt"
    whole = record.read_text()
    other = json.loads(whole)
    other["data"]["splits"]["train"]["arrays"]["tokens"]["sha256"] = "0" * 64
    record.write_text(json.dumps(other))
    assert "was started on other data (train_tokens differ); use --fresh to start over" in fail(FIT, tmp_path)
    record.write_text(whole)
    torch.save({**torch.load(last, weights_only=True), "lra_ssm_code_version": "0.0.1+abc"}, last)
    assert "was made by lra_ssm 0.0.1+abc" in fail([*FIT, "--strict-resume"], tmp_path)
    out = succeed(FIT, tmp_path).out
    assert "warning: " in out and "going on from" in out
