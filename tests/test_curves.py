"""curves.png of a run."""

import pytest
from PIL import Image

from lra_ssm.runs import run
from lra_ssm.runs.curves import draw_curves
from tests.runner import FIT, SHORT, everything_below, succeed

METRICS = """\
step,epoch,train/loss,train/accuracy,lr/base,lr/delta,train/samples_per_s,val/f1,val/loss,val/accuracy,train/loss_epoch
0,0,2.5,0.1,0.0,0.0,9.0,,,,
1,0,nan,0.2,0.1,0.01,9.0,,,,
1,0,,,,,,0.4,2.25,0.5,
2,0,2.25,0.2,0.1,0.01,9.0,,,,
2,0,,,,,,0.5,inf,0.4,2.375
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
    assert shown["loss"] == {"train/loss": {0: 2.5, 2: 2.25}, "train/loss_epoch": {2: 2.375}, "val/loss": {1: 2.25}}
    assert shown["learning rate"] == {"lr/base": {0: 0, 1: 0.1, 2: 0.1}, "lr/delta": {0: 0, 1: 0.01, 2: 0.01}}
    assert [line.get_alpha() for line in panels[0].lines] == [0.25, 1, 1]  # of a batch, of an epoch, of validation


def test_the_step_of_the_best_checkpoint_is_marked(draw):
    validations = ((3, 1.5, 0.2), (7, 0.9, 0.6), (9, 1.1, 0.5))
    rows = "".join(f"{step},0,{1 / step},,\n{step},0,,{loss},{accuracy}\n" for step, loss, accuracy in validations)
    for monitor, mode, step in (("val/accuracy", "max", 7), ("val/loss", "min", 7), ("val/loss", "max", 3)):
        for axes in draw("step,epoch,train/loss,val/loss,val/accuracy\n" + rows, monitor, mode):
            assert curves_of(axes)[f"best.ckpt, step {step}"].keys() == {step}


def test_without_values_there_is_no_picture(tmp_path):
    draw_curves(tmp_path)
    (tmp_path / "metrics.csv").write_text("step,epoch\n0,0\n")
    draw_curves(tmp_path)
    assert everything_below(tmp_path) == ["metrics.csv"]


def test_a_picture_that_cannot_be_drawn_fails_no_run(tmp_path, data, monkeypatch):
    def refuse(*_):
        raise ImportError("no matplotlib")

    monkeypatch.setattr(run, "draw_curves", refuse)
    out = succeed([*FIT, *SHORT, f"--data.root={data}"], tmp_path).out
    assert "curves.png could not be drawn: no matplotlib" in out and "finished: " in out
