"""A fit that is killed at any moment and started again ends as one that never was.

tiny.yaml has 2 epochs of 6 batches and saves every second step.
"""

import csv
import json
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.runner import FIT, Command, fail, run, succeed


def outcome(folder: Path) -> tuple[dict, dict, list]:
    """Weights at the end, weights of the best checkpoint, logged values without times."""
    run_folder = next((folder / "runs/tiny").iterdir())
    assert json.loads((run_folder / "run.json").read_text())["status"] == "finished"
    weights = [
        torch.load(run_folder / f"checkpoints/{n}.ckpt", weights_only=True)["state_dict"] for n in ("last", "best")
    ]
    with open(run_folder / "metrics.csv", newline="") as file:
        rows = [{k: v for k, v in row.items() if k != "train/samples_per_s"} for row in csv.DictReader(file)]
    return *weights, rows


def assert_same(a, b):
    for ours, theirs in zip(a[:2], b[:2], strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), name
    assert a[2] == b[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data") / "root"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, data):
    """The outcome by what ends it: Lightning resumes max_epochs and max_steps differently."""

    @cache
    def of(end):
        folder = tmp_path_factory.mktemp("uninterrupted")
        succeed([*FIT, f"--data.root={data}", *ENDS[end]], folder)
        return outcome(folder)

    return of


ENDS = {
    "epochs": [],
    "steps": ["--trainer.max_epochs=-1", "--trainer.max_steps=15"],
    "both, steps first": ["--trainer.max_epochs=4", "--trainer.max_steps=15"],
    "both, epochs first": ["--trainer.max_epochs=2", "--trainer.max_steps=15"],
    "validation within epochs": ["--trainer.val_check_interval=2"],
    "accumulated": ["--trainer.accumulate_grad_batches=2", "--trainer.max_epochs=4"],
    "validation across epochs": ["--trainer.check_val_every_n_epoch=null", "--trainer.val_check_interval=4"],
    "float64": ["--trainer.precision=64-true"],
}
# Before the first save, between saves, at and around the end of an epoch, in validation, while saving, at the end.
MOMENTS = [
    *(f"train_batch_start:{k}" for k in (1, 2, 3, 4, 6, 7, 8, 9, 12)),
    *(f"train_batch_end:{k}" for k in (2, 5, 6, 11)),
    "validation_batch_end:2", "validation_end:1", "train_epoch_end:1", "train_epoch_start:2", "train_epoch_end:2",
    *(f"save_checkpoint:{k}" for k in (1, 2, 3, 4, 5)),
]  # fmt: skip


# With the usual end before the first save, after a step, after a validation and while saving; with each of the others,
# which share its code, one moment of its own; where validation comes at other times, its end. Of the rest a half is for
# `pytest -m slow`, the other for `pytest -m trials`.
USUAL = {"train_batch_start:1", "train_batch_end:6", "validation_end:1", "save_checkpoint:5"}
OTHERS = [moment for moment in MOMENTS if moment not in USUAL]


def is_quick(end, moment):
    if end == "epochs":
        return moment in USUAL
    if end.startswith("validation"):
        return moment == "validation_end:1"
    return moment == OTHERS[list(ENDS).index(end) - 1]


CASES = [
    pytest.param(
        end, moment, marks=[] if is_quick(end, moment) else [(pytest.mark.slow, pytest.mark.trials)[(i + j) % 2]]
    )
    for i, end in enumerate(ENDS)
    for j, moment in enumerate(MOMENTS)
]


@pytest.mark.parametrize(("end", "moment"), CASES)
def test_killed_and_started_again_ends_bit_identical(end, moment, tmp_path, data, uninterrupted):
    command = [*FIT, f"--data.root={data}", *ENDS[end]]
    assert run(command, tmp_path, {"KILL_AT": moment}).code == -9
    succeed(command, tmp_path)
    assert_same(outcome(tmp_path), uninterrupted(end))


def test_killed_again_and_again(tmp_path, data, uninterrupted):
    command = [*FIT, f"--data.root={data}"]
    kills = 0
    while run(command, tmp_path, {"KILL_AT": "train_batch_end:3"}).code == -9:
        kills += 1
        assert kills < 12
    assert kills >= 4
    assert_same(outcome(tmp_path), uninterrupted("epochs"))


def test_other_workers_and_save_intervals_change_nothing(tmp_path, data, uninterrupted):
    """Neither is part of the run's identity; a run may be resumed under other ones."""
    command = [*FIT, f"--data.root={data}"]
    assert run([*command, "--data.num_workers=2"], tmp_path, {"KILL_AT": "train_batch_start:9"}).code == -9
    succeed([*command, "--checkpoint.every_n_steps=1"], tmp_path)
    assert len(list((tmp_path / "runs/tiny").iterdir())) == 1
    assert (next((tmp_path / "runs/tiny").iterdir()) / "config.1.yaml").is_file()  # the first configuration is kept
    assert_same(outcome(tmp_path), uninterrupted("epochs"))


def test_a_second_start_while_a_run_lives_names_the_holder(tmp_path, data):
    command = [*FIT, f"--data.root={data}"]
    first = Command(command, tmp_path, {"DELAY": "0.5"})
    record = None
    while record is None:
        record = next((tmp_path / "runs").glob("tiny/*/run.json"), None) if (tmp_path / "runs").is_dir() else None
        assert first.process.is_alive()
    message = fail(command, tmp_path)
    assert f"in use by process {first.process.pid} on " in message and "--fresh" in message
    first.kill()
    first.wait()
    succeed(command, tmp_path)  # the lock went with its holder


def test_a_finished_run_prints_its_metrics_and_a_fresh_one_stands_beside_it(tmp_path, data):
    command = [*FIT, f"--data.root={data}", "--trainer.max_epochs=1"]
    succeed(command, tmp_path)
    again = succeed(command, tmp_path)
    assert "is finished" in again.out and "val/accuracy" in again.out
    runs = tmp_path / "runs/tiny"
    (first,) = (p.name for p in runs.iterdir())
    assert run([*command, "--fresh"], tmp_path, {"KILL_AT": "train_batch_start:5"}).code == -9
    assert "going on from" in succeed([*command, "--fresh"], tmp_path).out
    assert {p.name for p in runs.iterdir()} == {first, f"{first}-2"}
    succeed([*command, "--fresh"], tmp_path)
    assert {p.name for p in runs.iterdir()} == {first, f"{first}-2", f"{first}-3"}
    one, two = (
        torch.load(runs / n / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for n in (first, f"{first}-3")
    )
    assert all(torch.equal(one[k], two[k]) for k in one)


def test_other_code_is_a_warning_or_with_strict_resume_an_error(tmp_path, data):
    command = [*FIT, f"--data.root={data}"]
    assert run(command, tmp_path, {"KILL_AT": "train_batch_start:5"}).code == -9
    last = next(tmp_path.glob("runs/tiny/*/checkpoints/last.ckpt"))
    checkpoint = torch.load(last, weights_only=True)
    checkpoint["lra_ssm_code_version"] = "0.0.1+0123456789ab"
    torch.save(checkpoint, last)
    assert "was made by lra_ssm 0.0.1+0123456789ab" in fail([*command, "--strict-resume"], tmp_path)
    assert "warning: " in succeed(command, tmp_path).out


def test_a_run_goes_on_only_with_the_data_it_was_begun_with(tmp_path, data):
    command = [*FIT, f"--data.root={data}"]
    assert run(command, tmp_path, {"KILL_AT": "train_batch_start:5"}).code == -9
    path = next(tmp_path.glob("runs/tiny/*/run.json"))
    whole = path.read_text()
    record = json.loads(whole)
    record["data"]["splits"]["train"]["arrays"]["tokens"]["sha256"] = "0" * 64
    path.write_text(json.dumps(record))
    assert "was begun with other data (train_tokens differ); --fresh starts it anew" in fail(command, tmp_path)
    path.write_text(whole.replace(".npy", ".bin"))  # as older versions stored the same values
    assert "going on from" in succeed(command, tmp_path).out
