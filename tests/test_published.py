"""published.yaml is whole, and what configs, README and docs say of it is what stands there."""

import math
import re
from pathlib import Path

import pytest
import yaml

import lra_ssm
from lra_ssm.results.published import row_of_config
from lra_ssm.tasks import OptimizerSettings
from tests.test_configs import load

ROOT = Path(__file__).parents[1]
FILE = Path(lra_ssm.__file__).parent / "published.yaml"
PUBLISHED = yaml.safe_load(FILE.read_text())
TABLES = {(table["paper"], table["where"]): table for table in PUBLISHED["tables"]}
CONFIGS = sorted(
    str(path.relative_to(ROOT).with_suffix(""))
    for folder in ("lra", "scifar", "mnist")
    for path in (ROOT / "configs" / folder).rglob("*.yaml")
    if not path.stem.endswith(("_pretrain", "_finetune", "_rope"))  # docs/meaning.md; no published figure of ours
)
README, PAGE = (ROOT / "README.md").read_text(), (ROOT / "docs/reproduction.md").read_text()


def row(config):
    """The published accuracy that a config is compared with, or None."""
    found = row_of_config(yaml.safe_load((ROOT / f"{config}.yaml").read_text()))
    return None if found is None or found.unmatched or found.metric != "test/accuracy" else found


def printed(found):
    return "none" if found is None else found.figure


def header(config):
    lines = (ROOT / f"{config}.yaml").read_text().splitlines()
    return " ".join(line.removeprefix("# ") for line in lines[: lines.index("")])


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


@pytest.mark.parametrize("config", CONFIGS)
def test_headers_readme_and_page_say_what_is_published_and_on_which_data(config):
    text, found = header(config), row(config)
    assert re.findall(rf"\[([^]]+)\]\({config}\.yaml\)", README) == [printed(found)]
    model = config.rpartition("/")[2]
    assert re.findall(rf"\[{model}\]\(\.\./{config}\.yaml\) \| ([^|]+) \|", PAGE) == [printed(found)]
    claims = re.findall(r"Published: ([\d.]+(?: ± [\d.]+)?) test accuracy", text)
    assert claims == ([] if found is None else [printed(found)])
    if found is None:
        assert "no published number" in text or "(ours" in text
        return
    assert "docs/reproduction.md" in text
    data = load(config.removeprefix("configs/"))
    generated = data.get("data.init_args.source") == "generated"
    assert ("Data: generated" in text) == ("--data.source=lra" in text) == ("on LRA's files (" in text) == generated
    assert ("--data.validation=test" in text) == ("data.init_args.validation" in data)


def test_the_page_explains_every_letter_and_names_every_source():
    table = [line for line in PAGE.splitlines() if ".yaml) | " in line]
    used = {letter for line in table for letter in line.split("|")[5].strip().split(", ") if len(letter) == 1}
    explained = re.findall(r"^- \*\*(\w)\*\* ", PAGE, re.MULTILINE)
    assert used == set(explained) and len(set(explained)) == len(explained) == 23
    for source in PUBLISHED["sources"].values():
        name = source["code"]["repository"].rpartition("/")[2] if "code" in source else "table 4"
        assert name in PAGE or source["cite"] in PAGE
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target


def table_lines(heading):
    """The lines of a table over six tasks in the page's section of that heading."""
    section = PAGE.partition(f"## {heading}")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.count("|") == 8]


def test_gray_image_has_no_figure_of_lru():
    """Orvieto et al. 2023 have colored sCIFAR in its place, and their 89.0 is quoted as Image's."""
    figures = {(r["task"], r["value"]) for table in TABLES.values() for r in table["rows"] if r["model"] == "lru"}
    assert ("scifar", 89.0) in figures and "image" not in {task for task, _ in figures}


def test_the_page_has_b2s6_as_its_config_has_it():
    """The table of its settings: table 4's value, the earlier code's in brackets where it differs."""
    tasks = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
    cells = {
        label.strip("* "): values
        for label, *values in (line.strip("| ").split(" | ") for line in table_lines("B2S6: table 4"))
    }
    for label, key in (("blocks of layers", "n_layers"), ("width", "d_model"), ("lr", "lr"), ("batch", "batch_size"),
                       ("epochs", "max_epochs"), ("weight decay", "weight_decay")):  # fmt: skip
        for task, cell in zip(tasks, cells[label], strict=True):
            first, _, second = cell.replace(",", "").rstrip(")").partition(" (")
            table4, earlier = (PUBLISHED["sources"][name]["settings"][task][key] for name in ("table4", "freqbias"))
            assert (float(first), float(second or first)) == (table4, earlier), f"{label}, {task}"
    for label, key in (("dropout", "dropout"), ("rate of A", "recurrent.lr"), ("least Δ", "delta_min")):
        assert [float(v) for v in cells[label]] == [PUBLISHED["sources"]["freqbias"]["settings"][t][key] for t in tasks]
    for task, cell in zip(tasks, cells["factor of Δ's rate"], strict=True):
        model = yaml.safe_load((ROOT / f"configs/lra/{task}/b2s6.yaml").read_text())["model"]
        settings = OptimizerSettings.of(model["init_args"]["optimizer"])
        assert float(cell) == pytest.approx(settings.of_role("delta").lr / settings.lr)
