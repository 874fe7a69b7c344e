"""A sweep's folder: its runs as they were submitted, their logs, what was submitted.

<runs_dir>/sweeps/<name>-<digest>/
    sweep.yaml         the file that it was made of
    configs/           copies of its configs: what is edited later changes no run that waits
    runs.json          every run: its number, options, changes and directory
    runs.txt           the same options, a line each: what a task of the array reads
    prepare.txt        options of `lra-ssm prepare` that make the data ready, a line for each data set
    logs/<index>.log   what run <index> printed, in all its attempts
    submit.sbatch, prepare.sbatch, collect.sbatch, submissions.json   see slurm.py

The digest is of the options and of the configs' contents: another sweep under the same name is another folder.
"""

import hashlib
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lra_ssm.cluster.sweep import Sweep, SweepRun, as_option, read_sweep
from lra_ssm.errors import InputError
from lra_ssm.files import UNFINISHED, sha256, write_json
from lra_ssm.runs.directory import RunDirectory
from lra_ssm.runs.identity import short_names

SWEEPS = "sweeps"  # the folder below runs_dir


@dataclass(frozen=True)
class Resolved:
    """What the options of a run come to."""

    run: Path  # its directory
    data: str  # the same for runs on the same data; empty where there is nothing to prepare


@dataclass(frozen=True)
class FolderRun:
    """A run of a sweep's folder."""

    index: int  # from 1: the array's task
    options: list[str]  # of `lra-ssm fit` and `lra-ssm test`
    changes: dict[str, Any]
    directory: RunDirectory

    @property
    def done(self) -> bool:
        """Whether it is trained, and tested after that: what `lra-ssm results` counts."""
        return self.directory.finished and self.directory.tested


class SweepFolder:
    """A sweep's folder that is there. `find` gives that of a sweep file or a folder, `make` writes one."""

    def __init__(self, path: Path) -> None:
        file = path / "runs.json"
        try:
            content = json.loads(file.read_bytes())
            self.name, self.source = str(content["name"]), str(content["source"])
            base = path.parent.parent
            self.runs = [
                FolderRun(run["index"], run["options"], run["changes"], RunDirectory(base / run["path"]))
                for run in content["runs"]
            ]
        except OSError as error:
            raise InputError(f"{path} is no folder of a sweep: {file.name} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{file} is damaged ({error!r}); submit {path.name} again") from error
        self.path = path

    @classmethod
    def find(cls, given: str | Path) -> Self:
        """The folder of a sweep: `given` itself, or that of a sweep file, submitted from here before.

        Raises InputError where there is none.
        """
        path = Path(given)
        if path.is_dir():
            return cls(path)
        if path.suffix not in (".yaml", ".yml"):
            raise InputError(f"{path} is neither a sweep file (.yaml) nor the folder of a sweep")
        sweep = read_sweep(path)
        folder = folder_of(sweep)
        if not folder.is_dir():
            others = sorted(folder.parent.glob(f"{sweep.name}-*/runs.json"), key=os.path.getmtime)
            before = f"; it was changed since {others[-1].parent} was" if others else ""
            raise InputError(f"sweep {path} was not submitted from here{before}: lra-ssm submit {path}")
        return cls(folder)

    @classmethod
    def make(
        cls,
        sweep: Sweep,
        resolve: Callable[[SweepRun], Resolved],
        track: Callable[[list[SweepRun]], Iterable[SweepRun]] = iter,
    ) -> Self:
        """Writes the folder, whole or not at all; one that is there stays.

        resolve: gives what a run's options come to, or raises InputError. track: shows how far it is.
        """
        path = folder_of(sweep)
        if path.is_dir():
            return cls(path)
        copies = _copies(sweep)
        runs: list[dict[str, Any]] = []
        prepares: dict[str, list[str]] = {}
        numbers: dict[Path, int] = {}
        for run in track(sweep.runs):
            try:
                resolved = resolve(run)
            except InputError as error:
                raise InputError(f"sweep {sweep.file}, run {run.index} ({shown(run.changes)}): {error}") from error
            if (first := numbers.setdefault(resolved.run, run.index)) != run.index:
                raise InputError(f"sweep {sweep.file}: runs {first} and {run.index} are the same run, {resolved.run}")
            options = run.options(path / "configs" / copies[run.config])
            where = os.path.relpath(resolved.run, sweep.runs_dir)
            runs.append({"index": run.index, "options": options, "changes": run.changes, "path": where})
            if resolved.data:
                prepares.setdefault(resolved.data, [o for o in options if o.startswith(("--config=", "--data"))])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=path.parent))
        except OSError as error:
            raise InputError(f"{path} cannot be made: {error.strerror}; choose another runs_dir") from error
        try:
            partial.chmod(0o755)
            (partial / "logs").mkdir()
            (partial / "configs").mkdir()
            for config, name in copies.items():
                shutil.copyfile(config, partial / "configs" / name)
            shutil.copyfile(sweep.file, partial / "sweep.yaml")
            write_json(partial / "runs.json", {"name": sweep.name, "source": str(sweep.file), "runs": runs})
            lines = [shlex.join(run["options"]) + "\n" for run in runs]
            (partial / "runs.txt").write_text("".join(lines))
            lines = [shlex.join(line) + "\n" for line in prepares.values()]
            (partial / "prepare.txt").write_text("".join(lines))
            try:
                partial.rename(path)
            except OSError:
                if not path.is_dir():  # else another process made the same one
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return cls(path)

    def log(self, index: int) -> Path:
        return self.path / "logs" / f"{index}.log"

    @property
    def prepares(self) -> list[list[str]]:
        """Options of `lra-ssm prepare`, for each data set of the sweep."""
        return [shlex.split(line) for line in (self.path / "prepare.txt").read_text().splitlines()]


def folder_of(sweep: Sweep) -> Path:
    """Where a sweep's folder is, or will be."""
    contents = {run.config: sha256(run.config) for run in sweep.runs}
    what = [[contents[run.config], run.options(run.config)] for run in sweep.runs]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]
    return Path(sweep.runs_dir) / SWEEPS / f"{sweep.name}-{digest}"


def shown(changes: dict[str, Any], common: dict[str, Any] | None = None) -> str:
    """Changes in one line, without those in common: `seed 0, lr 0.001`."""
    left = {key: value for key, value in changes.items() if key not in (common or {})}
    short = short_names(left)
    return ", ".join(f"{short[key]} {as_option(value)}" for key, value in left.items())


def _copies(sweep: Sweep) -> dict[Path, str]:
    """A name for each config's copy: as short as tells them apart."""
    configs = sorted({run.config for run in sweep.runs})
    names = {config: config.name for config in configs}
    if len(set(names.values())) < len(configs):
        names = {config: "-".join(part for part in config.parts if part not in ("..", ".", "/")) for config in configs}
    if len(set(names.values())) < len(configs):
        names = {config: f"{i}-{config.name}" for i, config in enumerate(configs, 1)}
    return names
