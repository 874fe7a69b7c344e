"""Which published row a run stands beside, and whether its settings are those of the row's config."""

import re

import pytest
import yaml

from lra_ssm.cli.config import read_fit_options
from lra_ssm.results.published import (
    config_of,
    data_differences,
    differences,
    published,
    row_of,
    row_of_config,
    rows,
    rows_for,
)
from lra_ssm.results.table import groups_of, results_table, runs_frame
from lra_ssm.runs.identity import set_beyond_defaults
from lra_ssm.runs.record import RunRecord, flatten
from lra_ssm.sweeps.sweep import read_sweep
from tests.results.made import ROOT, make_run, read

CONFIGS = [
    path.relative_to(ROOT / "configs").with_suffix("")
    for folder in ("lra", "scifar", "mnist", "lm/slimpajama6b")
    for path in sorted((ROOT / "configs" / folder).rglob("*.yaml"))
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_shipped_config_is_the_config_of_its_row(config, tmp_path):
    make_run(tmp_path, str(config))
    (run,) = read(tmp_path)
    row = row_of(run)
    assert config_of(run.task, run.model) == ROOT / "configs" / f"{config}.yaml"
    if row is None:
        assert run.model in ("s6", "s4d", "lru", "b2s6", "transformer") and "lm" not in config.parts
        return
    assert differences(run, row) == (f"{run.task}/{run.model}.yaml", [])
    # Where our config has other data than the published figures, its header says how to have theirs.
    header = (ROOT / "configs" / f"{config}.yaml").read_text()
    others = {
        ("data.source is generated", "--data.source=lra"),
        ("data.validation is held_out", "--data.validation=test"),
    }
    for said, option in others:
        assert any(text.startswith(said) for text in data_differences(run.task, run.all_settings)) == (
            option in header
        ), config


FITS = ("lra/listops/s4d", "mnist/stable_ssm", "lm/slimpajama6b/s6")  # the others in slow


@pytest.mark.parametrize("config", [pytest.param(str(c), marks=[] if str(c) in FITS else pytest.mark.slow)
                                    for c in CONFIGS])  # fmt: skip
def test_a_fit_of_a_shipped_config_has_its_settings(config):
    """By the configuration that a fit resolves, with every default, and by what it sets beyond them."""
    options = read_fit_options(["--config", config])
    record = {"identity": set_beyond_defaults(options.resolved, options.neutral), "neutral": options.neutral["data"]}
    run = RunRecord(ROOT, config=options.resolved, record=record)
    if (row := row_of(run)) is not None:
        assert differences(run, row) == (f"{run.task}/{run.model}.yaml", [])


def test_every_row_is_some_runs_or_says_why_it_is_none(monkeypatch):
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
        record.__dict__["all_settings"] = settings
        matched |= set(rows_for(record.task, record.model, settings))
    without = {name for name, model in published()["models"].items() if model.get("no_config")}
    for row in (row for several in rows().values() for row in several):
        assert row in matched or row.unmatched or row.model in without, row
        used.add(row.model if row in matched else None)
    assert sum(map(len, rows().values())) == sum(len(table["rows"]) for table in published()["tables"])
    assert not without & used and all(len(row.unmatched) > 20 for row in matched if row.unmatched)


def test_a_row_that_no_run_can_repeat_stands_in_a_note(tmp_path):
    layer, optimizer = "model.init_args.network.init_args.layer.init_args", "model.init_args.optimizer"
    changes = {f"{layer}.parameterization": "direct", f"{optimizer}.lr": 5e-6}
    make_run(tmp_path, "mnist/stable_ssm", changes=changes)
    (one,) = groups_of(runs_frame(read(tmp_path)))
    assert one.row is None and one.difference is None
    assert [note for note in one.notes if "table 2, 2.31438: its code starts direct at Re A = +1/2" in note]


def test_a_table_in_which_two_rows_are_the_runs_has_the_one_of_its_test(tmp_path):
    make_run(tmp_path, "synthetic/associative_recall")
    (run,) = read(tmp_path)
    assert [row.value for row in rows_for(run.task, run.model, run.all_settings)] == [57.95, 99.8]
    assert row_of(run).value == row_of_config(run.config).value == 99.8
    assert differences(run, row_of(run))[1] == []


def test_of_a_printed_variance_the_deviation_is_shown_and_that_it_is(tmp_path):
    make_run(tmp_path, "mnist/stable_ssm")
    groups = groups_of(runs_frame(read(tmp_path)))
    found = results_table(groups)
    assert found.frame.published[0] == "0.023475 ± 0.001414"
    assert "± of Wang & Li 2024, table 2: the square root of the printed variance" in found.notes


def test_of_a_printed_standard_error_the_deviation_between_seeds_is_shown(tmp_path):
    make_run(tmp_path, "lra/listops/lru")
    found = results_table(groups_of(runs_frame(read(tmp_path))))
    assert found.frame.published[0] == "60.2 ± 1.4"
    said = "the printed standard error times the square root of the number of seeds"
    assert f"± of Orvieto et al. 2023, table 8: {said}" in found.notes


@pytest.mark.parametrize("model", ["s4d", "b2s6", "mamba", "stable_ssm", "lru", "s5", "transformer"])
def test_the_table_says_what_settings_the_config_beside_a_row_has(model, tmp_path):
    make_run(tmp_path, f"lra/listops/{model}")
    assert [
        note
        for note in results_table(groups_of(runs_frame(read(tmp_path)))).notes
        if note.startswith(f"the config of {model} has ")
    ]


def test_what_differs_is_told_leaf_by_leaf(tmp_path):
    changes = {"trainer.max_steps": 1000, "data.init_args.source": "lra", "trainer.precision": "bf16-mixed"}
    make_run(tmp_path, changes=changes)
    (run,) = read(tmp_path)
    assert differences(run, row_of(run))[1] == [
        "trainer.max_steps 1000 instead of 80000", "trainer.precision bf16-mixed instead of 32-true"
    ]  # fmt: skip
    assert data_differences(run.task, run.all_settings) == []  # the row has LRA's files too


def test_a_row_of_a_table_that_varies_settings_is_the_one_that_has_the_runs(tmp_path):
    layer, optimizer = "model.init_args.network.init_args.layer.init_args", "model.init_args.optimizer"
    make_run(tmp_path, "scifar/b2s6", changes={f"{layer}.num_blocks": 2, f"{layer}.bias": False}, run_id="a")
    make_run(tmp_path, "scifar/b2s6", changes={f"{layer}.num_blocks": 3}, run_id="b")
    changes = {f"{layer}.parameterization": "exp", f"{optimizer}.lr": 0.05}
    make_run(tmp_path, "mnist/stable_ssm", changes=changes, run_id="c")
    ablated, none, rate = sorted(read(tmp_path), key=lambda run: run.path.name)
    assert (row_of(ablated).value, row_of(ablated).std) == (79.44, 1.10) and differences(ablated, row_of(ablated))[
        1
    ] == []
    assert row_of(none) is None
    row = row_of(rate)
    assert (row.metric, row.value) == ("test/loss", 0.868350)
    assert not [text for text in differences(rate, row)[1] if ".lr " in f" {text}" and "recurrent" not in text]


def test_of_a_figure_over_steps_the_row_is_at_the_runs_last(tmp_path):
    make_run(tmp_path, "lm/slimpajama6b/s6", changes={"trainer.max_steps": 13104}, run_id="a")
    make_run(tmp_path, "lm/slimpajama6b/s6", changes={"trainer.max_steps": 5}, run_id="b")
    rows = [row_of(run) for run in sorted(read(tmp_path), key=lambda run: run.path.name)]
    assert [(row.step, row.value, row.metric) for row in rows] == [
        (13104, 27.0171, "test/perplexity"), (28830, 21.0785, "test/perplexity")
    ]  # fmt: skip


def test_a_run_without_a_config_beside_it_is_not_compared(tmp_path, monkeypatch):
    make_run(tmp_path, changes={"experiment": "mine/listops/s7"})
    (run,) = read(tmp_path)
    assert row_of(run).value == 63.77 and differences(run, row_of(run)) is None


def test_reproduction_says_of_the_settings_what_published_yaml_says():
    published = yaml.safe_load((ROOT / "lra_ssm/published.yaml").read_text())
    page = (ROOT / "docs/reproduction.md").read_text()
    lines = [line.split(" | ") for line in page.splitlines() if ".yaml) | " in line]
    seen = set()
    for _, link, number, said, *_ in lines:
        file = re.search(r"\]\(\.\./(.*)\)", link)[1]
        if number != "none":
            row = row_of_config(yaml.safe_load((ROOT / file).read_text()))
            assert said == row.config or row.config == "no" and said.startswith("no: "), (link, said)
            seen.add(row.model)
    assert seen == {name for name, model in published["models"].items() if "settings" in model}
    said = re.findall(r"^\| ([^|]+) \|", page.partition("| settings | meaning |")[2].partition("\n\n")[0], re.MULTILINE)
    explained = {word for cell in said for word in cell.split(", ")}
    assert all(table["settings"] in explained for table in published["tables"] if "settings" in table)


def test_a_run_whose_data_has_no_test_split_stands_beside_a_row_by_its_best_validation(tmp_path):
    data = {"source": {"kind": "files"}, "splits": {"train": {"arrays": {}}, "val": {"arrays": {}}}, "inputs": "tokens"}
    given = {"data": data, "tested": False, "metrics": {"best val/loss": 1.5, "val/loss": 1.6}}
    for seed in (0, 1):
        make_run(tmp_path, "lm/tinyshakespeare/b2s6", seed, **given)
    make_run(tmp_path, "lm/quickstart", **given)
    one, two = sorted(groups_of(runs_frame(read(tmp_path))), key=lambda found: len(found.counted))
    assert (
        one.metric == two.metric == "best val/loss"
        and [*one.counted.value] == [1.5]
        and [*two.counted.value] == [1.5, 1.5]
    )
    assert one.row is None and two.row.figure == "1.88" and two.difference == pytest.approx(-0.38)
    assert two.differences[1] == [] and "best val/loss ± std" in results_table([two]).text()
