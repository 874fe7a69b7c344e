"""curves.png of a run."""

import pytest
from PIL import Image

from lra_ssm.runs import run
from lra_ssm.runs.curves import draw_curves
from tests.runner import FIT, SHORT, everything_below, succeed

METRICS = """\
step,epoch,train/loss,train/accuracy,lr/base,lr/no_decay,lr/delta,train/samples_per_s,val/f1,val/loss,val/accuracy
0,0,2.5,0.1,0.0,0.0,0.0,9.0,,,
1,0,nan,0.2,0.1,0.1,0.01,9.0,,,
1,0,,,,,,,0.4,2.25,0.5
2,0,2.25,0.2,0.1,0.1,0.01,9.0,,,
2,0,1."""


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """Draw the curves of a text of metrics.csv; return the panels."""
    from matplotlib.figure import Figure

    kept, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (kept.append(self), save(self, *a, **k)))

    def panels(text, *monitor):
        (tmp_path / "metrics.csv").write_text(text)
        draw_curves(tmp_path, *monitor)
        return kept[-1].axes

    return panels


def curves_of(axes):
    return {line.get_label(): dict(zip(*map(list, line.get_data()), strict=True)) for line in axes.lines}


def test_the_picture_has_a_panel_each_and_every_finite_value_at_its_step(tmp_path, draw):
    panels = draw(METRICS)  # a kill within a row
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.size[0] > 900 and len(picture.convert("RGB").getcolors(1 << 20)) > 50
    shown = {axes.get_ylabel(): curves_of(axes) for axes in panels}
    assert list(shown) == ["loss", "accuracy", "f1", "learning rate"] and panels[-1].get_xlabel() == "step"
    assert shown["loss"] == {"train": {0: 2.5, 2: 2.25}, "val": {1: 2.25}}
    assert shown["learning rate"] == {"base, no_decay": {0: 0, 1: 0.1, 2: 0.1}, "delta": {0: 0, 1: 0.01, 2: 0.01}}
    assert all(axes.get_legend() for axes in panels)
    train, val = panels[0].lines
    assert val.get_markersize() > train.get_markersize() > 3  # a single validation is a point that is seen


def test_means_of_epochs_stand_over_the_values_of_batches(draw):
    rows = "".join(f"{i},0,{i},\n" for i in range(90)) + "49,0,,24.5\n89,1,,69.5\n"
    found = curves_of(draw("step,epoch,train/loss,train/loss_epoch\n" + rows)[0])
    assert len(found["train (a batch)"]) == 90 and found["train (mean of an epoch)"] == {49: 24.5, 89: 69.5}


def test_the_step_of_the_best_checkpoint_is_marked(draw):
    validations = ((3, 1.5, 0.2), (7, 0.9, 0.6), (9, 1.1, 0.5))
    rows = "".join(f"{step},0,{1 / step},,\n{step},0,,{loss},{accuracy}\n" for step, loss, accuracy in validations)
    for monitor, mode, step in (("val/accuracy", "max", 7), ("val/loss", "min", 7), ("val/loss", "max", 3)):
        for axes in draw("step,epoch,train/loss,val/loss,val/accuracy\n" + rows, monitor, mode):
            assert curves_of(axes)[f"best.ckpt, step {step}"].keys() == {step}


def test_without_values_there_is_no_picture(tmp_path):
    draw_curves(tmp_path)
    for text in ("", "step,epoch\n0,0\n"):
        (tmp_path / "metrics.csv").write_text(text)
        draw_curves(tmp_path)
    assert everything_below(tmp_path) == ["metrics.csv"]


def test_a_picture_that_cannot_be_drawn_fails_no_run(tmp_path, data, monkeypatch):
    def refuse(*_):
        raise ImportError("no matplotlib")

    monkeypatch.setattr(run, "draw_curves", refuse)
    out = succeed([*FIT, *SHORT, f"--data.root={data}"], tmp_path).out
    assert "curves.png could not be drawn: no matplotlib" in out and "finished: " in out
