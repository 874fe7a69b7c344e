"""What a Trainer shows while it works, in a terminal and in a job's log."""

import os
import re
import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lra_ssm.progress import Bar, LogLines, display_arguments
from tests.runner import FIT, SHORT, TINY, only_run, succeed


class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 3)

    def training_step(self, batch, i):
        loss = self.linear(batch[0]).square().mean()
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, i):
        self.log("val/loss", self.linear(batch[0]).square().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.linear.parameters(), lr=0.01)


def fit(*callbacks, **settings):
    loader = DataLoader(TensorDataset(torch.linspace(0.1, 1, 8)[:, None]), batch_size=2)
    given = {"max_epochs": 2, "num_sanity_val_steps": 0, "enable_model_summary": False, "logger": False, **settings}
    trainer = Trainer(accelerator="cpu", enable_checkpointing=False, log_every_n_steps=1, callbacks=list(callbacks),
                      enable_progress_bar=any(isinstance(c, RichProgressBar) for c in callbacks), **given)  # fmt: skip
    trainer.fit(Line(), loader, loader)
    return trainer


def lines(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]


def test_a_log_has_lines_every_so_many_seconds(capsys):
    fit(LogLines(every_s=0))
    shown = lines(capsys)
    assert [re.match(r"step (\d)/8, epoch [012], train/loss ", line)[1] for line in shown] == [*"12345678", "8"]
    assert "val/loss" not in shown[0] and "val/loss " in shown[-1]
    assert re.search(r", [\d.e+]+ steps/s, \d+ s left$", shown[2]) and "left" not in shown[-1]
    fit(LogLines(every_s=1000))
    assert [line.split(",")[0] for line in lines(capsys)] == ["step 1/8", "step 8/8"]


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
    assert lines(capsys)[-1].startswith(end)


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


def test_settings_of_the_log_are_not_part_of_the_run(tmp_path, data):
    command = [*FIT, *SHORT, f"--data.root={data}"]
    out = succeed([*command, "--trainer.enable_progress_bar=true"], tmp_path).out
    assert "\r" not in out and "\x1b" not in out and "step 1/2, epoch 0, train/loss " in out
    callbacks = ["--trainer.callbacks+=lra_ssm.progress.LogLines", "--trainer.callbacks.every_s=5"]
    assert "is finished" in succeed([*command, *callbacks], tmp_path).out
    only_run(tmp_path)


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
    bars = [line for line in plain if "━" in line]
    assert any(re.search(r"Epoch 1/1 .*loss: ", bar) for bar in bars) and all(len(bar) <= 100 for bar in bars)
    assert any(line.startswith("lra-ssm: stopped by SIGINT at step 8") for line in plain)
