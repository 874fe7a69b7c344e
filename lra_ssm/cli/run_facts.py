"""What a run's directory knows of a checkpoint, for whoever gets it: "source" of a saved model's config.json."""

import copy
import json
import re
import shlex
import statistics
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from lra_ssm.errors import InputError
from lra_ssm.runs.record import data_digests, read_record

# Of a configuration, what belongs to the machine that it ran on: another one has its own.
_OF_THE_MACHINE = {"": ("runs_dir",), "trainer": ("logger", "default_root_dir"), "data": ("root",)}


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """A run's configuration without what belongs to its machine: folders and loggers, for which defaults hold."""
    config = copy.deepcopy(config)
    for section, names in _OF_THE_MACHINE.items():
        node: Any = config.get(section) if section else config
        node = node.get("init_args", node) if isinstance(node, dict) else {}
        for name in names:
            if isinstance(node, dict):
                node.pop(name, None)
    return config


def facts(run: Path, config: dict[str, Any], file: Path, step: int, parameters: int) -> dict[str, Any]:
    """What is known of a checkpoint of a run; what nobody recorded is left out.

    Args:
        run: its directory.
        config: its configuration.
        file: the checkpoint.
        step: at which it was saved.
        parameters: of its network.
    """
    record = read_record(run / "run.json")[0]
    starts = record.get("starts") or [{}]
    tested, data = test_of(run, file), record.get("data") or {}
    known = _test_record(run).get("data") or {k: data[k] for k in ("dataset", "source") if k in data}
    for key in ("vocabulary", "num_classes"):
        if key in data:
            known = {**known, key: data[key]}
    if names := (data.get("source") or {}).get("class_names"):
        known = {**known, "class_names": names}
    found = {
        "experiment": config.get("experiment") or record.get("experiment"),
        "run": run.resolve().name,
        "checkpoint": file.name,
        "step": step,
        "parameters": parameters,
        "seed": config.get("seed_everything"),
        "status": record.get("status"),
        "data": {**_without_paths(known), "digests": data_digests(data)} if known else None,
        "metrics": {"validation": _validation(record, file), "test": tested},
        "seeds": _over_seeds(run, config, tested),
        "git": starts[0].get("git"),
        "versions": starts[-1].get("versions"),
        "hardware": {k: v for k, v in (starts[-1].get("hardware") or {}).items() if k != "host"},
        "trained": _trained(run, starts),
        "command": _command(starts[0].get("command")),
        "in_python": True if "settings" in config else None,  # a Trainer of the user's own: see Run.of
        "config": _config_file(_command(starts[0].get("command"))),
    }
    return {key: value for key, value in found.items() if value not in (None, {}, [])}


def test_of(run: Path, file: Path) -> dict[str, float]:
    """Metrics of the test split of this very checkpoint; empty where the last test was of another one, or before it."""
    record, result = _test_record(run), run / "test.json"
    metrics, scored = record.get("metrics"), record.get("checkpoint")
    if not isinstance(metrics, dict) or not isinstance(scored, str) or Path(scored).name != file.name:
        return {}
    if file.is_file() and file.stat().st_mtime > result.stat().st_mtime:
        return {}
    return {name: value for name, value in metrics.items() if isinstance(value, (int, float))}


def _test_record(run: Path) -> dict[str, Any]:
    try:
        record = json.loads((run / "test.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _validation(record: dict[str, Any], file: Path) -> dict[str, float]:
    """Of best.ckpt the metric that it is best by; of last.ckpt the last ones."""
    metrics = record.get("metrics") or {}
    if file.name == "best.ckpt":
        return {name.removeprefix("best "): value for name, value in metrics.items() if name.startswith("best ")}
    return {name: value for name, value in metrics.items() if name.startswith("val/")}


def _over_seeds(run: Path, config: dict[str, Any], tested: dict[str, float]) -> dict[str, Any]:
    """Mean and standard deviation of the test metrics over this run and those beside it that differ in the seed."""
    by_seed = {config.get("seed_everything"): tested}
    for other, theirs in _beside(run):
        seed = theirs.get("seed_everything")
        if seed not in by_seed and _but_for_the_seed(theirs) == _but_for_the_seed(config):
            if metrics := test_of(other, other / "checkpoints" / "best.ckpt"):
                by_seed[seed] = metrics
    found = {}
    for name in tested if len(by_seed) > 1 else ():
        values = [metrics[name] for metrics in by_seed.values() if name in metrics]
        if len(values) > 1:
            found[name] = {"mean": statistics.mean(values), "std": statistics.stdev(values), "runs": len(values)}
    return found


def _beside(run: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Finished runs of the same experiment, with their configurations."""
    run = run.resolve()
    for other in sorted(run.parent.iterdir()):
        if other != run and read_record(other / "run.json")[0].get("status") == "finished":
            try:
                config = yaml.safe_load((other / "config.yaml").read_text(encoding="utf-8"))
            except (OSError, yaml.YAMLError, UnicodeDecodeError):
                continue
            if isinstance(config, dict):
                yield other, config


def _but_for_the_seed(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in portable(config).items() if key != "seed_everything"}


def _trained(run: Path, starts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """When it was begun and when its last step was; seconds where it was one start, else nobody knows the pauses."""
    try:
        ended = json.loads((run / "progress.json").read_bytes())["time"]
        began = starts[0]["time"]
        seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    known = {"begun": began, "ended": ended, "starts": len(starts)}
    return {**known, "seconds": seconds} if len(starts) == 1 else known


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
            kept.append(f"{name}{equals}{_portable(value)}" if equals else _portable(name))
    return shlex.join(["lightning", *kept])


def _portable(text: str) -> str:
    """A path on this machine as one in a checkout, or its last part."""
    path = Path(text)
    if not path.is_absolute():
        return text
    return str(Path(*path.parts[path.parts.index("configs") :])) if "configs" in path.parts else path.name


def _config_file(command: str | None) -> str | None:
    """The config of ours that it was started with."""
    words = re.split(r"[\s=]", command or "")
    return next((word for word in words if word.startswith("configs/") and word.endswith(".yaml")), None)


def _without_paths(value: Any) -> Any:
    """Without texts that are places on this machine."""
    if isinstance(value, dict):
        return {k: _without_paths(v) for k, v in value.items() if not (isinstance(v, str) and Path(v).is_absolute())}
    return [_without_paths(item) for item in value] if isinstance(value, list) else value


def check_shareable(run: Path, file: Path, unfinished: bool) -> None:
    """A run is finished and this checkpoint of it tested, unless told. Raises InputError."""
    if unfinished:
        return
    status = read_record(run / "run.json")[0].get("status")
    if status != "finished":
        raise InputError(f"{run} is not finished ({status or 'it has no record'}): --unfinished pushes it all the same")
    if not test_of(run, file):
        which = "" if file.name == "best.ckpt" else f" --ckpt_path={file}"
        raise InputError(
            f"{run}: no test of its {file.name} is recorded: lightning test --config {run / 'config.yaml'}{which}, or"
            " --unfinished to push it without a test figure"
        )
