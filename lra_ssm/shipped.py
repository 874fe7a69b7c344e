"""The configs, sweeps and Slurm templates that come with the package, by name: lra/listops/b2s6, lra, one-gpu."""

from pathlib import Path
from typing import Literal

from lra_ssm.errors import InputError, hint

PACKAGE = Path(__file__).parent
# In a checkout these are links to the folders next to the package; a wheel has copies of their files.
FOLDERS = {
    "config": (PACKAGE / "configs").resolve(),
    "sweep": (PACKAGE / "slurm" / "sweeps").resolve(),
    "template": (PACKAGE / "slurm").resolve(),
}
_IN_A_CHECKOUT = {"config": "configs/", "sweep": "slurm/sweeps/", "template": "slurm/"}
Kind = Literal["config", "sweep", "template"]


def names(kind: Kind) -> list[str]:
    """Return the names of all shipped files of a kind, sorted by path."""
    folder = FOLDERS[kind]
    return [file.relative_to(folder).with_suffix("").as_posix() for file in sorted(folder.glob(f"**/*{_suffix(kind)}"))]


def _suffix(kind: Kind) -> str:
    return ".sbatch" if kind == "template" else ".yaml"


def name_of(kind: Kind, given: str) -> str | None:
    """Return the name of a shipped file, given as its name or its path in a checkout; None for anything else."""
    name = given.removeprefix(_IN_A_CHECKOUT[kind]).removesuffix(_suffix(kind))
    return name if name in names(kind) else None


def find(kind: Kind, given: str | Path) -> Path:
    """Return an existing file, else the shipped file of this name. Raises InputError if there is neither."""
    path = Path(given)
    if path.is_file():
        return path
    if name := name_of(kind, str(given)):
        return FOLDERS[kind] / f"{name}{_suffix(kind)}"
    suggestion = hint(str(given), names(kind), f"our {kind}s are")
    if kind == "config" and not suggestion.startswith("did"):
        suggestion = "`lra-ssm configs` lists ours"
    raise InputError(f"no {kind} {given}: not a file and not one of ours; {suggestion}")


def in_a_checkout(config: Path) -> Path:
    """Return configs/… for a shipped config, wherever the package lies; for another file the path itself."""
    folder = FOLDERS["config"]
    return Path("configs") / config.relative_to(folder) if config.is_relative_to(folder) else config
