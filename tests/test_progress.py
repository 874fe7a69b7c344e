"""What long work shows while it goes on, in a terminal and in a job's log."""

import json
import re

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback, RichProgressBar

from lra_ssm import bars
from lra_ssm.progress import Bar, LogLines, display_arguments
from lra_ssm.runs.loggers import WriteProgress
from tests.test_callbacks import fit


def lines(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]


def test_a_log_has_lines_every_so_many_seconds(tmp_path, capsys):
    fit(tmp_path, LogLines(every_s=0), max_epochs=2)
    shown = lines(capsys)
    assert [re.match(r"step (\d)/8, epoch [012], train/loss ", line)[1] for line in shown] == [*"12345678", "8"]
    assert "val/loss" not in shown[0] and "val/loss " in shown[-1]
    assert re.search(r", [\d.e+]+ steps/s, \d+ s left$", shown[2]) and "left" not in shown[-1]


def test_a_fit_without_a_known_end_says_its_step(tmp_path, capsys):
    fit(tmp_path, LogLines(every_s=1000), max_epochs=-1, max_time={"seconds": 1})
    assert re.match(r"step \d+, epoch ", lines(capsys)[-1])


def test_the_file_has_the_first_step_from_the_start_on(tmp_path):
    file, seen = tmp_path / "progress.json", []
    see = LambdaCallback(on_train_batch_start=lambda *_: seen.append(json.loads(file.read_text())["step"]))
    fit(tmp_path, WriteProgress(file, every_s=1000), see)
    assert seen[0] == 0 and json.loads(file.read_text())["step"] == len(seen)


def test_a_users_own_bar_wins(monkeypatch):
    kinds = lambda given, own: [type(c) for c in display_arguments(given, own)["callbacks"]]  # noqa: E731
    assert kinds({}, []) == [LogLines] and display_arguments({}, [])["enable_progress_bar"] is False
    assert kinds({"enable_progress_bar": False}, []) == []
    assert kinds({}, [RichProgressBar()]) == [RichProgressBar] and kinds({}, [LogLines(60.0)]) == [LogLines]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert kinds({}, []) == [Bar]


def test_no_step_waits_for_the_loss_that_the_bar_shows(tmp_path):
    bar = Bar()
    trainer = fit(tmp_path, bar, enable_progress_bar=True)
    assert trainer.progress_bar_metrics.keys() == {"val/loss"}  # numbers, which Lightning makes of what it shows
    assert isinstance(bar.get_metrics(trainer, None)["loss"], torch.Tensor)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_shows_text_count_and_rate_but_nothing_that_is_soon_over(terminal, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert list(bars.with_bar(range(5), "reading", 5)) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err == ""
    with bars.Bar("a[/b]\x1b]0;t\x07\nc", 2_000_000, in_bytes=True, done=400_000) as bar:
        bar.start_t -= 10  # as if it took that long
        bar.delay = 0
        bar.advance(600_000)
        bar.refresh()
    shown = capsys.readouterr().err
    assert r"a[/b]\x1b]0;t\x07 c:  50%" in shown and "\x1b]0" not in shown and "\x07" not in shown
    assert "1.00M/2.00M" in shown and "B/s" in shown
