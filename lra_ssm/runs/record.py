"""A run's record as a file, run.json: what of it can be relied on when it is read."""

import json
from pathlib import Path
from typing import Any

_KINDS = {
    "run_id": str, "experiment": str, "status": str, "reason": str, "metrics": dict, "starts": list, "data": dict,
    "parameters": int, "neutral": list, "wandb": dict,
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
    try:
        data_digests(record.get("data", {}))
    except (KeyError, TypeError, AttributeError):
        return "data has not the digests of its files"
    return ""


def read_progress(run: Path) -> dict[str, Any]:
    """What progress.json of a run's directory says; nothing where there is none, or it is damaged."""
    try:
        progress = json.loads((run / "progress.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return progress if isinstance(progress, dict) else {}


def data_digests(manifest: dict[str, Any]) -> dict[str, str]:
    """sha256 of every file of prepared data, by the manifest that the record keeps."""
    files = [manifest["tokenizer"]] if "tokenizer" in manifest else []
    for split in (manifest.get("splits") or {}).values():
        for arrays in split.get("shards", [split.get("arrays")]):
            files += arrays.values()
    return {file["file"]: file["sha256"] for file in files}
