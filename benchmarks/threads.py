"""Measures the quickstart's training under several ways in which threads wait for each other, in turn.

With --beside a second fit runs beside each one, waiting in the same way; both rates are shown.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from lra_ssm.tables import table

EXAMPLE = "python benchmarks/threads.py --beside --steps=300 --rounds=2"
QUICKSTART = Path(__file__).parents[1] / "configs/quickstart.yaml"
WAYS = {
    "spinning, libgomp's default": {"OMP_WAIT_POLICY": "active"},
    "OMP_WAIT_POLICY=passive, ours": {},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
    "OMP_NUM_THREADS=1": {"OMP_NUM_THREADS": "1"},
}


def rates(way: dict[str, str], count: int, steps: int, data: Path) -> list[float]:
    """samples/s of fits that run at the same time, medians over their steps."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    with TemporaryDirectory() as folder:
        fit = [sys.executable, "-m", "lra_ssm", "fit", "--config", str(QUICKSTART)]
        fit += [f"--data.root={data}", f"--trainer.max_steps={steps}", "--trainer.log_every_n_steps=10"]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        started: list[subprocess.Popen[str]] = []
        try:
            for i in range(count):
                line = [*fit, f"--runs_dir={folder}/{i}"]
                started.append(subprocess.Popen(line, env=given | way, **pipes))
            for process in started:
                said = process.communicate()[1]
                if process.returncode:
                    sys.exit(f"error: the fit ended with {process.returncode}: {said[-1000:]}")
        finally:
            for process in started:
                process.kill()
        files = [next(Path(folder, str(i)).rglob("metrics.csv")) for i in range(count)]
        return [pd.read_csv(file)["train/samples_per_s"].median() for file in files]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=f"example:  {EXAMPLE}")
    parser.add_argument("--beside", action="store_true", help="with a second fit beside each")
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="of each fit; default: 300")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="default: 2")
    given = parser.parse_args(arguments)
    found: dict[str, list[str]] = {name: [] for name in WAYS}
    with TemporaryDirectory() as data:
        rates({}, 1, 10, Path(data))  # makes the data
        for _ in range(given.rounds):
            for name, way in WAYS.items():
                own = rates(way, 1 + given.beside, given.steps, Path(data))
                found[name].append(" and ".join(f"{rate:.0f}" for rate in own))
    lines = [[name, ", ".join(shown)] for name, shown in found.items()]
    print(table(["", "samples/s, round by round"], lines, left=2))


if __name__ == "__main__":
    main()
