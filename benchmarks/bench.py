"""What every script of this folder shares: its options, the comparison of contenders, the table, JSON and picture."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

# As the package's commands have it: threads that wait for each other sleep. Read when torch is loaded.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(os.environ):
    os.environ["OMP_WAIT_POLICY"] = "passive"

import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from torch import Tensor  # noqa: E402

from lra_ssm.ops import scan_backends  # noqa: E402
from lra_ssm.runs.provenance import environment  # noqa: E402
from measure import (  # noqa: E402  # noqa: E402
    BOTH,
    FAILURES,
    FORWARD,
    Call,
    Effort,
    Prepared,
    Timing,
    errors_against,
    interleave,
    median_and_spread,
    peak_memory,
    reason,
)

LEGEND = (
    "ratio: median over rounds of a contender's time over that of the base, taken in turn. (…): interquartile range as"
    " a share of the median. MB: peak memory beyond the inputs. error, gradient's: largest relative error of the"
    " result, and of the worst gradient, against a float64 run."
)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def words(text: str) -> list[str]:
    return text.split(",")


def lengths(text: str) -> list[int]:
    return [positive(part) for part in words(text)]


def options(description: str, example: str) -> argparse.ArgumentParser:
    """The options of all scripts; each adds its own."""
    parser = argparse.ArgumentParser(description=description, epilog=f"example:  {example}", allow_abbrev=False)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument("--repeats", type=positive, default=15, metavar="N", help="samples of each contender")
    parser.add_argument("--budget", type=positive, default=10, metavar="SECONDS",
                        help="of one contender at one size; slow ones get fewer samples; default: 10")  # fmt: skip
    parser.add_argument("--threads", type=positive, metavar="N", help="of the CPU; default: torch's")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether everything runs, in seconds")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), metavar="FOLDER",
                        help="where NAME.json and NAME.png go; default: bench-results")  # fmt: skip
    return parser


def device_of(given: argparse.Namespace) -> torch.device:
    device = torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("error: --device cuda: torch sees no GPU here")
    return device


class Contender(NamedTuple):
    """build and truth can be pickled, for a process of their own.

    truth: the same in float64; one object for all contenders that share it, so that it is computed once.
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
        self.ms, self.base, self.ratio = 1e3 * timing.median, base, timing.over(base_timing)
        self.spread = median_and_spread(list(timing.seconds.values()))[1]
        self.samples_ms = {number: 1e3 * seconds for number, seconds in timing.seconds.items()}


class Bench:
    """One script's run: its options, what it has measured so far, and where that is written."""

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        self.name, self.given, self.rows = name, given, list[Row]()
        self.device = device_of(given)
        if given.threads:
            torch.set_num_threads(given.threads)
        self.threads = torch.get_num_threads()
        self.effort = Effort(min(given.repeats, 3), 0.2, 1, 0.0) if given.quick else Effort(given.repeats, given.budget)
        try:
            given.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            sys.exit(f"error: --out {given.out} cannot be made: {error.strerror}")
        self.machine = self._machine()
        self.console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 180, highlight=False)
        self.console.print(f"{self.hardware}\n{LEGEND}\n")

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def _machine(self) -> dict[str, Any]:
        """Hardware and versions, without the host's name and paths, and what else ran."""
        found = environment()
        found["hardware"].pop("host")
        command = ["python", f"benchmarks/{self.name}.py", *found["command"][1:]]
        load = os.getloadavg()[0]
        return {**found, "command": command, "device": str(self.device), "threads": self.threads, "load before": load}

    @property
    def hardware(self) -> str:
        hardware, versions = self.machine["hardware"], self.machine["versions"]
        gpu = f"{hardware['gpus'][0]} · " if self.is_gpu else ""
        cpu = f"{hardware['cpu'] or hardware['machine']}, {hardware['cpus']} cores, threads used: {self.threads}"
        return f"{gpu}{cpu} · torch {versions['torch']} · lra_ssm {versions['lra_ssm'].split('+')[0]}"

    def say(self, text: str) -> None:
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def backends(self, wanted: list[str] | None = None) -> list[str]:
        """Of the selective scan, the fastest first: those asked for, else all that run here but the reference."""
        reasons = scan_backends(self.device)
        for name in wanted or ():
            why = reasons.get(name, f"no such backend; there are {', '.join(reasons)}")
            if why is not None:
                sys.exit(f"error: --backends: {name}: {why}")
        slow = {"reference", *(["triton"] if not self.is_gpu else [])}  # on a CPU Triton's interpreter is for tests
        return wanted or [name for name, why in reasons.items() if why is None and name not in slow]

    def compare(
        self, comparison: str, shape: Mapping[str, int], contenders: Sequence[Contender], base: str | None = None,
        modes: Sequence[str] = (FORWARD, BOTH),
    ) -> list[Row]:  # fmt: skip
        """Memory, then errors, then times; a contender that cannot run stays in the rows with the reason.

        base: what times are ratios to; the first contender that runs if not given.
        """
        rows = {(c.name, mode): Row(comparison, c.name, mode, dict(shape)) for c in contenders for mode in modes}
        prepared, truths = dict[str, Prepared](), dict[int, dict[str, Tensor]]()
        for contender in contenders:
            own = [rows[contender.name, mode] for mode in modes]
            self.say(f"{comparison}: memory and errors of {contender.name}")
            try:
                for mode, megabytes in peak_memory(contender.build, list(modes), self.device).items():
                    rows[contender.name, mode].megabytes = megabytes
                prepared[contender.name] = contender.build()
            except FAILURES as error:
                for row in own:
                    row.note = reason(error)
                continue
            if contender.truth is not None:
                self._set_errors(own, prepared[contender.name], contender.truth, truths)
        truths.clear()
        for mode in modes:
            calls = {name: each.calls[mode] for name, each in prepared.items()}
            self._time({name: rows[name, mode] for name in calls}, calls, base)
        return self.keep(list(rows.values()))

    def _set_errors(
        self, rows: list[Row], prepared: Prepared, truth: Callable[[], Prepared], truths: dict[int, dict[str, Tensor]]
    ) -> None:
        try:
            if id(truth) not in truths:
                truths.clear()  # one is held at a time: it may be large
                truths[id(truth)] = truth().results()
            value, gradient = errors_against(prepared.results(), truths[id(truth)])
        except FAILURES as error:  # it takes more memory than what is timed
            value, gradient = None, None
            rows[0].note = f"errors not measured: {reason(error)}"
        for row in rows:
            row.error, row.gradient_error = value, gradient

    def times(
        self, comparison: str, mode: str, shape: Mapping[str, int], calls: Mapping[str, Call], base: str | None = None,
        missing: Mapping[str, str] | None = None, effort: Effort | None = None,
    ) -> list[Row]:  # fmt: skip
        """Times alone. missing: contenders that are not measured, and why."""
        rows = {name: Row(comparison, name, mode, dict(shape)) for name in calls}
        self._time(rows, calls, base, effort)
        notes = [Row(comparison, name, mode, dict(shape), note=why) for name, why in (missing or {}).items()]
        return [*rows.values(), *notes]

    def _time(
        self, rows: Mapping[str, Row], calls: Mapping[str, Call], base: str | None, effort: Effort | None = None
    ) -> None:
        if not calls:
            return
        first = next(iter(rows.values()))
        self.say(f"{first.comparison}: {first.mode}")
        to = base if base in calls else next(iter(calls))
        try:
            timings = interleave(calls, effort or self.effort)
        except FAILURES as error:  # beside each other they may need more memory than each alone
            for row in rows.values():
                row.note = reason(error)
            return
        for name, timing in timings.items():
            rows[name].set_timing(timing, to, timings[to])

    def least_effort(self) -> Effort:
        """What takes longer than the budget is called twice and not more."""
        return replace(self.effort, least=1)

    # -- what came out ---------------------------------------------------------------------------------------------

    def keep(self, rows: list[Row]) -> list[Row]:
        """Prints a comparison's table, and writes what has been measured so far: the rest may never come."""
        self.rows += rows
        first = rows[0]
        base = next((row.base for row in rows if row.base), "")
        size = ", ".join(f"{name} {value:,}" for name, value in first.shape.items())
        columns = ["contender", "mode", "ratio", "ms", "samples", "MB", "error", "gradient's", "notes"]
        title = f"{first.comparison} ({size})" + (f"; ratios to {base}" if base else "")
        self.table(title, columns, [_cells(row) for row in rows])
        self.write({})
        return rows

    def table(self, title: str, columns: Sequence[str], lines: Sequence[Sequence[str]], left: int = 2) -> None:
        """Without the columns that are empty."""
        table = Table(box=None, pad_edge=False)
        used = [i for i in range(len(columns)) if any(line[i] for line in lines)]
        for i in used:
            table.add_column(
                columns[i], justify="left" if i < left or columns[i] == "notes" else "right", overflow="fold"
            )
        for line in lines:
            table.add_row(*(line[i] for i in used))
        with self.console.capture() as text:
            self.console.print(title, table, sep="\n")
        print(*(line.rstrip() for line in text.get().splitlines()), "", sep="\n", flush=True)

    def write(self, more: Mapping[str, Any]) -> None:
        found = {"script": f"benchmarks/{self.name}.py", "machine": self.machine, "load after": os.getloadavg()[0]}
        file = self.given.out / f"{self.name}.json"
        beside = file.with_suffix(".json.part")
        beside.write_text(json.dumps({**found, **more, "rows": [asdict(row) for row in self.rows]}, indent=1) + "\n")
        beside.replace(file)

    def finish(self, figure: Any, more: Mapping[str, Any] | None = None) -> None:
        """more: what JSON has beside the rows."""
        self.write(more or {})
        figure.savefig(self.given.out / f"{self.name}.png", dpi=130)
        self.console.print(f"{self.given.out / self.name}.json, {self.given.out / self.name}.png")


def _cells(row: Row) -> list[str]:
    def shown(name: str, value: float | str) -> str:
        return f"{name} {value if isinstance(value, str) else f'{value:,.4g}'}"

    return [
        row.contender,
        row.mode,
        f"{row.ratio[0]:.2f}x ({row.ratio[1]:.0%})" if row.ratio else "",
        f"{row.ms:.2f} ({row.spread:.0%})" if row.ms is not None else "",
        str(len(row.samples_ms) or ""),
        f"{row.megabytes:.1f}" if row.megabytes is not None else "",
        f"{row.error:.1e}" if row.error is not None else "",
        f"{row.gradient_error:.1e}" if row.gradient_error is not None else "",
        "; ".join(filter(None, [row.note, *(shown(name, value) for name, value in row.extra.items())])),
    ]
