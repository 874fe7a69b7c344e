"""examples/, docs/extending.md and docs/tuning.md, as a user runs them but with fewer steps."""

import json
import os
import random
import re
import runpy
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from tests.runner import succeed

ROOT = Path(__file__).parents[1]
LITTLE = ["--data.num_train=64", "--data.num_val=32", "--data.num_test=32"]


@pytest.fixture(autouse=True)
def _configs(tmp_path, monkeypatch):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)


# --- examples/ ---

SCRIPT = (ROOT / "examples/first_model.py").read_text()


def test_the_notebook_is_the_script_with_its_outputs():
    pytest.importorskip("nbclient")
    made = runpy.run_path(str(ROOT / "docs/notebook.py"))["notebook"](SCRIPT)
    book = json.loads((ROOT / "examples/first_model.ipynb").read_text())
    cells = [("".join(cell["source"]), cell["cell_type"]) for cell in book["cells"]]
    assert cells == [(cell.source, cell.cell_type) for cell in made.cells], "python docs/notebook.py"
    assert "test accuracy: B2S6 0." in "".join(book["cells"][-1]["outputs"][0]["text"])


@pytest.mark.slow
def test_the_script_runs_and_nothing_warns(tmp_path):
    """Every warning is an error, those of imports among them."""
    short = SCRIPT.replace("STEPS = 300", "STEPS = 4").replace("1_000", "64").replace("9_600", "1_600")
    assert short.count("# %%") > 10 and "\nSTEPS = 4\n" in short
    (tmp_path / "short.py").write_text(short)
    environment = {key: value for key, value in os.environ.items() if key != "LRA_SSM_DATA"}
    command = [sys.executable, "-W", "error", "short.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Warning" not in done.stdout + done.stderr
    assert "test accuracy: B2S6" in done.stdout and "positions or more" in done.stdout
    assert (tmp_path / "first-model/model.safetensors").is_file() and (tmp_path / "runs/my-average").is_dir()


# --- docs/extending.md: its files next to each other, its commands one after the other ---

FILES = {text.split()[1]: text for text in blocks("extending.md", "python") if re.match(r"# \w+\.py\n", text)}


@pytest.mark.parametrize("line", "".join(blocks("extending.md", "bash")).splitlines())
def test_commands_of_extending_run(line, tmp_path, data):
    program, *arguments = shlex.split(line)
    assert program == "lightning" and len(FILES) == 9
    letters = random.Random(0)
    rows = [f"{i % 2},{''.join(letters.choices('ACGT', k=20 + i))}" for i in range(64)]
    (tmp_path / "promoters.csv").write_text("\n".join(rows) + "\n")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    short = ["--trainer.max_steps=2", "--trainer.accelerator=cpu"]
    succeed([*arguments, *short, *([] if "my_data" in line else [*LITTLE, f"--data.root={data}"])], tmp_path)


def test_its_recurrence_is_the_one_it_says_with_padding_and_steps():
    names: dict = {}
    exec(compile(FILES["my_recurrence.py"], "my_recurrence.py", "exec"), names)
    leaky = names["Leaky"]
    layer = leaky(3, start=0.7).double()
    x, lengths = torch.randn(2, 6, 3, dtype=torch.float64), torch.tensor([6, 4])
    state, expected = torch.zeros(2, 3, dtype=torch.float64), []
    for t in range(6):
        state = 0.7 * state + 0.3 * x[:, t]
        expected.append(state)
    expected = torch.stack(expected, 1)
    y, last = layer(x, lengths, return_last_state=True)
    torch.testing.assert_close(y[0], expected[0])
    torch.testing.assert_close(y[1, :4], expected[1, :4])
    torch.testing.assert_close(last, torch.stack([expected[0, 5], expected[1, 3]]))
    torch.testing.assert_close(layer.step(x[:, 4], expected[:, 3])[0], expected[:, 4])
    assert leaky(3, bidirectional=True).optim_roles() == {"logit": "recurrent", "reverse.logit": "recurrent"}


# --- docs/tuning.md: both its ways to drive a fit from Optuna ---

_, TUNE = blocks("tuning.md", "bash")
TUNE_SCRIPT, TUNE_NOTEBOOK = blocks("tuning.md", "python")


@pytest.mark.slow
def test_optuna_drives_fits_in_processes_of_their_own(here, tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna")
    (tmp_path / "tune.py").write_text(TUNE_SCRIPT)
    _, script, *options = shlex.split(TUNE)
    small = ["--model.network.d_model=8", "--model.network.n_layers=1", "--trainer.val_check_interval=1"]
    monkeypatch.setattr(sys, "argv", [script, *options, *LITTLE, *small])
    runpy.run_path(script, run_name="__main__")
    study = optuna.load_study(study_name="tune", storage=f"sqlite:///{tmp_path}/tune.db")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
    assert all(trial.intermediate_values or trial.value is not None for trial in study.trials)
    assert len(list(tmp_path.glob("runs/tune/[01]/*/run.json"))) == 2


def test_optuna_prunes_by_a_callback(here, tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna")
    monkeypatch.setenv("PL_GLOBAL_SEED", "")
    monkeypatch.setattr(optuna.Trial, "should_prune", lambda trial: trial.number == 1)
    little = TUNE_NOTEBOOK.replace("num_train=1000, num_val=200, num_test=200", "num_train=64, num_val=32, num_test=32")
    assert little != TUNE_NOTEBOOK
    module = types.ModuleType("tuning")  # as a notebook is: classes are found in it by name
    monkeypatch.setitem(sys.modules, "tuning", module)
    exec(compile(little, "docs/tuning.md", "exec"), vars(module))
    first, second = module.study.trials
    assert (first.state.name, second.state.name) == ("COMPLETE", "PRUNED")
    assert first.value == max(first.intermediate_values.values()) and len(second.intermediate_values) == 1
    record = (tmp_path / "runs/tune-here/1/run.json").read_text()
    assert '"status": "failed"' in record and "TrialPruned" in record
