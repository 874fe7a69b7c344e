"""The sweeps in slurm/sweeps: each reads, each run is one of fit's, and those of a published table have its cells."""

from itertools import product
from pathlib import Path

import pytest

from lra_ssm.cli.config import read_fit_options
from lra_ssm.ops.parameterization import FORMS
from lra_ssm.sweeps.sweep import read_sweep
from tests.test_configs import CONFIGS, LAYER, NETWORK, OPTIMIZER, PUBLISHED, parsed, values

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "slurm/sweeps").glob("*.yaml"))
FORM, LR = "model.network.layer.parameterization", "model.optimizer.lr"
TABLES = {(t["paper"], t["where"]): t["rows"] for t in PUBLISHED["tables"]}


@pytest.fixture(autouse=True)
def from_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def runs(name):
    return read_sweep(f"slurm/sweeps/{name}.yaml").runs


def options_of(run):
    return read_fit_options(run.options(run.config, "runs"))


def resolved(run):
    return dict(values(options_of(run).resolved))


# Every third by default.
@pytest.mark.parametrize("file", [pytest.param(file, marks=[pytest.mark.slow] if i % 3 else [], id=file.stem)
                                  for i, file in enumerate(SWEEPS)])  # fmt: skip
def test_runs_are_those_of_fit(file):
    path = options_of(read_sweep(file).runs[-1]).path
    assert path.parts[0] == "runs" and len(path.name) == 10


def test_the_sweep_of_lra_has_every_cell():
    """Yu & Erichson 2025, table 2: three models that we have configs for, six tasks, five seeds."""
    cells = [(run.config.parent.name, run.config.stem, run.changes["seed_everything"]) for run in runs("lra")]
    tasks = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
    assert sorted(cells) == sorted(product(tasks, ("s4d", "mamba", "b2s6"), range(5)))


def test_the_sweep_of_the_ablation_has_every_cell():
    """Yu & Erichson 2025, table 1, with the gray run last."""
    names = ("num_blocks", "complex_A", "bias")
    *ablation, gray = runs("ablation-scifar")
    found = [tuple(run.changes[f"model.network.layer.{name}"] for name in names) for run in ablation]
    assert len(found) == 24
    assert {*found} == {tuple(row["settings"][name] for name in names) for row in TABLES["yu2025", "table 1"]}
    last, gray = resolved(ablation[-1]), resolved(gray)
    assert last[LAYER + "num_blocks"] == 128 and not last["data.init_args.grayscale"]
    assert gray["data.init_args.grayscale"] and (gray[NETWORK + "d_input"], gray[LAYER + "num_blocks"]) == (1, 8)


@pytest.mark.parametrize(("name", "where"), [("mnist", "table 2"), ("scifar", "table 3")])
def test_the_sweep_of_stable_ssms_has_every_cell(name, where):
    """Wang & Li 2024: learning rates by parameterizations, three seeds, every parameter with the swept rate."""
    found = [run.changes for run in runs("stable-ssm") if run.config.parent.name == name]
    printed = {(row["settings"]["parameterization"], row["settings"]["lr"]) for row in TABLES["wang2024", where]}
    assert len(found) == 84
    assert {(run[FORM], run[LR], run["seed_everything"]) for run in found} == {
        (*cell, seed) for cell in printed for seed in range(3)
    }
    roles = parsed(CONFIGS / f"{name}/stable_ssm.yaml")["model"]["init_args"]["optimizer"]["roles"]
    assert roles["recurrent"]["lr_factor"] == 1 and "delta" not in roles


def test_the_sweep_of_stable_language_models_has_every_cell():
    """Wang & Li 2024, figures 4 and 7: the recurrent rate keeps its share."""
    language = [run.changes for run in runs("stable-ssm-wikitext103")]
    assert all(c["model.optimizer.roles.recurrent.lr"] == pytest.approx(0.8 * c[LR]) for c in language)
    forms = {name for name, time in FORMS if time == "discrete"} - {"clip"}
    assert len(language) == 18 and {(c[FORM], c[LR]) for c in language} == {*product(forms, (0.002, 0.005, 0.01))}
    first = resolved(runs("stable-ssm-wikitext103")[0])
    assert first[LAYER + "parameterization"] == "direct" and first[OPTIMIZER + "roles.recurrent.lr"] == 0.0016
