"""Every figure, table and theorem of the papers, and how it is made: artifacts.yaml. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from lra_ssm.errors import InputError, hint

if TYPE_CHECKING:
    from lra_ssm.experiments.base import Experiment

FILE = Path(__file__).with_name("artifacts.yaml")


@dataclass(frozen=True)
class Artifact:
    """A figure, table or theorem."""

    paper: str  # its key in published.yaml
    artifact: str  # as the paper calls it
    what: str  # it shows
    name: str = ""  # of the command, where an experiment makes it
    experiment: str = ""  # the import path of its class
    minutes: dict[str, float] = field(default_factory=dict)  # "default", "long" or both, on two cores; all have "quick"
    sweep: str = ""  # the sweep file of slurm/sweeps that makes it in full, on a GPU
    cannot: str = ""  # why it cannot be made

    @property
    def state(self) -> str:
        """How it is made, in a few words."""
        full = f"in full on a GPU: slurm/sweeps/{self.sweep}.yaml" if self.sweep else ""
        if self.experiment:
            times = [f"{minutes:g} min" + " with --long" * (form == "long") for form, minutes in self.minutes.items()]
            return "; ".join(filter(None, [f"on a CPU, {', '.join(times)}", full]))
        return full or f"cannot be made: {self.cannot}"

    def load(self) -> "Experiment":
        """The experiment itself."""
        module, _, name = self.experiment.rpartition(".")
        return getattr(import_module(module), name)()


def artifacts() -> list[Artifact]:
    """All of them, in the papers' order."""
    return [Artifact(**entry) for entry in yaml.safe_load(FILE.read_text())]


def chosen(patterns: Sequence[str]) -> list[Artifact]:
    """Those with an experiment whose names fit a pattern of the shell's; "all" is every one.

    Raises InputError: nothing fits.
    """
    known = {one.name: one for one in artifacts() if one.experiment}
    found: dict[str, Artifact] = {}
    for pattern in patterns:
        fits = {name: one for name, one in known.items() if pattern == "all" or fnmatchcase(name, pattern)}
        if not fits:
            raise InputError(f"no experiment is called {pattern!r}; {hint(pattern, [*known, 'all'])}")
        found |= fits
    return list(found.values())
