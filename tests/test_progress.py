"""What long work shows while it goes on, in a terminal and in a job's log."""

import os
import re
import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import RichProgressBar

from lra_ssm import bars
from lra_ssm.progress import Bar, LogLines, display_arguments
from tests.runner import FIT, TINY
from tests.test_callbacks import QUIET, Line, loader


def fit(*callbacks, **settings):
    shows = any(isinstance(callback, RichProgressBar) for callback in callbacks)
    given = {**QUIET, "max_epochs": 2, "log_every_n_steps": 1, "enable_progress_bar": shows, **settings}
    trainer = Trainer(callbacks=list(callbacks), **given)
    trainer.fit(Line(), loader(), loader())
    return trainer


def lines(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]


def test_a_log_has_lines_every_so_many_seconds(capsys):
    fit(LogLines(every_s=0))
    shown = lines(capsys)
    assert [re.match(r"step (\d)/8, epoch [012], train/loss ", line)[1] for line in shown] == [*"12345678", "8"]
    assert "val/loss" not in shown[0] and "val/loss " in shown[-1]
    assert re.search(r", [\d.e+]+ steps/s, \d+ s left$", shown[2]) and "left" not in shown[-1]


@pytest.mark.parametrize(
    ("settings", "end"),
    [
        ({"max_steps": 3, "max_epochs": 500}, "step 3/3, "),
        ({"max_steps": 600, "max_epochs": 1}, "step 4/4, "),
        ({"max_epochs": 2, "accumulate_grad_batches": 3}, "step 4/4, "),
        ({"max_epochs": -1, "max_time": {"seconds": 1}}, "step "),
    ],
)
def test_the_end_is_what_comes_first(settings, end, capsys):
    fit(LogLines(every_s=1000), **settings)
    _, last = lines(capsys)
    assert last.startswith(end)


def test_a_users_own_bar_wins(monkeypatch):
    kinds = lambda given, own: [type(c) for c in display_arguments(given, own)["callbacks"]]  # noqa: E731
    assert kinds({}, []) == [LogLines] and display_arguments({}, [])["enable_progress_bar"] is False
    assert kinds({"enable_progress_bar": False}, []) == []
    assert kinds({}, [RichProgressBar()]) == [RichProgressBar] and kinds({}, [LogLines(60.0)]) == [LogLines]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert kinds({}, []) == [Bar]


def test_no_step_waits_for_the_loss_that_the_bar_shows():
    bar = Bar()
    trainer = fit(bar)
    assert trainer.progress_bar_metrics.keys() == {"val/loss"}  # numbers, which Lightning makes of what it shows
    assert isinstance(bar.get_metrics(trainer, None)["loss"], torch.Tensor)


@pytest.mark.slow
def test_in_a_terminal_there_is_one_bar_and_the_end_stands_on_a_line_of_its_own(tmp_path, data):
    import pty

    size = "fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 40, 100, 0, 0))"
    main = "from lra_ssm.cli import main; sys.exit(main(sys.argv[1:]))"
    code = f"import fcntl, struct, sys, termios; {size}; {main}"
    arguments = [*FIT, "--trainer.enable_progress_bar=true", f"--data.root={data}"]
    env = {"TERM": "xterm", "PYTHONPATH": str(TINY.parents[1]), "KILL_AT": "train_batch_end:8", "KILL_WITH": "SIGINT"}
    leader, follower = pty.openpty()
    command = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=tmp_path, env=os.environ | env,
                               stdout=follower, stderr=follower)  # fmt: skip
    os.close(follower)
    sent = b""
    with suppress(OSError):  # the terminal ends with the command
        while part := os.read(leader, 65536):
            sent += part
    os.close(leader)
    assert command.wait(60) == 130
    plain = [re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", sent.decode())]
    shown = [line for line in plain if "━" in line]
    assert any(re.search(r"Epoch 1/1 .*loss: ", bar) for bar in shown) and all(len(bar) <= 100 for bar in shown)
    assert any(line.startswith("lra-ssm: stopped by SIGINT at step 8") for line in plain)


def test_a_bar_of_what_is_soon_over_prints_nothing_in_a_log(capsys):
    assert list(bars.with_bar(range(5), "reading", 5)) == [0, 1, 2, 3, 4]
    with bars.Bar("reading", 1000, in_bytes=True, done=400) as bar:
        bar.advance(600)
        assert bar.n == 1000
    assert capsys.readouterr().err == ""


def test_in_a_terminal_a_bar_has_count_rate_and_time_left(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with bars.Bar("reading", 2_000_000, in_bytes=True) as bar:
        bar.start_t -= 10  # as if it took that long
        bar.delay = 0
        bar.advance(1_000_000)
        bar.refresh()
    shown = capsys.readouterr().err
    assert "reading:  50%" in shown and "1.00M/2.00M" in shown and "B/s" in shown
