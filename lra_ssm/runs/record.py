"""The records in a run's directory: run.json, progress.json, test.json: what of them can be relied on."""

import json
from pathlib import Path
from typing import Any

INPUTS = "inputs"  # {"data": …, "weights": …} that a run was begun with, of runs/source.py; older records have none
_KINDS = {
    "run_id": str, "experiment": str, "status": str, "reason": str, "metrics": dict, "starts": list, "data": dict,
    "parameters": int, "neutral": list, "wandb": dict, INPUTS: dict,
}  # fmt: skip


def read_record(file: Path) -> tuple[dict[str, Any], str]:
    """The record, and what is wrong with the file: then nothing in it is believed. Neither where there is none."""
    try:
        record = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}, ""
    except ValueError as error:  # JSON's errors and Unicode's
        return {}, f"it is cut off or overwritten ({error})"
    except RecursionError:
        return {}, "it is nested without end"
    problem = _problem(record)
    return ({}, problem) if problem else (record, "")


def _problem(record: Any) -> str:
    if not isinstance(record, dict):
        return f"it holds a {type(record).__name__}, not an object"
    for name, kind in _KINDS.items():
        if name in record and not isinstance(record[name], kind):
            return f"{name} is a {type(record[name]).__name__}"
    if "status" not in record:
        return "it has no status"
    if not all(isinstance(value, (int, float)) for value in record.get("metrics", {}).values()):
        return "metrics are not all numbers"
    if not all(isinstance(start, dict) for start in record.get("starts", [])):
        return "starts are not all objects"
    if not all(isinstance(part, dict) for part in record.get(INPUTS, {}).values()):
        return "inputs are not all objects"
    try:
        data_digests(record.get("data", {}))
    except (KeyError, TypeError, AttributeError):
        return "data has not the digests of its files"
    return ""


def read_object(file: Path) -> dict[str, Any]:
    """The object that a JSON file holds; nothing where there is none, or it is damaged."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def data_digests(manifest: dict[str, Any]) -> dict[str, str]:
    """sha256 of every file of prepared data, by the manifest that the record keeps. Arrays, whose files older versions
    wrote otherwise, go by their names alone: their digests are of their values."""
    files = [manifest["tokenizer"]] if "tokenizer" in manifest else []
    for split in (manifest.get("splits") or {}).values():
        for arrays in split.get("shards", [split.get("arrays")]):
            files += arrays.values()
    return {file["file"].removesuffix(".npy").removesuffix(".bin"): file["sha256"] for file in files}


def same_data(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two manifests are of the same files (the same examples where there are none), and of the same batches.
    What one of them does not say (those of older versions say less) is no difference."""
    digests = data_digests(one), data_digests(other)
    keys = ["dataset", "inputs", "batches"] if all(digests) else ["dataset", "inputs", "batches", "source"]
    known = [key for key in keys if key in one and key in other]
    plain = [json.loads(json.dumps([each[key] for key in known], default=str)) for each in (one, other)]
    return plain[0] == plain[1] and (not all(digests) or digests[0] == digests[1])


def is_of_the_end(tested: dict[str, Any], starts: list[dict[str, Any]]) -> bool:
    """Whether a test, as test.json has it, was made when the run's last attempt was over; one that says no time was."""
    if not isinstance(tested.get("metrics"), dict):
        return False
    ended = starts[-1].get("ended") if starts else None
    return not ended or str(tested.get("time") or ended) >= ended


def load_yaml(file: Path) -> Any:
    """Read a YAML file. Raises ValueError if it is not valid YAML."""
    import yaml

    try:
        return yaml.load(file.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # ten times as fast
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
