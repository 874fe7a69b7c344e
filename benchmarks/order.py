"""Writes from results of operators.py which of Triton's and mamba-ssm's scans `backend="auto"` tries first there.

For float32 and bfloat16 each: the median, over the sizes measured, of a backend's time forward and backward over the
faster one's.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench import BOTH
from lra_ssm.ops.backends import MEASURED
from scans import MAMBA

BACKENDS = {"triton": "triton", MAMBA: "mamba_ssm"}


def relative_times(rows: list[dict]) -> dict[str, dict[str, float]]:
    """{dtype: {backend: its time beside the faster one's}} of the rows of `operators.against`."""
    sizes: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in rows:
        name, _, rounded = row["contender"].partition(", ")
        if name in BACKENDS and rounded in ("", "bfloat16") and row["mode"] == BOTH and row["ms"]:
            sizes[rounded or "float32", str(row["shape"])][BACKENDS[name]] = row["ms"]
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (dtype, _), times in sizes.items():
        if len(times) == len(BACKENDS):
            for backend, ms in times.items():
                ratios[dtype][backend].append(ms / min(times.values()))
    return {
        dtype: {backend: round(median(values), 3) for backend, values in found.items()}
        for dtype, found in ratios.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("results", type=Path, nargs="+", metavar="operators.json", help="of one GPU")
    parser.add_argument("--out", type=Path, default=MEASURED, help="default: what the package reads")
    given = parser.parse_args(arguments)
    found = [json.loads(file.read_text()) for file in given.results]
    gpus = {gpu for result in found for gpu in result["machine"]["hardware"]["gpus"][:1]}
    times = relative_times([row for result in found for row in result["rows"]])
    if len(gpus) != 1 or not times:
        sys.exit(f"error: results of one GPU with triton and {MAMBA} are needed; found GPUs: {sorted(gpus) or 'none'}")
    table = json.loads(given.out.read_text()) if given.out.exists() else {}
    table[gpus.pop()] = times
    given.out.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    print(f"{given.out}: {times}")


if __name__ == "__main__":
    main()
