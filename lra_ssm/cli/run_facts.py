"""What a run's directory knows of a checkpoint: "source" of a saved model's config.json."""

import copy
import re
import shlex
import statistics
from contextlib import suppress
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.storage import num_examples
from lra_ssm.errors import InputError
from lra_ssm.runs.record import RunRecord, data_digests, is_of_the_end, read_object
from lra_ssm.shipped import name_of

# Of a configuration, what belongs to the machine that it ran on: another one has its own.
_OF_THE_MACHINE = {"": ("runs_dir",), "trainer": ("logger", "default_root_dir"), "data": ("root",)}


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """A run's configuration without its machine's folders and loggers; of other places on it the last part."""
    config = _without_folders(copy.deepcopy(config))
    for section, names in _OF_THE_MACHINE.items():
        node: Any = config.get(section) if section else config
        node = node.get("init_args", node) if isinstance(node, dict) else {}
        for name in names:
            if isinstance(node, dict):
                node.pop(name, None)
    return config


def facts(run: RunRecord, file: Path, step: int, parameters: int) -> dict[str, Any]:
    """What is known of a run's checkpoint; what nobody recorded is left out."""
    record, last = run.record, run.last_start
    starts = record.get("starts") or [{}]
    command = _command(starts[0].get("command"))
    tested = scores_of(run, file, "test")
    data = record.get("data") or {}
    known = read_object(run.path / f"{run.scored_by}.json").get("data") or _of(data, "dataset", "source")
    known = known | _of(data, "vocabulary", "num_classes", "class_names")
    with suppress(KeyError, TypeError):  # of a run of other data than the package's there may be none
        known.setdefault("examples", {name: num_examples(split) for name, split in data["splits"].items()})
    hardware = last.get("hardware") or {}
    found = {
        "experiment": run.experiment,
        "run": run.path.resolve().name,
        "checkpoint": file.name,
        "step": step,
        "parameters": parameters,
        "seed": run.seed,
        "status": run.status,
        "data": {**_without_folders(known), "digests": data_digests(data)} if known else None,
        "metrics": {"validation": _validation(run, file) | scores_of(run, file, "validate"), "test": tested},
        "seeds": _over_seeds(run, file, tested),
        "git": starts[0].get("git"),
        "versions": last.get("versions"),
        "hardware": {name: value for name, value in hardware.items() if name != "host"},
        "begun": starts[0].get("time"),
        "seconds": run.seconds and run.seconds[0],
        "starts": len(starts),
        "command": command,
        "in_python": True if "settings" in run.config else None,  # a Trainer of the user's own: see Run.of
        "config": _config_file(command),
    }
    return {key: value for key, value in found.items() if value not in (None, {}, [])}


def _of(found: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: found[name] for name in names if name in found}


def scores_of(run: RunRecord, file: Path, command: str) -> dict[str, float]:
    """Metrics that a command, "test" or "validate", found: of its whole split, of this very checkpoint and the run's
    data; empty where there are none."""
    scored = run.path / f"{command}.json"
    others = read_object(run.path / f"{command}-others.json").get("others")
    earlier = reversed(others) if isinstance(others, list) else []
    for test in [read_object(scored), *earlier]:
        if not isinstance(test, dict) or not isinstance(test.get("metrics"), dict):
            continue
        same = Path(str(test.get("checkpoint"))).name == file.name
        partial = "limit_batches" in test or "data" in str(test.get("of", ""))
        if same and not partial and not _before(test, run, file, scored):
            return {name: value for name, value in test["metrics"].items() if isinstance(value, (int, float))}
    return {}


def _before(test: dict[str, Any], run: RunRecord, file: Path, scored: Path) -> bool:
    """Whether the checkpoint was written after the test: by the record, else by the times of it and `scored`."""
    if run.last_start.get("ended"):
        return not is_of_the_end(test, [run.last_start])
    return file.is_file() and scored.is_file() and file.stat().st_mtime > scored.stat().st_mtime


def _validation(run: RunRecord, file: Path) -> dict[str, float]:
    """Of best.ckpt the metric that it is best by; of last.ckpt the last ones."""
    metrics = run.record.get("metrics") or {}
    kind = "best " if file.name == "best.ckpt" else "val/"
    return {name.removeprefix("best "): value for name, value in metrics.items() if name.startswith(kind)}


def _over_seeds(run: RunRecord, file: Path, tested: dict[str, float]) -> dict[str, Any]:
    """Mean and standard deviation of the test metrics over this run and those beside it of other seeds."""
    by_seed = {run.seed: tested}
    for path in sorted(run.path.resolve().parent.glob("*/run.json")):
        other = RunRecord.read(path.parent)
        same = other.settings == run.settings and other.data[1] == run.data[1]
        if same and not other.missing and other.seed not in by_seed:
            if metrics := scores_of(other, other.path / "checkpoints" / file.name, "test"):
                by_seed[other.seed] = metrics
    found = {}
    for name in tested:
        values = [metrics[name] for metrics in by_seed.values() if name in metrics]
        if len(values) > 1:
            found[name] = {"mean": statistics.mean(values), "std": statistics.stdev(values), "runs": len(values)}
    return found


def _command(given: Any) -> str | None:
    """The fit's command line without the folders of its machine; None of one that was no command of ours."""
    if not isinstance(given, list) or "fit" not in given:
        return None
    kept, of_an_option = [], False
    for argument in map(str, given[given.index("fit") :]):
        name, equals, value = argument.partition("=")
        if name in ("--data.root", "--runs_dir"):
            of_an_option = not equals
        elif of_an_option:
            of_an_option = False
        else:
            kept.append(f"{name}={_portable(value)}" if equals else _portable(name))
    return shlex.join(["lightning", *kept])


def _portable(text: str) -> str:
    """A path on this machine as one in a checkout, or its last part."""
    path = Path(text)
    if not path.is_absolute():
        return text
    _, configs, below = text.partition("/configs/")
    return f"configs/{below}" if configs else path.name


def _without_folders(value: Any) -> Any:
    """Values of a configuration, with `_portable` texts."""
    if isinstance(value, dict):
        return {name: _without_folders(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    return _portable(value) if isinstance(value, str) else value


def _config_file(command: str | None) -> str | None:
    """The config of ours that it was started with."""
    words = re.split(r"[\s=]", command or "")
    given = [value for option, value in zip(words, words[1:], strict=False) if option in ("--config", "-c")]
    name = next((name for value in given if (name := name_of("config", value))), None)
    return name and f"configs/{name}.yaml"


def check_shareable(run: RunRecord, file: Path, unfinished: bool) -> None:
    """A run is finished and this checkpoint of it scored, on the test split where there is one, unless told.

    Raises InputError.
    """
    if unfinished:
        return
    if not run.finished:
        raise InputError(f"{run.path}: {run.missing}: --unfinished pushes it all the same")
    command = run.scored_by
    if not scores_of(run, file, command):
        remedy = f"lightning {command} --config {run.path / 'config.yaml'}"
        if file.name != "best.ckpt":
            remedy += f" --ckpt_path={file}"
        what = "test" if command == "test" else "validation"
        none = f"{run.path}: no {what} of its {file.name} on the whole split is recorded"
        why = "" if command == "test" else " (its data has no test split)"
        raise InputError(f"{none}{why}: {remedy}, or --unfinished to push it without a {what} figure")
