"""Collect the runs of the small sweeps of docs/meaning.md into docs/meaning-runs/: `python docs/meaning_runs.py`.

runs.csv keeps the results of earlier runs; a picture for each question is made from all of them.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FOLDER = Path(__file__).with_name("meaning-runs")
NAMES = {"s4d": "S4D", "s6": "S6", "mamba": "Mamba's block", "b2s6": "B2S6", "lru": "LRU", "s5": "S5",
         "mamba3": "Mamba-3's block", "attention": "attention", "transformer": "Transformer",
         "convolution": "local convolution"}  # fmt: skip
DATASETS = {"listops200": "ListOps, 100 to 200 tokens", "text512": "IMDb, 512 characters"}
GROUPS = {"Z2": "parity", "S3": "permutations of 3"}
ENDS = (64, 128, 192, 256)  # a run's accuracy_64 is that of positions 1 to 64, accuracy_128 of 65 to 128, …
ACCURACIES = ["accuracy", *(f"accuracy_{end}" for end in ENDS)]


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
    speed = pd.read_csv(folder / "metrics.csv")["train/samples_per_s"].mean()
    row = {"question": "/".join(question), "unit": unit, "setting": settings.get(question[0], ""),
           "seed": config["seed_everything"], "steps": config["trainer"]["max_steps"],
           "samples_per_s": f"{speed:.0f}"}  # fmt: skip
    return row | {name: f"{100 * test[f'test/{name}']:.2f}" for name in ACCURACIES if f"test/{name}" in test}


def collect(folder: Path) -> pd.DataFrame:
    """Add the runs of a folder to runs.csv, in place of earlier ones with the same question, unit, setting and seed."""
    file = FOLDER / "runs.csv"
    folders = [test.parent for test in sorted(folder.rglob("test.json")) if "_pretrain/" not in str(test)]
    runs = [{name: str(value) for name, value in read(run).items()} for run in folders]
    rows = pd.concat([pd.read_csv(file, dtype=str, keep_default_na=False), pd.DataFrame(runs)])
    rows = rows.drop_duplicates(["question", "unit", "setting", "seed"], keep="last")
    rows.to_csv(file, index=False, lineterminator="\n")
    return pd.read_csv(file, dtype={"setting": str}).fillna({"setting": ""})


def draw(axis: Axes, rows: pd.DataFrame, title: str, xlabel: str) -> None:
    """Draw the mean over seeds of y by x for each unit, with a band from minimum to maximum."""
    for number, (unit, name) in enumerate(NAMES.items()):
        points = rows[rows["unit"] == unit].groupby("x")["y"].agg(["mean", "min", "max"])
        if len(points):
            axis.plot(points["mean"], "o-", ms=4, color=f"C{number}", label=name)
            axis.fill_between(points.index, points["min"], points["max"], color=f"C{number}", alpha=0.2, lw=0)
    axis.set(title=title, xlabel=xlabel, ylabel="test accuracy, %")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def draw_tracking(rows: pd.DataFrame) -> Figure:
    rows = rows.melt(["unit", "setting"], ACCURACIES[1:], "x", "y")
    rows["x"] = rows["x"].str.removeprefix("accuracy_").astype(int)
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    for axis, (group, title) in zip(figure.subplots(1, 2, sharey=True), GROUPS.items(), strict=True):
        axis.axvspan(0, 64, color="gray", alpha=0.15, label="trained length")
        axis.axhline(100 / (2 if group == "Z2" else 6), color="gray", ls=":", lw=1, label="guessing")
        xlabel = "position (a point is the mean of the 64 positions up to it)"
        draw(axis, rows[rows["setting"] == group], title, xlabel)
    return figure


def draw_setting(rows: pd.DataFrame, title: str, xlabel: str) -> Figure:
    """Draw the accuracy over the number in the column "setting"."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    draw(axis, rows.assign(x=rows["setting"].astype(int), y=rows["accuracy"]), title, xlabel)
    axis.set_xscale("log", base=2)
    values = sorted(rows["setting"].unique(), key=int)
    axis.set_xticks([int(value) for value in values], values)
    return figure


def draw_pretraining(rows: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    units = ["transformer", "s4d", "b2s6"]
    for axis, (dataset, title) in zip(figure.subplots(1, 2), DATASETS.items(), strict=True):
        for shift, start, label in ((-0.12, "scratch", "from scratch"), (0.12, "pretrained", "self-pretrained")):
            chosen = rows[rows["question"] == f"{dataset}/{start}"]
            axis.plot([units.index(unit) + shift for unit in chosen["unit"]], chosen["accuracy"], "o", label=label)
        axis.set(title=title, ylabel="test accuracy, %", xlim=(-0.5, 2.5))
        axis.set_xticks(range(3), [NAMES[unit] for unit in units])
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    return figure


def spread(values: "pd.Series[float]") -> str:
    """Return the mean ± the standard deviation, or nothing if the runs have no such value."""
    if values.isna().all():
        return ""
    return f"{values.mean():.1f}" + (f" ± {values.std():.1f}" if len(values) > 1 else "")


def table(rows: pd.DataFrame) -> str:
    """Return the results over seeds as lines of Markdown."""
    groups = rows.groupby(["question", "setting", "unit"])
    cells = groups[ACCURACIES].agg(spread)
    cells.insert(0, "seeds", groups.size().astype(str))
    cells = cells.reset_index().replace({"unit": NAMES})
    lines = [[*cells], ["---"] * cells.shape[1], *cells.to_numpy().tolist()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    all_rows = collect(Path((sys.argv + ["runs/meaning"])[1]))
    figures = {}
    for question, of_question in all_rows.groupby("question"):
        if question == "state-tracking":
            figures[question] = draw_tracking(of_question)
        elif question == "mqar":
            figures[question] = draw_setting(of_question, "recall: a pair for every 16 positions", "length")
        elif question == "locality":
            figures[question] = draw_setting(of_question, DATASETS["text512"], "width or window, positions")
        else:
            figures["pretraining"] = draw_pretraining(all_rows)
    for name, figure in figures.items():
        figure.savefig(FOLDER / f"{name}.png", dpi=110)
    (FOLDER / "table.md").write_text(table(all_rows))
    print(table(all_rows))
