"""`lra-ssm doctor`: what a bug report needs, and what is wrong here, the last with what would be right."""

import os
import sys
from pathlib import Path
from typing import Any

from lra_ssm.bars import with_bar
from lra_ssm.cli.doctor_checks import Finding, cache, command, gpus, hub, requirements, slurm, space, wandb
from lra_ssm.cli.output import PlainParser
from lra_ssm.cli.summary import open_all, summary_tables
from lra_ssm.datamodules.storage import resolve_root, verify
from lra_ssm.errors import InputError, squeeze
from lra_ssm.runs.provenance import environment
from lra_ssm.tables import terminal_width, wrapped

DESCRIPTION = """\
Shows what a bug report needs: versions, hardware, commands, free space, Slurm, the Hub, wandb, prepared data; and runs
every operator by every backend. What is wrong comes last; the exit code is 1 then. No token is shown."""

EXAMPLE = """\
examples:
  lra-ssm doctor
  lra-ssm doctor --root=/data/lra --verify
  lra-ssm doctor > report.txt
"""
_INDENT = 11


def main(command_: str, arguments: list[str]) -> int:
    parser = PlainParser("lra-ssm doctor", DESCRIPTION, EXAMPLE)
    parser.add_argument("--root", metavar="FOLDER", help="data root; default: LRA_SSM_DATA, else ./data")
    parser.add_argument("--verify", action="store_true", help="read all prepared data and compare its digests")
    options = parser.parse_args(arguments)
    root = resolve_root(options.root)
    findings = _show_installation(root)
    findings += [_show_operators(device) for device in _devices()]
    damaged = _show_prepared(root, options.verify)
    wrong = [said for found in findings for said in found.wrong] + [f"DAMAGED: {what}" for what in damaged]
    notes = [said for found in findings for said in found.notes]
    for title, lines in (("to know:", notes), ("WRONG:", wrong)):
        if lines:
            print(f"\n{title}")
            for line in lines:
                print(wrapped("  " + squeeze(line), 4))
    if not wrong:
        print("\nnothing is wrong")
    return 1 if wrong else 0


def _shown(name: str, finding: Finding) -> Finding:
    """Prints it, and gives it back."""
    print(wrapped(squeeze(f"{name:<{_INDENT}}{finding.text}"), _INDENT), flush=True)
    return finding


def _show_installation(root: Path) -> list[Finding]:
    import lra_ssm
    from lra_ssm.ops.backends.native_build import cache_folders

    here = environment()
    hardware = here["hardware"]
    versions = [f"{name} {version}" for name, version in here["versions"].items() if version]
    _shown("versions", Finding(", ".join(versions)))
    _shown("installed", Finding(f"{Path(lra_ssm.__file__).parent}, for {sys.executable}"))
    _shown("hardware", Finding(f"{hardware['machine']}, {hardware['cpu']}, {hardware['cpus']} cores"))
    rows = {
        "GPUs": gpus(),
        "lightning": command("lightning"),
        "lra-ssm": command("lra-ssm"),
        "data root": space("the data root", root),
        "runs": space("the folder of runs", Path("runs").absolute()),
        "cache": cache(cache_folders()),
        "slurm": slurm(),
        "wandb": wandb(),
        "hub": hub(),
    }
    return [requirements(), *(_shown(name, finding) for name, finding in rows.items())]


# --- operators ---


def _devices() -> list[str]:
    import torch

    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def _show_operators(device: str) -> Finding:
    """Runs every operator by every backend that it has on the device."""
    import torch

    from lra_ssm.cli.doctor_operators import MOST, TINY, check_operators
    from lra_ssm.ops.backends.native_build import unavailable

    found, quick = Finding(""), set[str]()
    if device == "cpu" and (reason := unavailable()):  # builds them, with a line, where they are not there yet
        repair = "unset it" if os.environ.get("LRA_SSM_NATIVE") == "0" else "install g++, or set CXX"
        found.notes.append(f"{reason}: training on a CPU is an order of magnitude slower; {repair}")
    print(f"\noperators on {device}, float32, forward and backward of {TINY}")

    def begun(operator: str, backend: str) -> None:
        print(f"  {operator:<23}{backend:<11}", end="", flush=True)

    for check in check_operators(torch.device(device), begun=begun):
        name = f"{check.operator} by {check.backend} on {device}"
        if check.refused is not None:
            print(wrapped(f"  {check.operator:<23}{check.backend:<11}does not: {squeeze(check.refused)}", 36))
        elif check.failure is not None:
            print(squeeze(f"fails: {check.failure}"))
            found.wrong.append(f"{name} fails ({check.failure}): choose another with backend=, and please report it")
        elif check.is_wrong:
            print(f"WRONG, off by {check.error:.1e}")
            said = f"{name} is off by {check.error:.1e} of the largest value, more than {MOST:g}"
            found.wrong.append(f"{said}: do not train with it, and please report it")
        else:
            print(f"runs, {check.tokens_per_s:>11,.0f} tokens/s, off by {check.error:.0e}")
            quick.add(check.backend)
    if device == "cuda" and not quick & {"triton", "mamba_ssm"}:
        found.wrong.append("no fast scan runs on the GPU: pip install triton")
    return found


# --- data ---


def _show_prepared(root: Path, compare: bool) -> list[str]:
    """Returns what of it is damaged."""
    opened, damaged = open_all(root)
    print(f"\nprepared data below {squeeze(str(root))}" + ("" if opened or damaged else ": none"))
    for prepared in opened:
        print("  " + squeeze(f"{prepared.folder.parent.name}/{prepared.folder.name}"))
        for key, value in prepared.manifest["source"].items():  # where it came from
            print(wrapped("    " + squeeze(f"{key}: {_short(value)}"), 6))
    for shown in summary_tables(opened, terminal_width()):
        print("\n" + shown)
    for prepared in with_bar(opened, "comparing digests", len(opened)) if compare else ():
        try:
            verify(prepared)
        except InputError as error:
            damaged.append(str(error))
    if compare and not damaged:
        print(f"\nall digests of {len(opened)} prepared folders are as recorded")
    elif opened:
        print("\nits digests are not compared: --verify does")
    return damaged


def _short(value: Any) -> str:
    """A value of a manifest on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(part)}" for key, part in value.items())
    if isinstance(value, list):
        return " ".join(map(_short, value))
    return str(value)
