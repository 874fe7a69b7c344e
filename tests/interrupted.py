"""Fits of tiny.yaml that end as one that was never interrupted."""

import csv
import json
from pathlib import Path
from typing import NamedTuple

import torch

# What ends a fit: Lightning resumes max_epochs and max_steps differently.
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


class Outcome(NamedTuple):
    last: dict[str, torch.Tensor]
    best: dict[str, torch.Tensor]
    rows: list[dict[str, str]]  # logged values without times


class Whole(NamedTuple):
    outcome: Outcome
    copies: Path  # a folder of what a kill would have left at each moment of KillMe's


def outcome(folder: Path) -> Outcome:
    """Of the finished run in this working folder."""
    (run,) = (folder / "runs/tiny").iterdir()
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    last, best = (torch.load(run / f"checkpoints/{n}.ckpt", weights_only=True)["state_dict"] for n in ("last", "best"))
    with open(run / "metrics.csv", newline="") as file:
        rows = [{k: v for k, v in row.items() if k != "train/samples_per_s"} for row in csv.DictReader(file)]
    return Outcome(last, best, rows)


def assert_same(a: Outcome, b: Outcome) -> None:
    for ours, theirs in ((a.last, b.last), (a.best, b.best)):
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), name
    assert a.rows == b.rows, [pair for pair in zip(a.rows, b.rows, strict=False) if pair[0] != pair[1]][:2]
