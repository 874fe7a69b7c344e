"""`lra-ssm results` and `lra-ssm status` of folders; what they refuse: test_bad_input.py."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lra_ssm.cli import status
from lra_ssm.results import plot
from lra_ssm.results.table import groups_of, runs_frame
from tests.results.made import LR, make_run, read
from tests.runner import printed


@pytest.fixture
def made(here):
    for lr in (0.001, 0.01, 0.1):
        for seed in (0, 1):
            curve = [(1000 * i, 0.1 * i + seed / 20 - (i == 5) * 0.3) for i in range(1, 6)]
            make_run(here, seed=seed, value=0.5 + lr + seed / 10, changes={LR: lr}, curve=curve)
    make_run(here, "lra/text/b2s6", status="failed", reason="the loss is nan", tested=False, curve=[(500, 0.6)])
    return here


def test_a_real_run_is_scored_and_shown(finished, capsys):
    assert "finished, not tested" in printed(["results", "runs"], capsys)
    printed(["test", "--config", str(finished / "config.yaml")], capsys)
    score = json.loads((finished / "test.json").read_text())["metrics"]["test/accuracy"]
    out = printed(["results", "runs"], capsys)
    assert f"{100 * score:.2f}" in out and "data: tiny: generated" in out and "not counted" not in out
    out = printed(["status"], capsys).splitlines()
    assert out[1].split()[:3] == [finished.name, "tiny", "done"] and f"{100 * score:.2f} %" in out[1]
    assert out[-1] == "1 in all: 1 done"


def test_formats_files_and_pictures(made, capsys):
    text = printed(["results", "runs"], capsys)
    assert text.splitlines()[1].split()[:3] == ["listops", "s4d", "0.001"] and "the loss is nan" in text
    for suffix, form, begins in (("md", "markdown", "| task |"), ("tex", "latex", r"\begin{tabular}"),
                                 ("csv", "csv", "run,task,model,"), ("txt", "text", "task ")):  # fmt: skip
        assert printed(["results", "runs", f"--out=table.{suffix}"], capsys) == f"table.{suffix}\n"
        assert Path(f"table.{suffix}").read_text().startswith(begins)
        assert Path(f"table.{suffix}").read_text() == printed(["results", f"--format={form}"], capsys)
    assert len(Path("table.csv").read_text().splitlines()) == 8
    assert printed(["results", "runs", "--grid"], capsys).splitlines()[0].split()[-2:] == ["listops", "text"]
    once = printed(["results", "runs/lra/listops/s4d/*0", "runs/lra/listops", "runs/lra/listops"], capsys)
    assert once.count("s4d") == printed(["results", "runs/lra/listops"], capsys).count("s4d")
    out = printed(["results", "runs", "--curves=curves.png", "--by=lr", "--plot=by.png"], capsys)
    assert out.endswith("\ncurves.png\nby.png\n")
    for name in ("curves.png", "by.png"):
        with Image.open(name) as picture:
            assert picture.format == "PNG" and len(picture.convert("RGB").getcolors(10**7)) > 20


@pytest.fixture
def drawn(monkeypatch):
    """The figures before they are written."""
    kept = []
    monkeypatch.setattr(plot, "_save", lambda figure, path: kept.append(figure))

    def draw(folder, by=()):
        groups = groups_of(runs_frame(read(folder), by=by))
        plot.draw_settings(groups, [*by], Path("x")) if by else plot.draw_curves(groups, Path("x"))
        return kept[-1].axes

    return draw


def test_curves_have_a_color_for_each_rate_and_a_star_at_the_best_checkpoint(made, drawn):
    listops, text = drawn(made)
    labels = (listops.get_title(), listops.get_xlabel(), listops.get_ylabel())
    assert labels == ("listops", "training step", "validation accuracy, %")
    lines = [line for line in listops.lines if line.get_marker() != "*"]
    assert [line.get_label() for line in lines] == [f"s4d, lr={lr} (2 seeds)" for lr in ("0.001", "0.01", "0.1")]
    assert len({line.get_color() for line in lines}) == 3
    assert lines[0].get_xdata()[0] == 1000 and lines[0].get_ydata()[0] == pytest.approx(12.5)
    band = listops.collections[0].get_paths()[0].vertices[:, 1]
    assert len(listops.collections) == 3 and band.max() == pytest.approx(42.5 + 50**0.5 / 2)
    stars = [(*line.get_xdata(), *line.get_ydata()) for line in listops.lines if line.get_marker() == "*"]
    assert stars == 3 * [(4000, pytest.approx(40)), (4000, pytest.approx(45))]
    assert text.lines[0].get_label().startswith("b2s6") and text.lines[0].get_label().endswith("(0 seeds)")


def test_a_metric_over_numbers_words_and_two_settings(made, drawn):
    (panel,) = drawn(made, ["lr"])
    assert (panel.get_xscale(), panel.get_xlabel(), panel.get_ylabel()) == ("log", "lr", "test accuracy, %")
    assert list(panel.lines[0].get_xdata()) == [0.001, 0.01, 0.1]
    assert list(panel.lines[0].get_ydata()) == pytest.approx([55.1, 56, 65])
    assert panel.containers[0].has_yerr and panel.containers[0].get_label() == "s4d (2 seeds)"
    scales = [plot.spacing(values) for values in ([0, 0.001, 0.01, 0.1], [1, 2, 4], [1, 2, 3, 4], [-1, 1, 10])]
    assert scales == ["symlog", "log", "linear", "linear"]
    (panel,) = drawn(made, ["layer"])
    assert [label.get_text() for label in panel.get_xticklabels()] == ["S4D"]
    assert len({line.get_color() for line in panel.lines if line.get_marker() == "o"}) == 3  # one for each rate
    (panel,) = drawn(made, ["max_steps", "lr"])
    labels = [bars.get_label() for bars in panel.containers]
    assert labels == [f"s4d, lr={lr} (2 seeds)" for lr in ("0.001", "0.01", "0.1")]


def test_one_seed_has_no_error_bar_and_close_values_have_different_ticks(tmp_path, drawn):
    for seed, lr in ((0, 0.1234567), (0, 0.1234568), (1, 0.1234568)):
        make_run(tmp_path, seed=seed, value=0.5 + seed / 10, changes={LR: lr})
    (panel,) = drawn(tmp_path, ["lr"])
    (bars,) = panel.containers[0][2]  # the vertical lines
    one, two = bars.get_segments()
    assert not np.isfinite(one).any() and np.isfinite(two).all()  # matplotlib draws nothing for the first
    assert [label.get_text() for label in panel.get_xticklabels()] == ["0.1234567", "0.1234568"]


def test_a_folders_runs_are_listed_with_what_differs(made, capsys, monkeypatch):
    started = {"status": "interrupted", "step": 40, "tested": False, "curve": [(20, 0.5)], "metrics": {}}
    make_run(made, seed=3, changes={LR: 0.1}, **started)
    out = printed(["status", "runs"], capsys).splitlines()
    assert out[0].split() == ["run", "experiment", "settings", "state", "step", "validation", "test", "time"]
    assert out[1].split()[1:7] == ["lra/listops/s4d", "seed", "0,", "lr", "0.001", "done"]
    assert "seed 3, lr 0.1    stopped  40/80,000" in out[7] and "… 50.00 %" in out[7]
    assert out[-2:] == ["0000000006 failed: the loss is nan", "8 in all: 6 done, 1 stopped, 1 failed"]
    records = json.loads(printed(["status", "--json"], capsys))
    assert [record["state"] for record in records] == ["done"] * 6 + ["stopped", "failed"]
    monkeypatch.setattr(status, "terminal_width", lambda *_: 80)
    lines = printed(["status"], capsys).splitlines()
    assert max(map(len, lines)) <= 80 and sum("lra/listops/s4d" in line for line in lines) == 7
