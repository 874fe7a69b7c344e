"""What is averaged, what is said of it, and that every format says the same."""

import csv
import io
import math

import pytest

from lra_ssm.errors import InputError
from lra_ssm.results.plot import draw_settings
from lra_ssm.results.settings import format_value, resolve
from lra_ssm.results.table import grid_table, groups_of, results_table, runs_csv, runs_frame
from tests.results.made import CODE, DATA, LR, make_run, read

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")


def group(folder, metric=None, by=()):
    return groups_of(runs_frame(read(folder), metric, by))


def table(folder):
    return results_table(group(folder), read(folder))


def note(g, words):
    (found,) = [text for text in g.notes if words in text]
    return found


def layer(name, **settings):
    return {"model.init_args.network.init_args.layer": {"class_path": name, "init_args": settings}}


# -- what is averaged --------------------------------------------------------------------------------------------------


def test_seeds_are_averaged_next_to_the_published_row(tmp_path):
    for seed, value in enumerate((0.63, 0.65, 0.64)):
        make_run(tmp_path, "lra/listops/b2s6", seed=seed, value=value, minutes=9 + seed)
    make_run(tmp_path, "lra/listops/b2s6", seed=3, status="failed", reason="the disk is full", tested=False)
    found = table(tmp_path)
    (row,), notes = found.frame.to_dict("records"), found.notes
    assert row == {
        "task": "listops", "model": "b2s6", "test/accuracy, % ± std": "64.00 ± 1.00", "seeds": "3 of 4",
        "parameters": "1,234", "steps": "80,000", "time a run": "10.0 min", "published": "63.85 ± 0.45",
        "difference": "+0.15", "notes": "a,b",
    }  # fmt: skip
    assert notes[0].startswith("a: 1 of 4 runs not counted: ") and notes[0].endswith("failed: the disk is full")
    assert notes[1] == "b: data.source is generated, the published figure has lra"
    assert "published: Yu & Erichson 2025, table 2" in notes and "data: listops: generated" in notes
    assert "our config has the row's settings: b2s6 where published (docs/reproduction.md)" in notes
    make_run(tmp_path, "lra/listops/b2s6", seed=4, value=math.nan)
    make_run(tmp_path, "lra/image/lru")
    nan, one = group(tmp_path)
    assert one.task == "image" and one.std is None and math.isnan(nan.mean) and math.isnan(nan.std)


def test_other_settings_data_and_starting_weights_are_other_rows(tmp_path):
    splits = {"train": {"arrays": {"x": {"file": "a", "sha256": "1"}}}}
    for made in (
        {"seed": 0, "value": 0.5},
        {"value": 0.7},
        {"seed": 0, "value": 0.9, "changes": {LR: 0.02}},
        {"value": 0.2, "data": {**DATA, "source": {"kind": "lra"}}},
        {"value": 0.3, "data": {**DATA, "splits": splits}},
        {"value": 0.1, "weights": {"start.ckpt": "abc"}},
        {"value": 0.15, "weights": {"start.ckpt": "def"}},
        # It does not know its data: that of the runs with its settings.
        {"status": "failed", "reason": "no room", "tested": False, "data": {}, "changes": {LR: 0.02}},
    ):
        make_run(tmp_path, **{"seed": 1, **made})
    found = group(tmp_path)
    # Of data files and starting weights the first word, without the digits.
    rows = [(*(str(value).split()[0] for value in g.settings.values()), round(g.mean)) for g in found]
    assert sorted(rows) == [
        ("LRA's", "0.01", "default", 20), ("generated", "0.01", "default", 30), ("generated", "0.01", "default", 60),
        ("generated", "0.01", "start.ckpt", 10), ("generated", "0.01", "start.ckpt", 15),
        ("generated", "0.02", "default", 90),
    ]  # fmt: skip
    assert len({g.label for g in found}) == 6
    assert all([*g.settings] == ["data files", "lr", "started from"] for g in found)
    assert "no room" in note(next(g for g in found if g.mean == 90), "not counted")


def test_what_is_mixed_or_special_in_a_row_is_named(tmp_path):
    """Our version and commit, and the user's own files, which run.json has by their digests."""
    first = {"time": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:10:00+00:00", **CODE}
    make_run(tmp_path, seed=0, starts=[first], stop="stopped at step 20: no improvement")
    make_run(tmp_path, seed=1, starts=[first, first | {"git": {"commit": "b" * 40}}])
    make_run(tmp_path, seed=2, starts=[first | {"source": {"my_layer.py": "0123456789"}}])
    (found,) = group(tmp_path)
    code, version = note(found, "not all with the same code: "), CODE["versions"]["lra_ssm"]
    assert f"{version} (commit aaaaaaaaaa): seeds 0; " in code
    assert f"{version} (commit aaaaaaaaaa), then {version} (commit bbbbbbbbbb): seeds 1; " in code
    assert f"{version} (commit aaaaaaaaaa, my_layer.py 012345): seeds 2" in code
    assert not any("hardware" in text for text in found.notes)
    assert "seed 0 stopped at step 20: no improvement" in found.notes
    make_run(tmp_path, "lra/text/s4d", ckpt_path={"file": "other/last.ckpt", "sha256": "ab"})
    assert "started from other/last.ckpt" in group(tmp_path)[1].notes


def test_what_does_not_count_is_named_and_left_out(tmp_path):
    good = make_run(tmp_path, seed=0)
    killed = make_run(tmp_path, seed=1, status="interrupted", step=300, tested=False)
    old = make_run(tmp_path, seed=4, value=0.5, run_id="a")
    make_run(tmp_path, seed=4, value=0.7, run_id="a-2", starts=[{"time": "2026-03-01T00:00:00+00:00"}])
    (found,) = group(tmp_path)
    assert [run.path.name for run in found.counted.run] == [good.name, "a-2"]
    assert [*found.counted.value] == [60, 70]
    told = note(found, "2 of 4 runs not counted: ")
    for path, why in ((killed, "not finished (interrupted, step 300 of 80,000)"),
                      (old, "the same seed again: a later run counts")):  # fmt: skip
        assert f"{path}: {why}" in told


def test_metrics_are_the_rows_the_tasks_or_the_users(tmp_path):
    make_run(tmp_path, "mnist/stable_ssm", value=0.9)
    make_run(tmp_path, "mnist/s4d", value=0.8)
    by_accuracy, by_loss = group(tmp_path)
    assert (by_loss.metric, round(by_loss.mean, 9), by_loss.decimals) == ("test/loss", 0.1, 6)
    assert (by_accuracy.metric, by_accuracy.mean) == ("test/accuracy", 80.0)
    chosen = group(tmp_path, "test/accuracy")
    assert [g.mean for g in chosen] == [80.0, 90.0] and all(g.row is None and g.difference is None for g in chosen)
    assert group(tmp_path, "best val/accuracy")[0].mean == 80.0
    missing = group(tmp_path, "test/f1")[0]
    assert missing.mean is None and "has no test/f1" in missing.notes[0]


# -- settings ----------------------------------------------------------------------------------------------------------


def test_by_a_setting_other_differences_stay_rows(tmp_path):
    for lr in (0.01, 0.001):
        for seed in (0, 1):
            make_run(tmp_path, seed=seed, changes={LR: lr, "trainer.devices": 1 + seed})
    make_run(tmp_path, changes={LR: 0.001, "trainer.max_steps": 5})
    assert [(*g.settings.values(), len(g.counted)) for g in group(tmp_path, by=["lr"])] == [
        (0.001, 5, 1), (0.001, 80000, 2), (0.01, 80000, 2)
    ]  # fmt: skip
    assert {g.settings["seed"] for g in group(tmp_path, by=["seed"])} == {0, 1}
    assert {g.settings["devices"] for g in group(tmp_path, by=["devices"])} == {1, 2, "auto"}  # it changes no result


def test_a_setting_that_only_one_model_has_separates_its_rows(tmp_path):
    for name, settings in (("Attention", {}), ("LocalConvolution", {"width": 4}), ("LocalConvolution", {"width": 64})):
        changes = {"experiment": f"locality/text/{name}", **layer(f"lra_ssm.layers.{name}", **settings)}
        make_run(tmp_path, changes=changes)
    groups = group(tmp_path, by=["width"])
    assert [(g.model, g.settings) for g in groups] == [
        ("Attention", {}), ("LocalConvolution", {"width": 4}), ("LocalConvolution", {"width": 64})
    ]  # fmt: skip
    draw_settings(groups[1:], ["width"], tmp_path / "one.png")
    draw_settings(groups, ["width"], tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes() == (tmp_path / "one.png").read_bytes()


def test_a_name_may_be_the_end_of_one_and_values_are_shown_short():
    lr, role, dropout = "model.optimizer.lr", "model.optimizer.roles.recurrent.lr", "model.network.block.dropout"
    keys = [lr, role, dropout, "model.network.dropout", "seed_everything", "data.seed"]
    for name, meant in (("lr", lr), ("optimizer.lr", lr), ("recurrent.lr", role), ("block.dropout", dropout),
                        ("seed", "seed_everything")):  # fmt: skip
        assert resolve(name, keys) == meant
    with pytest.raises(InputError, match="'dropout' may be any of model.network.block.dropout, model.network.dropout:"):
        resolve("dropout", keys)
    values = [None, True, 1e-05, [0.9, 0.95], "/data/a.Txt", {"class_path": "torch.nn.GELU"}]
    assert [*map(format_value, values)] == ["null", "true", "1e-05", "[0.9, 0.95]", "/data/a.Txt", "GELU"]


@pytest.mark.parametrize(
    ("several", "labels"),
    [
        # Of batches one and all of them: other runs, with other results.
        ([{"trainer.limit_train_batches": 1}, {"trainer.limit_train_batches": 1.0}],
         ["limit_train_batches=1", "limit_train_batches=1.0"]),
        ([{LR: 0.12345671}, {LR: 0.12345672}], ["lr=0.12345671", "lr=0.12345672"]),
        ([layer("my.S4D", init="legs"), layer("lra_ssm.layers.S4D")], ["layer=my.S4D", "layer=S4D"]),
        ([{"model.class_path": "my.Task"}, {}], ["model=my.Task", "model=Classification"]),
        # What only one class has is said where it distinguishes rows.
        ([layer("a.A", n=1), layer("a.A"), layer("a.B")],
         ["layer=a.A, n=1", "layer=a.A, n=default", "layer=a.B, n=default"]),
        ([layer("a.A", n=8), layer("a.B", n=4), layer("a.C")], ["layer=a.A", "layer=a.B", "layer=a.C"]),
        ([{LR: 0.1}, {LR: 0.2}, {LR: 0.2, "trainer.limit_train_batches": 3}],
         ["lr=0.1, limit_train_batches=default", "lr=0.2, limit_train_batches=default",
          "lr=0.2, limit_train_batches=3"]),
    ],
)  # fmt: skip
def test_labels_distinguish_rows_and_the_grid_has_each(several, labels, tmp_path):
    for i, changes in enumerate(several):
        for seed in (0, 1):
            make_run(tmp_path, seed=seed, value=0.1 * (i + 1), changes=changes)
    found = group(tmp_path)
    assert {g.label: [round(value) for value in g.counted.value] for g in found} == {
        f"s4d, {label}": [10 * (i + 1)] * 2 for i, label in enumerate(labels)
    }
    assert {*grid_table(found, []).frame.iloc[:, 0]} >= {g.label for g in found}


# -- the table ---------------------------------------------------------------------------------------------------------


def test_models_of_other_sizes_are_named(tmp_path):
    make_run(tmp_path, parameters=1000)
    make_run(tmp_path, "lra/listops/b2s6", parameters=1090)
    assert not any("parameters" in text for g in group(tmp_path) for text in g.notes)
    make_run(tmp_path, "lra/listops/lru", parameters=1500)
    make_run(tmp_path, "lra/text/s4d", parameters=9000)  # another task's is no comparison
    told = [text for g in group(tmp_path) for text in g.notes if "parameters" in text]
    assert told == ["listops: lru has 1.50 times as many parameters as s4d"]


def test_settings_that_differ_from_the_config_are_named(tmp_path):
    make_run(tmp_path, changes={"trainer.max_steps": 1000, LR: 0.5, "trainer.precision": "32"})
    told = "model.optimizer.lr 0.5 instead of 0.01; trainer.max_steps 1000 instead of 80000"
    assert f"b: other settings than configs/…/listops/s4d.yaml: {told}" in table(tmp_path).notes
    # What has a column is not said again, so that rows share their note.
    for lr in (0.2, 0.3):
        make_run(tmp_path, changes={"trainer.max_steps": 1000, LR: lr, **layer("my.S4D", d_state=64, n=1)})
    assert [text.partition("yaml: ")[2] for text in table(tmp_path).notes if "other settings" in text] == [
        "trainer.max_steps 1000 instead of 80000"
    ]


def test_the_grid_has_the_average_if_all_six_tasks_are_there(tmp_path):
    for i, task in enumerate(TASKS):
        make_run(tmp_path, f"lra/{task}/s4d", value=0.5 + 0.01 * i)
        if task != "pathx":
            make_run(tmp_path, f"lra/{task}/lru", value=0.5)
    found = grid_table(group(tmp_path), []).frame
    assert [*found] == ["mean ± std (seeds)", *TASKS, "average"]
    cells = {row[0]: row[1:] for row in found.to_numpy().tolist()}
    assert cells["s4d"][-1] == "52.50" and cells["s4d"][1] == "51.00 (1)"
    assert cells["s4d, published"] == ["60.47", "86.18", "89.46", "88.19", "93.06", "91.95", "84.89"]
    assert cells["lru"][-2:] == cells["lru, published"][-2:] == ["–", "–"]
    assert "average" not in grid_table(group(tmp_path / "runs/lra/text"), []).frame


def test_markdown_latex_and_csv_are_whole(tmp_path):
    named = {"experiment": "a_b/text|x/s4d_50%"}
    make_run(tmp_path, "lra/text/s4d", changes=named)
    make_run(tmp_path, "lra/text/s4d", 1, changes={**named, "trainer.max_steps": 7}, tested=False)
    found = table(tmp_path)
    lines = found.markdown().splitlines()
    assert lines[1].startswith("| --- | --- | --- | ---: |") and r"| text\|x | s4d_50% | 50000 | 60.00 |" in lines[3]
    assert len({line.replace(r"\|", "").count("|") for line in lines[:4]}) == 1
    text = found.latex()
    assert r"text|x & s4d\_50\% & 50000 & 60.00 & 1 & 1,234" in text and r"\% $\pm$ std" in text
    assert text.count(r"\\") == 3 and r"\begin{tabular}{lllrrrrrr}" in text and r"\toprule" in text
    first, second = csv.DictReader(io.StringIO(runs_csv(runs_frame(read(tmp_path)))))
    assert [(row["seed"], row["why"], row["trainer.max_steps"]) for row in (first, second)] == [
        ("0", "", "50000"), ("1", "finished, not tested", "7")
    ]  # fmt: skip
    assert float(first["value"]) == pytest.approx(60) and second["value"] == ""
