"""Tables for a terminal, Markdown, LaTeX and CSV say the same."""

import csv
import io

import pytest

from lra_ssm.results.groups import group
from lra_ssm.results.tables import each_to_csv, grid, results_table, to_csv
from tests.results.made import make_run, read

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")


def rows_of(groups, by=()):
    found = results_table(groups, by)
    return found.frame.to_dict("records"), found.notes


def test_a_row_stands_beside_the_published_one(tmp_path):
    for seed, value in enumerate((0.63, 0.65, 0.64)):
        make_run(tmp_path, "lra/listops/b2s6", seed=seed, value=value)
    make_run(tmp_path, "lra/listops/b2s6", seed=3, status="failed", reason="the disk is full", tested=False)
    (row,), notes = rows_of(group(read(tmp_path)))
    assert row == {
        "task": "listops", "model": "b2s6", "test/accuracy, % ± std": "64.00 ± 1.00", "seeds": "3 of 4",
        "parameters": "1,234", "steps": "80,000", "time a run": "10.0 min", "published": "63.85 ± 0.45",
        "difference": "+0.15", "settings": "as config", "notes": "a, b",
    }  # fmt: skip
    assert notes[0].startswith("a: 1 of 4 runs not counted: ") and notes[0].endswith("failed: the disk is full")
    assert notes[1] == "b: data.source is generated, the published figure stands on lra"
    assert "published: Yu & Erichson 2025, table 2; difference: ours less theirs" in notes
    assert any(n.startswith("config of b2s6: has the row's settings where they are published") for n in notes)
    assert any(n == "data: listops: generated" for n in notes)


def test_settings_that_differ_are_counted_and_all_told(tmp_path):
    changes = {"trainer.max_steps": 1000, "model.init_args.optimizer.lr": 0.5}
    make_run(tmp_path, changes=changes)
    (row,), notes = rows_of(group(read(tmp_path)))
    assert row["settings"] == "2 differ"
    assert (
        "differs from configs/…/listops/s4d.yaml: model.optimizer.lr 0.5 for 0.01; trainer.max_steps 1000 for 80000"
        in notes[0]
    )


def test_a_row_of_many_differences_names_the_rest_in_its_note(tmp_path):
    keys = ("lr", "roles.recurrent.lr", "weight_decay", "warmup_steps", "roles.delta.weight_decay")
    make_run(tmp_path)
    make_run(tmp_path, changes={f"model.init_args.optimizer.{key}": 0.77 for key in keys})
    rows, notes = rows_of(group(read(tmp_path)))
    assert rows[1]["settings that differ"].count("=") == 4 and rows[1]["settings that differ"].endswith(", 1 more")
    told = rows[1]["settings that differ"] + " ".join(notes)
    assert all(f"{key.removeprefix('roles.')}=0.77" in told for key in keys)


def test_the_grid_has_the_average_where_all_six_tasks_are(tmp_path):
    for i, task in enumerate(TASKS):
        make_run(tmp_path, f"lra/{task}/s4d", value=0.5 + 0.01 * i)
        if task != "pathx":
            make_run(tmp_path, f"lra/{task}/lru", value=0.5)
    found = grid(group(read(tmp_path)))
    assert [*found.frame] == ["mean ± std (seeds)", *TASKS, "average"]
    cells = {row[0]: row[1:] for row in found.frame.to_numpy().tolist()}
    assert cells["s4d"][-1] == "52.50" and cells["s4d"][1] == "51.00 (1) b"
    assert cells["s4d, published"] == ["60.47", "86.18", "89.46", "88.19", "93.06", "91.95", "84.89"]
    assert cells["lru"][-2:] == cells["lru, published"][-2:] == ["–", "–"]
    assert "average" not in grid(group(read(tmp_path / "runs/lra/text"))).frame


def test_csv_has_numbers_and_each_run(tmp_path):
    make_run(tmp_path, seed=0, value=0.5)
    make_run(tmp_path, seed=1, value=0.6)
    make_run(tmp_path, seed=2, tested=False, changes={"trainer.max_steps": 7})
    groups = group(read(tmp_path))
    first, second = csv.DictReader(io.StringIO(to_csv(groups)))
    assert float(first["mean"]) == pytest.approx(55) and float(first["std"]) == pytest.approx(50**0.5)
    assert float(first["difference"]) == pytest.approx(55 - 60.47) and first["settings_that_differ"] == ""
    assert (second["mean"], second["std"], second["seeds"]) == ("", "", "0")
    each = list(csv.DictReader(io.StringIO(each_to_csv(groups))))
    assert [(row["seed"], row["counted"], row["trainer.max_steps"]) for row in each] == [
        ("0", "True", "80000"), ("1", "True", "80000"), ("2", "False", "7")
    ]  # fmt: skip
    assert each[2]["status"] == "finished, not tested" and float(each[1]["value"]) == pytest.approx(60)


def test_markdown_and_latex_are_whole(tmp_path):
    make_run(tmp_path, "lra/text/s4d", changes={"experiment": "a_b/text|x/s4d_50%"})
    found = results_table(group(read(tmp_path)))
    lines = found.markdown().splitlines()
    assert lines[1].startswith("| --- | --- | ---: |") and r"| text\|x | s4d_50% | 60.00 |" in lines[2]
    assert len({line.replace(r"\|", "").count("|") for line in lines[:3]}) == 1
    text = found.latex()
    assert r"text|x & s4d\_50\% & 60.00 & 1 & 1,234" in text and r"\% $\pm$ std" in text
    assert text.count(r"\\") == 2 and text.count("&") == 2 * (len(found.frame.columns) - 1)
    assert r"\begin{tabular}{llrrrrrr}" in text
