"""The requirements, the versions that CI installs, and the install commands that are shown."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from tests.test_readme import PAGES, README

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
ASKED = [Requirement(text) for text in (*PROJECT["dependencies"], *sum(EXTRAS.values(), []))]
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] not in ("", "#")]


def test_every_requirement_has_a_lowest_version_and_ci_installs_one_of_each():
    pinned = {one.name: one.specifier for one in PINS}
    named = {one.name for one in ASKED} - {"lra-ssm", "lm_eval"}  # CI does not install the extra `eval`
    assert pinned.keys() == named - {"triton"}  # of which torch for CUDA asks for one version itself
    for one in ASKED:
        if one.name not in ("lra-ssm", "types-PyYAML"):
            assert any(part.operator == ">=" for part in one.specifier), one.name
        if one.name in pinned:
            (pin,) = pinned[one.name]
            assert pin.operator == "==" and Version(pin.version) in one.specifier, one.name
            assert Version(pin.version).local is None  # +cpu: only some indexes have such a build


def test_every_installation_that_is_shown_exists():
    """mamba-ssm needs torch to be built, so no extra brings it; every other extra exists."""
    assert not any(one.name in ("mamba-ssm", "causal-conv1d") for one in ASKED)
    shown = re.findall(r"(?:-e |lra-ssm|\"\.)\.?\[(\w+)\]", "".join(PAGES.values()))
    assert {"test", "dev", "eval", "wandb"} <= set(shown) <= EXTRAS.keys()
    for page in (README, PAGES["selective-scan.md"]):
        torch_first = page.index('pip install -e . "torch==2.10.*"')
        assert torch_first < page.index("--no-build-isolation mamba-ssm")
        assert "conda install -c conda-forge mamba-ssm" in page
