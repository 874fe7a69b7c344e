"""Code that all scripts of this folder share: options, the comparison of contenders, the table and the JSON."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from lra_ssm.runs.provenance import environment
from lra_ssm.tables import table, terminal_width
from measure import (
    BOTH,
    FAILURES,
    FORWARD,
    Call,
    Effort,
    Prepared,
    Timing,
    errors_against,
    interleave,
    peak_memory,
    reason,
)

LEGEND = """\
ratio: a contender's time over that of the base, taken in turn; the median over rounds
(…): interquartile range as a share of the median
MB: peak memory beyond the inputs
error, gradient's: largest relative error of the result, and of the worst gradient, against a float64 run
"""


def start(main: Callable[[], None]) -> None:
    """Run a script so that its threads sleep while they wait, as in the package's commands.

    torch reads this when it is loaded, so the script starts again.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(os.environ):
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    main()


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def words(text: str) -> list[str]:
    return text.split(",")


def lengths(text: str) -> list[int]:
    return [positive(part) for part in words(text)]


def options(description: str, example: str) -> argparse.ArgumentParser:
    """Return a parser with the options of all scripts. description: its first line is shown."""
    first = description.split("\n")[0]
    parser = argparse.ArgumentParser(description=first, epilog=f"example:  {example}", allow_abbrev=False)
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), help="default: cuda if torch sees a GPU, else cpu")
    add("--repeats", type=positive, default=15, metavar="N", help="samples of each contender")
    add("--budget", type=positive, default=10, metavar="SECONDS",
        help="time for one contender at one size; slow ones get fewer samples; default: 10")  # fmt: skip
    add("--threads", type=positive, metavar="N", help="CPU threads; default: torch's")
    add("--quick", action="store_true", help="use tiny sizes, to check in seconds that everything runs")
    add("--times", action="store_true", help="measure only times, not memory or errors")
    add("--out", type=Path, default=Path("bench-results"), metavar="FOLDER",
        help="folder for NAME.json; default: bench-results")  # fmt: skip
    return parser


def device_of(given: argparse.Namespace) -> torch.device:
    device = given.device
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: --device cuda: torch sees no GPU here")
    return torch.device(device)


class Contender(NamedTuple):
    """What is measured.

    truth: the same computation in float64. Contenders that share one object share its result.
    """

    name: str
    build: Callable[[], Prepared]
    truth: Callable[[], Prepared] | None = None


@dataclass
class Row:
    """A contender in one mode. `ratio`: median and spread of its time over that of `base`, round by round."""

    comparison: str
    contender: str
    mode: str
    shape: dict[str, int]
    ms: float | None = None
    spread: float | None = None
    samples_ms: dict[int, float] = field(default_factory=dict)
    base: str | None = None
    ratio: tuple[float, float] | None = None
    megabytes: float | None = None
    error: float | None = None
    gradient_error: float | None = None
    note: str | None = None
    extra: dict[str, float | str] = field(default_factory=dict)

    def set_timing(self, timing: Timing, base: str, base_timing: Timing) -> None:
        self.base = base
        self.ratio = timing.over(base_timing)
        self.ms = 1e3 * timing.median
        self.spread = timing.spread
        self.samples_ms = {i: 1e3 * seconds for i, seconds in timing.seconds.items()}

    def cells(self) -> dict[str, str]:
        """Return the cells of the table by column."""
        cells = {"contender": self.contender, "mode": self.mode}
        if self.ratio is not None:
            cells["ratio"] = "{:.2f}x ({:.0%})".format(*self.ratio)
        if self.ms is not None:
            cells["ms"] = f"{self.ms:.2f} ({self.spread:.0%})"
            cells["samples"] = str(len(self.samples_ms))
        if self.megabytes is not None:
            cells["MB"] = f"{self.megabytes:.1f}"
        if self.error is not None:
            cells["error"] = f"{self.error:.1e}"
        if self.gradient_error is not None:
            cells["gradient's"] = f"{self.gradient_error:.1e}"
        for name, value in self.extra.items():
            cells[name] = value if isinstance(value, str) else f"{value:,.4g}"
        return cells


class Bench:
    """One script's run: its options, what it has measured so far, and where that is written."""

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        self.name = name
        self.given = given
        self.rows: list[Row] = []
        self.more: dict[str, Any] = {}  # what else the JSON has
        self.device = device_of(given)
        self.is_gpu = self.device.type == "cuda"
        if given.threads:
            torch.set_num_threads(given.threads)
        self.threads = torch.get_num_threads()
        self.effort = Effort(given.repeats, given.budget)
        if given.quick:
            self.effort = Effort(min(given.repeats, 3), budget=0.2, least=1, sample=0.0)
        given.out.mkdir(parents=True, exist_ok=True)
        self.file = given.out / f"{name}.json"
        self.machine = self._machine()
        print(self.hardware, LEGEND, sep="\n")

    def _machine(self) -> dict[str, Any]:
        """Return hardware, versions and the machine's load, without the host's name and paths."""
        machine = environment()
        machine["hardware"].pop("host")
        machine["command"] = ["python", f"benchmarks/{self.name}.py", *machine["command"][1:]]
        machine["device"] = str(self.device)
        machine["threads"] = self.threads
        machine["load before"] = os.getloadavg()[0]
        return machine

    @property
    def hardware(self) -> str:
        hardware, versions = self.machine["hardware"], self.machine["versions"]
        cpu = hardware["cpu"] or hardware["machine"]
        package = versions["lra_ssm"].split("+")[0]
        gpu = f"{hardware['gpus'][0]} · " if self.is_gpu else ""
        cores = f"{hardware['cpus']} cores, threads used: {self.threads}"
        return f"{gpu}{cpu}, {cores} · torch {versions['torch']} · lra_ssm {package}"

    def say(self, text: str) -> None:
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def compare(
        self,
        comparison: str,
        shape: Mapping[str, int],
        contenders: Sequence[Contender],
        base: str | None = None,
        modes: Sequence[str] = (FORWARD, BOTH),
    ) -> list[Row]:
        """Measure memory, then errors, then times. The row of a contender that cannot run has the reason.

        base: the contender whose time is the base of ratios; by default the first one that runs.
        """
        rows = {mode: {c.name: Row(comparison, c.name, mode, dict(shape)) for c in contenders} for mode in modes}
        prepared: dict[str, Prepared] = {}
        truths: dict[Any, dict[str, Tensor]] = {}
        for name, build, truth in contenders:
            contender_rows = [rows[mode][name] for mode in modes]
            try:
                prepared[name] = build()
                if not self.given.times:
                    self.say(f"{comparison}: memory and errors of {name}")
                    for row in contender_rows:
                        row.megabytes = peak_memory(prepared[name].calls[row.mode], self.device)
            except FAILURES as error:
                prepared.pop(name, None)
                for row in contender_rows:
                    row.note = reason(error)
                continue
            if truth is not None and not self.given.times:
                self._set_errors(contender_rows, prepared[name], truth, truths)
        truths.clear()
        for mode in modes:
            calls = {name: each.calls[mode] for name, each in prepared.items()}
            self._time(rows[mode], calls, base)
        return self.keep([rows[mode][c.name] for c in contenders for mode in modes])

    def _set_errors(
        self, rows: list[Row], prepared: Prepared, truth: Callable[[], Prepared], truths: dict[Any, dict[str, Tensor]]
    ) -> None:
        try:
            if truth not in truths:
                truths.clear()  # keep only one: it may be large
                truths[truth] = truth().results()
            value, gradient = errors_against(prepared.results(), truths[truth])
        except FAILURES as error:  # the float64 run needs more memory than the timed calls
            rows[0].note = f"errors not measured: {reason(error)}"
            return
        for row in rows:
            row.error, row.gradient_error = value, gradient

    def times(
        self,
        comparison: str,
        mode: str,
        shape: Mapping[str, int],
        calls: Mapping[str, Call],
        base: str | None = None,
    ) -> list[Row]:
        """Measure only times."""
        rows = {name: Row(comparison, name, mode, dict(shape)) for name in calls}
        self._time(rows, calls, base)
        return list(rows.values())

    def _time(self, rows: Mapping[str, Row], calls: Mapping[str, Call], base: str | None) -> None:
        if not calls:
            return
        names = list(calls)
        first = rows[names[0]]
        self.say(f"{first.comparison}: {first.mode}")
        try:
            timings = interleave(calls, self.effort)
        except FAILURES as error:  # together they may need more memory than one at a time
            for name in names:
                rows[name].note = reason(error)
            return
        if base not in calls:
            base = names[0]
        for name, timing in timings.items():
            rows[name].set_timing(timing, base, timings[base])

    # -- what came out ---------------------------------------------------------------------------------------------

    def keep(self, rows: list[Row]) -> list[Row]:
        """Print the table of a comparison, and write what has been measured so far: the script may be stopped later."""
        self.rows += rows
        size = ", ".join(f"{name} {value:,}" for name, value in rows[0].shape.items())
        title = f"{rows[0].comparison} ({size})"
        base = next((row.base for row in rows if row.base), None)
        if base is not None:
            title += f"; ratios to {base}"
        notes = dict.fromkeys(f"{row.contender}: {row.note}" for row in rows if row.note)
        self.table(title, [row.cells() for row in rows], 2, notes)
        self.write()
        return rows

    def table(self, title: str, lines: Sequence[Mapping[str, str]], left: int = 1, notes: Iterable[str] = ()) -> None:
        """Print a table. lines: cells by column. left: number of columns aligned to the left."""
        frame = pd.DataFrame(lines).fillna("")
        text = table(list(frame), frame.to_numpy().tolist(), left, terminal_width())
        print(title, text, *notes, "", sep="\n", flush=True)

    def parts(self, title: str, parts: Mapping[str, float]) -> None:
        """Print a table of the parts of a step with their times in ms."""
        total = sum(parts.values())
        lines = [{"part": part, "share": f"{ms / total:.1%}", "ms": f"{ms:.1f}"} for part, ms in parts.items()]
        self.table(title, lines)

    def write(self) -> None:
        header = {"script": f"benchmarks/{self.name}.py", "machine": self.machine, "load after": os.getloadavg()[0]}
        rows = [asdict(row) for row in self.rows]
        partial = self.file.with_suffix(".json.part")
        partial.write_text(json.dumps(header | self.more | {"rows": rows}, indent=1) + "\n")
        partial.replace(self.file)

    def finish(self) -> None:
        self.write()
        print(self.file)
