"""What is averaged, what is said of it, and that every format says the same."""

import csv
import io
import json
import math
from statistics import mean, stdev

import pytest

from lra_ssm.errors import InputError
from lra_ssm.results.table import grid, groups_of, results_table, runs_frame, runs_to_csv
from tests.results.made import DATA, make_run, read

LR = "model.init_args.optimizer.lr"
TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")


def group(folder, metric=None, by=()):
    return groups_of(runs_frame(read(folder), metric, by), by)


def values(g):
    return [pytest.approx(value) for value in g.counted.value]


def note(g, words):
    (found,) = [text for text in g.notes if words in text]
    return found


# -- what is averaged --------------------------------------------------------------------------------------------------


def test_seeds_are_averaged_with_the_samples_deviation(tmp_path):
    accuracies = [0.60, 0.62, 0.67]
    for seed, value in enumerate(accuracies):
        make_run(tmp_path, seed=seed, value=value, minutes=10 + seed)
    (found,) = group(tmp_path)
    assert found.mean == pytest.approx(100 * mean(accuracies)) and found.std == pytest.approx(100 * stdev(accuracies))
    assert found.difference == pytest.approx(100 * mean(accuracies) - 60.47)
    assert (found.parameters, found.steps, found.seconds, found.at_least) == (1234, 80000, 660.0, False)
    make_run(tmp_path, "lra/image/lru")
    one = group(tmp_path)[1]
    assert one.task == "image" and one.std is None


def test_other_settings_data_and_starting_weights_are_other_rows(tmp_path):
    make_run(tmp_path, seed=0, value=0.5)
    make_run(tmp_path, seed=1, value=0.7)
    make_run(tmp_path, seed=0, value=0.9, changes={LR: 0.02})
    make_run(tmp_path, seed=1, value=0.2, data={**DATA, "source": {"kind": "lra"}})
    weights = {"start.ckpt": "abc"}
    make_run(tmp_path, seed=1, value=0.1, weights=weights)
    found = {g.variant: (g.mean, len(g.counted)) for g in group(tmp_path)}
    assert found == {
        "data: generated, weights: unknown, lr=0.01": (pytest.approx(60), 2),
        "data: generated, weights: unknown, lr=0.02": (pytest.approx(90), 1),
        "data: LRA's files, weights: unknown, lr=0.01": (pytest.approx(20), 1),
        "data: generated, weights: start.ckpt, lr=0.01": (pytest.approx(10), 1),
    }


@pytest.mark.parametrize("what", ["data", "weights"])
def test_what_has_the_same_words_is_distinguished_by_its_digest(what, tmp_path):
    for digest in ("1", "2"):
        splits = {"train": {"arrays": {"x": {"file": "a", "sha256": digest}}}}
        more = {"data": {**DATA, "splits": splits}} if what == "data" else {
            "weights": {"start.ckpt": digest}}  # fmt: skip
        make_run(tmp_path, **more)
    found = [g.variant for g in group(tmp_path)]
    assert len(set(found)) == 2 and all(v.startswith(f"{what}: ") and len(v.split()[-1]) == 6 for v in found)


def test_runs_with_other_code_are_named(tmp_path):
    """Our version and commit, and the user's own files, which run.json has by their digests."""
    make_run(tmp_path, seed=0)
    make_run(tmp_path, seed=1, commit="b" * 40)
    start = {"time": "2026-01-01T00:00:00+00:00", "git": {"commit": "a" * 40}, "source": {"my_layer.py": "0123456789"},
             "versions": {"lra_ssm": "0.1.0+0123456789ab"}}  # fmt: skip
    make_run(tmp_path, seed=2, starts=[start])
    (found,) = group(tmp_path)
    code = note(found, "not all with the same code: ")
    assert f"commit {'a' * 10}): seeds 0; " in code and f"commit {'b' * 10}): seeds 1" in code
    assert f"commit {'a' * 10}, my_layer.py 012345): seeds 2" in code
    assert not any("hardware" in text for text in found.notes)


def test_a_run_that_went_on_with_other_code_is_named(tmp_path):
    starts = [
        {"time": "2026-01-01T00:00:00+00:00", "git": {"commit": c * 40}, "versions": {"lra_ssm": "1"}} for c in "ab"
    ]
    make_run(tmp_path, starts=starts)
    (found,) = group(tmp_path)
    assert "(commit aaaaaaaaaa), then 1 (commit bbbbbbbbbb): seeds 0" in note(found, "same code")


def test_a_run_that_began_from_a_checkpoint_says_so(tmp_path):
    make_run(tmp_path, ckpt_path={"file": "other/last.ckpt", "sha256": "ab"})
    (found,) = group(tmp_path)
    assert "started from other/last.ckpt" in found.notes


def test_a_run_that_stopped_early_says_so(tmp_path):
    make_run(tmp_path, stop="stopped at step 20: val/loss did not improve in 3 validations")
    assert "seed 0 stopped at step 20: val/loss did not improve in 3 validations" in group(tmp_path)[0].notes


def test_what_does_not_count_is_named_and_left_out(tmp_path):
    good = make_run(tmp_path, seed=0)
    killed = make_run(tmp_path, seed=1, status="interrupted", step=300, tested=False)
    untested = make_run(tmp_path, seed=2, tested=False)
    precision = make_run(tmp_path, seed=3, tested=False)
    others = {"others": [{"why": "other settings (trainer.precision 16-mixed)"}]}
    (precision / "test-others.json").write_text(json.dumps(others))
    early = make_run(tmp_path, seed=4, status="failed", reason="no room", tested=False, data={})  # before its data
    (found,) = group(tmp_path)
    assert [run.path.name for run in found.counted.run] == [good.name] and values(found) == [60.0]
    told = note(found, "4 of 5 runs not counted: ")
    for path, why in ((killed, "not finished (interrupted, step 300 of 80,000)"), (untested, "finished, not tested"),
                      (precision, "finished, tested only with other settings (trainer.precision 16-mixed)"),
                      (early, "failed: no room")):  # fmt: skip
        assert f"{path}: {why}" in told


def test_a_seed_twice_counts_once(tmp_path):
    old = make_run(tmp_path, seed=0, value=0.5, run_id="a")
    make_run(tmp_path, seed=0, value=0.7, run_id="a-2", starts=[{"time": "2026-03-01T00:00:00+00:00"}])
    (found,) = group(tmp_path)
    assert values(found) == [70.0] and found.std is None
    assert f"{old}: the same seed again: a later run counts" in found.notes[0]


def test_metrics_are_the_rows_the_tasks_or_the_users(tmp_path):
    make_run(tmp_path, "mnist/stable_ssm", value=0.9)
    make_run(tmp_path, "mnist/s4d", value=0.8)
    by_loss, by_accuracy = group(tmp_path)[::-1]
    assert (by_loss.metric, values(by_loss), by_loss.decimals) == ("test/loss", [0.1], 6)
    assert (by_accuracy.metric, values(by_accuracy)) == ("test/accuracy", [80.0])
    chosen = group(tmp_path, "test/accuracy")
    assert [g.mean for g in chosen] == [80.0, 90.0] and all(g.row is None and g.difference is None for g in chosen)
    assert group(tmp_path, "best val/accuracy")[0].mean == 80.0
    missing = group(tmp_path, "test/f1")[0]
    assert missing.mean is None and "has no test/f1" in missing.notes[0]


def test_by_a_setting_other_differences_stay_rows(tmp_path):
    for lr in (0.01, 0.001):
        for seed in (0, 1):
            make_run(tmp_path, seed=seed, value=0.5 + lr + 0.1 * seed, changes={LR: lr})
    make_run(tmp_path, changes={LR: 0.001, "trainer.max_steps": 5}, value=0.3)
    found = group(tmp_path, by=["lr"])
    assert [(g.by["lr"], g.variant, len(g.counted)) for g in found] == [
        (0.001, "max_steps=5", 1), (0.001, "max_steps=80000", 2), (0.01, "max_steps=80000", 2)
    ]  # fmt: skip
    with pytest.raises(InputError, match="no run has a setting 'rl'"):
        group(tmp_path, by=["rl"])


def test_by_the_seed_and_by_a_setting_that_changes_no_result(tmp_path):
    for i, devices in enumerate((1, 2)):
        make_run(tmp_path, seed=i, value=0.5 + i / 10, changes={"trainer.devices": devices})
    assert [g.by for g in group(tmp_path, by=["seed"])] == [{"seed": 0}, {"seed": 1}]
    assert [(g.by["devices"], g.variant) for g in group(tmp_path, by=["devices"])] == [(1, ""), (2, "")]


def layer(name, **settings):
    return {"model.init_args.network.init_args.layer": {"class_path": name, "init_args": settings}}


@pytest.mark.parametrize(
    ("several", "labels"),
    [
        # Of batches one and all of them: other runs, with other results.
        ([{"trainer.limit_train_batches": 1}, {"trainer.limit_train_batches": 0.5}],
         ["limit_train_batches=1", "limit_train_batches=0.5"]),
        ([{LR: 0.12345671}, {LR: 0.12345672}], ["lr=0.12345671", "lr=0.12345672"]),
        ([layer("my.S4D"), layer("your.S4D")], ['layer="my.S4D"', 'layer="your.S4D"']),
        # What only one class has is said where it distinguishes rows.
        ([layer("a.A", n=1), layer("a.A"), layer("a.B")], ["layer=A, n=1", "layer=A, n=default", "layer=B, n=default"]),
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
    assert {g.variant: [round(value) for value in g.counted.value] for g in found} == {
        label: [10 * (i + 1)] * 2 for i, label in enumerate(labels)
    }
    assert {*grid(found).frame.iloc[:, 0]} >= {f"s4d, {label}" for label in labels}


def test_a_row_of_many_differences_names_the_rest_in_its_note(tmp_path):
    keys = ("lr", "roles.recurrent.lr", "weight_decay", "warmup_steps", "roles.delta.weight_decay")
    make_run(tmp_path)
    make_run(tmp_path, changes={f"model.init_args.optimizer.{key}": 0.77 for key in keys})
    other = group(tmp_path)[1]
    assert other.variant.count("=") == 4 and other.variant.endswith(", 1 more")
    assert all(f"{key.removeprefix('roles.')}=0.77" in other.variant + note(other, "differs also in ") for key in keys)


def test_rows_that_differ_only_in_their_last_setting_have_different_labels(tmp_path):
    keys = ("lr", "roles.delta.weight_decay", "roles.recurrent.lr", "warmup_steps", "weight_decay")
    optimizer = "model.init_args.optimizer."
    make_run(tmp_path)
    make_run(tmp_path, value=0.1, changes={f"{optimizer}{key}": 0.77 for key in keys})
    make_run(tmp_path, value=0.2, changes={f"{optimizer}{key}": 0.77 for key in keys} | {f"{optimizer}{keys[-1]}": 0.5})
    found = group(tmp_path)
    assert len({g.label for g in found}) == 3
    cells = grid(found).frame["listops"]
    assert all(any(f"{value}.00" in cell for cell in cells) for value in (10, 20, 60))


def test_a_value_that_is_nan_makes_the_mean_nan(tmp_path):
    make_run(tmp_path, "mnist/s4d", seed=0, value=math.nan)
    make_run(tmp_path, "mnist/s4d", seed=1)
    (found,) = group(tmp_path)
    assert math.isnan(found.mean) and math.isnan(found.std)


def test_models_of_other_sizes_are_named(tmp_path):
    make_run(tmp_path, parameters=1000)
    make_run(tmp_path, "lra/listops/b2s6", parameters=1090)
    assert not any("parameters" in text for g in group(tmp_path) for text in g.notes)
    make_run(tmp_path, "lra/listops/lru", parameters=1500)
    make_run(tmp_path, "lra/text/s4d", parameters=9000)  # another task's is no comparison
    told = [text for g in group(tmp_path) for text in g.notes if "parameters" in text]
    assert told == ["listops: lru has 1.50 times as many parameters as s4d"]


# -- the table ---------------------------------------------------------------------------------------------------------


def test_a_row_has_the_published_one_next_to_it(tmp_path):
    for seed, value in enumerate((0.63, 0.65, 0.64)):
        make_run(tmp_path, "lra/listops/b2s6", seed=seed, value=value)
    make_run(tmp_path, "lra/listops/b2s6", seed=3, status="failed", reason="the disk is full", tested=False)
    found = results_table(group(tmp_path))
    (row,), notes = found.frame.to_dict("records"), found.notes
    assert row == {
        "task": "listops", "model": "b2s6", "test/accuracy, % ± std": "64.00 ± 1.00", "seeds": "3 of 4",
        "parameters": "1,234", "steps": "80,000", "time a run": "10.0 min", "published": "63.85 ± 0.45",
        "difference": "+0.15", "settings": "as config", "notes": "a, b",
    }  # fmt: skip
    assert notes[0].startswith("a: 1 of 4 runs not counted: ") and notes[0].endswith("failed: the disk is full")
    assert notes[1] == "b: data.source is generated, the published figure has lra"
    assert "published: Yu & Erichson 2025, table 2" in notes and "data: listops: generated" in notes
    assert any(n.startswith("the config of b2s6 has the row's settings where they are published") for n in notes)


def test_settings_that_differ_from_the_config_are_counted_and_named(tmp_path):
    make_run(tmp_path, changes={"trainer.max_steps": 1000, LR: 0.5})
    found = results_table(group(tmp_path))
    assert found.frame.settings[0] == "2 differ"
    told = "model.optimizer.lr 0.5 instead of 0.01; trainer.max_steps 1000 instead of 80000"
    assert f"b: other settings than configs/…/listops/s4d.yaml: {told}" in found.notes
    # What two rows have in common is said once.
    make_run(tmp_path, changes={"trainer.max_steps": 1000, LR: 0.2})
    found = results_table(group(tmp_path))
    assert [note[3:].partition("yaml: ")[2] for note in found.notes if "other settings" in note] == [
        "trainer.max_steps 1000 instead of 80000", "model.optimizer.lr 0.2 instead of 0.01",
        "model.optimizer.lr 0.5 instead of 0.01",
    ]  # fmt: skip


def test_the_grid_has_the_average_if_all_six_tasks_are_there(tmp_path):
    for i, task in enumerate(TASKS):
        make_run(tmp_path, f"lra/{task}/s4d", value=0.5 + 0.01 * i)
        if task != "pathx":
            make_run(tmp_path, f"lra/{task}/lru", value=0.5)
    found = grid(group(tmp_path))
    assert [*found.frame] == ["mean ± std (seeds)", *TASKS, "average"]
    cells = {row[0]: row[1:] for row in found.frame.to_numpy().tolist()}
    assert cells["s4d"][-1] == "52.50" and cells["s4d"][1].startswith("51.00 (1)")
    assert cells["s4d, published"] == ["60.47", "86.18", "89.46", "88.19", "93.06", "91.95", "84.89"]
    assert cells["lru"][-2:] == cells["lru, published"][-2:] == ["–", "–"]
    assert "average" not in grid(group(tmp_path / "runs/lra/text")).frame


def test_csv_has_the_table_or_each_run(tmp_path):
    make_run(tmp_path, seed=0, value=0.5)
    make_run(tmp_path, seed=1, value=0.6)
    make_run(tmp_path, seed=2, tested=False, changes={"trainer.max_steps": 7})
    frame = runs_frame(read(tmp_path))
    second, first = csv.DictReader(io.StringIO(results_table(groups_of(frame)).csv()))
    assert (first["test/accuracy, % ± std"], first["seeds"], first["difference"]) == ("55.00 ± 7.07", "2", "-5.47")
    assert (second["test/accuracy, % ± std"], second["seeds"]) == ("–", "0 of 1")
    each = list(csv.DictReader(io.StringIO(runs_to_csv(frame))))
    assert [(row["seed"], row["why"], row["trainer.max_steps"]) for row in each] == [
        ("0", "", "80000"), ("1", "", "80000"), ("2", "finished, not tested", "7")
    ]  # fmt: skip
    assert float(each[1]["value"]) == pytest.approx(60) and each[2]["value"] == ""


def test_markdown_and_latex_are_whole(tmp_path):
    make_run(tmp_path, "lra/text/s4d", changes={"experiment": "a_b/text|x/s4d_50%"})
    found = results_table(group(tmp_path))
    lines = found.markdown().splitlines()
    assert lines[1].startswith("| --- | --- | ---: |") and r"| text\|x | s4d_50% | 60.00 |" in lines[2]
    assert len({line.replace(r"\|", "").count("|") for line in lines[:3]}) == 1
    text = found.latex()
    assert r"text|x & s4d\_50\% & 60.00 & 1 & 1,234" in text and r"\% $\pm$ std" in text
    assert text.count(r"\\") == 2 and text.count("&") == 2 * (len(found.frame.columns) - 1)
    assert r"\begin{tabular}{llrrrrrr}" in text
