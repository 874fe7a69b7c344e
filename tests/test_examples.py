"""examples/, as a user runs them but with fewer steps: a script without a warning, and the notebook made from it."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
SCRIPT = (FOLDER / "first_model.py").read_text()
SHORT = SCRIPT.replace("STEPS = 300", "STEPS = 4").replace("1_000", "64").replace("9_600", "1_600")


@pytest.fixture(scope="module")
def made():
    """The functions of docs/notebook.py."""
    pytest.importorskip("nbclient")
    return runpy.run_path(str(FOLDER.parent / "docs/notebook.py"))


def test_the_notebook_is_the_script_with_its_outputs(made):
    book = json.loads((FOLDER / "first_model.ipynb").read_text())
    cells = [("".join(cell["source"]), cell["cell_type"]) for cell in book["cells"]]
    assert cells == [(cell.source, cell.cell_type) for cell in made["notebook"](SCRIPT).cells], (
        "python docs/notebook.py"
    )
    assert "test accuracy: B2S6 0." in "".join(book["cells"][-1]["outputs"][0]["text"])


@pytest.mark.slow
def test_the_notebook_runs(made, tmp_path, monkeypatch):
    monkeypatch.delenv("LRA_SSM_DATA", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    book = made["execute"](made["notebook"](SHORT), tmp_path)
    printed = "".join(made["printed"](cell) for cell in book.cells if cell.cell_type == "code")
    assert "step 4/4" in printed and "test accuracy: B2S6" in printed and "positions or more" in printed


@pytest.mark.slow
def test_the_script_runs_and_nothing_warns(tmp_path):
    """Every warning is an error, those of imports among them."""
    assert SHORT.count("# %%") > 10 and "\nSTEPS = 4\n" in SHORT
    (tmp_path / "short.py").write_text(SHORT)
    environment = {key: value for key, value in os.environ.items() if key != "LRA_SSM_DATA"}
    environment |= {"PYTHONPATH": str(FOLDER.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "short.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Warning" not in done.stdout + done.stderr
    assert "test accuracy: B2S6" in done.stdout and "positions or more" in done.stdout
    assert (tmp_path / "first-model/model.safetensors").is_file() and (tmp_path / "runs/my-average").is_dir()
