"""The sweeps in slurm/sweeps: each reads, each run is one of fit's, and those of a published table have its cells."""

from itertools import product
from pathlib import Path

import pytest

from lra_ssm.cli.config import read_fit_options
from lra_ssm.ops.parameterization import FORMS
from lra_ssm.sweeps.sweep import read_sweep
from tests.test_configs import CONFIGS, LAYER, OPTIMIZER, parsed, values

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "slurm/sweeps").glob("*.yaml"))
FORM, LR = "model.network.layer.parameterization", "model.optimizer.lr"


@pytest.fixture(autouse=True)
def from_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def runs(name):
    return read_sweep(f"slurm/sweeps/{name}.yaml").runs


def options_of(run):
    return read_fit_options(run.options(run.config, "runs"))


# Every third by default.
@pytest.mark.parametrize("file", [pytest.param(file, marks=[pytest.mark.slow] if i % 3 else [], id=file.stem)
                                  for i, file in enumerate(SWEEPS)])  # fmt: skip
def test_runs_are_those_of_fit(file):
    path = options_of(read_sweep(file).runs[-1]).path
    assert path.parts[0] == "runs" and len(path.name) == 10


# Yu & Erichson 2025, tables 2 (five seeds) and 1 (and a gray run); Wang & Li 2024, tables 2 and 3 (three seeds).
@pytest.mark.parametrize(
    ("name", "count"), [("lra", 6 * 3 * 5), ("ablation-scifar", 8 * 3 + 1), ("stable-ssm", 2 * 84)]
)
def test_the_sweep_of_a_table_has_each_cell_once(name, count):
    """That each row of these tables has a run: test_published.py."""
    found = [(run.config, *map(str, run.changes.items())) for run in runs(name)]
    assert len(found) == len({*found}) == count
    if name == "stable-ssm":  # the swept rate is that of every parameter
        roles = [parsed(CONFIGS / f"{task}/stable_ssm.yaml")["model"]["init_args"]["optimizer"]["roles"]
                 for task in ("mnist", "scifar")]  # fmt: skip
        assert all(each["recurrent"]["lr_factor"] == 1 and "delta" not in each for each in roles)


def test_the_sweep_of_stable_language_models_has_every_cell():
    """Wang & Li 2024, figures 4 and 7: the recurrent rate keeps its share."""
    language = [run.changes for run in runs("stable-ssm-wikitext103")]
    assert all(c["model.optimizer.roles.recurrent.lr"] == pytest.approx(0.8 * c[LR]) for c in language)
    forms = {name for name, time in FORMS if time == "discrete"} - {"clip"}
    assert len(language) == 18 and {(c[FORM], c[LR]) for c in language} == {*product(forms, (0.002, 0.005, 0.01))}
    first = dict(values(options_of(runs("stable-ssm-wikitext103")[0]).resolved))
    assert first[LAYER + "parameterization"] == "direct" and first[OPTIMIZER + "roles.recurrent.lr"] == 0.0016
