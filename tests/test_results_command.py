"""`lra-ssm results` and `lra-ssm runs`: what they print, write and refuse."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from PIL import Image

from tests.results.made import make_run
from tests.runner import only_run, printed, refused

LR = "model.init_args.optimizer.lr"


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for lr in (0.001, 0.01, 0.1):
        for seed in (0, 1):
            curve = [(1000 * i, 0.1 * i + seed / 20) for i in range(1, 6)]
            make_run(tmp_path, seed=seed, value=0.5 + lr + seed / 10, changes={LR: lr}, curve=curve)
    make_run(tmp_path, "lra/text/b2s6", status="failed", reason="the loss is nan", tested=False, curve=[(500, 0.6)])
    return tmp_path


def test_a_real_run_is_scored_and_shown(tmp_path, trained, capsys, monkeypatch):
    shutil.copytree(trained[0], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    path = only_run(Path())
    (path / "test.json").unlink(missing_ok=True)  # other tests score the run that all share
    config = yaml.safe_load((path / "config.yaml").read_text())
    limited = ["test", "--config", str(path / "config.yaml"), "--trainer.limit_test_batches=1"]
    printed(limited, capsys)
    assert "tested on a part of the split (limit 1)" in printed(["results", "runs"], capsys)
    printed([*limited[:-1], "--trainer.limit_test_batches=1.0"], capsys)  # which is all of it
    score = json.loads((path / "test.json").read_text())["metrics"]["test/accuracy"]
    out = printed(["results", "runs"], capsys)
    assert f"{100 * score:.2f}" in out and "data: tiny: generated" in out and "not counted" not in out
    out = printed(["runs", "--keys=num_blocks"], capsys)
    assert path.name in out and "finished" in out and f"{100 * score:.2f}" in out
    assert out.splitlines()[0].split()[-1] == "num_blocks" and out.splitlines()[1].split()[-1] == "2"
    assert config["seed_everything"] == 1
    assert json.loads((path / "test.json").read_text())["time"] >= ended_at(path)
    whole = (path / "test.json").read_bytes()
    others = {
        "of other data than the run's": ["test", str(path), "--data.length_bounds=[3,9]"],
        "of last.ckpt, not best.ckpt": ["test", str(path / "checkpoints/last.ckpt")],
        "of a part of the split, and the whole was scored before": limited,
    }
    for number, (why, command) in enumerate(others.items(), 1):
        out = printed(command, capsys)
        assert f"test-others.json, not as the run's result: it is {why}" in " ".join(out.split())
        assert len(json.loads((path / "test-others.json").read_text())["others"]) == number
        assert (path / "test.json").read_bytes() == whole


def ended_at(path):
    return json.loads((path / "run.json").read_text())["starts"][-1]["ended"]


def test_formats_and_files(made, capsys):
    text = printed(["results", "runs"], capsys)
    assert "lr=0.001" in text and "the loss is nan" in text and "57.41" not in text
    assert printed(["results", "runs", "--format=markdown"], capsys).startswith("| task | model |")
    for suffix, begins in (("md", "| task |"), ("tex", r"\begin{tabular}"), ("csv", "task,model,"), ("txt", "task ")):
        assert printed(["results", "runs", f"--out=table.{suffix}"], capsys) == f"table.{suffix}\n"
        assert Path(f"table.{suffix}").read_text().startswith(begins)
    assert Path("table.txt").read_text() == text
    for form in ("markdown", "latex", "csv"):
        assert printed(["results", "runs", f"--{form}"], capsys) == printed(
            ["results", "runs", f"--format={form}"], capsys
        )
    each = printed(["results", "runs", "--format=csv", "--each"], capsys)
    assert len(each.splitlines()) == 8
    assert printed(["results", "runs", "--grid"], capsys).splitlines()[0].split()[-2:] == ["listops", "text"]


@pytest.mark.parametrize("by", ["lr", "lr,seed", "lr,betas", "max_length", "layer"])
def test_pictures(by, made, capsys):
    curves = ["curves.png"] if by == "lr" else []
    out = printed(["results", "runs", *(f"--curves={name}" for name in curves), f"--by={by}", "--plot=by.png"], capsys)
    assert out.endswith("\n".join([*curves, "by.png\n"]))
    for name in (*curves, "by.png"):
        with Image.open(name) as picture:
            assert picture.format == "PNG" and len(picture.convert("RGB").getcolors(10**7)) > 20


def test_a_setting_that_is_named_twice_is_one_column(made, capsys):
    once, twice = (printed(["results", "runs", f"--by={by}", f"--plot={by}.png"], capsys) for by in ("lr", "lr,lr"))
    assert twice == once.replace("lr.png", "lr,lr.png")
    assert Path("lr,lr.png").read_bytes() == Path("lr.png").read_bytes()


@pytest.mark.parametrize(("models", "variants", "dashes"), [(1, 7, 7), (3, 2, 6), (7, 1, 7), (8, 1, 7), (2, 5, 6)])
def test_lines_are_told_apart_without_their_colors(models, variants, dashes):
    from lra_ssm.results.pictures import styles

    groups = [SimpleNamespace(model=f"m{m}", variant="", by={"lr": v}) for v in range(variants) for m in range(models)]
    found = styles(groups, by=True)
    assert len({str(look) for look in found.values()}) == len(found) == models * variants
    assert len({look["linestyle"] for look in found.values()}) == dashes
    assert len({look["color"] for look in found.values()}) == (models if models > 1 else variants)


def test_what_the_pictures_draw(made):
    """The lines and cells themselves, of the figures before they are written."""
    import matplotlib

    from lra_ssm.results import ablation, pictures
    from lra_ssm.results.collect import collect
    from lra_ssm.results.groups import group

    kept = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (ablation, pictures):
            patch.setattr(module, "save", lambda figure, path: kept.append(figure))
        runs = collect(["runs"], lambda path: [])
        pictures.draw_curves(group(runs), Path("x.png"))
        ablation.draw_ablation(group(runs, by=["lr"]), ["lr"], Path("x.png"))
        ablation.draw_ablation(group(runs, by=["layer"]), ["layer"], Path("x.png"))
        ablation.draw_ablation(group(runs, by=["lr", "max_steps"]), ["lr", "max_steps"], Path("x.png"))
    learned, lines, bars, cells = kept
    listops, text = learned.axes
    assert (listops.get_title(), listops.get_xlabel(), listops.get_ylabel()) == (
        "listops",
        "training step",
        "validation accuracy, %",
    )
    line = listops.lines[0]
    assert line.get_label() == "s4d, lr=0.001 (2 seeds)" and line.get_xdata()[0] == 1000
    assert line.get_ydata()[0] == pytest.approx(12.5) and len(listops.collections) == 3  # a band each
    assert [line.get_linestyle() for line in listops.lines[:3]] == ["-", "--", ":"]
    assert text.lines[0].get_linestyle() == "-."  # another model's
    low, high = (listops.collections[0].get_paths()[0].vertices[:, 1].__getattribute__(f)() for f in ("min", "max"))
    assert (low, high) == (pytest.approx(12.5 - 50**0.5 / 2), pytest.approx(52.5 + 50**0.5 / 2))
    assert text.lines[0].get_label() == "b2s6 (0 seeds)" and "standard deviation" in learned.get_suptitle()
    (panel,) = lines.axes
    assert panel.get_xscale() == "log" and panel.get_xlabel() == "lr" and panel.get_ylabel() == "test accuracy, %"
    assert list(panel.lines[0].get_xdata()) == [0.001, 0.01, 0.1]
    assert list(panel.lines[0].get_ydata()) == pytest.approx([55.1, 56, 65])
    assert any(text.get_text() == "s4d (2 seeds)" for text in panel.get_legend().get_texts())
    (panel,) = bars.axes
    assert sorted(round(bar.get_height(), 1) for bar in panel.patches) == [55.1, 56.0, 65.0]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["S4D"]
    panel = cells.axes[0]
    assert [text.get_text() for text in panel.texts] == [f"{v}\n± 7.07\n(2)" for v in ("55.10", "56.00", "65.00")]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["0.001", "0.01", "0.1"]
    assert isinstance(panel, matplotlib.axes.Axes) and (panel.get_xlabel(), panel.get_ylabel()) == ("max_steps", "lr")


def test_published_values_stand_in_a_plot_over_what_their_table_varies(tmp_path, monkeypatch):
    from lra_ssm.results import ablation
    from lra_ssm.results.collect import collect
    from lra_ssm.results.groups import group

    kept = []
    monkeypatch.setattr(ablation, "save", lambda figure, path: kept.append(figure))
    for blocks in (1, 2, 3):
        layer = "model.init_args.network.init_args.layer.init_args"
        make_run(tmp_path, "scifar/b2s6", changes={f"{layer}.num_blocks": blocks})
    runs = collect([str(tmp_path)], lambda path: [])
    for key in ("num_blocks", "n_layers"):
        ablation.draw_ablation(group(runs, by=[key]), [key], Path("x.png"))
    (marks,) = [line for line in kept[0].axes[0].lines if line.get_label() == "b2s6, published"]
    assert (list(marks.get_xdata()), list(marks.get_ydata())) == ([1, 2], [81.56, 84.83])
    assert not [line for line in kept[1].axes[0].lines if "published" in str(line.get_label())]


def test_runs_are_listed_with_what_differs(made, capsys):
    out = printed(["runs"], capsys).splitlines()
    assert out[0].split()[:4] == ["run", "id", "status", "step"] and "lr" in out[0].split()
    assert [line.split()[0] for line in out[1:8]] == ["lra/listops/s4d"] * 6 + ["lra/text/b2s6"]
    assert any("the loss is nan" in line for line in out[8:]) and any("they differ also in" in line for line in out)
    narrow = made / "runs/lra/listops"
    assert printed(["runs", str(narrow)], capsys).splitlines()[0].split()[-2:] == ["seed", "lr"]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_list_fits_the_terminal_and_keeps_its_names_whole(columns, made, capsys, monkeypatch):
    from lra_ssm import tables

    monkeypatch.setattr(tables.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    from lra_ssm.cli import runs as command

    monkeypatch.setattr(command, "terminal_width", lambda: columns)
    lines = printed(["runs"], capsys).splitlines()
    assert max(map(len, lines)) <= columns
    if columns >= 80:
        assert sum("lra/listops/s4d" in line.split() for line in lines) == 6
        assert "lr" in printed(["runs", "runs/lra/listops"], capsys).splitlines()[0].split()  # what is swept stays


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (["runs", "--by=rl"], "no run has a setting 'rl'"),
        (["runs", "--by=bias"], "no run has a setting 'bias'"),
        (["runs", "--plot=x.png"], "--plot draws over one setting or two"),
        (["runs", "--plot=x.png", "--by=lr,seed,max_steps"], "--plot draws over one setting or two"),
        (["runs", "--out=table.pdf"], "--out table.pdf: what it is to be is not known"),
        (["runs", "--each"], "--each is of CSV"),
        (["runs", "--grid", "--format=csv"], "--grid is a table to be read"),
        (["runs", "--out=no/such/table.md"], "no/such/table.md"),
        (["runs", "--curves=no/such/x.png"], "no/such/x.png: cannot be written"),
        (["runs/lra/text", "--by=lr", "--plot=x.png"], "nothing to draw"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, line, made, capsys):
    if "--by=bias" in arguments:
        arguments = ["runs/lra/listops", *arguments[1:]]
    before = sorted(made.rglob("*"))
    assert line in refused(["results", *arguments], capsys)
    assert sorted(made.rglob("*")) == before
