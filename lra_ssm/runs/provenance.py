"""Record the origin of a result: versions, git commit, hardware, command, Slurm job, and the user's own code."""

import hashlib
import inspect
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from lra_ssm import __version__
from lra_ssm.errors import is_installed
from lra_ssm.files import sha256
from lra_ssm.runs.identity import TRAINER_NEUTRAL

VERSION = "lra_ssm_code_version"  # in a checkpoint, what `code_version` returned
SOURCE = "lra_ssm_source"  # in a checkpoint, what `user_source` returned; in run.json "source" of each start
CONFIG = "lra_ssm_config"  # in a checkpoint: the run's resolved configuration

_ROOT = Path(__file__).parents[1]
# The code that can change a run's numbers, without the commands and the code that records runs.
_COMPUTES = ("ops", "layers", "models", "tasks", "datamodules", "callbacks.py", "runs/checkpoints.py")
_PACKAGES = ("torch", "lightning", "torchmetrics", "numpy", "triton", "mamba-ssm", "causal-conv1d")
_SLURM = ("job_id", "array_job_id", "array_task_id", "restart_count", "job_partition")


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def code_version() -> str:
    """Return the version, and a digest of the code (with C++) that can change a run's numbers."""
    files = [file for part in _COMPUTES for file in (_ROOT / part, *(_ROOT / part).rglob("*")) if file.is_file()]
    digest = hashlib.sha256()
    for file in sorted(file for file in files if file.suffix in (".py", ".cpp", ".h")):
        digest.update(str(file.relative_to(_ROOT)).encode() + file.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"


def environment() -> dict[str, Any]:
    """Return versions, git commit, hardware, command line and, in a job, Slurm's ids, for a run's record."""
    import torch

    versions: dict[str, str | None] = {"python": platform.python_version(), "lra_ssm": code_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    versions["torch"] = torch.__version__  # with its build: 2.13.0+cu130
    hardware: dict[str, Any] = {
        "host": socket.gethostname(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }
    here = {"time": now(), "command": sys.argv, "versions": versions, "git": git_state(Path()), "hardware": hardware}
    slurm = {name: os.environ[f"SLURM_{name.upper()}"] for name in _SLURM if f"SLURM_{name.upper()}" in os.environ}
    return {**here, "slurm": slurm} if slurm else here


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return a repository's commit, whether tracked files have changed, and the digest of the changes (or None).

    None outside a repository.
    """

    def output(*command: str) -> bytes:
        return subprocess.run(["git", *command], cwd=folder, capture_output=True, check=True, timeout=10).stdout.strip()

    try:
        commit, diff = output("rev-parse", "HEAD"), output("diff", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return None
    digest = hashlib.sha256(diff).hexdigest()[:12] if diff else None
    return {"commit": commit.decode(), "changed": bool(diff), "diff": digest}


# -- the user's own code and weights -----------------------------------------------------------------------------------


def user_source(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of the user's files that a run uses, by their path below the import root.

    In a git repository the result also has "git commit", and "git diff", the digest of uncommitted changes.

    The files are those of the classes and functions that a resolved configuration names by import path, and of their
    base classes; not this package's or an installed library's.
    """
    trainer = {key: value for key, value in (config.get("trainer") or {}).items() if key not in TRAINER_NEUTRAL}
    digests: dict[str, str] = {}
    folder: Path | None = None
    for thing in (thing for text in _texts({**config, "trainer": trainer}) for thing in _loaded(text)):
        for each in getattr(thing, "__mro__", (thing,)):
            path = Path(getattr(sys.modules.get(each.__module__), "__file__", None) or "")
            if not path.is_file() or is_installed(path) or path.is_relative_to(_ROOT):
                continue
            module = each.__module__.replace(".", "/") + ("/__init__" if path.stem == "__init__" else "")
            digests[f"{module}{path.suffix}"] = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
            folder = folder or path.resolve().parent
    state = git_state(folder) if folder else None
    git = {f"git {key}": str(state[key]) for key in ("commit", "diff")} if state else {}
    return {**dict(sorted(digests.items())), **git}


def _texts(value: Any) -> Iterator[str]:
    """Iterate over every string in nested plain values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _loaded(path: str) -> Iterator[Any]:
    """Yield the class or function that an import path names, if its module is loaded."""
    module, _, name = path.rpartition(".")
    thing = getattr(sys.modules.get(module), name, None) if name else None
    if inspect.isclass(thing) or inspect.isfunction(thing):
        yield thing


def changed(before: Any, now: Mapping[str, str] | None) -> str:
    """Return which entries of two results of `user_source` differ, as text; empty if either is unknown."""
    if not isinstance(before, dict) or now is None:
        return ""
    names = [name for name in now if name in before and before[name] != now[name]]
    text = ", ".join(f"{name} has changed" for name in names[:3])
    return text + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def other_code(record: Mapping[str, Any], now: Mapping[str, str]) -> str:
    """Return how the code of lra_ssm or of the user differs from the code that trained a recorded run, as text."""
    changes = []
    for start in record.get("starts", []):
        made_by = (start.get("versions") or {}).get("lra_ssm")
        if made_by not in (None, code_version()):
            changes.append(f"lra_ssm was {made_by}, this is {code_version()}")
        changes.append(changed(start.get("source"), now))
    return "; ".join(dict.fromkeys(filter(None, changes)))


def weight_digests(path: str | None) -> dict[str, str]:
    """Return the sha256 of the files of starting weights: a checkpoint, or the weights in a saved model's folder.

    Empty for a name that is not an existing path: a revision identifies a model on the Hub.
    """
    if not path or not Path(path).exists():
        return {}
    from lra_ssm.checkpoints import ModelFiles  # loads torch

    files = [Path(path)] if Path(path).is_file() else ModelFiles(path).weight_files(allow_pickle=True)
    return {str(file): sha256(file) for file in files}


def changed_weights(record: Mapping[str, Any], init_from: str | None) -> str:
    """Return which starting weights differ from a recorded run's, as text; empty if the files no longer exist."""
    if not (known := record.get("weights")):
        return ""
    with suppress(ValueError, OSError):
        return changed(known, weight_digests(init_from))
    return ""
