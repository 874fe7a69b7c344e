"""`lra-ssm reproduce`: the papers' figures, tables and theorems, rerun, and whether each claim holds."""

import shutil
from pathlib import Path

from lra_ssm.cli.options import count
from lra_ssm.cli.output import PlainParser
from lra_ssm.errors import InputError
from lra_ssm.experiments.artifacts import Artifact, artifacts, chosen
from lra_ssm.machine import available_cores
from lra_ssm.tables import duration, table, terminal_width, wrapped

DESCRIPTION = """\
Runs experiments of the papers on the CPU, draws them, and says of every claim whether it holds, does not hold or stays
undecided. What is done is kept: a run that was killed goes on when the same command is given again."""

EXAMPLE = """\
examples:
  lra-ssm reproduce --list
  lra-ssm reproduce b2s6-fig5
  lra-ssm reproduce 'stable-*' --quick
  lra-ssm reproduce all
"""


def parser() -> PlainParser:
    made = PlainParser("lra-ssm reproduce", DESCRIPTION, EXAMPLE)
    said = "of experiments, or patterns of the shell's; all for every one"
    made.add_argument("names", nargs="*", metavar="NAME", help=said)
    made.add_argument("--list", action="store_true", help="what the papers have, and how it is made")
    form = made.add_mutually_exclusive_group()
    form.add_argument("--quick", action="store_true", help="a few seconds each, that show that it runs")
    form.add_argument("--long", action="store_true", help="the long forms alone, up to two hours each")
    said = "where results go, a folder for each; default: runs/reproduce"
    made.add_argument("--out", type=Path, default=Path("runs/reproduce"), metavar="FOLDER", help=said)
    said = "how many cells run at a time, one thread each; default: as many as there are cores"
    made.add_argument("--processes", type=count, default=available_cores(), metavar="N", help=said)
    made.add_argument("--fresh", action="store_true", help="forget what is done, and begin again")
    return made


def main(command: str, arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if options.list:
        print(_listed())
        return 0
    if not options.names:
        raise InputError("name an experiment, such as b2s6-fig5, or all; --list shows what there is")
    form = "quick" if options.quick else "long" if options.long else "default"
    found = [one for one in chosen(options.names) if form == "quick" or form in one.minutes]
    if not found:
        other = "leave --long out" if options.long else "--long has one"
        raise InputError(f"{' '.join(options.names)}: there is no such form; {other}")
    if form != "quick":
        print(wrapped(_plan(found, form)), flush=True)
    rows, missing = [], False
    for one in found:
        try:
            claims = _reproduce(one, form, options.out, options.processes, options.fresh)
        except InputError as error:  # its data is not there: the others need not wait for it
            if len(found) == 1:
                raise
            claims, missing = [("–", f"not run: {error}")], True
        rows += [(one.name, claim, outcome) for claim, outcome in claims]
    if len(found) > 1:
        print("\n" + table(("experiment", "claim", "outcome"), rows, left=3, width=terminal_width()))
    return int(missing)


def _listed() -> str:
    rows = [(one.name or "–", f"{one.paper}, {one.artifact}", one.what, one.state) for one in artifacts()]
    return table(("name", "of", "shows", "state"), rows, left=4, width=terminal_width())


def _plan(found: list[Artifact], form: str) -> str:
    minutes = sum(one.minutes[form] for one in found)
    number = "one experiment" if len(found) == 1 else f"{len(found)} experiments"
    return f"{number}, about {duration(60 * minutes)} on two cores if nothing is done yet"


def _reproduce(one: Artifact, form: str, out: Path, processes: int, fresh: bool) -> list[tuple[str, str]]:
    """Runs it and says what came of it: its claims and their outcomes."""
    experiment = one.load()
    from lra_ssm.experiments.run import reproduce

    folder = out / (one.name if form == "default" else f"{one.name}-{form}")
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n" + wrapped(f"{one.name}: {one.paper}, {one.artifact}, {one.what}"), flush=True)
    result = reproduce(experiment, form, folder, processes)  # type: ignore[arg-type]
    for claim in experiment.claims:
        outcome, numbers = result.judgements[claim.name]
        print(wrapped(f"  {outcome}: {claim.statement} [{numbers}; {claim.rule}]", indent=4))
    print(
        wrapped(f"  {folder}/figure.png, results.csv, claims.json; {duration(result.seconds)} of computing"), flush=True
    )
    return [(claim.name, result.judgements[claim.name].outcome) for claim in experiment.claims]
