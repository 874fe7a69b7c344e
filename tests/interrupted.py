"""Fits of tiny.yaml that end as one that was never interrupted."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lra_ssm.runs.record import read_metrics
from tests.runner import only_run

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


def state(folder: Path) -> tuple[dict[str, Any], int]:
    """What the record of the run in this working folder says, and the step of its last.ckpt (−1 for none)."""
    last = only_run(folder) / "checkpoints/last.ckpt"
    step = torch.load(last, weights_only=True)["global_step"] if last.is_file() else -1
    return json.loads((only_run(folder) / "run.json").read_text()), step


def outcome(folder: Path) -> Outcome:
    """Of the finished run in this working folder; with averaged weights, `last` has those that trained, too."""
    assert state(folder)[0]["status"] == "finished"
    run = only_run(folder)
    last, best = (torch.load(run / f"checkpoints/{name}.ckpt", weights_only=True) for name in ("last", "best"))
    trained = {f"trained {name}": weight for name, weight in last.get("current_model_state", {}).items()}
    rows = [{k: v for k, v in row.items() if k != "train/samples_per_s"} for row in read_metrics(run / "metrics.csv")]
    return Outcome(last["state_dict"] | trained, best["state_dict"], rows)


def assert_same(a: Outcome, b: Outcome) -> None:
    torch.testing.assert_close([a.last, a.best], [b.last, b.best], rtol=0, atol=0)
    assert a.rows == b.rows, [pair for pair in zip(a.rows, b.rows, strict=False) if pair[0] != pair[1]][:2]


def scontrol(folder: Path) -> dict[str, str]:
    """An environment whose scontrol writes to <folder>/asked what it is asked, and the run's record as it is then."""
    tool = folder / "bin/scontrol"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\ncat {folder}/runs/tiny/*/run.json >> {folder}/asked\n')
    tool.chmod(0o755)
    return {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
