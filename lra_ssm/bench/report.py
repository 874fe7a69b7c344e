"""What came out, as text and as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from lra_ssm.bench.compare import Row, Settings
from lra_ssm.errors import InputError
from lra_ssm.runs.provenance import environment
from lra_ssm.tables import table, terminal_width, wrapped


def describe_machine(settings: Settings) -> dict[str, Any]:
    """Hardware and versions, without the name of the host, and what of it was used."""
    found = environment()
    found["hardware"].pop("host")
    # the first entry is the path of a script, which says where a user keeps things and nothing else
    found["command"] = ["lra-ssm", *found["command"][1:]]
    return {**found, "device": str(settings.device), "threads": settings.threads, "backends": settings.backends}


def hardware_line(machine: dict[str, Any]) -> str:
    hardware, versions = machine["hardware"], machine["versions"]
    gpu = f"{hardware['gpus'][0]} · " if machine["device"].startswith("cuda") else ""
    cores = f"{hardware['cpus']} cores, threads used: {machine['threads']}"
    return f"{gpu}{hardware['cpu'] or hardware['machine']}, {cores} · torch {versions['torch']} · {_package(versions)}"


def _package(versions: dict[str, Any]) -> str:
    return f"lra_ssm {versions['lra_ssm'].split('+')[0]}"


def rows_text(rows: Sequence[Row]) -> str:
    """One table per comparison and shape: ratios first, then times, memory, errors."""
    blocks = []
    for comparison, shape in dict.fromkeys((row.comparison, json.dumps(row.shape)) for row in rows):
        own = [row for row in rows if row.comparison == comparison and json.dumps(row.shape) == shape]
        base = next((row.base for row in own if row.base), None)
        letters = {"batch": "batch", "channels": "D", "states": "N", "length": "L"}
        words = ", ".join(f"{letters.get(name, name)} {value}" for name, value in own[0].shape.items())
        truths = ", ".join(dict.fromkeys(row.errors.truth for row in own if row.errors))
        lines = [
            (
                row.contender,
                row.mode,
                f"{row.ratio[0]:.2f}x ({row.ratio[1]:.0%})" if row.ratio else "",
                f"{row.ms:.2f} ({row.timing.spread:.0%})" if row.timing else "",
                str(len(row.timing.seconds)) if row.timing else "",
                f"{row.memory.megabytes:.1f}" if row.memory else "",
                f"{row.errors.value:.1e}" if row.errors else "",
                f"{row.errors.worst_gradient:.1e}" if row.errors and row.errors.worst_gradient is not None else "",
                "; ".join(filter(None, [row.note, *(_shown(k, v) for k, v in row.extra.items())])),
            )
            for row in own
        ]
        columns = ("contender", "mode", f"time / {base}", "ms", "samples", "MB", "error", "gradient's")
        title = f"{comparison} ({words})" + (f"; errors against: {truths}" if truths else "")
        if any(line[-1] for line in lines):
            body = table((*columns, "notes"), lines, 2, terminal_width())
        else:
            body = table(columns, [line[:-1] for line in lines], 2, terminal_width())
        blocks.append(f"{wrapped(title)}\n{body}")
    return "\n\n".join(blocks)


def _shown(name: str, value: Any) -> str:
    number = f"{value:.0%}" if name.startswith("share") else f"{value:,.4g}" if isinstance(value, float) else value
    return f"{name} {number}"


LEGEND = (
    "ratio: median over rounds of a contender's time over that of the base, taken in turn. (…): interquartile range as"
    " a share of the median. MB: peak memory beyond the inputs. error, gradient's: largest relative error of the"
    " result, and of the worst gradient, against the truth named above each table."
)


def plain(value: Any) -> Any:
    """Results as JSON takes them."""
    if isinstance(value, Row):
        return plain(value.as_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def check_folder(folder: Path) -> None:
    """Makes the folder, before anything is measured. Raises InputError where that cannot be or it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"--out {folder} cannot be written")


def suite_text(suite: str, result: dict[str, Any]) -> str:
    """Everything a suite found: its rows, its smaller tables."""
    blocks = [f"== {suite} ==", rows_text(result["rows"])]
    if fits := result.get("slopes"):
        lines = [
            (name, *(f"{fit[k]:.2f}" if k in fit else "" for k in ("time", "memory"))) for name, fit in fits.items()
        ]
        blocks.append(f"log-log slope from L = 4096 on; 1 is linear\n{table(('', 'time', 'memory'), lines)}")
    if ceilings := result.get("ceilings"):
        lines = [(name, _rate(rate)) for name, rate in ceilings.items()]
        blocks.append(f"ceilings of the device, measured\n{table(('', 'rate'), lines)}")
    if shares := result.get("shares of ceilings"):
        blocks.append(f"reached, and share of the ceiling\n{_shares_text(shares)}")
    for name, parts in (result.get("profiles") or {}).items():
        lines = [(part, f"{spent['share']:.1%}", f"{spent['ms']:.1f}") for part, spent in parts.items()]
        blocks.append(f"one step of {name}, by part\n{table(('part', 'share', 'ms'), lines)}")
    if loads := result.get("shares of steps"):
        lines = [
            (f"{x['config']}, {x['loader']}", f"{x['samples/s of the step']:.2f}", f"{x['share']:.3%}") for x in loads
        ]
        blocks.append(f"loading, as a share of a training step\n{table(('', 'samples/s of the step', 'share'), lines)}")
    waiting = result.get(WAITING)
    if any(x[name]["share"] > 1 for x in shares or () for name in x if isinstance(x[name], dict)):
        why = "torch's own copy and exponential, which the ceilings are measured with, are slower than the kernels'"
        busy = "the machine was busy when the ceilings were measured, or " if waiting is None or waiting > BUSY else ""
        blocks.append(f"shares above 100%: {busy}{why}")
    if waiting is not None and waiting > BUSY:
        blocks.append(
            f"the machine was busy: {waiting:.0%} of the time that this process wanted a core, others had it; rates and"
            " ceilings are lower than on an idle machine, ratios scatter"
        )
    return "\n\n".join(blocks)


WAITING, BUSY = "share of the time without a core", 0.05


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _shares_text(shares: Sequence[dict[str, Any]]) -> str:
    rates = [name for name, value in shares[0].items() if isinstance(value, dict)]
    lines = [
        (
            f"{x['contender']} ({x['comparison']}), L = {x['length']}, {x['mode']}",
            *(f"{_rate(x[name]['reached'])} ({x[name]['share']:.0%})" for name in rates),
        )
        for x in shares
    ]
    return table(("", *rates), lines, width=terminal_width())
