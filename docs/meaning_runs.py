"""Collect the runs of the small sweeps of docs/meaning.md into docs/meaning-runs/: `python docs/meaning_runs.py`.

runs.csv keeps the results of earlier runs; a picture for each question is made from all of them.
"""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib
import yaml

matplotlib.use("Agg")

from cpu_runs import update_csv  # noqa: E402 - the backend comes first
from matplotlib import pyplot as plt  # noqa: E402

FOLDER = Path(__file__).with_name("meaning-runs")
NAMES = {"s4d": "S4D", "s6": "S6", "mamba": "Mamba's block", "b2s6": "B2S6", "lru": "LRU", "s5": "S5",
         "mamba3": "Mamba-3's block", "attention": "attention", "transformer": "Transformer",
         "convolution": "local convolution"}  # fmt: skip
DATASETS = {"listops200": "ListOps, 100 to 200 tokens", "text1024": "IMDb, 1,024 characters"}
GROUPS = {"Z2": "parity", "S3": "permutations of 3"}
KEY = ("question", "unit", "setting", "seed")


def read(folder: Path) -> dict[str, Any]:
    """Return the row of a finished and tested run; accuracies in percent."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    _, *question, unit = config["experiment"].split("/")
    data = config["data"]["init_args"]
    layer = config["model"]["init_args"]["network"]["init_args"]["layer"].get("init_args", {})
    settings = {
        "state-tracking": data.get("group"),
        "mqar": data.get("length"),
        "locality": layer.get("width", layer.get("window")) or data.get("max_length"),
    }
    test = json.loads((folder / "test.json").read_text())["metrics"]
    finished = [float(row["train/samples_per_s"]) for row in csv.DictReader((folder / "metrics.csv").open())
                if row.get("train/samples_per_s")]  # fmt: skip
    row = {"question": "/".join(question), "unit": unit, "setting": settings.get(question[0], ""),
           "seed": config["seed_everything"], "steps": config["trainer"]["max_steps"]}  # fmt: skip
    row["samples_per_s"] = f"{mean(finished):.0f}" if finished else ""
    for name in ("accuracy", "accuracy_64", "accuracy_128", "accuracy_192", "accuracy_256"):
        value = test.get(f"test/{name}")
        row[name] = "" if value is None else f"{100 * value:.2f}"
    return row


def curves(rows: list[dict[str, Any]], x: Any) -> dict[str, list[tuple[float, list[float]]]]:
    """Return for each unit its points (x, accuracies of the seeds); x(row) gives pairs of x and accuracy."""
    points: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for place, accuracy in x(row):
            points[row["unit"]][place].append(float(accuracy))
    return {unit: sorted(points[unit].items()) for unit in NAMES if unit in points}


def draw(axis: Any, lines: dict[str, list[tuple[float, list[float]]]], title: str, xlabel: str) -> None:
    """Draw the mean over seeds of each unit, with a band from minimum to maximum."""
    for unit, points in lines.items():
        color = f"C{list(NAMES).index(unit)}"
        places = [place for place, _ in points]
        axis.plot(places, [mean(v) for _, v in points], "o-", ms=4, color=color, label=NAMES[unit])
        axis.fill_between(places, *([f(v) for _, v in points] for f in (min, max)), color=color, alpha=0.2, lw=0)
    axis.set(title=title, xlabel=xlabel, ylabel="test accuracy, %")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def save(figure: Any, name: str) -> None:
    figure.savefig(FOLDER / f"{name}.png", dpi=110)
    plt.close(figure)


def by_length(row: dict[str, Any]) -> list[tuple[float, str]]:
    return [(end, row[f"accuracy_{end}"]) for end in (64, 128, 192, 256)]


def draw_all(rows: list[dict[str, Any]]) -> None:
    tracking = [row for row in rows if row["question"] == "state-tracking"]
    if tracking:
        figure, axes = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained", sharey=True)
        for axis, (group, title) in zip(axes, GROUPS.items(), strict=True):
            chosen = [row for row in tracking if row["setting"] == group]
            axis.axvspan(0, 64, color="gray", alpha=0.15, label="trained length")
            draw(axis, curves(chosen, by_length), title, "position (a point is the mean of the 64 positions up to it)")
            axis.axhline(100 / (2 if group == "Z2" else 6), color="gray", ls=":", lw=1, label="guessing")
            axis.legend(fontsize=8)
        save(figure, "state-tracking")
    mqar = [row for row in rows if row["question"] == "mqar"]
    if mqar:
        figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
        draw(axis, curves(mqar, lambda row: [(int(row["setting"]), row["accuracy"])]),
             "recall: a pair for every 16 positions", "length")  # fmt: skip
        save(figure, "mqar")
    local = [row for row in rows if row["question"] == "locality"]
    if local:
        figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
        draw(axis, curves(local, lambda row: [(int(row["setting"]), row["accuracy"])]),
             "IMDb, 1,024 characters", "width or window, positions")  # fmt: skip
        axis.set_xscale("log", base=2)
        save(figure, "locality")
    starts = [row for row in rows if row["question"].endswith(("/scratch", "/pretrained"))]
    if starts:
        figure, axes = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
        for axis, (dataset, title) in zip(axes, DATASETS.items(), strict=True):
            for x, unit in enumerate(units := ("transformer", "s4d", "b2s6")):
                for shift, start in ((-0.12, "scratch"), (0.12, "pretrained")):
                    values = [float(row["accuracy"]) for row in starts
                              if (row["question"], row["unit"]) == (f"{dataset}/{start}", unit)]  # fmt: skip
                    label = {"scratch": "from scratch", "pretrained": "self-pretrained"}[start] if x == 0 else None
                    axis.plot([x + shift] * len(values), values, "o", color="C0" if shift < 0 else "C1", label=label)
            axis.set(title=title, ylabel="test accuracy, %", xticks=range(3), xticklabels=[NAMES[u] for u in units])
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8)
        save(figure, "pretraining")


def table(rows: list[dict[str, Any]]) -> str:
    """Return the means ± standard deviations over seeds as lines of Markdown."""
    columns = ("accuracy", "accuracy_64", "accuracy_128", "accuracy_192", "accuracy_256")
    by_setting = defaultdict(list)
    for row in rows:
        by_setting[row["question"], row["setting"], row["unit"]].append(row)
    lines = ["| question | setting | unit | seeds | " + " | ".join(columns) + " |", "|---" * (4 + len(columns)) + "|"]
    for (question, setting, unit), group in sorted(by_setting.items()):
        cells = []
        for column in columns:
            values = [float(row[column]) for row in group if row[column]]
            spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.1f}{spread}" if values else "")
        lines.append(f"| {question} | {setting} | {NAMES[unit]} | {len(group)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    files = sorted(Path((sys.argv + ["runs/meaning"])[1]).rglob("test.json"))
    new = [read(file.parent) for file in files if "_pretrain/" not in str(file)]
    all_rows = [{key: str(value) for key, value in row.items()} for row in update_csv(FOLDER / "runs.csv", new, KEY)]
    draw_all(all_rows)
    (FOLDER / "table.md").write_text(table(all_rows))
    print(table(all_rows))
