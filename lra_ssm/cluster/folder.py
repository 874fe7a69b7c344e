"""A sweep's folder: its runs as they were submitted, their logs, the jobs.

<runs_dir>/sweeps/<name>-<digest>/
    sweep.yaml         the sweep file
    configs/           copies of its configs: what a user edits later changes no run that waits
    runs.json          every run: its number, options, changes and directory
    runs.txt           the same options, a line for each run: a task of the array reads its own
    prepare.txt        options of `lra-ssm prepare` that make the data ready, a line for each dataset
    logs/<index>.log   what run <index> printed, in all its attempts
    submit.sbatch, prepare.sbatch, results.sbatch, submissions.json   see slurm.py

The digest is of the options and of the configs' contents: another sweep of the same name has another folder.
"""

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lra_ssm import shipped
from lra_ssm.cluster.sweep import Sweep, SweepRun, as_option, read_sweep
from lra_ssm.errors import InputError
from lra_ssm.files import new_folder, sha256, write_json
from lra_ssm.runs.directory import RunDirectory
from lra_ssm.runs.identity import short_names


@dataclass(frozen=True)
class Resolved:
    """What the options of a run come to."""

    run: Path  # its directory
    data: str  # the same for runs on the same data; empty where there is nothing to prepare
    more: list[str]  # options that its task is told too, so that it comes to the same


@dataclass(frozen=True)
class FolderRun:
    """A run of a sweep's folder."""

    index: int  # from 1: the array's task
    options: list[str]  # of `lra-ssm fit` and `lra-ssm test`
    changes: dict[str, Any]
    directory: RunDirectory

    @property
    def done(self) -> bool:
        """Whether it is trained, and tested after that: `lra-ssm results` counts it then."""
        return self.directory.finished and self.directory.tested


class SweepFolder:
    """A sweep's folder on the disk. `find` gives the one of a sweep file or a folder, `make` writes one.

    Raises InputError where `path` is no such folder.
    """

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
            said = f"{file.name} cannot be read: {error.strerror}"
            raise InputError(f"{path} is no folder of a sweep: {said}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{file} is damaged ({error!r}); submit {path.name} again") from error
        self.path, self.logs = path, path / "logs"

    @classmethod
    def find(cls, given: str | Path) -> Self:
        """The folder of a sweep: `given` itself, or the one that a sweep file was submitted to from here.

        Raises InputError where there is none.
        """
        path, name = Path(given), shipped.name_of("sweep", str(given))
        if path.is_dir() and name is None:
            return cls(path)
        if path.suffix not in (".yaml", ".yml") and name is None:
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
        """Writes the folder, whole or not at all; one that exists stays as it is.

        Args:
            sweep: its runs.
            resolve: gives what a run's options come to, or raises InputError.
            track: goes through the runs, and shows how many are done.
        """
        path = folder_of(sweep)
        if path.is_dir():
            return cls(path)
        copies = _copies(sweep)
        runs, prepares = _resolved(sweep, lambda config: path / "configs" / copies[config], resolve, track)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with new_folder(path) as partial:
                (partial / "logs").mkdir()
                (partial / "configs").mkdir()
                for config, name in copies.items():
                    shutil.copyfile(config, partial / "configs" / name)
                shutil.copyfile(sweep.file, partial / "sweep.yaml")
                write_json(
                    partial / "runs.json", {"name": sweep.name, "source": str(shipped.called(sweep.file)), "runs": runs}
                )
                for file, lines in (("runs.txt", [run["options"] for run in runs]), ("prepare.txt", prepares)):
                    (partial / file).write_text("".join(f"{shlex.join(line)}\n" for line in lines))
        except OSError as error:
            if not path.is_dir():  # else another process has made the same one
                raise InputError(f"{path} cannot be made: {error.strerror}; choose another runs_dir") from error
        return cls(path)

    def log(self, index: int) -> Path:
        return self.logs / f"{index}.log"

    @property
    def prepares(self) -> list[list[str]]:
        """Options of `lra-ssm prepare`, for each dataset of the sweep."""
        return [shlex.split(line) for line in (self.path / "prepare.txt").read_text().splitlines()]


def folder_of(sweep: Sweep) -> Path:
    """Where a sweep's folder is, or will be."""
    contents = {run.config: sha256(run.config) for run in sweep.runs}
    what = [[contents[run.config], run.options(shipped.in_a_checkout(run.config))] for run in sweep.runs]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]
    return Path(sweep.runs_dir) / "sweeps" / f"{sweep.name}-{digest}"


def in_common(every: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The changes that are the same in all of them."""
    return {key: value for key, value in every[0].items() if all(one.get(key, ...) == value for one in every)}


def shown(changes: dict[str, Any], common: dict[str, Any] | None = None) -> str:
    """Changes in one line, without those in common: `seed 0, lr 0.001`."""
    left = {key: value for key, value in changes.items() if key not in (common or {})}
    short = short_names(left)
    return ", ".join(f"{short[key]} {as_option(value)}" for key, value in left.items())


def _resolved(
    sweep: Sweep,
    copy: Callable[[Path], Path],
    resolve: Callable[[SweepRun], Resolved],
    track: Callable[[list[SweepRun]], Iterable[SweepRun]],
) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """The runs as runs.json has them, and the options that prepare their data, once for each dataset."""
    runs: dict[Path, dict[str, Any]] = {}
    prepares: dict[str, list[str]] = {}
    for run in track(sweep.runs):
        try:
            resolved = resolve(run)
        except InputError as error:
            raise InputError(f"sweep {sweep.file}, run {run.index} ({shown(run.changes)}): {error}") from error
        options, where = [*run.options(copy(run.config)), *resolved.more], os.path.relpath(resolved.run, sweep.runs_dir)
        entry = {"index": run.index, "options": options, "changes": run.changes, "path": where}
        if (first := runs.setdefault(resolved.run, entry)) is not entry:
            same = f"runs {first['index']} and {run.index} are the same run, {resolved.run}"
            raise InputError(f"sweep {sweep.file}: {same}")
        if resolved.data:
            prepares.setdefault(resolved.data, [o for o in options if o.startswith(("--config=", "--data"))])
    return list(runs.values()), list(prepares.values())


def _copies(sweep: Sweep) -> dict[Path, str]:
    """A name for each config's copy, as short as tells them apart."""
    configs = sorted({run.config for run in sweep.runs})
    for name in (
        lambda config: config.name,
        lambda config: "-".join(part for part in shipped.called(config).parts if part not in ("..", ".", "/")),
        lambda config: f"{configs.index(config) + 1}-{config.name}",
    ):
        names = {config: name(config) for config in configs}
        if len(set(names.values())) == len(configs):
            break
    return names
