"""Run all experiments, cheapest first, or write docs/experiments.md from their results.

python experiments/all.py                # takes about 40 core-minutes; a killed run continues where it stopped
python experiments/all.py --quick        # checks in a few seconds each that the scripts run
python experiments/all.py --page         # writes docs/experiments.md from the results in docs/experiments/
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
    """The part of an experiment that the page shows."""

    name: str
    title: str  # first line of the script's docstring
    claims: list[Claim]
    minutes: float


def results() -> list[Result]:
    """Judge the rows in docs/experiments, by paper. Exits if the present code has not run all cells of a script."""
    judged = []
    for name in sorted(NAMES, key=lambda name: (list(PAPERS).index(name.partition("_")[0]), name)):
        module = import_module(name)
        rows = load(FOLDER / name / "rows.jsonl", HERE / f"{name}.py")
        if missing(module.cells("default"), rows):
            sys.exit(f"{FOLDER / name} lacks results of the present code: python experiments/{name}.py --out={FOLDER}")
        table = pd.DataFrame(rows)
        title = (module.__doc__ or "").partition("\n")[0].rstrip(".")
        judged.append(Result(name, title, list(module.claims(table)), table["seconds"].sum() / 60))
    return judged


def pages() -> dict[Path, str]:
    """Return the text of docs/experiments.md (head.md, verdicts, tail.md) and of each claims.md (with remarks.yaml)."""
    all_results = results()
    remarks: dict[str, str] = yaml.safe_load((FOLDER / "remarks.yaml").read_text())
    counts = {
        prefix: [
            sum(claim.verdict == verdict for r in all_results if r.name.startswith(prefix) for claim in r.claims)
            for verdict in VERDICTS
        ]
        for prefix in PAPERS
    }
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    lines = [(FOLDER / "head.md").read_text().rstrip(), "", "## Verdicts", ""]
    lines += [f"| | {_columns(VERDICTS)} |", "|---|---|---|---|"]
    lines += [f"| [{name}](#{name.lower().replace(' ', '-')}) | {_columns(counts[p])} |" for p, name in PAPERS.items()]
    lines += [f"| all {sum(total)} claims | {_columns(total)} |"]
    for prefix, paper in PAPERS.items():
        of_paper = [result for result in all_results if result.name.startswith(prefix)]
        lines += ["", f"## {paper}", ""]
        lines += [f"`python experiments/{of_paper[0].name}.py` runs the first of these experiments."]
        for result in of_paper:
            name, title = result.name, result.title.removeprefix(f"{paper}, ")
            label = "Numbers, remarks" if name in remarks else "Numbers"
            link = f"[{label}](experiments/{name}/claims.md)"
            lines += ["", f"### {name}", "", f"{title[:1].upper()}{title[1:]}. {result.minutes:.1f} min. {link}.", ""]
            lines += [f"- {claim.verdict}: {claim.statement}" for claim in result.claims]
            lines += ["", f"![{name}](experiments/{name}/figure.png)"]
    details = {FOLDER / r.name / "claims.md": claims_page(r, remarks.get(r.name, "")) for r in all_results}
    return {PAGE: "\n".join([*lines, "", (FOLDER / "tail.md").read_text()]), **details}


def claims_page(result: Result, remark: str) -> str:
    """Return claims.md of an experiment: each claim with its rule, verdict and numbers, then the remark."""
    lines = [f"# {result.name}", ""]
    lines += [f"{result.title}. [How a claim is judged](../../experiments.md#how-a-claim-is-judged)."]
    lines += ["", "| | claim | holds if | verdict | numbers |", "|---|---|---|---|---|"]
    first_use: dict[str, int] = {}  # rule to the number of the claim that states it
    for number, claim in enumerate(result.claims, 1):
        first = first_use.setdefault(claim.rule, number)
        rule = claim.rule if first == number else f"same as {first}"
        lines.append(f"| {number} | {_columns((claim.statement, rule, claim.verdict, claim.found))} |")
    lines += ["", remark.strip()] if remark else []
    return "\n".join([*lines, ""])


def _columns(values: Iterable[Any]) -> str:
    return " | ".join(str(value).replace("|", "\\|") for value in values)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--page", action="store_true", help="write docs/experiments.md and each claims.md; runs nothing"
    )
    options, script_args = parser.parse_known_args()
    if options.page:
        for file, text in pages().items():
            file.write_text(text)
        return 0
    commands: dict[str, Any] = {name: [sys.executable, str(HERE / f"{name}.py"), *script_args] for name in NAMES}
    if "--long" in script_args:  # only a few scripts have a long form
        modules = {name: import_module(name) for name in NAMES}
        long_forms = [name for name, module in modules.items() if module.cells("long") != module.cells("default")]
        commands = {name: commands[name] for name in long_forms}
    failed = [name for name, command in commands.items() if subprocess.run(command).returncode]
    print(f"failed: {', '.join(failed)}" if failed else f"{len(commands)} experiments finished")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
