"""Folders of sweeps, and what runs leave in them, written by hand."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from lra_ssm.cluster.folder import SweepFolder

HERE = os.uname().nodename


def sweep_folder(base: Path, count: int = 1) -> SweepFolder:
    """A sweep of so many seeds of one config."""
    path = base / "runs/sweeps/mine-01234567"
    (path / "logs").mkdir(parents=True)
    runs = [
        {
            "index": i,
            "options": ["--config=configs/mine.yaml", f"--seed_everything={i}"],
            "changes": {"seed_everything": i},
            "path": f"mine/{i:010d}",
        }
        for i in range(1, count + 1)
    ]
    (path / "runs.json").write_text(json.dumps({"name": "mine", "source": "mine.yaml", "runs": runs}))
    (path / "prepare.txt").write_text("")
    return SweepFolder(path)


def at(ago: float) -> str:
    """The time so many seconds ago."""
    return datetime.fromtimestamp(time.time() - ago, UTC).isoformat(timespec="seconds")


def run_left(
    folder: SweepFolder, index: int, status: str = "started", *, ago: float = 100.0, starts: int = 1, step: int = 40,
    of: int | None = 100, host: str = HERE, tested: bool = False, quiet: float = 0.0, **record: object,
) -> Path:  # fmt: skip
    """What a run has written that began `ago` seconds ago, wrote `quiet` seconds ago last, and does not run."""
    path = folder.runs[index - 1].directory.path
    path.mkdir(parents=True)
    record = {"status": status, "starts": [{"time": at(ago)}] * starts, "metrics": {}, **record}
    (path / "run.json").write_text(json.dumps(record))
    (path / ".holder.json").write_text(json.dumps({"pid": 1, "host": host, "since": at(ago)}))
    (path / ".lock").touch()
    progress = {"time": at(quiet), "step": step, "of": of, "rate": 2.0, "validating": False, "monitor": "val/accuracy"}
    (path / "progress.json").write_text(json.dumps(progress))
    (path / "metrics.csv").write_text(
        "step,epoch,train/loss,val/loss,val/accuracy\n19,0,2.5,,\n19,0,,2.25,0.5\n39,0,1.5,,\n39,0,"
    )
    if tested:
        (path / "test.json").write_text(json.dumps({"metrics": {"test/loss": 2.0, "test/accuracy": 0.75}}))
    for file in path.iterdir():
        os.utime(file, (time.time() - quiet,) * 2)
    return path


def log_left(folder: SweepFolder, index: int | str, *lines: str, ago: float = 100.0, host: str = HERE) -> Path:
    """A log whose last attempt began `ago` seconds ago on `host` and printed `lines`, just now."""
    file = folder.path / "logs" / f"{index}.log"
    with open(file, "a") as log:
        log.write("\n".join([f"== attempt {at(ago)} on {host}", *lines, ""]))
    return file


@contextmanager
def held(file: Path):
    """The file's lock, held by another process."""
    code = "import sys, filelock\nwith filelock.FileLock(sys.argv[1]):\n    print('held', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.wait()
