"""Collect where a saved model comes from ("source" in config.json), and make its run's config.yaml portable."""

from pathlib import Path
from typing import Any

from lra_ssm.cli.find_model import NamedNetwork
from lra_ssm.datamodules.storage import num_examples
from lra_ssm.errors import InputError
from lra_ssm.runs.record import RunRecord, data_digests, read_object


def provenance(run: RunRecord, file: Path, model: NamedNetwork) -> dict[str, Any]:
    """Return "source" for a saved model's config.json: what the run recorded about where the checkpoint comes from."""
    record = run.record
    starts = record.get("starts") or [{}]
    manifest = record.get("data") or {}
    data = {name: manifest[name] for name in ("dataset", "source", "vocabulary", "class_names") if name in manifest}
    if splits := manifest.get("splits"):
        data["examples"] = {name: num_examples(split) for name, split in splits.items()}
        data["digests"] = data_digests(manifest)
    best = "best " if file.name == "best.ckpt" else "val/"
    validation = {k.removeprefix("best "): v for k, v in record.get("metrics", {}).items() if k.startswith(best)}
    hardware = starts[-1].get("hardware") or {}
    source = {
        "experiment": run.experiment,
        "run": run.path.resolve().name,
        "checkpoint": file.name,
        "step": model.step,
        "parameters": model.parameters,
        "seed": run.seed,
        "status": run.status,
        "data": _without_folders(data),
        "metrics": {"validation": validation | _scores(run, file, "validate"), "test": _scores(run, file, "test")},
        "git": starts[0].get("git"),
        "versions": {name: version for name, version in (starts[-1].get("versions") or {}).items() if version},
        "hardware": {name: value for name, value in hardware.items() if name != "host"},
        "started": starts[0].get("time"),
        "seconds": run.seconds,
        "in_python": "fit" not in (starts[0].get("command") or ["fit"]) or None,  # no command repeats it
    }
    return {key: value for key, value in source.items() if value not in (None, "", {}, [])}


def _scores(run: RunRecord, file: Path, command: str) -> dict[str, float]:
    """Return the metrics in test.json or validate.json, which hold only complete scores, if of this checkpoint."""
    scored = read_object(run.path / f"{command}.json")
    same = Path(str(scored.get("checkpoint"))).name == file.name
    return (scored.get("metrics") or {}) if same else {}


def check_shareable(run: RunRecord, file: Path) -> None:
    """Raise InputError unless a run is finished and this checkpoint scored, on the test split if there is one."""
    if not run.finished:
        raise InputError(f"{run.path}: {run.missing}: --unfinished pushes it all the same")
    if not _scores(run, file, run.scored_by):
        option = "" if file.name == "best.ckpt" else f" --ckpt_path={file}"
        raise InputError(
            f"{run.path}: {run.scored_by} has no complete score of its {file.name}: lightning {run.scored_by} --config"
            f" {run.path / 'config.yaml'}{option}, or --unfinished to push it without one"
        )


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """Return a run's configuration without its machine's folders and loggers; other paths keep only their last part."""
    config = _without_folders(config)
    config.pop("runs_dir", None)
    for section, names in {"trainer": ("logger", "default_root_dir"), "data": ("root",)}.items():
        settings = config.get(section) or {}
        for name in names:
            settings.get("init_args", settings).pop(name, None)
    return config


def _without_folders(value: Any) -> Any:
    """Return a copy of a configuration's value in which absolute paths keep only their last part."""
    if isinstance(value, dict):
        return {name: _without_folders(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
