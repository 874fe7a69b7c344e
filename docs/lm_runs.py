"""Collect the runs of slurm/sweeps/lm-imdb.yaml into docs/lm-runs/, and score them on WikiText-2's test split:

    python docs/lm_runs.py runs/cpu/lm-imdb FOLDER_OF_WIKITEXT_2

It reads runs that are trained and tested (`lightning test`, with the options of their line). runs.csv keeps the results
of earlier runs, curves.csv their validations; table.md and curves.png are made from both.
"""

import csv
import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import lightning as L
import matplotlib
import torch
import yaml

matplotlib.use("Agg")

from cpu_runs import update_csv  # noqa: E402 - the backend comes first
from matplotlib import pyplot as plt  # noqa: E402

from lra_ssm.datamodules import WikiText  # noqa: E402
from lra_ssm.tasks import LanguageModelling  # noqa: E402

FOLDER = Path(__file__).with_name("lm-runs")
UNITS = {"s6": "S6", "b2s6": "B2S6", "s4d": "S4D"}


def wikitext_perplexity(checkpoint: Path, source: str) -> float:
    """Return the perplexity per word of WikiText-2's test split, in windows of the training length."""
    state = torch.load(checkpoint, weights_only=True)
    tokenizer = next(part["tokenizer"] for part in state.values() if isinstance(part, dict) and "tokenizer" in part)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, tokenizer["file"])
        file.write_text(tokenizer["text"])
        data = WikiText(root=folder, source=source, version="2", tokenizer=str(file), length=512, batch_size=8)
        task = LanguageModelling.load_from_checkpoint(checkpoint)
        trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
        (metrics,) = trainer.test(task, datamodule=data, verbose=False)
    return metrics["test/word_perplexity"]


def read(run: Path, source: str, known: dict[tuple[str, str], dict[str, Any]]) -> tuple[dict[str, Any], list[Any]]:
    """Return the row of a finished and tested run, and its validations."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    key = {"unit": config["experiment"].rpartition("/")[2], "seed": str(config["seed_everything"])}
    metrics = list(csv.DictReader((run / "metrics.csv").open()))
    test = json.loads((run / "test.json").read_text())["metrics"]
    splits = json.loads((run / "run.json").read_text())["data"]["splits"]

    def per_word(split: str, bits_per_byte: float) -> str:
        """Return the perplexity per word of a split."""
        return f"{2 ** (bits_per_byte * splits[split]['bytes'] / splits[split]['words']):.1f}"

    every, batch = config["trainer"]["log_every_n_steps"], config["data"]["init_args"]["batch_size"]
    rates = [float(row["train/samples_per_s"]) for row in metrics if row.get("train/samples_per_s")]
    weights = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    row = known.get((key["unit"], key["seed"])) or key | {
        "parameters": sum(value.numel() for value in weights.values()),
        "tokens": config["trainer"]["max_steps"] * batch * config["data"]["init_args"]["length"],
        "minutes": f"{sum(every * batch / rate for rate in rates) / 60:.1f}",
        "reviews_per_token": f"{test['test/perplexity']:.2f}",
        "reviews_per_word": per_word("test", test["test/bits_per_byte"]),
        "reviews_bits_per_byte": f"{test['test/bits_per_byte']:.4f}",
        "wikitext2_per_word": f"{wikitext_perplexity(run / 'checkpoints/best.ckpt', source):.0f}",
    }
    name = "val/bits_per_byte"
    curve = [key | {"step": m["step"], "per_word": per_word("val", float(m[name]))} for m in metrics if m.get(name)]
    return row, curve


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table of means ± standard deviations over seeds."""
    lines = [
        "| Mamba's block with | per word, held-out reviews | per token | bits per byte | per word, WikiText-2's test |"
        " seeds | parameters |",
        "|---|---|---|---|---|---|---|",
    ]
    for unit, label in UNITS.items():
        unit_rows = [row for row in rows if row["unit"] == unit]
        if unit_rows:
            cells = [
                _spread([float(row[column]) for row in unit_rows], digits)
                for column, digits in (
                    ("reviews_per_word", 1), ("reviews_per_token", 2), ("reviews_bits_per_byte", 4),
                    ("wikitext2_per_word", 0),
                )
            ]  # fmt: skip
            last_cells = [str(len(unit_rows)), f"{int(unit_rows[0]['parameters']):,}"]
            lines.append(f"| {' | '.join([label, *cells, *last_cells])} |")
    return "\n".join(lines) + "\n"


def _spread(values: list[float], digits: int) -> str:
    more = f" ± {stdev(values):,.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):,.{digits}f}{more}"


def draw(curves: list[dict[str, Any]], file: Path) -> None:
    """Draw the perplexity per word on held-out reviews by step: the mean over seeds, and the band of all seeds."""
    figure, axis = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for number, (unit, label) in enumerate(UNITS.items()):
        by_step = defaultdict(list)
        for row in curves:
            if row["unit"] == unit:
                by_step[int(row["step"]) + 1].append(float(row["per_word"]))
        steps = sorted(by_step)
        axis.plot(steps, [mean(by_step[s]) for s in steps], "o-", ms=3, color=f"C{number}", label=label)
        low, high = ([f(by_step[s]) for s in steps] for f in (min, max))
        axis.fill_between(steps, low, high, color=f"C{number}", alpha=0.2, lw=0)
    title = "IMDb's reviews, 3 M parameters, 4,096 tokens a step: mean over seeds, band from least to greatest"
    axis.set_title(title, fontsize=10)
    axis.set(xlabel="step", yscale="log", ylabel="validation perplexity per word")
    axis.set_yticks(ticks := [700, 1000, 1500, 2000, 2500], [f"{value:,}" for value in ticks])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(file, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python docs/lm_runs.py RUNS FOLDER_OF_WIKITEXT_2")
    runs, wikitext = sys.argv[1:]
    FOLDER.mkdir(exist_ok=True)
    runs_csv = FOLDER / "runs.csv"
    known = {(r["unit"], r["seed"]): r for r in csv.DictReader(runs_csv.open())} if runs_csv.is_file() else {}
    results = [read(file.parent, wikitext, known) for file in sorted(Path(runs).glob("*/*/test.json"))]
    rows = update_csv(runs_csv, [row for row, _ in results], ("unit", "seed"))
    curves = update_csv(FOLDER / "curves.csv", [c for _, curve in results for c in curve], ("unit", "seed", "step"))
    (FOLDER / "table.md").write_text(table(rows))
    draw(curves, FOLDER / "curves.png")
    print(table(rows))
