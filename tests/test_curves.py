"""curves.png of a run."""

import pytest
from PIL import Image

from lra_ssm.runs import curves
from lra_ssm.runs.curves import _curves, draw_curves
from tests.runner import FIT, SHORT, everything_below, fail, only_run, run_here, succeed

METRICS = """step,epoch,train/loss,train/accuracy,lr/base,lr/no_decay,train/samples_per_s,val/loss,val/accuracy
0,0,2.5,0.1,0.0,0.0,9.0,,
1,0,nan,0.2,0.1,0.1,9.0,,
1,0,,,,,,2.25,0.5
"""


def test_every_finite_value_stands_at_its_step(tmp_path):
    (tmp_path / "metrics.csv").write_text(METRICS + "2,0,1.")  # a kill within a row
    found = _curves(tmp_path / "metrics.csv")
    assert found["train/loss"].to_dict() == {0: 2.5} and found["val/accuracy"].to_dict() == {1: 0.5}
    assert found["lr/base"].to_dict() == found["lr/no_decay"].to_dict() == {0: 0.0, 1: 0.1}


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are written."""
    from matplotlib.figure import Figure

    kept, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (kept.append(self), save(self, *a, **k)))
    return kept


def test_the_picture_has_a_panel_each(tmp_path, drawn):
    many = "".join(f"{i},0,{i / 100},0.1,0.1,0.05,9.0,,\n" for i in range(2, 200))
    (tmp_path / "metrics.csv").write_text(METRICS + many)
    draw_curves(tmp_path / "metrics.csv", tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.size[0] > 900 and len(picture.convert("RGB").getcolors(1 << 20)) > 50
    shown = {axes.get_ylabel(): [line.get_label() for line in axes.lines] for axes in drawn[0].axes}
    assert list(shown) == ["loss", "accuracy", "learning rate"]
    assert shown["loss"][1:] == ["train (mean of 4 logged)", "val"] and shown["learning rate"] == ["base", "no_decay"]
    assert drawn[0].axes[-1].get_xlabel() == "step"
    assert all(axes.get_legend() for axes in drawn[0].axes)
    first, _, last = drawn[0].axes[0].lines
    assert last.get_markersize() > 5 and first.get_markersize() > 5  # a single validation is a point that is seen
    assert [line.get_linestyle() for line in drawn[0].axes[-1].lines] == ["-", "--"]


def test_means_of_epochs_stand_over_the_values_of_batches(tmp_path, drawn):
    rows = "".join(f"{i},0,{i},\n" for i in range(90)) + "49,0,,24.5\n89,1,,69.5\n"
    (tmp_path / "metrics.csv").write_text("step,epoch,train/loss,train/loss_epoch\n" + rows)
    draw_curves(tmp_path / "metrics.csv", tmp_path / "curves.png")
    (axes,) = drawn[0].axes
    batches, epochs = axes.lines
    assert (batches.get_label(), epochs.get_label()) == ("train (a batch)", "train (mean of an epoch)")
    assert len(batches.get_xdata()) == 90 and list(epochs.get_xdata()) == [49, 89]


def test_the_mean_of_one_epoch_alone_is_a_point_of_its_own(tmp_path, drawn):
    rows = "".join(f"{i},0,{i},\n" for i in range(90)) + "89,0,,44.5\n"
    (tmp_path / "metrics.csv").write_text("step,epoch,train/loss,train/loss_epoch\n" + rows)
    draw_curves(tmp_path / "metrics.csv", tmp_path / "curves.png")
    mean, _, running = drawn[0].axes[0].lines
    assert (mean.get_label(), list(mean.get_ydata())) == ("train (mean of the epoch)", [44.5])
    assert mean.get_marker() == "D" and running.get_label() == "train (mean of 2 logged)"


def test_without_values_there_is_no_picture(tmp_path):
    for text in ("", "step,epoch\n0,0\n", "no,log\n1,2\n"):
        (tmp_path / "metrics.csv").write_text(text)
        draw_curves(tmp_path / "metrics.csv", tmp_path / "curves.png")
    draw_curves(tmp_path / "none.csv", tmp_path / "curves.png")
    assert everything_below(tmp_path) == ["metrics.csv"]


def test_the_step_of_the_best_checkpoint_is_marked(tmp_path, drawn):
    validations = ((3, 1.5, 0.2), (7, 0.9, 0.6), (9, 1.1, 0.5))
    rows = "".join(f"{step},0,{1 / step},,\n{step},0,,{loss},{accuracy}\n" for step, loss, accuracy in validations)
    (tmp_path / "metrics.csv").write_text("step,epoch,train/loss,val/loss,val/accuracy\n" + rows)
    for monitor, mode, step in (("val/accuracy", "max", 7), ("val/loss", "min", 7), ("val/loss", "max", 3)):
        draw_curves(tmp_path / "metrics.csv", tmp_path / "curves.png", monitor, mode)
        for axes in drawn[-1].axes:
            (mark,) = [line for line in axes.lines if line.get_label().startswith("best.ckpt")]
            assert list(mark.get_xdata()) == [step, step] and mark.get_label() == f"best.ckpt, step {step}"


@pytest.mark.slow
def test_a_stopped_run_and_a_failed_one_leave_their_curves(tmp_path, data, curves, monkeypatch):
    command = [*FIT, f"--data.root={data}", "--trainer.max_epochs=1"]
    with monkeypatch.context() as stop:
        stop.setenv("KILL_AT", "train_batch_end:3")
        stop.setenv("KILL_WITH", "SIGTERM")
        assert run_here(command, tmp_path).code == 143
    stopped = only_run(tmp_path) / "curves.png"
    before = stopped.read_bytes()
    succeed(command, tmp_path)
    assert stopped.read_bytes() != before  # of the whole run
    fail([*command, "--experiment=bad", "--model.network.layer=tests.helpers.Blowing"], tmp_path)
    assert (only_run(tmp_path, "bad") / "curves.png").is_file()


@pytest.mark.parametrize("error", [OSError("the disk is full"), ImportError("no matplotlib")])
def test_a_picture_that_cannot_be_drawn_fails_no_run(error, tmp_path, data, monkeypatch, capsys):
    from lra_ssm.cli import main
    from lra_ssm.runs import run

    def refuse(*_):
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "draw_curves", refuse)
    assert main([*FIT, *SHORT, f"--data.root={data}"]) == 0
    out = capsys.readouterr().out
    assert f"curves.png could not be drawn: {error}" in out and "finished: " in out
    assert curves.draw_curves is draw_curves and not (only_run(tmp_path) / "curves.png").exists()
