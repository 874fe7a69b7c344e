"""examples/, as a user runs them but with fewer steps: nothing warns, and all that they say is printed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.name)
def test_runs_from_top_to_bottom_and_nothing_warns(file, tmp_path):
    """Every warning is an error, those of imports among them; none is excepted."""
    text = file.read_text()
    assert "\nSTEPS = 300\n" in text and text.count("# %%") > 10
    short = text.replace("STEPS = 300", "STEPS = 4").replace("1_000", "64").replace("9_600", "1_600")
    (tmp_path / "short.py").write_text(short)
    environment = {key: value for key, value in os.environ.items() if key != "LRA_SSM_DATA"}
    environment |= {"PYTHONPATH": str(FOLDER.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "short.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Warning" not in done.stdout + done.stderr
    assert "test accuracy: B2S6" in done.stdout and "positions or more" in done.stdout
    assert (tmp_path / "first-model/model.safetensors").is_file() and (tmp_path / "runs/my-average").is_dir()
