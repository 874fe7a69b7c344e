"""What is averaged, and what is told instead."""

import math
from statistics import mean, stdev

import pytest

from lra_ssm.errors import InputError
from lra_ssm.results.collect import RunRecord
from lra_ssm.results.groups import group
from lra_ssm.results.settings import shown
from lra_ssm.results.tables import grid
from lra_ssm.runs.identity import AS_BEFORE
from tests.results.made import DATA, make_run, read

LR = "model.init_args.optimizer.lr"


def test_seeds_are_averaged_with_the_samples_deviation(tmp_path):
    values = [0.60, 0.62, 0.67]
    for seed, value in enumerate(values):
        make_run(tmp_path, seed=seed, value=value, minutes=10 + seed)
    (found,) = group(read(tmp_path))
    assert found.mean == pytest.approx(100 * mean(values)) and found.std == pytest.approx(100 * stdev(values))
    assert found.difference == pytest.approx(100 * mean(values) - 60.47)
    assert (found.parameters, found.steps, found.seconds) == (1234, 80000, (660.0, False))
    make_run(tmp_path, "lra/image/lru")
    one = group(read(tmp_path))[1]
    assert one.task == "image" and one.std is None


def test_spellings_of_one_setting_are_averaged(tmp_path, monkeypatch):
    changes = [{"trainer.gradient_clip_val": clip, "trainer.precision": precision, "trainer.max_steps": 7}
               for clip, precision in ((1, "32-true"), (1.0, 32), (1.0, "32"))]  # fmt: skip
    for seed, its in enumerate(changes):
        make_run(tmp_path, seed=seed, value=0.1 * (seed + 1), changes=its)
    for by in ([], ["precision", "gradient_clip_val"]):
        (found,) = group(read(tmp_path), by=by)
        assert found.values == [pytest.approx(v) for v in (10, 20, 30)] and [*found.by.values()] in (
            [],
            ["32-true", 1.0],
        )
        assert not any("precision" in note for note in found.notes)
    # A setting that came later, which the runs before have not: as before it is no other row.
    make_run(tmp_path, seed=3, value=0.4, changes=changes[0] | {"model.init_args.optimizer.later": "adamw"})
    assert len(group(read(tmp_path))) == 2
    monkeypatch.setitem(AS_BEFORE, "optimizer.later", "adamw")
    assert [len(g.values) for g in group(read(tmp_path))] == [4]


def test_other_settings_and_other_data_are_other_rows(tmp_path):
    make_run(tmp_path, seed=0, value=0.5)
    make_run(tmp_path, seed=1, value=0.7)
    make_run(tmp_path, seed=0, value=0.9, changes={LR: 0.02})
    make_run(tmp_path, seed=1, value=0.2, data={**DATA, "source": {"kind": "lra"}})
    found = {g.variant: (g.mean, len(g.values)) for g in group(read(tmp_path))}
    assert found == {
        "lr=0.01, data: generated": (pytest.approx(60), 2),
        "lr=0.02, data: generated": (pytest.approx(90), 1),
        "lr=0.01, data: LRA's files": (pytest.approx(20), 1),
    }


def test_data_of_the_same_words_is_told_apart_by_its_digest(tmp_path):
    for digest in "12":
        splits = {"train": {"arrays": {"x": {"file": "a", "sha256": digest}}}}
        make_run(tmp_path, data={**DATA, "splits": splits})
    found = [g.variant for g in group(read(tmp_path))]
    assert len(set(found)) == 2 and all(v.startswith("data: generated ") and len(v.split()[-1]) == 6 for v in found)


def test_what_is_not_finished_or_tested_is_counted_and_named(tmp_path):
    good = make_run(tmp_path, seed=0)
    killed = make_run(tmp_path, seed=1, status="interrupted", step=300, tested=False)
    untested = make_run(tmp_path, seed=2, tested=False)
    part = make_run(tmp_path, seed=3, tested={"limit_batches": 2})
    (found,) = group(read(tmp_path))
    assert [run.path.name for run in found.counted] == [good.name] and found.values == [60.0]
    (note, *_) = found.notes
    assert note.startswith("3 of 4 runs not counted: ")
    for path, why in ((killed, "not finished (interrupted, step 300 of 80,000)"), (untested, "finished, not tested"),
                      (part, "tested on a part of the split (limit 2)")):  # fmt: skip
        assert f"{path}: {why}" in note


def test_a_seed_twice_counts_once(tmp_path):
    make_run(tmp_path, seed=0, value=0.5, run_id="a")
    start = {"time": "2026-03-01T00:00:00+00:00"}
    make_run(tmp_path, seed=0, value=0.7, run_id="a-2", starts=[start])
    (found,) = group(read(tmp_path))
    assert found.values == [pytest.approx(70)] and found.std is None
    assert "/a: seed 0 again in a-2, which counts" in found.notes[0]


def test_other_code_and_another_checkpoint_are_told(tmp_path):
    make_run(tmp_path, seed=0)
    make_run(tmp_path, seed=1, commit="b" * 40)
    make_run(tmp_path, seed=2, tested={"checkpoint": "runs/x/checkpoints/last.ckpt"})
    (found,) = group(read(tmp_path))
    code, checkpoint = (next(n for n in found.notes if f"the same {w}:" in n) for w in ("code", "checkpoint"))
    assert f"commit {'a' * 10}): seeds 0, 2; " in code and f"commit {'b' * 10}): seed 1" in code
    assert checkpoint.endswith("best.ckpt: seeds 0, 1; last.ckpt: seed 2")
    assert not any("hardware" in note for note in found.notes)


def test_a_run_that_went_on_with_other_code_is_told(tmp_path):
    starts = [
        {"time": "2026-01-01T00:00:00+00:00", "git": {"commit": c * 40}, "versions": {"lra_ssm": "1"}} for c in "ab"
    ]
    make_run(tmp_path, starts=starts)
    (found,) = group(read(tmp_path))
    assert any("(commit aaaaaaaaaa), then 1 (commit bbbbbbbbbb): seed 0" in note for note in found.notes)


def test_runs_that_have_not_begun_belong_to_the_row_of_their_model(tmp_path):
    make_run(tmp_path, seed=0)
    runs = read(tmp_path)
    for seed in (1, 2):
        runs.append(
            RunRecord(tmp_path / f"runs/lra/listops/s4d/{seed}", config={"seed_everything": seed}, planned=True)
        )
    runs.append(RunRecord(tmp_path / "runs/lra/listops/b2s6/3", config={"seed_everything": 0}, planned=True))
    first, second = group(runs)
    assert (
        len(first.runs) == 3
        and first.notes[0].startswith("2 of 3 runs not counted")
        and "not started" in first.notes[0]
    )
    assert (second.model, second.mean, second.metric) == ("b2s6", None, "test/accuracy")


def test_metrics_are_the_rows_the_tasks_or_the_users(tmp_path):
    make_run(tmp_path, "mnist/stable_ssm", value=0.9)
    make_run(tmp_path, "mnist/s4d", value=0.8)
    by_loss, by_accuracy = group(read(tmp_path))[::-1]
    assert (by_loss.metric, by_loss.values, by_loss.decimals) == ("test/loss", [pytest.approx(0.1)], 6)
    assert (by_accuracy.metric, by_accuracy.values) == ("test/accuracy", [80.0])
    chosen = group(read(tmp_path), "test/accuracy")
    assert [g.mean for g in chosen] == [80.0, 90.0] and all(
        g.comparable is None and g.difference is None for g in chosen
    )
    (best, _) = group(read(tmp_path), "best val/accuracy")
    assert best.mean == 80.0
    (missing, _) = group(read(tmp_path), "test/f1")
    assert missing.mean is None and "has no test/f1" in missing.notes[0]


def test_by_a_setting_other_differences_stay_rows(tmp_path):
    for lr in (0.01, 0.001):
        for seed in (0, 1):
            make_run(tmp_path, seed=seed, value=0.5 + lr + 0.1 * seed, changes={LR: lr})
    make_run(tmp_path, changes={LR: 0.001, "trainer.max_steps": 5}, value=0.3)
    found = group(read(tmp_path), by=["lr"])
    assert [(g.by["lr"], g.variant, len(g.values)) for g in found] == [
        (0.001, "max_steps=80000", 2), (0.001, "max_steps=5", 1), (0.01, "max_steps=80000", 2)
    ]  # fmt: skip
    assert [g.by for g in group(read(tmp_path)[:2], by=["seed"])] == [{"seed": 0}, {"seed": 1}]
    with pytest.raises(InputError, match="no run has a setting 'rl'"):
        group(read(tmp_path), by=["rl"])


def test_by_a_setting_that_changes_no_result_makes_rows_too(tmp_path):
    for i, devices in enumerate((1, 2)):
        make_run(tmp_path, value=0.5 + i / 10, changes={"trainer.devices": devices})
    make_run(tmp_path, value=0.8, changes={"experiment": "again/listops/s4d", "trainer.devices": 2})
    found = group(read(tmp_path), by=["devices", "experiment"])
    assert [(*g.by.values(), g.values, g.variant) for g in found] == [
        (1, "lra/listops/s4d", [50.0], ""),
        (2, "again/listops/s4d", [80.0], ""),
        (2, "lra/listops/s4d", [60.0], ""),
    ]


def test_a_run_that_has_not_begun_is_in_no_row_of_another_seed(tmp_path):
    make_run(tmp_path, seed=0)
    planned = RunRecord(tmp_path / "runs/lra/listops/s4d/1", config={"seed_everything": 1}, planned=True)
    assert [(g.by, len(g.runs)) for g in group([*read(tmp_path), planned], by=["seed"])] == [
        ({"seed": 0}, 1), ({"seed": 1}, 1)
    ]  # fmt: skip


def layer(name, **settings):
    return {"model.init_args.network.init_args.layer": {"class_path": name, "init_args": settings}}


FIVE = ("lr", "roles.recurrent.lr", "warmup_steps", "weight_decay", "roles.delta.weight_decay")


@pytest.mark.parametrize(
    ("several", "labels"),
    [
        # Of batches one and all of them: other runs, with other results.
        ([{"trainer.limit_train_batches": 1}, {"trainer.limit_train_batches": 1.0}],
         ["limit_train_batches=1", "limit_train_batches=1.0"]),
        ([{LR: 0.12345671}, {LR: 0.12345672}], ["lr=0.12345671", "lr=0.12345672"]),
        ([layer("my.S4D"), layer("your.S4D")], ['layer="my.S4D"', 'layer="your.S4D"']),
        # What one class alone has is told where it alone tells rows apart.
        ([layer("a.A", n=1), layer("a.A"), layer("a.B")], ["layer=A, n=1", "layer=A, n=not set", "layer=B"]),
        ([{LR: 0.1}, {LR: 0.2}, {LR: 0.2, "trainer.limit_train_batches": 3}],
         ["lr=0.1, limit_train_batches=not set", "lr=0.2, limit_train_batches=not set",
          "lr=0.2, limit_train_batches=3"]),
    ],
)  # fmt: skip
def test_labels_tell_rows_apart_and_the_grid_has_each(several, labels, tmp_path):
    for i, changes in enumerate(several):
        for seed in (0, 1):
            make_run(tmp_path, seed=seed, value=0.1 * (i + 1), changes=changes)
    found = group(read(tmp_path))
    assert {g.variant: g.values for g in found} == {
        label: [pytest.approx(10 * (i + 1))] * 2 for i, label in enumerate(labels)
    }
    assert {*grid(found).frame.iloc[:, 0]} >= {f"s4d, {label}" for label in labels}
    by_rate = group(read(tmp_path), by=["lr"])
    assert len({(shown(g.by["lr"]), g.variant) for g in by_rate}) == len(labels)


def test_rows_that_are_the_same_in_what_a_row_names_name_more(tmp_path):
    optimizer = "model.init_args.optimizer"
    make_run(tmp_path)
    for last in (0.5, 0.6):
        make_run(tmp_path, changes={f"{optimizer}.{key}": 0.7 for key in FIVE} | {f"{optimizer}.{max(FIVE)}": last})
    found = [g.variant for g in group(read(tmp_path))]
    assert len({*found}) == 3
    assert [(v.count("="), v.endswith(", 1 more")) for v in found] == [(4, True), (5, False), (5, False)]
    assert found[1].endswith("weight_decay=0.5") and found[2].endswith("weight_decay=0.6")


def test_a_run_that_failed_before_its_data_was_known_has_a_label_of_its_own(tmp_path):
    make_run(tmp_path, value=0.5)
    make_run(tmp_path, data={}, status="failed", tested=False)
    assert [(g.variant, len(g.values)) for g in group(read(tmp_path))] == [
        ("data: generated", 1), ("data: not known", 0)
    ]  # fmt: skip


def test_a_value_that_is_nan_makes_the_mean_nan(tmp_path):
    make_run(tmp_path, "mnist/s4d", seed=0, value=math.nan)
    make_run(tmp_path, "mnist/s4d", seed=1)
    (found,) = group(read(tmp_path))
    assert math.isnan(found.mean) and math.isnan(found.std)
