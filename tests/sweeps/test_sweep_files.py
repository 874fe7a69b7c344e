"""The sweeps in slurm/sweeps: each reads, each run is one of fit's, and those of a published table have its cells."""

from pathlib import Path

import pytest

from lra_ssm.cli.config import read_fit_options
from lra_ssm.ops.parameterization import FORMS
from lra_ssm.sweeps.sweep import read_sweep
from tests.each import each
from tests.test_configs import CONFIGS, LAYER, NETWORK, OPTIMIZER, PUBLISHED, parsed, values

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "slurm/sweeps").glob("*.yaml"))
FORM, LR = "model.network.layer.parameterization", "model.optimizer.lr"


@pytest.fixture(autouse=True)
def from_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def runs(name):
    return read_sweep(f"slurm/sweeps/{name}.yaml").runs


def resolved(run):
    return dict(values(read_fit_options(run.options(run.config, "runs")).resolved))


@each("file", SWEEPS)
def test_files_are_read(file):
    assert read_sweep(file).runs


# Every third by default.
@pytest.mark.parametrize("file", [pytest.param(file, marks=[pytest.mark.slow] if i % 3 else [], id=file.stem)
                                  for i, file in enumerate(SWEEPS)])  # fmt: skip
def test_runs_are_those_of_fit(file):
    run = read_sweep(file).runs[-1]
    configured = read_fit_options(run.options(run.config, "runs"))
    assert configured.path.parts[0] == "runs" and len(configured.path.name) == 10


def test_what_is_set_of_a_layer_holds_for_every_layer_of_a_grid(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "configs: [configs/cpu/scifar16.yaml]\nset: {model.network.layer.d_state: 24}\n"
        "grid: {model.network.layer: [B2S6, S4D]}"
    )
    found = [resolved(run) for run in read_sweep(file).runs]
    assert [(f[LAYER.removesuffix("init_args.") + "class_path"], f[LAYER + "d_state"]) for f in found] == [
        ("lra_ssm.layers.B2S6", 24), ("lra_ssm.layers.S4D", 24)
    ]  # fmt: skip


# In `slow` the one with the most configs is left out, and of those that set the same options all but one.
LEFT = ("lra", "stable-ssm-lra", "stable-ssm-wikitext103", "stable-ssm-3b")


def differences(run, other):
    return sum(run.changes.get(key) != other.changes.get(key) for key in {*run.changes, *other.changes})


@pytest.mark.parametrize("file", [pytest.param(file, marks=mark, id=f"{file.stem}-{mark.name}") for file in SWEEPS
                                  for mark in (pytest.mark.slow, pytest.mark.trials)
                                  if mark is pytest.mark.trials or file.stem not in LEFT])  # fmt: skip
def test_no_two_runs_are_one(file, request):
    """Of one seed: two are never one. In `slow` the first run and those of its config that differ in one option, and
    the first of each config: whatever is given by itself makes another run."""
    found = read_sweep(file).runs
    first = found[0]
    found = [run for run in found if run.changes.get("seed_everything") == first.changes.get("seed_everything")]
    if request.node.get_closest_marker("slow"):
        firsts = {run.config: run for run in reversed(found)}.values()
        near = [run for run in found if run.config == first.config and differences(run, first) <= 1]
        found = list({id(run): run for run in (*firsts, *near)}.values())
    assert len({read_fit_options(run.options(run.config, "runs")).path for run in found}) == len(found)


def test_the_lra_table_is_whole():
    """Yu & Erichson 2025, table 2: three models that we have configs for, six tasks, five seeds."""
    found = runs("lra")
    cells = {(run.config.parent.name, run.config.stem, run.changes["seed_everything"]) for run in found}
    tasks = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
    models = ("s4d", "mamba", "b2s6")
    assert cells == {(t, m, s) for t in tasks for m in models for s in range(5)} and len(found) == 90


def test_the_ablation_has_every_cell_of_table_1():
    *found, gray = runs("ablation-scifar")
    names = ("num_blocks", "complex_A", "bias")
    cells = {tuple(run.changes[f"model.network.layer.{name}"] for name in names) for run in found}
    table = next(t for t in PUBLISHED["tables"] if (t["paper"], t["where"]) == ("yu2025", "table 1"))
    assert cells == {tuple(row["settings"][name] for name in names) for row in table["rows"]} and len(found) == 24
    last, gray = resolved(found[-1]), resolved(gray)
    assert last[LAYER + "num_blocks"] == 128 and not last["data.init_args.grayscale"]
    assert gray["data.init_args.grayscale"] and (gray[NETWORK + "d_input"], gray[LAYER + "num_blocks"]) == (1, 8)


@pytest.mark.parametrize(("name", "where"), [("mnist", "table 2"), ("scifar", "table 3")])
def test_the_learning_rates_are_those_of_tables_2_and_3(name, where):
    """Wang & Li 2024: learning rates by parameterizations, three seeds; every parameter has the swept rate."""
    found = [run.changes for run in runs("stable-ssm") if run.config.parent.name == name]
    table = next(t for t in PUBLISHED["tables"] if (t["paper"], t["where"]) == ("wang2024", where))
    printed = {(row["settings"]["parameterization"], row["settings"]["lr"]) for row in table["rows"]}
    cells = [(change[FORM], change[LR], change["seed_everything"]) for change in found]
    assert set(cells) == {(*cell, seed) for cell in printed for seed in range(3)} and len(cells) == 84
    roles = parsed(CONFIGS / f"{name}/stable_ssm.yaml")["model"]["init_args"]["optimizer"]["roles"]
    assert roles["recurrent"]["lr_factor"] == 1 and "delta" not in roles


def test_the_language_models_of_figure_4():
    """Wang & Li 2024, fig. 4 and 7; the recurrent rate keeps its share."""
    found = runs("stable-ssm-wikitext103")
    rates = [(run.changes[LR], run.changes["model.optimizer.roles.recurrent.lr"]) for run in found]
    assert all(recurrent == pytest.approx(0.8 * rate) for rate, recurrent in rates)
    forms = {name for name, time in FORMS if time == "discrete"} - {"clip"}
    cells = {(run.changes[FORM], run.changes[LR]) for run in found}
    assert cells == {(form, rate) for form in forms for rate in (0.002, 0.005, 0.01)} and len(found) == 18
    first = resolved(found[0])
    assert first[LAYER + "parameterization"] == "direct" and first[OPTIMIZER + "roles.recurrent.lr"] == 0.0016
