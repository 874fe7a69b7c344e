"""Read a run's directory: what the run is, its progress and its scores. Loads neither torch nor lightning.

`Run` in run.py is the only writer. A file that is missing or damaged is named in `problem`; nothing is repaired.
"""

import csv
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from lra_ssm.errors import InputError
from lra_ssm.runs.identity import SEED, result_settings


@dataclass(eq=False)
class RunRecord:
    """One run, as read from its directory. The dict of a missing or damaged file is empty."""

    path: Path
    record: dict[str, Any] = field(default_factory=dict)  # run.json
    tested: dict[str, Any] = field(default_factory=dict)  # test.json
    config: dict[str, Any] = field(default_factory=dict)  # config.yaml: every setting, defaults included
    progress: dict[str, Any] = field(default_factory=dict)  # progress.json
    problem: str = ""  # what is wrong with these files

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read one run's directory, in which files may be missing."""
        contents: dict[str, dict[str, Any]] = {}
        problems = []
        for name in ("run.json", "test.json", "config.yaml"):
            try:
                contents[name] = read_file(path / name)
            except InputError as error:
                contents[name] = {}
                problems.append(str(error))
        if (path / "run.json").exists() and not problems:
            problems += [] if "status" in contents["run.json"] else ["run.json has no status"]
            problems += [] if contents["config.yaml"] else ["config.yaml is missing or empty"]
        record, tested, config = contents.values()
        return cls(path, record, tested, config, read_object(path / "progress.json"), "; ".join(problems))

    # -- identity --------------------------------------------------------------------------------------------------

    @property
    def experiment(self) -> str:
        return str(self.config.get("experiment") or "/".join(self.path.parts[-3:-1]))

    @property
    def name(self) -> str:
        """The experiment and the run's id, joined by a slash."""
        return f"{self.experiment}/{self.path.name}"

    @property
    def task(self) -> str:
        """The second to last part of the experiment's name; the whole name if it has one part."""
        return self.experiment.split("/")[-2:][0]

    @property
    def model(self) -> str:
        """The last part of the experiment's name."""
        return self.experiment.rpartition("/")[2]

    @property
    def seed(self) -> Any:
        return self.config.get(SEED)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings that differ from the defaults and can change the result, by dotted name, without the seed."""
        identity = self.record.get("identity") or result_settings(self.config)
        return {name: value for name, value in flatten(identity).items() if name not in (SEED, "experiment")}

    @cached_property
    def all_settings(self) -> dict[str, Any]:
        """Every setting by dotted name, defaults included."""
        return flatten(self.config)

    @property
    def parameters(self) -> int | None:
        return self.record.get("parameters")

    @property
    def monitor(self) -> str:
        """The metric by which the best checkpoint is chosen."""
        return str((self.config.get("checkpoint") or {}).get("monitor") or "val/loss")

    @property
    def highest_is_best(self) -> bool:
        return (self.config.get("checkpoint") or {}).get("mode") == "max"

    # -- progress --------------------------------------------------------------------------------------------------

    @cached_property
    def status(self) -> str:
        """The status in run.json; "running" or "killed" if the run began and did not end; "not started"."""
        if self.problem:
            return "damaged"
        status = str(self.record.get("status", "not started"))
        if status != "started":
            return status
        return "running" if is_held(self.path / ".lock") else "killed"

    @property
    def finished(self) -> bool:
        return self.record.get("status") == "finished"

    @property
    def step(self) -> int | None:
        """The number of optimizer steps done."""
        return self.progress.get("step")

    @property
    def planned_steps(self) -> int | None:
        """Optimizer steps of the whole fit; None if it is limited by epochs and has not begun."""
        for steps in (self.progress.get("of"), (self.config.get("trainer") or {}).get("max_steps")):
            if isinstance(steps, int) and steps > 0:
                return steps
        return None

    @property
    def scored_by(self) -> str:
        """The command that scores the run: "test", or "validate" if its data has no test split."""
        splits = (self.record.get("data") or {}).get("splits") or {}
        return "validate" if splits and not any(name.rpartition("/")[2] == "test" for name in splits) else "test"

    @property
    def missing(self) -> str:
        """Why the run has no valid result; empty if it has one."""
        if self.problem:
            return self.problem
        if self.status == "failed":
            return f"failed: {self.record.get('reason', '?')}"
        if not self.finished:
            where = "" if self.step is None else f", step {self.step:,}"
            where += f" of {self.planned_steps:,}" if where and self.planned_steps else ""
            return self.status if self.status == "not started" else f"not finished ({self.status}{where})"
        return "" if self.scored_by == "validate" else self.score_problem

    @cached_property
    def score_problem(self) -> str:
        """Why test.json has no score; empty if it has one. `Run` writes only complete scores of the best checkpoint."""
        if isinstance(self.tested.get("metrics"), dict):
            return ""
        others = read_object(self.path / "test-others.json").get("others") or [{}]
        return f"finished, tested only with {why}" if (why := others[-1].get("why")) else "finished, not tested"

    # -- cost ------------------------------------------------------------------------------------------------------

    @property
    def last_start(self) -> dict[str, Any]:
        """The last attempt: time, ended, versions, git, hardware."""
        return dict((self.record.get("starts") or [{}])[-1])

    @cached_property
    def seconds(self) -> float | None:
        """Wall time of all attempts; a killed attempt counts to its last progress. None if nothing was timed."""
        ends = [(start.get("time"), start.get("ended")) for start in self.record.get("starts", [])]
        ends += [(self.last_start.get("time"), self.progress.get("time"))] * ("ended" not in self.last_start)
        took = [seconds for seconds in (_between(*each) for each in ends) if seconds is not None and seconds >= 0]
        return sum(took) if took else None

    @cached_property
    def code(self) -> str:
        """Version, commit (with + if files were changed) and the user's files of every attempt; equal ones once."""
        versions = []
        for start in self.record.get("starts", []):
            git, source = start.get("git") or {}, start.get("source") or {}
            commit = f"{str(git['commit'])[:10]}{'+' if git.get('changed') else ''}" if git.get("commit") else "none"
            files = "".join(f", {name} {digest[:6]}" for name, digest in source.items() if not name.startswith("git "))
            versions.append(f"{(start.get('versions') or {}).get('lra_ssm', '?')} (commit {commit}{files})")
        return ", then ".join(dict.fromkeys(versions)) or "?"

    @property
    def hardware(self) -> str:
        hardware = self.last_start.get("hardware") or {}
        gpus = hardware.get("gpus") or []
        return f"{len(gpus)} × {gpus[0]}" if gpus else f"{hardware.get('cpu', '?')}, {hardware.get('cpus', '?')} cores"

    # -- data and weights ------------------------------------------------------------------------------------------

    @cached_property
    def data(self) -> tuple[str, str]:
        """The data in words, and text that identifies it: the digests of its files, else its source."""
        manifest = self.record.get("data") or self.tested.get("data") or {}
        source = dict(manifest.get("source") or {})
        if not source:
            return "", ""
        kind = str(source.get("kind", "?"))
        words = [{"lra": "LRA's files", "files": "own files"}.get(kind, kind)]
        words += [f"limit {source['limit']}"] if source.get("limit") else []
        identity = data_digests(manifest) or source
        return ", ".join(words), json.dumps([manifest.get("inputs"), identity], sort_keys=True, default=str)

    @property
    def weights(self) -> tuple[str, str]:
        """The weights that a run started from, by file and by digest; empty if it started from random ones."""
        digests = dict(self.record.get("weights") or {})
        if other_run := self.record.get("ckpt_path"):
            digests[str(other_run.get("file"))] = str(other_run.get("sha256"))
        return ", ".join(digests), ", ".join(digests.values())

    # -- results ---------------------------------------------------------------------------------------------------

    def value(self, metric: str) -> float | None:
        """A metric from test.json, else from the end of the fit in run.json."""
        for metrics in (self.tested.get("metrics"), self.record.get("metrics")):
            if isinstance(metrics, dict) and isinstance(value := metrics.get(metric), (int, float)):
                return float(value)
        return None

    @cached_property
    def metrics(self) -> list[dict[str, str]]:
        """The rows of metrics.csv."""
        try:
            return read_metrics(self.path / "metrics.csv")
        except InputError:
            return []

    def curve(self, metric: str) -> dict[int, float]:
        """A metric's values by the number of steps done."""
        values = {}
        for row in self.metrics:
            with suppress(ValueError, TypeError, KeyError):
                values[int(row["step"]) + 1] = float(row[metric])
        return values


def read_metrics(file: Path) -> list[dict[str, str]]:
    """Return the complete rows of a metrics.csv that have a step: a killed run may leave half a row at the end.

    Raises InputError if the file is damaged.
    """
    try:
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        reader = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
        rows = [*reader]
        if text and not {"step", "epoch"} <= set(reader.fieldnames or ()):
            raise csv.Error("it has no columns step and epoch")
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} is damaged: {error}; remove it to go on without it") from error
    return [row for row in rows if (row["step"] or "").isdecimal()]


def find_runs(path: Path) -> Iterator[Path]:
    """Yield the run directories at or below a folder, following links, each directory once."""
    seen = set()
    for folder, below, files in os.walk(path, followlinks=True):
        below.sort()
        real = os.path.realpath(folder)
        if real in seen or "run.json" in files:
            below.clear()
        if real not in seen and "run.json" in files:
            yield Path(folder)
        seen.add(real)


def flatten(node: Any, path: str = "") -> dict[str, Any]:
    """Return a configuration's leaves by dotted name, as users write it: `init_args` is not part of a name."""
    if not isinstance(node, dict) or not node:
        return {path: node} if path else {}
    leaves: dict[str, Any] = {}
    if "class_path" in node:
        leaves[path] = node["class_path"]
        node = {k: v for k, v in node.items() if k not in ("class_path", "init_args")} | (node.get("init_args") or {})
    for key, value in node.items():
        leaves |= flatten(value, f"{path}.{key}" if path else str(key))
    return leaves


def load_yaml(file: Path) -> Any:
    """Read a YAML file. Raises InputError if it is not valid YAML."""
    import yaml

    try:
        return yaml.load(file.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # ten times as fast
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not valid YAML: {error}") from error


def read_file(file: Path) -> dict[str, Any]:
    """Return the content of a JSON or YAML file; empty if it does not exist. Raises InputError if it is damaged."""
    try:
        content = load_yaml(file) if file.suffix == ".yaml" else json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, InputError) else f"{file} is damaged: {error}"
        raise InputError(f"{reason}; remove it to go on without it") from error
    if not isinstance(content, dict):
        raise InputError(f"{file} is damaged: it holds a {type(content).__name__}; remove it to go on without it")
    return content


def read_object(file: Path) -> dict[str, Any]:
    """Return the content of a JSON file; empty if the file does not exist or is damaged."""
    with suppress(InputError):
        return read_file(file)
    return {}


def is_held(file: Path) -> bool:
    """Return whether a process holds the lock on a file. This takes a shared lock and releases it at once."""
    import fcntl

    with suppress(OSError), open(file) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def data_digests(manifest: dict[str, Any]) -> dict[str, str]:
    """Return the sha256 of every file of prepared data from the manifest that a record keeps."""
    files = [manifest["tokenizer"]] if "tokenizer" in manifest else []
    for split in (manifest.get("splits") or {}).values():
        for arrays in split.get("shards", [split.get("arrays") or {}]):
            files += arrays.values()
    return {file["file"].removesuffix(".npy"): file["sha256"] for file in files}


def changed_data(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return which files of prepared data differ between two manifests, as text; empty if either has no files."""
    one, other = data_digests(before), data_digests(now)
    names = sorted(name for name in one | other if one.get(name) != other.get(name)) if one and other else []
    return f"{', '.join(names)} differ" if names else ""


def _between(start: Any, end: Any) -> float | None:
    with suppress(TypeError, ValueError):
        return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    return None
