"""What the package asks for, the versions that CI takes, and how both are installed."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.test_readme import PAGES, README

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
ASKED = [
    Requirement(text) for text in (*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra))
]
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


def asked_for(name):
    return next(one.specifier for one in ASKED if one.name == name)


def test_new_versions_of_python_and_torch_are_taken():
    python = SpecifierSet(PROJECT["requires-python"])
    assert "3.10" not in python and all(version in python for version in ("3.11", "3.13", "3.14", "3.20"))
    torch = asked_for("torch")
    assert "2.9.1" not in torch and all(version in torch for version in ("2.10.0", "2.13.0", "2.15.0", "3.0"))


def test_versions_that_are_unsafe_or_untested_are_not_taken():
    for name, below, lowest, above in (
        ("lightning", "2.6.5", "2.6.6", None),
        ("huggingface_hub", "1.30.0", "1.31.0", "3.0.0"),
        ("jsonargparse", "4.51.0", "4.52.0", "5.0.0"),
    ):
        taken = asked_for(name)
        assert below not in taken and lowest in taken and (above is None or above not in taken), name
    assert all(any(part.operator == ">=" for part in one.specifier) for one in ASKED if one.name not in OF_ANY_VERSION)


OF_ANY_VERSION = ("lra-ssm", "types-PyYAML")


def test_ci_takes_one_version_of_everything_that_is_asked_for():
    pinned = {one.name: one.specifier for one in PINS}
    named = {one.name for one in ASKED} - {"lra-ssm", "lm_eval"}  # CI does not install the extra `eval`
    assert pinned.keys() == named - {"triton"}  # of which torch for CUDA asks for one version itself
    for one in ASKED:
        if one.name in pinned:
            (pin,) = pinned[one.name]
            assert pin.operator == "==" and Version(pin.version) in one.specifier, one.name
            assert Version(pin.version).local is None  # +cpu: only some indexes have such a build


def test_every_installation_that_is_shown_can_be_made():
    """mamba-ssm needs torch to be built, so no extra brings it; every other extra exists."""
    assert not any(one.name in ("mamba-ssm", "causal-conv1d") for one in ASKED)
    shown = re.findall(r"(?:-e |lra-ssm|\"\.)\.?\[(\w+)\]", "".join(PAGES.values()))
    assert {"test", "dev", "eval", "wandb"} <= set(shown) <= EXTRAS.keys()
    for page in (README, PAGES["selective-scan.md"]):
        torch_first, mamba = (
            page.index('pip install -e . "torch==2.10.*"'),
            page.index("--no-build-isolation mamba-ssm"),
        )
        assert torch_first < mamba and "conda install -c conda-forge mamba-ssm" in page


@pytest.mark.parametrize("line", [line for line in README.splitlines() if line.startswith("pip ")])
def test_the_readmes_commands_take_the_versions_of_ci(line):
    assert re.match(r'pip install -e (\.|"\.\[test\]") -c constraints\.txt && (lightning fit|pytest) ', line)
