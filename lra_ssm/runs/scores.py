"""What validate and test found, in the directory of the run: its own result, and beside it everything else."""

from pathlib import Path
from typing import Any

from lra_ssm.files import write_json
from lra_ssm.runs.directory import RunDirectory
from lra_ssm.runs.provenance import now
from lra_ssm.runs.record import read_object, same_data


def record_score(
    run: RunDirectory, command: str, checkpoint: str, metrics: dict[str, float], limit: int | float | None, data: Any
) -> None:
    """Writes test.json (validate.json) where a result is the run's: of best.ckpt (last.ckpt where there is none) and
    the data that it was trained with; else, told in a line, adds it to test-others.json.

    Args:
        run: whose checkpoint was scored.
        command: "test" or "validate".
        checkpoint: its file.
        metrics: what was found.
        limit: Lightning's limit_test_batches: batches, or a share of them; None for all.
        data: the data module that was scored.
    """
    result: dict[str, Any] = {"checkpoint": checkpoint, "metrics": metrics, "time": now()}
    if limit is not None and not (isinstance(limit, float) and limit == 1):
        result["limit_batches"] = limit  # it is of a part of the split
    if hasattr(data, "provenance"):
        result["data"] = data.provenance()
    file, trained = run.path / f"{command}.json", run.record.get("data")
    before, own = read_object(file), run.best if run.best.is_file() else run.last
    why = ""
    if trained and hasattr(data, "manifest") and not same_data(trained, data.manifest()):
        why, result["other_data"] = "other data than the run's", True
    elif Path(checkpoint).name != own.name:
        why = f"{Path(checkpoint).name}, not {own.name}"
    elif "limit_batches" in result and before and "limit_batches" not in before:
        why = "a part of the split, and the whole was scored before"
    if why:
        file = file.with_name(f"{command}-others.json")
        result = {"others": [*read_object(file).get("others", []), result]}
        print(f"recorded in {file}, not as the run's result: it is of {why}")
    write_json(file, result)
