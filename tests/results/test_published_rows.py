"""Which published row a run is compared with, and whether its settings are those of the row's config."""

import re

import pytest
import yaml

from lra_ssm.cli.config import read_fit_options
from lra_ssm.results.published import data_differences, differences, published, row_of, row_of_config, rows, rows_for
from lra_ssm.results.table import groups_of, results_table, runs_frame
from lra_ssm.runs.identity import set_beyond_defaults
from lra_ssm.runs.record import RunRecord, flatten
from lra_ssm.sweeps.sweep import read_sweep
from tests.results.made import ROOT, make_run, read

CONFIGS = [
    path.relative_to(ROOT / "configs").with_suffix("")
    for folder in ("lra", "scifar", "mnist", "lm/slimpajama6b")
    for path in sorted((ROOT / "configs" / folder).rglob("*.yaml"))
    if not path.stem.endswith(("_pretrain", "_finetune", "_rope"))  # docs/meaning.md; they have no row
]
LAYER, OPTIMIZER = "model.init_args.network.init_args.layer.init_args", "model.init_args.optimizer"


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_shipped_config_is_the_config_of_its_row(config, tmp_path):
    make_run(tmp_path, str(config))
    (run,) = read(tmp_path)
    row = row_of(run)
    if row is None:
        assert run.model in ("s6", "s4d", "lru", "b2s6", "transformer") and "lm" not in config.parts
        return
    assert differences(run, row) == (f"{run.task}/{run.model}.yaml", {})
    # Where our config has other data than the published figures, its header says how to have theirs.
    header = (ROOT / "configs" / f"{config}.yaml").read_text()
    for said, option in (("data.source is generated", "--data.source=lra"),
                         ("data.validation is held_out", "--data.validation=test")):  # fmt: skip
        assert any(text.startswith(said) for text in data_differences(run)) == (option in header), config


FITS = ("lra/listops/s4d", "mnist/stable_ssm", "lm/slimpajama6b/s6")  # the others in slow


@pytest.mark.parametrize("config", [pytest.param(str(c), marks=[] if str(c) in FITS else pytest.mark.slow)
                                    for c in CONFIGS])  # fmt: skip
def test_a_fit_of_a_shipped_config_has_its_settings(config):
    """By the configuration that a fit resolves, with every default, and by what it sets beyond them."""
    options = read_fit_options([f"--config={config}"])
    record = {"identity": set_beyond_defaults(options.resolved, options.neutral), "neutral": options.neutral["data"]}
    run = RunRecord(ROOT, config=options.resolved, record=record)
    if (row := row_of(run)) is not None:
        assert differences(run, row) == (f"{run.task}/{run.model}.yaml", {})


def test_every_row_is_compared_with_some_run_or_says_why_not(monkeypatch):
    """Of every config as it stands, and of every run of every sweep."""
    monkeypatch.chdir(ROOT)
    configs = {path: yaml.safe_load(path.read_text()) for path in (ROOT / "configs").rglob("*.yaml")}
    configs = {path: config for path, config in configs.items() if "experiment" in config}
    runs = [(config, flatten(config)) for config in configs.values()]
    for sweep in sorted((ROOT / "slurm/sweeps").glob("*.yaml")):
        for run in read_sweep(sweep).runs:
            config = configs[ROOT / run.config]
            own = {"experiment": run.changes.get("experiment", config["experiment"])}
            runs.append(({**config, **own}, {**flatten(config), **run.changes}))
    matched, used = set(), set()
    for config, settings in runs:
        record = RunRecord(ROOT, config=config)
        matched |= set(rows_for(record.task, record.model, settings))
    without = {name for name, model in published()["models"].items() if model.get("no_config")}
    for row in (row for several in rows().values() for row in several):
        assert row in matched or row.unmatched or row.model in without, row
        used.add(row.model if row in matched else None)
    assert sum(map(len, rows().values())) == sum(len(table["rows"]) for table in published()["tables"])
    assert not without & used and all(len(row.unmatched) > 20 for row in matched if row.unmatched)


@pytest.mark.parametrize(
    ("config", "changes", "figure", "metric"),
    [
        ("scifar/b2s6", {f"{LAYER}.num_blocks": 2, f"{LAYER}.bias": False}, "79.44 ± 1.10", "test/accuracy"),
        ("scifar/b2s6", {f"{LAYER}.num_blocks": 3}, None, None),
        (
            "mnist/stable_ssm",
            {f"{LAYER}.parameterization": "exp", f"{OPTIMIZER}.lr": 0.05},
            "0.868350 ± 1.245118",
            "test/loss",
        ),
        # In a table over steps, the row at the run's last step.
        ("lm/slimpajama6b/s6", {"trainer.max_steps": 13104}, "27.0171", "test/perplexity"),
        ("lm/slimpajama6b/s6", {"trainer.max_steps": 5}, "21.0785", "test/perplexity"),
        # Two rows of one table have the run's settings: the one of its test.
        ("synthetic/associative_recall", {}, "99.80", "test/accuracy"),
        # A printed variance and a printed standard error are shown as deviations between seeds.
        ("mnist/stable_ssm", {}, "0.023475 ± 0.001414", "test/loss"),
        ("lra/listops/lru", {}, "60.2 ± 1.4", "test/accuracy"),
    ],
)
def test_the_row_of_a_run(config, changes, figure, metric, tmp_path):
    make_run(tmp_path, config, changes=changes)
    (run,) = read(tmp_path)
    row = row_of(run)
    assert (row and row.figure, row and row.metric) == (figure, metric)
    if row:
        assert row == row_of_config(run.config) and not {
            "model.optimizer.lr",
            "model.network.layer.num_blocks",
            "model.network.layer.bias",
        } & {*differences(run, row)[1]}
        notes = results_table(groups_of(runs_frame([run])), []).notes
        how = {"0.023475 ± 0.001414": "± of Wang & Li 2024, table 2: the square root of the printed variance",
               "60.2 ± 1.4": "± of Orvieto et al. 2023, table 8: the printed standard error times the square root of "
               "the number of seeds"}.get(figure)  # fmt: skip
        assert how is None or how in notes


def test_what_differs_is_told_leaf_by_leaf(tmp_path):
    changes = {"trainer.max_steps": 1000, "data.init_args.source": "lra", "trainer.precision": "bf16-mixed"}
    make_run(tmp_path, changes=changes)
    (run,) = read(tmp_path)
    assert [*differences(run, row_of(run))[1].values()] == [
        "trainer.max_steps 1000 instead of 80000", "trainer.precision bf16-mixed instead of 32-true"
    ]  # fmt: skip
    assert data_differences(run) == []  # the row has LRA's files too
    # None, what Lightning makes of it and its other names are one setting; the class says what only it has.
    layer = {"class_path": "my.Layer", "init_args": {"d_state": 64, "mine": 1}}
    for i, precision in enumerate((None, "32", "32-true")):
        given = {"trainer.precision": precision, LAYER.removesuffix(".init_args"): layer}
        make_run(tmp_path / str(i), changes=given)
        (run,) = read(tmp_path / str(i))
        assert [*differences(run, row_of(run))[1]] == ["model.network.layer"]


def test_a_row_that_no_run_can_repeat_and_a_run_without_a_config(tmp_path):
    changes = {f"{LAYER}.parameterization": "direct", f"{OPTIMIZER}.lr": 5e-6}
    make_run(tmp_path, "mnist/stable_ssm", changes=changes)
    (one,) = groups_of(runs_frame(read(tmp_path)))
    assert one.row is None and one.difference is None
    assert [note for note in one.notes if "table 2, 2.31438: its code starts direct at Re A = +1/2" in note]
    make_run(tmp_path, changes={"experiment": "mine/listops/s7"})
    run = next(run for run in read(tmp_path) if run.model == "s7")
    assert row_of(run).value == 63.77 and differences(run, row_of(run)) is None


def test_reproduction_says_of_the_settings_what_published_yaml_says():
    page = (ROOT / "docs/reproduction.md").read_text()
    seen = set()
    for _, link, number, text, *_ in (line.split(" | ") for line in page.splitlines() if ".yaml) | " in line):
        file = re.search(r"\]\(\.\./(.*)\)", link)[1]
        if number != "none":
            row = row_of_config(yaml.safe_load((ROOT / file).read_text()))
            assert text == row.config or row.config == "no" and text.startswith("no: "), (link, text)
            seen.add(row.model)
    assert seen == {name for name, model in published()["models"].items() if "settings" in model}
    cells = re.findall(
        r"^\| ([^|]+) \|", page.partition("| settings | meaning |")[2].partition("\n\n")[0], re.MULTILINE
    )
    explained = {word for cell in cells for word in cell.split(", ")}
    assert all(table["settings"] in explained for table in published()["tables"] if "settings" in table)


def test_a_run_whose_data_has_no_test_split_is_compared_by_its_best_validation(tmp_path):
    data = {"source": {"kind": "files"}, "splits": {"train": {"arrays": {}}, "val": {"arrays": {}}}, "inputs": "tokens"}
    given = {"data": data, "tested": False, "metrics": {"best val/loss": 1.5, "val/loss": 1.6}}
    for seed in (0, 1):
        make_run(tmp_path, "lm/tinyshakespeare/b2s6", seed, **given)
    make_run(tmp_path, "lm/quickstart", **given)
    one, two = sorted(groups_of(runs_frame(read(tmp_path))), key=lambda found: len(found.counted))
    assert one.metric == two.metric == "best val/loss"
    assert [*one.counted.value] == [1.5] and [*two.counted.value] == [1.5, 1.5]
    assert one.row is None and two.row.figure == "1.88" and two.difference == pytest.approx(-0.38)
    assert "best val/loss ± std" in results_table([two], []).text()
