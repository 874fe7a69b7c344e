"""`lra-ssm status SWEEP`: where each run of a sweep stands."""

import json
import re
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress

from lra_ssm.cli.output import PlainParser
from lra_ssm.cluster.folder import SweepFolder
from lra_ssm.cluster.slurm import queue_of
from lra_ssm.cluster.status import STATES, RunState, states
from lra_ssm.cluster.table import redrawn, status_table
from lra_ssm.errors import InputError, hint
from lra_ssm.tables import terminal_width

_EVERY = 5.0  # seconds between two drawings

DESCRIPTION = """\
Shows every run of a sweep: waiting, running (or starting, validating, testing), done (trained and tested), failed with
its reason, stopped by a signal with its step saved, or lost: its process ended and left no reason. It reads the runs'
folders and logs, and asks squeue where there is one; it needs no scheduler. A narrow terminal gets fewer columns.
"""

EXAMPLE = """\
examples:
  lra-ssm status lra
  lra-ssm status lra --watch
  lra-ssm status runs/sweeps/lra-0a1b2c3d --state failed,lost
  lra-ssm status lra --json | jq '.[] | select(.state == "failed") | .index'
"""


def main(command: str, arguments: list[str]) -> int:
    given = _parser().parse_args(_with_value(arguments))
    chosen: Collection[str] = STATES if given.state is None else given.state.split(",")
    for state in chosen:
        if state not in STATES:
            raise InputError(f"--state: there is no state {state!r}; {hint(state, STATES)}")
    if given.watch is not None and (given.json or not given.watch >= 0.2):
        raise InputError("--watch draws a table every so many seconds, 0.2 or more; --json prints once")
    folder = SweepFolder.find(given.sweep)

    def show(found: Sequence[RunState], every: Sequence[RunState], note: str) -> None:
        if given.json:
            own = {run.index: {"changes": run.changes, "options": run.options} for run in folder.runs}
            print(json.dumps([{**run.as_json(), **own[run.index]} for run in found], indent=1))
        else:
            print(status_table(folder, found, every, terminal_width()), flush=True)
        if note:
            print(note, file=sys.stderr)

    in_place = given.watch is not None and terminal_width() is not None
    with redrawn(folder) if in_place else nullcontext(show) as draw, suppress(*[KeyboardInterrupt] * in_place):
        while True:
            queue = queue_of(folder)
            every = states(folder, queue)
            note = f"{queue.note}; the table is without it" if queue.note else ""
            draw([run for run in every if run.state in chosen], every, note)
            if given.watch is None or all(run.ended for run in every):
                break
            time.sleep(given.watch)
    return 0


def _parser() -> PlainParser:
    parser = PlainParser("lra-ssm status", DESCRIPTION, EXAMPLE)
    parser.add_argument("sweep", metavar="SWEEP", help="a sweep file, or the folder of a sweep")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help=f"draw again until all ended; default: {_EVERY}")
    parser.add_argument("--state", metavar="STATES", help=f"show these alone: {','.join(STATES)}")
    parser.add_argument("--json", action="store_true", help="print records, for scripts")
    return parser


def _with_value(arguments: list[str]) -> list[str]:
    """`--watch` may stand alone, before the sweep too, which argparse would take for its seconds."""
    number = re.compile(r"[\d.]+")
    following = [*arguments, ""][1:]
    return [
        f"--watch={_EVERY}" if one == "--watch" and not number.fullmatch(after) else one
        for one, after in zip(arguments, following, strict=True)
    ]
