"""`lra-ssm runs`: the runs of a folder, how far they are, and what differs between them."""

from typing import Any

from lra_ssm.cli.output import PlainParser
from lra_ssm.cli.results import runs_of_sweep
from lra_ssm.results.collect import RunRecord, collect
from lra_ssm.results.settings import differing, resolve, shown
from lra_ssm.runs.identity import SEED, short_names
from lra_ssm.tables import duration, table, terminal_width, wrapped

DESCRIPTION = """\
Lists runs: how far each is, its best validation metric (the last one, with …, while it is not at its end), its test
metric, how long it took, and the settings in which they differ. Accuracies are in percent."""

EXAMPLE = """\
examples:
  lra-ssm runs
  lra-ssm runs runs/lra/listops --keys=lr,dropout
"""
_MOST_KEYS = 4  # columns of what differs, unless --keys names them


def parser() -> PlainParser:
    found = PlainParser("lra-ssm runs", DESCRIPTION, EXAMPLE)
    said = "as `lra-ssm results` takes them; default: runs"
    found.add_argument("runs", nargs="*", default=["runs"], metavar="RUNS", help=said)
    found.add_argument("--keys", metavar="KEY[,KEY]", help="settings to show, by their names or the ends of them")
    return found


def main(command: str, arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    runs = sorted(collect(options.runs, runs_of_sweep), key=lambda run: (run.experiment, run.path.name))
    keys, more = _keys(runs, options.keys)
    short = short_names({key for run in runs for key in run.all_settings})
    cells = _columns(runs) | {short[key]: [_shown(run, key) for run in runs] for key in keys}
    width = terminal_width()
    # In a narrow terminal the first setting that differs stays, a sweep's own; what else does is told below.
    own = [key for key in keys if key != SEED][:1]
    others = [] if options.keys is not None else [short[key] for key in reversed(keys) if key not in own]
    dispensable = ["started", "time", *others, "step"]
    for name in dispensable:
        widths = [max(map(len, [title, *column])) + 1 for title, column in cells.items()]
        if width is None or sum(widths) <= width:
            break
        cells.pop(name, None)
    more = [key for key in keys if short[key] not in cells] + more
    print(table(list(cells), [list(row) for row in zip(*cells.values(), strict=True)], 3, width))
    for run in runs:
        if run.status in ("failed", "damaged"):
            print(wrapped(f"{run.name}: {run.missing}"))
    if more:
        print(wrapped(f"they differ also in {', '.join(short[key] for key in more)} (--keys)"))
    return 0


def _columns(runs: list[RunRecord]) -> dict[str, list[str]]:
    """What every run has, by the columns' names; a metric's name stands above where it is the same of all."""
    found: dict[str, list[str]] = {
        "run": [run.experiment for run in runs],
        "id": [run.path.name for run in runs],
        "status": [run.status for run in runs],
        "step": [run.progress for run in runs],
    }
    for split, of in (("val", _validation), ("test", _tested)):
        pairs = [of(run) for run in runs]
        names = {name for name, figure in pairs if figure}
        one = len(names) == 1
        title = f"{split} {names.pop()}" if one else split
        found[title] = [figure if one or not figure else f"{name} {figure}" for name, figure in pairs]
    starts = [str((run.record.get("starts") or [{}])[0].get("time") or "") for run in runs]
    found["started"] = [time[:16].replace("T", " ") for time in starts]
    found["time"] = ["" if run.seconds is None else duration(*run.seconds) for run in runs]
    return found


def _shown(run: RunRecord, key: str) -> str:
    return shown(run.all_settings[key]) if key in run.all_settings else ""


def _keys(runs: list[RunRecord], given: str | None) -> tuple[list[str], list[str]]:
    """The settings to show, and those that differ too."""
    if given is not None:
        names = {key for run in runs for key in run.all_settings}
        return [resolve(name, names) for name in given.split(",") if name], []
    known = [run for run in runs if run.config.get("model")]
    found = differing(run.settings for run in known)
    # What an experiment's name does not tell already stands first, then numbers.
    within: set[str] = set()
    for name in {run.experiment for run in known}:
        within |= differing(run.settings for run in known if run.experiment == name).keys()
    numeric = {key for key in found if all(isinstance(value, (int, float)) for value in found[key])}
    ordered = sorted(found, key=lambda key: (key not in within, key not in numeric, key))
    seeds = [SEED] if len({run.seed for run in runs}) > 1 else []
    kept = [*seeds, *ordered][:_MOST_KEYS]
    return kept, ordered[len(kept) - len(seeds) :]


def _tested(run: RunRecord) -> tuple[str, str]:
    tested = run.tested.get("metrics") or {}
    for name in ("accuracy", "perplexity", "loss"):
        if f"test/{name}" in tested:
            return name, _figure(name, tested[f"test/{name}"])
    return "", ""


def _validation(run: RunRecord) -> tuple[str, str]:
    """The best value of the monitored metric where the fit has ended, else the last one, marked …"""
    name = run.monitor
    short = name.removeprefix("val/")
    best = (run.record.get("metrics") or {}).get(f"best {name}")
    if isinstance(best, (int, float)):
        return short, _figure(name, best)
    curve = run.curve(name)
    return short, f"… {_figure(name, curve[max(curve)])}" if curve else ""


def _figure(name: str, value: Any) -> str:
    if not isinstance(value, (int, float)):
        return "?"
    return f"{100 * value:.2f}" if name.endswith("accuracy") else f"{value:.4g}"
