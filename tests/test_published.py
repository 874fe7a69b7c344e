"""published.yaml is whole, and what configs, README and docs say of it is what stands there."""

import math
import re
from pathlib import Path

import pytest

from lra_ssm.results.published import data_differences, differences, row_of, row_of_config, rows, rows_for
from lra_ssm.runs.identity import set_beyond_defaults
from lra_ssm.runs.record import RunRecord, flatten
from lra_ssm.sweeps.sweep import read_sweep
from tests.test_configs import CONFIGS, FILES, PUBLISHED, options_of_files, parsed

ROOT = Path(__file__).parents[1]
TABLES = {(table["paper"], table["where"]): table for table in PUBLISHED["tables"]}
COMPARED = [
    path
    for path in FILES
    if {"lra", "scifar", "mnist", "slimpajama6b"} & {*path.relative_to(CONFIGS).parts}
    and not path.stem.endswith(("_pretrain", "_finetune", "_rope"))  # docs/meaning.md; they have no row
]
README, PAGE = (ROOT / "README.md").read_text(), (ROOT / "docs/reproduction.md").read_text()


def test_rows_are_whole_and_stand_once():
    for (paper, _), table in TABLES.items():
        assert paper in PUBLISHED["papers"] and table["metric"] and table["decimals"] >= 0
        figures = ("value", "std", "variance", "standard_error", "unmatched")
        seen = [{k: v for k, v in found.items() if k not in figures} for found in table["rows"]]
        assert all(one not in seen[:i] for i, one in enumerate(seen))
        for found in table["rows"]:
            named = {"task", "model", "value", "settings", "step", "experiment", "case", "unmatched"}
            assert found.keys() - named in ({"std"}, {"variance"}, {"standard_error"}, set())
            assert "seeds" in table or "standard_error" not in found
            assert found["model"] in PUBLISHED["models"]
            for number in (found["value"], found.get("std", 0.0), found.get("variance", 0.0)):
                assert isinstance(number, int | float) and not number < 0
            if table.get("unit") == "percent":
                assert 0 < found["value"] <= 100
    for model in PUBLISHED["models"].values():
        assert {model.get("source"), model.get("further")} <= {None, *PUBLISHED["sources"]}


def test_every_table_has_its_cells():
    cells = {key: len(table["rows"]) for key, table in TABLES.items()}
    assert cells == {
        ("tay2021", "table 1"): 5,
        ("yu2025", "table 1"): 8 * 3,
        ("yu2025", "table 2"): 6 * 6,
        ("yu2025", "table 3"): 10 * 6 - 2,  # S4++ and Spectral SSM lack one each
        ("yu2025", "figure 7"): 11 * 3,
        ("wang2024", "table 2"): 7 * 4,
        ("wang2024", "table 3"): 7 * 4,
        ("wang2024", "table 4"): 2 * 6,
        ("wang2024", "table 6"): 4,
        ("wang2024", "table 7"): 4 * 4,
        ("deep2024", "table 1"): 5,
        ("orvieto2023", "table 8"): 6,
        ("orvieto2023", "table 8, quoted"): 2,
        ("orvieto2023", "table 8, run again"): 2 * 6,
        ("gu2024", "README, example.py"): 1,
        ("karpathy2022", "README, shakespeare_char on a CPU"): 1,
        ("karpathy2022", "README, shakespeare_char on a GPU"): 1,
    }


def test_what_stable_ssm_prints_as_deviations_are_variances():
    """Of three numbers, none of them negative, the sample's deviation is at most 3 ** 0.5 times their mean."""
    beyond = 0
    for where in ("table 2", "table 3"):
        rows = TABLES["wang2024", where]["rows"]
        assert not any("std" in found for found in rows)
        spread = [found for found in rows if found.get("variance", math.nan) >= 0]
        assert len(spread) == {"table 2": 22, "table 3": 19}[where]
        assert all(found["variance"] ** 0.5 <= 3**0.5 * found["value"] for found in spread)
        beyond += sum(found["variance"] > 3**0.5 * found["value"] for found in spread)
    assert beyond == 5


# The averages that the tables print: a sum over every value of a row. (S7's, 71.82, is not its row's, 71.84.)
AVERAGES = {
    ("yu2025", "table 2"): {"s4": 86.09, "s4d": 84.89, "s5": 87.46, "mamba": 66.59, "b2s6": 87.71},
    ("yu2025", "table 3"): {"dss": 79.45, "lru": 86.30, "hope": 87.85, "s4d-ft": 88.26, "reg-s4d": 86.60,
                            "liquid-s4": 87.32, "rtf": 87.71, "spiking": 84.33},
    ("wang2024", "table 4"): {"exp": 86.09, "best": 86.48},
}  # fmt: skip


@pytest.mark.parametrize("table", AVERAGES, ids=" ".join)
def test_rows_have_the_average_that_is_printed(table):
    for name, average in AVERAGES[table].items():
        rows = [r for r in TABLES[table]["rows"] if name in (r["model"], r.get("settings", {}).get("parameterization"))]
        assert len(rows) == 6 and abs(sum(r["value"] for r in rows) / 6 - average) < 0.0101, name


@pytest.mark.parametrize("path", COMPARED, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_headers_readme_and_page_say_what_is_published_and_on_which_data(path):
    """A fit has the settings of its row; where its data differs, the header says how to have the row's."""
    options = options_of_files(path)
    run = RunRecord(ROOT, config=options.resolved, record={"identity": set_beyond_defaults(options.resolved)})
    found, text = row_of(run), path.read_text()
    if found is not None:
        assert differences(run, found) == (f"{run.task}/{run.model}.yaml", {})
        for said, option in (("data.source is generated", "--data.source=lra"),
                             ("data.validation is held_out", "--data.validation=test")):  # fmt: skip
            assert any(line.startswith(said) for line in data_differences(run)) == (option in text), option
    if "lm" in path.parts:  # its tables are over steps: docs/reproduction-language.md
        assert found is not None
        return
    accuracy = found if found and not found.unmatched and found.metric == "test/accuracy" else None
    figure, name = accuracy.figure if accuracy else "none", path.relative_to(ROOT)
    assert re.findall(rf"\[([^]]+)\]\({name}\)", README) == [figure]
    assert re.findall(rf"\[{run.model}\]\(\.\./{name}\) \| ([^|]+) \|", PAGE) == [figure]
    header = " ".join(line.removeprefix("# ") for line in text.partition("\n\n")[0].splitlines())
    claims = re.findall(r"Published: ([\d.]+(?: ± [\d.]+)?) test accuracy", header)
    assert claims == ([figure] if accuracy else [])
    if accuracy is None:
        assert "no published number" in header or "(ours" in header
        return
    assert "docs/reproduction.md" in header
    generated = run.all_settings.get("data.source") == "generated"
    assert ("Data: generated" in header) == ("on LRA's files (" in header) == generated


def test_every_row_is_compared_with_some_run_or_says_why_not(monkeypatch):
    """Of every config as it stands, and of every run of every sweep."""
    monkeypatch.chdir(ROOT)
    runs = [(parsed(path), flatten(parsed(path))) for path in FILES]
    for sweep in sorted((ROOT / "slurm/sweeps").glob("*.yaml")):
        for run in read_sweep(sweep).runs:
            config = parsed(ROOT / run.config)
            own = {"experiment": run.changes.get("experiment", config["experiment"])}
            runs.append((config | own, flatten(config) | run.changes))
    matched = set()
    for config, settings in runs:
        record = RunRecord(ROOT, config=config)
        matched |= set(rows_for(record.task, record.model, settings))
    without = {name for name, model in PUBLISHED["models"].items() if model.get("no_config")}
    assert not without & {row.model for row in matched}
    for row in (row for several in rows().values() for row in several):
        assert row in matched or row.unmatched or row.model in without, row
        assert row not in matched or not row.unmatched or len(row.unmatched) > 20
    assert sum(map(len, rows().values())) == sum(len(table["rows"]) for table in PUBLISHED["tables"])


def test_the_page_says_of_the_settings_what_published_yaml_says():
    seen = set()
    for _, link, number, text, *_ in (line.split(" | ") for line in PAGE.splitlines() if ".yaml) | " in line):
        if number != "none":
            row = row_of_config(parsed(ROOT / re.search(r"\]\(\.\./(.*)\)", link)[1]))
            assert text == row.config or row.config == "no" and text.startswith("no: "), (link, text)
            seen.add(row.model)
    assert seen == {name for name, model in PUBLISHED["models"].items() if "settings" in model}
    table = PAGE.partition("\n| settings | ")[2].partition("\n\n")[0]
    explained = {word for cell in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE) for word in cell.split(", ")}
    assert all(table["settings"] in explained for table in PUBLISHED["tables"] if "settings" in table)
