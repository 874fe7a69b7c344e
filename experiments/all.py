"""Runs all experiments, cheapest first, or writes docs/experiments.md from their results.

python experiments/all.py                # about 40 minutes of one core; after a kill it continues
python experiments/all.py --quick        # a few seconds each, to see that they run
python experiments/all.py --page         # docs/experiments.md from docs/experiments/
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from helper import HERE, Claim, load, missing

FOLDER = HERE.parent / "docs/experiments"
PAGE = FOLDER.with_suffix(".md")
PAPERS = {"b2s6": "B2S6", "stable": "StableSSM", "deep": "Deep linear SSMs", "width": "Width"}
VERDICTS = ("holds", "does not hold", "undecided")
NAMES = """
stable_fig6 stable_fig1 deep_fig1 deep_fig2 stable_fig4a b2s6_theorem2 b2s6_fig5 deep_fig3a deep_fig5 width_table3
b2s6_fig6 deep_fig3b width_bigram deep_fig3c deep_fig6 b2s6_fig4 deep_fig4 b2s6_fig3 stable_fig3a
""".split()


class Result(NamedTuple):
    """An experiment as the page shows it."""

    name: str
    title: str  # first line of the script
    claims: list[Claim]  # none if a cell is missing, or was made by other code
    state: str  # what was run


def results() -> list[Result]:
    """Judge the rows in docs/experiments, by paper. Nothing is judged before the present code has made all cells."""
    found = []
    for name in sorted(NAMES, key=lambda one: (list(PAPERS).index(one.partition("_")[0]), one)):
        module, script = import_module(name), HERE / f"{name}.py"
        cells = module.cells("default")
        rows = load(FOLDER / name / "rows.jsonl", script)
        left = len(missing(cells, rows))
        title = (module.__doc__ or "").partition("\n")[0].rstrip(".")
        if left:
            state = f"not run: {len(cells) - left} of {len(cells)} cells have a result of the present code."
            found.append(Result(name, title, [], state))
        else:
            table = pd.DataFrame(rows)
            state = f"{table['seconds'].sum() / 60:.1f} min."
            found.append(Result(name, title, list(module.claims(table)), state))
    return found


def pages() -> dict[Path, str]:
    """Return docs/experiments.md (head.md, verdicts, tail.md) and each experiment's claims (with remarks.yaml)."""
    every = results()
    remarks: dict[str, str] = yaml.safe_load((FOLDER / "remarks.yaml").read_text())
    counts = {
        prefix: [sum(c.verdict == verdict for one in every if one.name.startswith(prefix) for c in one.claims)
                 for verdict in VERDICTS]
        for prefix in PAPERS
    }  # fmt: skip
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    not_run = [one.name for one in every if not one.claims]
    lines = [(FOLDER / "head.md").read_text().rstrip(), "", "## Verdicts", ""]
    lines += [f"| | {_cells(VERDICTS)} |", "|---|---|---|---|"]
    lines += [f"| [{name}](#{name.lower().replace(' ', '-')}) | {_cells(counts[p])} |" for p, name in PAPERS.items()]
    lines += [f"| all {sum(total)} claims | {_cells(total)} |"]
    lines += ["", f"Not run with the present code, so without a verdict: {', '.join(not_run)}."] if not_run else []
    for prefix, paper in PAPERS.items():
        own = [one for one in every if one.name.startswith(prefix)]
        lines += ["", f"## {paper}", "", f"`python experiments/{own[0].name}.py` runs the first of these experiments."]
        for one in own:
            title = one.title.removeprefix(f"{paper}, ")
            label = "Numbers, remarks" if one.name in remarks else "Numbers"
            numbers = f" [{label}](experiments/{one.name}/claims.md)." if one.claims else ""
            lines += ["", f"### {one.name}", "", f"{title[:1].upper()}{title[1:]}. {one.state}{numbers}"]
            lines += [""] if one.claims else []
            lines += [f"- {claim.verdict}: {claim.statement}" for claim in one.claims]
            lines += ["", f"![{one.name}](experiments/{one.name}/figure.png)"] if one.claims else []
    details = {
        FOLDER / one.name / "claims.md": claims_page(one, remarks.get(one.name, "")) for one in every if one.claims
    }
    return {PAGE: "\n".join([*lines, "", (FOLDER / "tail.md").read_text()]), **details}


def claims_page(one: Result, remark: str) -> str:
    """Return the claims of an experiment with their rules, each of which stands once, numbers and the remark."""
    lines = [f"# {one.name}", "", f"{one.title}. [How a claim is judged](../../experiments.md#how-a-claim-is-judged)."]
    lines += ["", "| | claim | holds if | verdict | numbers |", "|---|---|---|---|---|"]
    first: dict[str, int] = {}
    for number, claim in enumerate(one.claims, 1):
        seen = first.setdefault(claim.rule, number)
        rule = claim.rule if seen == number else f"as {seen}"
        lines.append(f"| {number} | {_cells((claim.statement, rule, claim.verdict, claim.found))} |")
    lines += ["", remark.strip()] if remark else []
    return "\n".join([*lines, ""])


def _cells(values: Iterable[Any]) -> str:
    return " | ".join(str(value).replace("|", "\\|") for value in values)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", action="store_true", help="write docs/experiments.md and its claims, and run nothing")
    options, passed = parser.parse_known_args()
    if options.page:
        for file, text in pages().items():
            file.write_text(text)
        return 0
    commands: dict[str, Any] = {name: [sys.executable, str(HERE / f"{name}.py"), *passed] for name in NAMES}
    if "--long" in passed:  # few have one
        modules = {name: import_module(name) for name in NAMES}
        commands = {n: c for n, c in commands.items() if modules[n].cells("long") != modules[n].cells("default")}
    failed = [name for name, command in commands.items() if subprocess.run(command).returncode]
    print(f"failed: {', '.join(failed)}" if failed else f"{len(commands)} experiments are done")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
