"""docs/tuning.md, literally: its commands, and both its ways to drive a fit from Optuna."""

import os
import re
import runpy
import shlex
import sys
import types
from pathlib import Path

import pytest

from tests.runner import succeed

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "docs/tuning.md").read_text(), re.MULTILINE | re.DOTALL)
(WANDB, TUNE), (SCRIPT, NOTEBOOK) = ([text for kind, text in BLOCKS if kind == of] for of in ("bash", "python"))
LITTLE = ["--data.num_train=64", "--data.num_val=32", "--data.num_test=32"]


@pytest.mark.slow
def test_wandb_is_turned_on_by_these_options(tmp_path):
    pytest.importorskip("wandb")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for line in WANDB.splitlines():
        _, *arguments = shlex.split(line)
        succeed([*arguments, *LITTLE, "--trainer.max_steps=2"], tmp_path, {"WANDB_SILENT": "true"})
    assert len(list(tmp_path.glob("runs/quickstart/*/wandb/offline-run-*"))) == 2


@pytest.mark.slow
def test_optuna_drives_fits_in_processes_of_their_own(tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "tune.py").write_text(SCRIPT)
    _, script, *options = shlex.split(TUNE)
    small = ["--model.network.d_model=8", "--model.network.n_layers=1", "--trainer.val_check_interval=1"]
    monkeypatch.setattr(sys, "argv", [script, *options, *LITTLE, *small])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    runpy.run_path(script, run_name="__main__")
    study = optuna.load_study(study_name="tune", storage=f"sqlite:///{tmp_path}/tune.db")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
    assert all(trial.intermediate_values or trial.value is not None for trial in study.trials)
    assert len(list(tmp_path.glob("runs/tune/[01]/*/run.json"))) == 2


def test_optuna_prunes_by_a_callback(tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "")
    monkeypatch.setattr(optuna.Trial, "should_prune", lambda trial: trial.number == 1)
    little = NOTEBOOK.replace("num_train=1000, num_val=200, num_test=200", "num_train=64, num_val=32, num_test=32")
    assert little != NOTEBOOK
    module = types.ModuleType("tuning")  # as a notebook is: classes are found in it by name
    monkeypatch.setitem(sys.modules, "tuning", module)
    exec(compile(little, "docs/tuning.md", "exec"), vars(module))
    first, second = module.study.trials
    assert (first.state.name, second.state.name) == ("COMPLETE", "PRUNED")
    assert first.value == max(first.intermediate_values.values()) and len(second.intermediate_values) == 1
    record = tmp_path / "runs/tune-here/1/run.json"
    assert '"status": "failed"' in record.read_text() and "TrialPruned" in record.read_text()
