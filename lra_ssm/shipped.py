"""The configs, sweeps and cluster profiles that come with the package, by name: lra/listops/b2s6, lra, one-gpu."""

from pathlib import Path
from typing import Literal

from lra_ssm.errors import InputError, hint

PACKAGE = Path(__file__).parent
# In a checkout links to the folders beside the package; a wheel has copies of their files.
FOLDERS = {
    "config": (PACKAGE / "configs").resolve(),
    "sweep": (PACKAGE / "slurm" / "sweeps").resolve(),
    "profile": (PACKAGE / "slurm" / "profiles").resolve(),
}
Kind = Literal["config", "sweep", "profile"]


def names(kind: Kind) -> list[str]:
    """What there is, in the folders' order."""
    folder = FOLDERS[kind]
    return [file.relative_to(folder).with_suffix("").as_posix() for file in sorted(folder.glob("**/*.yaml"))]


def name_of(kind: Kind, given: str) -> str | None:
    """The name of what is shipped, given as that or as its path in a checkout; None of anything else."""
    folder = "configs/" if kind == "config" else f"slurm/{kind}s/"
    name = given.removeprefix(folder).removesuffix(".yaml")
    return name if name in names(kind) else None


def find(kind: Kind, given: str | Path) -> Path:
    """A file: the one that is there, else the shipped one of this name.

    Raises InputError: neither is there.
    """
    path = Path(given)
    if path.is_file():
        return path
    if name := name_of(kind, str(given)):
        return FOLDERS[kind] / f"{name}.yaml"
    ours = hint(str(given), names(kind), f"our {kind}s are")
    if kind == "config" and not ours.startswith("did"):
        ours = "`lra-ssm configs` lists ours"
    raise InputError(f"no {kind} {given}: neither such a file nor one of ours; {ours}")


def called(path: Path) -> Path:
    """What is shipped as lra/listops/b2s6.yaml, wherever the package lies; of another file the path itself."""
    return next((path.relative_to(folder) for folder in FOLDERS.values() if path.is_relative_to(folder)), path)


def in_a_checkout(config: Path) -> Path:
    """configs/… of a shipped config, wherever the package lies; of another the path itself."""
    folder = FOLDERS["config"]
    return Path("configs") / config.relative_to(folder) if config.is_relative_to(folder) else config
