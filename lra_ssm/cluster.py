"""What a run is and where it lives: its identity, its directory, its lock, its record.

runs/<experiment>/<run_id>/
    config.yaml      the resolved configuration
    run.json         status, versions, git commit, hardware, command, final metrics
    metrics.csv      everything logged
    checkpoints/     last.ckpt, best.ckpt
"""

import copy
import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lra_ssm import __version__
from lra_ssm.errors import InputError

# What cannot change a result, by dotted path below the configuration; `init_args` left out.
NEUTRAL = (
    "runs_dir",
    "experiment",
    "fresh",
    "strict_resume",
    "weights_only",
    "verbose",
    "return_predictions",
    "checkpoint.every_n_steps",
    "data.root",
    "data.eval_batch_size",
    "data.num_workers",
    "data.pin_memory",
    "trainer.accelerator",
    "trainer.default_root_dir",
    "trainer.devices",
    "trainer.enable_model_summary",
    "trainer.enable_progress_bar",
    "trainer.limit_predict_batches",
    "trainer.limit_test_batches",
    "trainer.log_every_n_steps",
    "trainer.max_time",
    "trainer.logger",
    "trainer.num_nodes",
    "trainer.profiler",
    "trainer.strategy",
)


def run_identity(config: dict[str, Any]) -> str:
    """Ten hexadecimal digits of the resolved configuration, seed included, without what cannot change the result."""
    config = copy.deepcopy(config)
    config.pop("config", None)
    if config.get("ckpt_path") in (None, "last", "best"):
        config.pop("ckpt_path", None)
    for path in NEUTRAL:
        node: Any = config
        *parents, leaf = path.split(".")
        for parent in parents:
            node = node.get(parent) or {}
            node = node.get("init_args", node) if "class_path" in node else node
        node.pop(leaf, None)
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


class RunDirectory:
    """The directory of one run. Made on first use; `lock()` holds it until the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: FileLock | None = None

    @classmethod
    def find(cls, runs_dir: str | Path, experiment: str, run_id: str, fresh: bool = False) -> "RunDirectory":
        """`<run_id>`, or with `fresh` the first of `<run_id>-2`, `-3`, … that is not finished.

        An unfinished fresh run is gone on with by the same command, as any other."""
        base = Path(runs_dir) / experiment
        run = cls(base / run_id)
        number = 2
        while fresh and (number == 2 or run.finished):
            run = cls(base / f"{run_id}-{number}")
            number += 1
        return run

    @property
    def last(self) -> Path:
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def best(self) -> Path:
        return self.path / "checkpoints" / "best.ckpt"

    @property
    def record(self) -> dict[str, Any]:
        file = self.path / "run.json"
        return json.loads(file.read_text()) if file.is_file() else {}

    @property
    def finished(self) -> bool:
        return self.record.get("status") == "finished"

    def lock(self) -> None:
        """Takes the directory for this process. Raises InputError naming the holder where another one has it.

        The kernel drops the lock with the process, so that a killed run leaves none."""
        try:
            (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"run directory {self.path} cannot be made: {error.strerror}; set --runs_dir") from error
        lock = FileLock(self.path / ".lock")
        holder = self.path / ".holder.json"
        try:
            lock.acquire(timeout=0)
        except Timeout:
            who = json.loads(holder.read_text()) if holder.is_file() else {"pid": "?", "host": "?", "since": "?"}
            raise InputError(
                f"{self.path} is in use by process {who['pid']} on {who['host']} since {who['since']}; "
                "wait for it, stop it, or start another run with --fresh"
            ) from None
        self._lock = lock
        write_json(holder, {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()})
        for leftover in self.path.glob("**/.*.partial"):
            leftover.unlink()

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def write_record(self, **fields: Any) -> None:
        write_json(self.path / "run.json", {**self.record, **fields})

    def save_config(self, text: str) -> None:
        """Writes config.yaml; one that is there with other text is kept as config.1.yaml, config.2.yaml, …"""
        file = self.path / "config.yaml"
        if file.is_file():
            if file.read_text() == text:
                return
            number = 1
            while (old := self.path / f"config.{number}.yaml").exists():
                number += 1
            file.rename(old)
        _write(file, text)


def write_json(path: Path, data: Any) -> None:
    """Writes `data` beside `path` and renames it into place."""
    _write(path, json.dumps(data, indent=2, default=str) + "\n")


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    os.replace(partial, path)


def code_version() -> str:
    """Version and digest of the package's source: what a checkpoint was made with."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"


def environment() -> dict[str, Any]:
    """Versions, git commit, hardware and command line, for the run's record."""
    packages = ("torch", "lightning", "torchmetrics", "numpy", "triton", "mamba-ssm", "causal-conv1d")
    versions: dict[str, str | None] = {"python": platform.python_version(), "lra_ssm": code_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    hardware: dict[str, Any] = {
        "host": socket.gethostname(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "gpus": gpus,
    }
    hardware["cpus"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"time": _now(), "command": sys.argv, "versions": versions, "git": _git(), "hardware": hardware}


def _git() -> dict[str, Any] | None:
    """Commit of the working folder's repository, and whether there were changes; None outside one."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        status = subprocess.run(
            ["git", "status", "--porcelain"], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.stdout.strip(), "changed": bool(status.stdout.strip())}


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
