"""What made a result: versions, git commit, hardware, command, Slurm job."""

import hashlib
import os
import platform
import socket
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from lra_ssm import __version__
from lra_ssm.machine import available_cores, cpu_name

# What can change a run's numbers: not the commands' words, the bench, or how a run is recorded.
_COMPUTES = ("ops", "layers", "models", "tasks", "datamodules", "callbacks.py", "runs/saving.py")

# Of the job that a start is part of.
_SLURM = ("job_id", "array_job_id", "array_task_id", "restart_count", "job_partition")


@cache
def code_version() -> str:
    """Version and digest of the source that computes, the C++ included: what a checkpoint was made with."""
    root = Path(__file__).parents[1]
    files = [file for room in _COMPUTES for file in (root / room, *(root / room).rglob("*")) if file.is_file()]
    digest = hashlib.sha256()
    for file in sorted(file for file in files if file.suffix in (".py", ".cpp", ".h")):
        digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"


def environment() -> dict[str, Any]:
    """Versions, git commit, hardware, command line and, in a job, Slurm's ids, for the run's record."""
    packages = ("torch", "lightning", "torchmetrics", "numpy", "triton", "mamba-ssm", "causal-conv1d")
    versions: dict[str, str | None] = {"python": platform.python_version(), "lra_ssm": code_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    import torch

    versions["torch"] = torch.__version__  # with its build: 2.13.0+cu130
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    hardware: dict[str, Any] = {
        "host": socket.gethostname(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cpus": available_cores(),
        "gpus": gpus,
    }
    here = {"time": now(), "command": sys.argv, "versions": versions, "git": git_state(Path()), "hardware": hardware}
    slurm = {name: os.environ[f"SLURM_{name.upper()}"] for name in _SLURM if f"SLURM_{name.upper()}" in os.environ}
    return {**here, "slurm": slurm} if slurm else here


def git_state(folder: Path) -> dict[str, Any] | None:
    """Of the repository that a folder lies in: the commit, whether its files were changed since, and the digest of what
    was (None for nothing). None outside a repository."""

    def said(*command: str) -> bytes:
        return subprocess.run(["git", *command], cwd=folder, capture_output=True, check=True, timeout=10).stdout.strip()

    try:
        commit, diff = said("rev-parse", "HEAD"), said("diff", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return None
    digest = hashlib.sha256(diff).hexdigest()[:12] if diff else None
    return {"commit": commit.decode(), "changed": bool(diff), "diff": digest}


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def ended(starts: list[dict[str, Any]], when: Any) -> list[dict[str, Any]]:
    """A run's attempts, the last one with its end where it has none and `when` is a time after its beginning."""
    if starts and "ended" not in starts[-1] and isinstance(when, str) and when >= str(starts[-1].get("time")):
        starts[-1]["ended"] = when
    return starts
