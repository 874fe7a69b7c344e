"""A disk that takes no more: one line names the file, nothing half-written stays, the run goes on.

The full disk is a file size limit of the process.
"""

import json

import pytest
import torch

from tests.interrupted import assert_same, outcome
from tests.runner import FIT, SHORT, everything_below, only_run, run, succeed

SLOW = pytest.mark.slow


def failure(command, folder, moment, limit, file):
    """The one line with which a command ends when from this moment on no file may have more bytes."""
    result = run(command, folder, {"KILL_AT": moment, "FULL_AT": str(limit)})
    (line,) = [line for line in result.err.splitlines() if line.startswith("lra-ssm: ")]
    assert result.code == 2 and result.err.strip().endswith(line), result.err[-3000:]
    assert "Traceback" not in result.err and "terminate" not in result.err
    assert line.endswith(f"/{file}: cannot be read or written (File too large)")
    return line.removeprefix("lra-ssm: error: ")


@pytest.mark.parametrize(
    ("moment", "limit", "file"),
    [
        pytest.param("train_batch_end:4", 20_000, "last.ckpt", marks=SLOW),
        ("validation_batch_end:2", 20_000, "best.ckpt"),
        pytest.param("train_end:1", 1000, "run.json", marks=SLOW),
    ],
)
def test_a_full_disk_is_one_line_and_the_run_goes_on_where_it_was_saved(
    moment, limit, file, tmp_path, data, uninterrupted
):
    command = [*FIT, f"--data.root={data}"]
    line, path = failure(command, tmp_path, moment, limit, file), only_run(tmp_path)
    assert not list(tmp_path.rglob(".unfinished-*"))
    record = json.loads((path / "run.json").read_text())
    if file != "run.json":
        assert record["status"] == "failed" and record["reason"] == line
    for kept in path.glob("checkpoints/*"):
        torch.load(kept, weights_only=True)
    succeed(command, tmp_path)
    assert_same(outcome(tmp_path), uninterrupted("epochs").outcome)


def test_scoring_leaves_no_half_of_its_file(tmp_path, finished):
    before = everything_below(tmp_path)
    for command, file in {"test": "test.json", "predict": "predictions-val.csv"}.items():
        failure([command, *FIT[1:], *SHORT], tmp_path, "setup:1", 800, file)
        assert everything_below(tmp_path) == before
