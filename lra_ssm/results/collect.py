"""Run directories as records, read without torch or lightning."""

import glob
import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from lra_ssm.errors import InputError, squeeze
from lra_ssm.results.settings import SEED, Settings, counting, flat
from lra_ssm.runs.directory import RunDirectory, is_held
from lra_ssm.runs.identity import DATA_NEUTRAL, spelled_one_way
from lra_ssm.runs.logged import read_metrics
from lra_ssm.runs.record import data_digests, is_of_the_end, read_object, read_record
from lra_ssm.shipped import name_of

# The data that a task's name stands for; a run of such a task on other data is marked.
DATA_OF = {
    "listops": "ListOps",
    "text": "Text",
    "retrieval": "Retrieval",
    "image": "Image",
    "pathfinder": "Pathfinder",
    "pathx": "Pathfinder",
    "scifar": "SCIFAR",
    "mnist": "MNIST",
    "wikitext103": "WikiText",
    "slimpajama6b": "SlimPajama",
}
_KINDS = {"lra": "LRA's files", "files": "own files"}  # others are words by themselves


@dataclass
class RunRecord:
    """One run as its directory has it; empty where a file is missing or damaged, which `problem` says."""

    path: Path
    record: dict[str, Any] = field(default_factory=dict)  # run.json
    tested: dict[str, Any] = field(default_factory=dict)  # test.json
    config: dict[str, Any] = field(default_factory=dict)  # config.yaml
    reached: dict[str, Any] = field(default_factory=dict)  # progress.json
    problem: str = ""
    planned: bool = False  # a sweep's run that nobody has started

    @property
    def name(self) -> str:
        """Experiment and id."""
        return f"{self.experiment}/{self.path.name}"

    @cached_property
    def experiment(self) -> str:
        given = self.config.get("experiment") or self.record.get("experiment")
        return str(given or "/".join(self.path.parts[-3:-1]))

    @property
    def task(self) -> str:
        """The last part but one of the experiment's name; all of a name that has one part."""
        return self.experiment.split("/")[-2:][0]

    @property
    def model(self) -> str:
        """The last part of the experiment's name."""
        return self.experiment.rpartition("/")[2]

    @property
    def seed(self) -> Any:
        return self.config.get(SEED)

    @cached_property
    def settings(self) -> Settings:
        """What can change the result, the seed apart."""
        return counting(self.config, self.record.get("neutral", DATA_NEUTRAL))

    @cached_property
    def all_settings(self) -> Settings:
        spelled = {"trainer": spelled_one_way(self._trainer)} if self._trainer else {}
        return flat({**self.config, **spelled})

    @cached_property
    def metrics(self) -> list[dict[str, str]]:
        """The rows of metrics.csv."""
        return read_metrics(self.path / "metrics.csv")[1]

    # -- how far it came -------------------------------------------------------------------------------------------

    @cached_property
    def status(self) -> str:
        """run.json's; `running` or `killed` where it was begun and has not ended, as far as this machine can tell."""
        if self.planned:
            return "not started"
        if self.problem:
            return "damaged"
        status = str(self.record.get("status", "?"))
        if status == "started" and is_held(self.path / ".lock"):
            return "running"
        here = RunDirectory(self.path).holder["host"] == socket.gethostname()
        return "killed" if status == "started" and here else status

    @property
    def finished(self) -> bool:
        return self.record.get("status") == "finished"

    @cached_property
    def step(self) -> int | None:
        """Optimizer steps done, as far as they are recorded."""
        if isinstance(step := self.reached.get("step"), int):
            return step
        return max((int(row["step"]) + 1 for row in self.metrics), default=None)

    @property
    def planned_steps(self) -> int | None:
        """Of the whole fit; of one that epochs end only where progress.json has it."""
        for steps in (self.reached.get("of"), self._trainer.get("max_steps")):
            if isinstance(steps, int) and steps > 0:
                return steps
        return None

    @property
    def progress(self) -> str:
        """Steps done, and while it is not at its end of how many."""
        done = "?" if self.step is None else f"{self.step:,}"
        return done if self.finished or self.planned_steps is None else f"{done} of {self.planned_steps:,}"

    @property
    def _trainer(self) -> dict[str, Any]:
        trainer = self.config.get("trainer")
        return trainer if isinstance(trainer, dict) else {}

    @property
    def scored_by(self) -> str:
        """The command that scores it: "test", or "validate" where its data has no split for testing."""
        splits = (self.record.get("data") or {}).get("splits")
        names = [name.rpartition("/")[2] for name in splits] if isinstance(splits, dict) else []
        return "validate" if names and "test" not in names else "test"

    @property
    def missing(self) -> str:
        """Why the run has no result to be counted; nothing where it has one."""
        if self.problem:
            return self.problem
        if self.status == "failed":
            return f"failed: {self.record.get('reason', '?')}"
        if not self.finished:
            where = "" if self.planned else f", step {self.progress}"
            return self.status if self.status == "not started" else f"not finished ({self.status}{where})"
        if self.scored_by == "validate":
            return ""
        if not isinstance(self.tested.get("metrics"), dict):
            return "finished, not tested"
        if not is_of_the_end(self.tested, self.record.get("starts", [])):
            return "tested before it was finished"
        return ""

    # -- what it took ----------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> int | None:
        return self.record.get("parameters")

    @cached_property
    def seconds(self) -> tuple[float, bool] | None:
        """Wall time of all attempts, and whether it was more: of one that has left no end, until it last said how far
        it was."""
        starts = self.record.get("starts", [])
        known = [_between(start.get("time"), start.get("ended")) for start in starts]
        if known and None not in known:
            return sum(filter(None, known)), False
        so_far = _between(self.last_start.get("time"), self.reached.get("time"))
        least = sum(filter(None, known)) + (max(0.0, so_far or 0.0) if known and known[-1] is None else 0.0)
        return (least, True) if least > 0 else None

    @property
    def last_start(self) -> dict[str, Any]:
        starts = self.record.get("starts") or [{}]
        return dict(starts[-1])

    @cached_property
    def code(self) -> str:
        """Code version and commit (with a + where there were changes) of every attempt, each once."""
        found = []
        for start in self.record.get("starts", []):
            git = start.get("git") or {}
            commit = f"{str(git['commit'])[:10]}{'+' if git.get('changed') else ''}" if git.get("commit") else "none"
            found.append(f"{(start.get('versions') or {}).get('lra_ssm', '?')} (commit {commit})")
        return ", then ".join(dict.fromkeys(found)) or "?"

    @property
    def hardware(self) -> str:
        found = self.last_start.get("hardware") or {}
        gpus = found.get("gpus") or []
        return f"{len(gpus)} × {gpus[0]}" if gpus else f"{found.get('cpu', '?')}, {found.get('cpus', '?')} cores"

    # -- its data --------------------------------------------------------------------------------------------------

    @cached_property
    def data(self) -> tuple[str, str]:
        """What the data was, in words; and what tells it from other data: the digests of its files."""
        manifest = self.record.get("data") or self.tested.get("data") or {}
        source = manifest.get("source") if isinstance(manifest, dict) else None
        if not isinstance(source, dict):
            return "", ""
        kind = str(source.get("kind", "?"))
        words = [_KINDS.get(kind, kind)]
        words += ["lossy"] if source.get("lossy") else []
        words += [f"limit {source['limit']}"] if source.get("limit") else []
        digests: Any = {}
        with suppress(KeyError, TypeError, AttributeError):
            digests = data_digests(self.record.get("data") or {})
        identity = digests or {k: v for k, v in source.items() if k not in ("files", "archive", "class_names")}
        return ", ".join(words), json.dumps([manifest.get("inputs"), identity], sort_keys=True, default=str)

    @property
    def contradiction(self) -> str:
        """Where the task's name stands for other data than the run's."""
        cls = str(self.all_settings.get("data", "")).rpartition(".")[2]
        expected = DATA_OF.get(self.task)
        return f"its data is {cls}, not {expected}" if cls and expected and cls != expected else ""

    # -- what it gave ----------------------------------------------------------------------------------------------

    def value(self, metric: str) -> float | None:
        """Of the test split as test.json has it; of another what run.json says of the fit's end."""
        for found in (self.tested.get("metrics"), self.record.get("metrics")):
            if isinstance(found, dict) and isinstance(value := found.get(metric), (int, float)):
                return float(value)
        return None

    @property
    def monitor(self) -> str:
        checkpoint = self.config.get("checkpoint")
        return str(checkpoint.get("monitor") or "val/loss") if isinstance(checkpoint, dict) else "val/loss"

    def curve(self, metric: str) -> dict[int, float]:
        """A metric's values by the number of steps done."""
        found = {}
        for row in self.metrics:
            with suppress(ValueError, TypeError, KeyError):
                found[int(row["step"]) + 1] = float(row[metric])
        return found


def _between(start: Any, end: Any) -> float | None:
    with suppress(TypeError, ValueError):
        return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    return None


def load_yaml(file: Path) -> Any:
    import yaml

    return yaml.load(file.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # which is ten times as fast


def read_run(path: Path) -> RunRecord:
    """The record of one run's directory, whatever is missing or damaged in it."""
    import yaml

    record, damage = read_record(path / "run.json")
    problems = [f"run.json is damaged: {damage}"] if damage else []
    config: Any = {}
    try:
        config = load_yaml(path / "config.yaml")
        if wrong := _wrong_in(config):
            problems.append(f"config.yaml is not as a fit writes it: {wrong}")
            config = {}
    except FileNotFoundError:
        problems.append("it has no config.yaml")
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError):
        problems.append("config.yaml cannot be read")
    tested: Any = {}
    try:
        tested = json.loads((path / "test.json").read_bytes())
    except FileNotFoundError:
        pass
    except (OSError, ValueError, RecursionError):
        problems.append("test.json cannot be read")
    tested = tested if isinstance(tested, dict) else {}
    return RunRecord(path, record, tested, config, read_object(path / "progress.json"), squeeze("; ".join(problems)))


def _wrong_in(config: Any) -> str:
    """Why a config's settings cannot be told; nothing where they can."""
    if not isinstance(config, dict) or not config.get("model"):
        return "it has no model"
    if isinstance(seed := config.get(SEED), (list, dict)):
        return f"{SEED} is {seed!r}"
    for section, value in config.items():
        try:
            counting({section: value})
        except (AttributeError, TypeError):  # no settings where some belong
            return f"{section} is {value!r}"
    return ""


# The runs of a sweep, by its file or folder: their directories and what each changes.
Sweep = Callable[[Path], list[tuple[Path, dict[str, Any]]]]


def collect(given: list[str], sweep: Sweep) -> list[RunRecord]:
    """The runs of folders (run directories, or folders that hold some), globs of them, and sweeps; each once, in order.

    Of a sweep every run, those too that have not begun. Raises InputError for what is none of these.
    """
    found: dict[Path, RunRecord] = {}
    for name in given:
        paths = [Path(name)] if os.path.exists(name) else [Path(path) for path in sorted(glob.glob(name))]
        if not paths and name_of("sweep", name):
            paths = [Path(name)]
        if not paths:
            raise InputError(f"{name}: there is no such folder; give run directories, folders of runs, or a sweep")
        before = len(found)
        for path in paths:
            if path.is_file() or (path / "runs.json").is_file() or not os.path.lexists(path):
                read = [_planned(*run) for run in sweep(path)]
            else:
                read = [read_run(folder) for folder in _folders(path)]
            for record in read:
                found.setdefault(record.path.resolve(), record)
        if len(found) == before == 0:
            raise InputError(f"{name}: holds no runs (directories with a run.json)")
    return list(found.values())


def _folders(path: Path) -> list[Path]:
    """The run directories at or below a folder, behind links too; each once, by its own name where that is below."""
    found, seen, starts = [], set(), [str(path)]
    for start in starts:  # which grows by the links found
        for folder, below, files in os.walk(start):
            if (real := os.path.realpath(folder)) in seen:  # links may go in circles
                below.clear()
                continue
            seen.add(real)
            if "run.json" in files:
                found.append(Path(folder))
                below.clear()
            below.sort()
            starts += [link for name in below if os.path.islink(link := os.path.join(folder, name))]
    return found


def _planned(path: Path, changes: dict[str, Any]) -> RunRecord:
    """A run of a sweep, begun or not."""
    if (path / "run.json").is_file():
        return read_run(path)
    return RunRecord(path, config={name: changes.get(name) for name in (SEED, "experiment")}, planned=True)
