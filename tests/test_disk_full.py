"""A disk that takes no more: one line says which file needs how much, nothing half-written stays, and the run goes on.

What is full is a file size limit of the process, or, where mounting is allowed, a small disk of its own.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch

from tests.interrupted import assert_same, outcome
from tests.runner import FIT, SHORT, Result, everything_below, only_run, run, run_here, succeed

pytestmark = pytest.mark.usefixtures("read_once")


def one_line(result: Result) -> str:
    assert result.code == 2, result.err[-3000:]
    lines = [line for line in result.err.splitlines() if line.startswith("lra-ssm: ")]
    assert len(lines) == 1 and result.err.strip().endswith(lines[0]), result.err[-3000:]
    assert "Traceback" not in result.err and "terminate" not in result.err
    return lines[0].removeprefix("lra-ssm: error: ")


# event -> bytes that a file may have from then on, and the file that cannot be written
MOMENTS = {
    "train_batch_end:4": (20_000, "last.ckpt"),
    "train_epoch_end:1": (20_000, "last.ckpt"),
    "validation_batch_end:2": (20_000, "best.ckpt"),
    "train_end:1": (1000, "run.json"),
}


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "moment", [pytest.param(m, marks=[] if MOMENTS[m][1] == "best.ckpt" else SLOW) for m in MOMENTS]
)
def test_a_full_disk_is_one_line_and_the_run_goes_on_where_it_was_saved(moment, tmp_path, data, uninterrupted):
    command = [*FIT, f"--data.root={data}"]
    limit, file = MOMENTS[moment]
    line = one_line(run(command, tmp_path, {"KILL_AT": moment, "FULL_AT": str(limit)}))
    where = only_run(tmp_path)
    assert f"/{file}: cannot be read or written (File too large: " in line and " MB free)" in line
    assert not list(tmp_path.rglob(".unfinished-*"))
    record = json.loads((where / "run.json").read_text())
    if limit > 10_000:  # else it cannot be written either
        assert record["status"] == "failed" and record["reason"] == line
    for kept in where.glob("checkpoints/*"):
        torch.load(kept, weights_only=True)
    succeed(command, tmp_path)
    assert_same(outcome(tmp_path), uninterrupted("epochs").outcome)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 500 kB for the runs."""
    place = tmp_path / "runs"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "none", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


FILLED = {"train_batch_end:1": "metrics.csv", "train_batch_end:4": "last.ckpt", "validation_batch_end:2": "metrics.csv"}


@pytest.mark.parametrize(
    "moment", [pytest.param(None, marks=SLOW), *(pytest.param(m, marks=[] if "end:4" in m else SLOW) for m in FILLED)]
)
def test_a_disk_that_others_filled_is_one_line(moment, tmp_path, data, uninterrupted, disk):
    command = [*FIT, f"--data.root={data}"]
    fill = f"head -c 1M /dev/zero > {disk}/filler 2> /dev/null"
    if moment is None:  # before the start
        subprocess.run(fill, shell=True)
    with mock.patch.dict(os.environ, KILL_AT=moment or ":", RUN=fill):
        line = one_line(run_here(command, tmp_path))
    assert f"{FILLED.get(moment, '')}: cannot be read or written (No space left on device: " in line
    assert line.endswith(" 0 MB free)") and not list(tmp_path.rglob(".unfinished-*"))
    (disk / "filler").unlink()
    succeed(command, tmp_path)
    assert_same(outcome(tmp_path), uninterrupted("epochs").outcome)


def test_what_scores_a_run_leaves_no_half_of_its_file(tmp_path, trained, disk):
    options = [*FIT[1:], *SHORT, f"--data.root={trained[0] / 'data'}"]
    scores = ("test.json", "validate.json", "predictions-val.csv")  # of another test that shares the run
    shutil.copytree(trained[0] / "runs", disk, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*scores))
    before = everything_below(disk)
    fill = f"head -c 1M /dev/zero > {disk}/filler 2> /dev/null"
    for command, file in {"test": "test.json", "predict": "predictions-val.csv", "validate": "validate.json"}.items():
        with mock.patch.dict(os.environ, KILL_AT="setup:1", RUN=fill):
            line = one_line(run_here([command, *options], tmp_path))
        assert f"/{file}: cannot be read or written (No space left on device: " in line
        (disk / "filler").unlink()
        assert everything_below(disk) == before
