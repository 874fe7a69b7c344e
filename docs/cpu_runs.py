"""Collect the runs of slurm/sweeps/cpu.yaml into docs/cpu-runs/: `python docs/cpu_runs.py [runs/cpu]`.

runs.csv keeps the results of earlier runs, curves.csv their validations; table.md and curves.png are made from both.
"""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib
import torch
import yaml

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402 - the backend comes first

FOLDER = Path(__file__).with_name("cpu-runs")
UNITS = {"s4d": "S4D", "s6": "S6", "mamba": "Mamba's block", "b2s6": "B2S6", "s5": "S5",
         "mamba2": "Mamba-2's block", "transformer": "Transformer"}  # fmt: skip
PARTS = {
    "b2s6-no-bias": "B2S6 without B_bias",
    "b2s6-one-block": "B2S6 with 1 block",
    "b2s6-real": "B2S6, real",
    "b2s6-delta-0": "B2S6, Δ frozen",
    "b2s6-delta-0.01": "B2S6, Δ's rate 0.01 of the base",
    "b2s6-delta-1": "B2S6, Δ's rate the base",
    "mamba-lr0.001": "Mamba's block, lr 0.001",
}
TASKS = {"scifar16": "sCIFAR at 16 × 16, lossy pixels", "mnist": "MNIST", "listops200": "ListOps, 100 to 200 tokens"}


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the row of a finished and tested run, and its validations."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    metrics = list(csv.DictReader((folder / "metrics.csv").open()))
    _, task, name = config["experiment"].split("/")
    key = {"task": task, "name": name, "seed": str(config["seed_everything"])}
    every, batch = config["trainer"]["log_every_n_steps"], config["data"]["init_args"]["batch_size"]
    rates = [float(row["train/samples_per_s"]) for row in metrics if row.get("train/samples_per_s")]
    state = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    sizes = [value.numel() for name, value in state.items() if not name.endswith(buffers)]
    test = json.loads((folder / "test.json").read_text())["metrics"]
    row = key | {
        "steps": config["trainer"]["max_steps"],
        "parameters": sum(sizes),
        "test_accuracy": f"{100 * test['test/accuracy']:.2f}",
        "minutes": f"{sum(every * batch / rate for rate in rates) / 60:.1f}",
    }
    curve = [
        key | {"step": row["step"], "val_accuracy": f"{100 * float(row['val/accuracy']):.2f}"}
        for row in metrics
        if row.get("val/accuracy")
    ]
    return row, curve


def update_csv(file: Path, new: list[dict[str, Any]], columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """Add rows to a CSV file in place of those with the same values in `columns`; return all rows."""
    old = list(csv.DictReader(file.open())) if file.is_file() else []
    rows = {tuple(str(row[c]) for c in columns): row for row in [*old, *new]}
    if rows:
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, fieldnames=list(next(iter(rows.values()))), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows.values())
    return list(rows.values())


def table(runs: list[dict[str, Any]]) -> str:
    """Return a Markdown table of means ± standard deviations over seeds."""
    lines = []
    for task, title in TASKS.items():
        lines += [
            f"| {title} | test accuracy | seeds | parameters | steps | minutes a run |",
            "|---|---|---|---|---|---|",
        ]
        for name, label in (UNITS | PARTS).items():
            rows = [row for row in runs if (row["task"], row["name"]) == (task, name)]
            if not rows:
                continue
            values = [float(row["test_accuracy"]) for row in rows]
            spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
            minutes = mean(float(row["minutes"]) for row in rows)
            lines.append(
                f"| {label} | {mean(values):.2f}{spread} | {len(values)} | {int(rows[0]['parameters']):,} |"
                f" {int(rows[0]['steps']):,} | {minutes:.0f} |"
            )
        lines.append("")
    return "\n".join(lines)


def draw(curves: list[dict[str, Any]], file: Path) -> None:
    """Draw the validation accuracy by step: the mean over seeds, and the band from minimum to maximum."""
    panels = [(task, UNITS, title) for task, title in TASKS.items()]
    panels.insert(1, ("scifar16", {"b2s6": "B2S6"} | PARTS, "sCIFAR at 16 × 16: what B2S6 owes to its parts (seed 0)"))
    figure, axes = plt.subplots(2, 2, figsize=(12, 8.5), layout="constrained")
    for axis, (task, labels, title) in zip(axes.flat, panels, strict=True):
        for number, (name, label) in enumerate(labels.items()):
            by_step = defaultdict(list)
            for row in curves:
                if (row["task"], row["name"]) == (task, name) and (labels is UNITS or row["seed"] == "0"):
                    by_step[int(row["step"]) + 1].append(float(row["val_accuracy"]))
            if by_step:
                steps = sorted(by_step)
                axis.plot(steps, [mean(by_step[s]) for s in steps], "o-", ms=3, color=f"C{number}", label=label)
                low, high = ([f(by_step[s]) for s in steps] for f in (min, max))
                axis.fill_between(steps, low, high, color=f"C{number}", alpha=0.2, lw=0)
        axis.set(title=title, xlabel="step", ylabel="validation accuracy, %")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(fontsize=8)
        axis.set_visible(bool(axis.lines))
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    runs = [f.parent for f in sorted(Path((sys.argv + ["runs/cpu"])[1]).glob("*/*/*/test.json"))]
    results = [read(run) for run in runs]
    FOLDER.mkdir(exist_ok=True)
    rows = update_csv(FOLDER / "runs.csv", [row for row, _ in results], ("task", "name", "seed"))
    curves = update_csv(
        FOLDER / "curves.csv", [c for _, curve in results for c in curve], ("task", "name", "seed", "step")
    )
    (FOLDER / "table.md").write_text(table(rows))
    draw(curves, FOLDER / "curves.png")
    print(table(rows))
