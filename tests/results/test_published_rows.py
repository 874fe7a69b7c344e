"""Which published row a run is compared with, and how its settings differ from those of the row's config."""

import pytest

from lra_ssm.results.published import differences, row_of, row_of_config
from lra_ssm.results.table import groups_of, results_table, runs_frame
from tests.results.made import LAYER, LR, make_run, read


def made(folder, *arguments, **more):
    """The only run of a folder."""
    make_run(folder, *arguments, **more)
    (run,) = read(folder)
    return run


@pytest.mark.parametrize(
    ("config", "changes", "figure", "metric"),
    [
        ("scifar/b2s6", {f"{LAYER}.num_blocks": 2, f"{LAYER}.bias": False}, "79.44 ± 1.10", "test/accuracy"),
        ("scifar/b2s6", {f"{LAYER}.num_blocks": 3}, None, None),
        ("mnist/stable_ssm", {f"{LAYER}.parameterization": "exp", LR: 0.05}, "0.868350 ± 1.245118", "test/loss"),
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
    run = made(tmp_path, config, changes=changes)
    row = row_of(run)
    assert (row and row.figure, row and row.metric) == (figure, metric)
    if row is None:
        return
    assert row == row_of_config(run.config)
    assert not {"model.optimizer.lr", *(f"model.network.layer.{name}" for name in ("num_blocks", "bias"))} & {
        *differences(run, row)[1]
    }
    notes = results_table(groups_of(runs_frame([run])), []).notes
    how = {"0.023475 ± 0.001414": "± of Wang & Li 2024, table 2: the square root of the printed variance",
           "60.2 ± 1.4": "± of Orvieto et al. 2023, table 8: the printed standard error times the square root of "
           "the number of seeds"}.get(figure)  # fmt: skip
    assert how is None or how in notes


@pytest.mark.parametrize("precision", [None, "32", "32-true"])
def test_other_names_of_one_setting_and_what_follows_from_a_class_are_no_difference(precision, tmp_path):
    layer = {"class_path": "my.Layer", "init_args": {"d_state": 64, "mine": 1}}
    run = made(tmp_path, changes={"trainer.precision": precision, LAYER.removesuffix(".init_args"): layer})
    assert [*differences(run, row_of(run))[1]] == ["model.network.layer"]


def test_a_row_that_no_run_can_repeat_and_a_run_without_a_config(tmp_path):
    make_run(tmp_path, "mnist/stable_ssm", changes={f"{LAYER}.parameterization": "direct", LR: 5e-6})
    (one,) = groups_of(runs_frame(read(tmp_path)))
    assert one.row is None and one.difference is None
    assert [note for note in one.notes if "table 2, 2.31438: its code starts direct at Re A = +1/2" in note]
    run = made(tmp_path / "s7", changes={"experiment": "mine/listops/s7"})
    assert row_of(run).value == 63.77 and differences(run, row_of(run)) is None


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
