"""`lra-ssm doctor`: what this installation has and can do, and what data is prepared."""

from typing import Any

from rich.console import Console
from rich.progress import Progress

from lra_ssm.cli.output import PlainParser
from lra_ssm.cli.summary import open_all, summary_tables
from lra_ssm.datamodules.storage.format import PreparedDataset, open_prepared
from lra_ssm.datamodules.storage.root import resolve_root
from lra_ssm.errors import InputError, squeeze
from lra_ssm.runs.provenance import environment
from lra_ssm.tables import terminal_width, wrapped

EXAMPLE = """\
examples:
  lra-ssm doctor
  lra-ssm doctor --root=/data/lra --verify
"""


def main(command: str, arguments: list[str]) -> int:
    parser = PlainParser("lra-ssm doctor", "Shows versions, hardware, backends and prepared data.", EXAMPLE)
    parser.add_argument("--root", metavar="FOLDER", help="data root; default: LRA_SSM_DATA, else ./data")
    parser.add_argument("--verify", action="store_true", help="read all prepared data and compare its digests")
    options = parser.parse_args(arguments)
    _show_installation()
    root = resolve_root(options.root)
    opened, damaged = open_all(root)
    print(f"\nprepared data below {squeeze(str(root))}" + ("" if opened or damaged else ": none"))
    for prepared in opened:
        _show_data(prepared)
    for shown in summary_tables(opened, terminal_width()):
        print("\n" + shown)
    if options.verify:
        damaged += _with_wrong_digests(opened)
    for what in damaged:
        print(f"\nDAMAGED: {what}")
    if options.verify and not damaged:
        print(f"\nall digests of {len(opened)} prepared folders are as recorded")
    return 1 if damaged else 0


def _with_wrong_digests(opened: list[PreparedDataset]) -> list[str]:
    """What is wrong with those whose files do not have their recorded digests; reads everything."""
    wrong = []
    with Progress(console=Console(stderr=True)) as progress:
        for prepared in progress.track(opened, description="comparing digests"):
            try:
                open_prepared(prepared.folder, verify=True)
            except InputError as error:
                wrong.append(str(error))
    return wrong


def _show_installation() -> None:
    import torch

    from lra_ssm.ops import scan_backends

    here = environment()
    hardware = here["hardware"]
    versions = [f"{name} {version}" for name, version in here["versions"].items() if version]
    gpus = ", ".join(hardware["gpus"]) or "no GPU"
    print(wrapped(f"versions   {', '.join(versions)}", 11))
    print(wrapped(f"hardware   {hardware['cpu']}, {hardware['cpus']} cores; {gpus}", 11))
    for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
        print(f"selective_scan on {device}")
        for name, reason in scan_backends(device).items():
            print(f"  {name:<10} {'runs' if reason is None else reason}")


def _show_data(prepared: PreparedDataset) -> None:
    """Prints where a prepared folder's data came from."""
    print("  " + squeeze(f"{prepared.folder.parent.name}/{prepared.folder.name}"))
    for key, value in prepared.manifest["source"].items():
        print(wrapped("    " + squeeze(f"{key}: {_short(value)}"), 6))


def _short(value: Any) -> str:
    """A value of a manifest on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(part)}" for key, part in value.items())
    if isinstance(value, list):
        return " ".join(map(_short, value))
    return str(value)
