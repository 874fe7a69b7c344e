"""`lra-ssm runs`: the runs of a folder, how far they are, and what differs between them."""

from typing import Any

from lra_ssm.cli.output import PlainParser
from lra_ssm.results.collect import RunRecord, collect
from lra_ssm.results.settings import SEED, differing, resolve, short_names, shown
from lra_ssm.results.tables import duration
from lra_ssm.tables import table, terminal_width, wrapped

DESCRIPTION = """\
Lists runs: how far each is, its last and best validation metric, its test metric, how long it took, and the settings
in which they differ."""

EXAMPLE = """\
examples:
  lra-ssm runs
  lra-ssm runs runs/lra/listops --keys=lr,dropout
"""
_MOST_KEYS = 4  # columns of what differs, unless --keys names them


def main(command: str, arguments: list[str]) -> int:
    parser = PlainParser("lra-ssm runs", DESCRIPTION, EXAMPLE)
    parser.add_argument(
        "runs", nargs="*", default=["runs"], metavar="RUNS", help="as `lra-ssm results` takes them; default: runs"
    )
    parser.add_argument("--keys", metavar="KEY[,KEY]", help="settings to show, by their names or the ends of them")
    options = parser.parse_args(arguments)
    runs = sorted(collect(options.runs), key=lambda run: (run.experiment, run.path.name))
    keys, more = _keys(runs, options.keys)
    short = short_names({key for run in runs for key in run.all_settings})
    columns = ["run", "id", "status", "step", "validation", "test", "started", "time"]
    rows = [_row(run) + [shown(run.all_settings[k]) if k in run.all_settings else "" for k in keys] for run in runs]
    print(table([*columns, *[short[key] for key in keys]], rows, 3, terminal_width()))
    for run in runs:
        if run.status in ("failed", "damaged"):
            print(wrapped(f"{run.name}: {run.missing}"))
    if more:
        print(wrapped(f"they differ also in {', '.join(short[key] for key in more)} (--keys)"))
    return 0


def _keys(runs: list[RunRecord], given: str | None) -> tuple[list[str], list[str]]:
    """The settings to show, and those that differ too."""
    if given is not None:
        known = {key for run in runs for key in run.all_settings}
        return [resolve(name, known) for name in given.split(",") if name], []
    found = differing(run.settings for run in runs if run.config.get("model"))
    # Which data and classes follow from the experiment's name more often than not: numbers first.
    ordered = sorted(found, key=lambda key: (not all(map(_is_number, found[key])), key))
    seeds = [SEED] if len({run.seed for run in runs}) > 1 else []
    kept = [*seeds, *ordered][:_MOST_KEYS]
    return kept, ordered[len(kept) - len(seeds) :]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _row(run: RunRecord) -> list[str]:
    first = (run.record.get("starts") or [{}])[0].get("time")
    started = str(first)[:16].replace("T", " ") if first else ""
    tested = run.tested.get("metrics") or {}
    names = ["test/accuracy", "test/perplexity", "test/loss"]
    test = next((f"{n.removeprefix('test/')} {_figure(n, tested[n])}" for n in names if n in tested), "")
    took = "" if run.seconds is None else duration(run.seconds)
    return [run.experiment, run.path.name, run.status, run.progress, _validation(run), test, started, took]


def _validation(run: RunRecord) -> str:
    """The best value of the monitored metric where the fit has ended, else the last."""
    name = run.monitor
    words = name.removeprefix("val/")
    best = (run.record.get("metrics") or {}).get(f"best {name}")
    if isinstance(best, (int, float)):
        return f"{words} {_figure(name, best)}"
    curve = run.curve(name)
    return f"{words} {_figure(name, curve[max(curve)])} (last)" if curve else ""


def _figure(name: str, value: Any) -> str:
    if not isinstance(value, (int, float)):
        return "?"
    return f"{100 * value:.2f}" if name.endswith("accuracy") else f"{value:.4g}"
