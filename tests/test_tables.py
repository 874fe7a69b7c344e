"""Tables and lines that fit a terminal."""

import pytest

from lra_ssm import tables
from lra_ssm.tables import duration, table, terminal_width, wrapped

COLUMNS = ("dataset", "source", "inputs", "split", "examples", "classes", "class shares", "tokens", "length mean",
           "max")  # fmt: skip
LEFT = 4
ROW = ("pathfinder", "generated, hard, limit 160000", "32×32×1 symmetric", "train", "160,000", "2",
       "49.9% to 50.1%", "", "1,024.0", "1,024")  # fmt: skip


def test_a_table_fits_the_terminal_and_loses_nothing():
    wide, fitting = table(COLUMNS, [ROW], LEFT), table(COLUMNS, [ROW], LEFT, 100)
    assert max(map(len, wide.splitlines())) > 100 >= max(map(len, fitting.splitlines()))
    assert sorted(fitting.split()) == sorted(wide.split())
    assert table(COLUMNS, [ROW], LEFT, 200) == wide


def test_where_words_do_not_fit_they_are_broken_behind_slashes_and_underscores():
    columns, row = ("run", "experiment", "delta_lr_factor", "block"), ("7", "cpu/scifar16/mamba", "0.125", "MambaBlock")
    assert table(columns, [row], 2, 40).splitlines() == [
        "                    delta_lr_",
        "run experiment         factor      block",
        "7   cpu/                0.125 MambaBlock",
        "    scifar16/",
        "    mamba",
    ]
    narrow = table(columns, [row], 2, 26).splitlines()  # where that is not enough, the longest pieces
    assert max(map(len, narrow)) <= 26 and any(line.split()[-1:] == ["MambaBl"] for line in narrow)


@pytest.mark.parametrize(
    ("is_terminal", "kind", "width"), [(True, "xterm", 70), (True, "dumb", None), (False, "", None)]
)
def test_lines_are_broken_in_a_terminal_alone(is_terminal, kind, width, monkeypatch):
    monkeypatch.setattr(tables.sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setenv("COLUMNS", "70")
    assert terminal_width() == width
    line = "versions " + ", ".join(f"library{i} 1.{i}" for i in range(9))
    lines = wrapped(line, 4).splitlines()
    assert " ".join(map(str.strip, lines)) == line and len(lines) == (3 if width else 1)
    assert all(len(each) <= 70 for each in lines) == bool(width) and all(each.startswith("    ") for each in lines[1:])


@pytest.mark.parametrize(
    ("given", "text"),
    [((30.0,), "30 s"), ((617.9, True), "≥ 10.3 min"), ((10000.0, False), "2.8 h"), ((400000.0,), "4.6 d"),
     ((0.0,), "0 s")],
)  # fmt: skip
def test_durations(given, text):
    assert duration(*given) == text
