"""What a Trainer shows while it works, in a terminal and in a job's log."""

import os
import re
import time

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelSummary, RichModelSummary, RichProgressBar
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from lra_ssm.progress import Progress, ShowModel, of_one_batch, shown_by_us, wait_for_no_bar
from tests.runner import FIT, SHORT, Command, only_run, succeed


class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.linear, self.frozen, self.mean = nn.Linear(1, 3), nn.Linear(3, 1).requires_grad_(False), MeanMetric()

    def training_step(self, batch, i):
        loss = self.linear(batch[0]).square().mean()
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/mean", loss, prog_bar=True, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, i):
        self.log("val/loss", self.linear(batch[0]).square().mean(), prog_bar=True)

    test_step = validation_step

    def predict_step(self, batch, i):
        return self.linear(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.linear.parameters(), lr=0.01)


def trainer_of(*callbacks, **settings):
    given = {"max_epochs": 2, "num_sanity_val_steps": 0, "enable_model_summary": False, **settings}
    return Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, log_every_n_steps=1, callbacks=list(callbacks),
        **given,
    )  # fmt: skip


def loader(count=8):
    return DataLoader(TensorDataset(torch.linspace(0.1, 1, count)[:, None]), batch_size=2)


def lines(capsys, start):
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(start)]


def test_without_a_terminal_there_are_plain_lines_every_so_many_seconds(capsys):
    trainer_of(Progress(line_every_s=0)).fit(Line(), loader(), loader())
    shown = lines(capsys, "step ")
    numbers = [int(re.match(r"step (\d)/8, epoch [12]/2", line)[1]) for line in shown]
    assert numbers == sorted(numbers) and set(numbers) == set(range(1, 9))
    assert "loss (batch) " in shown[0] and "val/loss" not in shown[0] and "val/loss " in shown[-1]
    assert "train/mean " in shown[-1] and "mean (batch)" not in shown[-1]  # of an epoch
    assert re.search(r", [\d.]+ steps/s, [\d.]+ (s|min) left, ", shown[2])
    assert "left" not in shown[-1] and any(line.endswith(", validating 2/4") for line in shown)
    trainer_of(Progress(line_every_s=1000)).fit(Line(), loader(), loader())
    assert [line.split(",")[0] for line in lines(capsys, "step ")] == ["step 1/8", "step 8/8"]


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({"max_steps": 3, "max_epochs": 500}, ["step 1/3, epoch 1, ", "step 3/3, epoch 1, "]),
        ({"max_steps": 6, "max_epochs": -1}, ["step 1/6, epoch 1, ", "step 6/6, epoch 2, "]),
        ({"max_steps": 600, "max_epochs": 1}, ["step 1/4, epoch 1/1, ", "step 4/4, epoch 1/1, "]),
        ({"max_epochs": 2, "accumulate_grad_batches": 3}, ["step 0/4, epoch 1/2, ", "step 4/4, epoch 2/2, "]),
        ({"max_epochs": -1, "max_time": {"seconds": 1}}, ["step 1, epoch 1, "]),
    ],
)
def test_the_end_is_what_comes_first(settings, ends, capsys):
    trainer_of(Progress(line_every_s=1000), **settings).fit(Line(), loader())
    shown = lines(capsys, "step ")
    assert len(shown) == 2
    for line, start in zip(shown, ends, strict=False):
        assert line.startswith(start)


def test_scoring_shows_batches_where_it_takes_long(capsys):
    for call in ("validate", "test", "predict"):
        model = Line()
        getattr(trainer_of(Progress(line_every_s=0)), call)(model, loader())
        shown = lines(capsys, f"{call} ")
        assert shown[0] == f"{call} 1/4" and re.fullmatch(rf"{call} 4/4, [\d.]+ batches/s", shown[-1])


def test_values_of_one_batch_are_known(capsys):
    trainer = trainer_of(Progress())
    trainer.fit(Line(), loader(), loader())
    assert of_one_batch(trainer) == {"train/loss"}


def test_the_model_is_shown_without_metrics(capsys):
    trainer_of(ShowModel(), enable_progress_bar=False, max_steps=1).fit(Line(), loader())
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[:4] == [
        ["part", "class", "parameters"],
        ["linear", "Linear", "6"],
        ["frozen", "Linear", "4"],
        "10 parameters, 6 of them trained".split(),
    ]


def test_a_users_own_bar_and_summary_win(monkeypatch):
    kinds = lambda *given: [type(c) for c in shown_by_us(*given)]  # noqa: E731
    assert kinds({}, []) == [Progress, ShowModel]
    assert kinds({"enable_progress_bar": False}, []) == [ShowModel]
    assert kinds({"enable_progress_bar": True, "enable_model_summary": False}, []) == [Progress]
    assert kinds({}, [RichProgressBar()]) == [ShowModel] and kinds({}, [Progress(60.0), RichModelSummary()]) == []
    assert kinds({}, [ModelSummary()]) == [Progress]
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)  # whose bar is Lightning's
    assert kinds({}, []) == [ShowModel]


def test_values_are_numbers_for_a_users_own_bar_and_not_read_for_ours():
    for bar, kind in ((RichProgressBar(), float), (Progress(), torch.Tensor)):
        trainer = trainer_of(bar)
        wait_for_no_bar(trainer)
        trainer.fit(Line(), loader())
        assert isinstance(trainer.progress_bar_metrics["train/loss"], kind)


def test_the_log_of_a_job_moves_and_settings_of_it_are_no_part_of_the_run(tmp_path, data):
    shown = ["--trainer.enable_progress_bar=true", "--trainer.enable_model_summary=true"]
    out = succeed([*FIT, *SHORT, f"--data.root={data}", *shown], tmp_path).out
    assert "\r" not in out and "\x1b" not in out
    assert "step 1/2, epoch 1/1, loss (batch) " in out and "step 2/2, epoch 1/1, " in out
    assert "network.backbone  Backbone" in out and "MeanMetric" not in out and "FLOPs" not in out
    callbacks = ["--trainer.callbacks+=lra_ssm.progress.Progress", "--trainer.callbacks.line_every_s=5"]
    assert "is finished" in succeed([*FIT, *SHORT, f"--data.root={data}", shown[0], *callbacks], tmp_path).out
    only_run(tmp_path)


def test_a_schedule_that_is_all_warm_up_is_said(tmp_path, data):
    said = succeed([*FIT, *SHORT, f"--data.root={data}", "--model.optimizer.warmup_steps=9"], tmp_path).err
    assert "the run has 2 steps, all within warmup_steps 9: lr stays below 0.01" in said


@pytest.fixture(scope="module")
def on_terminal(tmp_path_factory, data):
    """What a terminal of 100 columns is sent by a fit that a signal ends, and what the command ended with."""
    import fcntl
    import pty
    import signal
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    arguments = [*FIT, "--trainer.enable_progress_bar=true", "--trainer.max_epochs=500", "--trainer.max_steps=400",
                 "--trainer.num_sanity_val_steps=1", "--trainer.enable_model_summary=true",
                 f"--data.root={data}"]  # fmt: skip
    env = {"TERM": "xterm", "DELAY": "0.1", "COLUMNS": ""}
    command = Command(arguments, tmp_path_factory.mktemp("terminal"), env, terminal=os.ttyname(follower))
    sent, until = b"", time.monotonic() + 200
    try:
        interrupted = False
        while time.monotonic() < until:
            try:
                part = os.read(leader, 65536)
            except OSError:
                break
            if not part:
                break
            if not sent:
                os.close(follower)  # the command has it open
            sent += part
            if not interrupted and b" steps/s" in sent and b"val/accuracy" in sent:
                os.kill(command.process.pid, signal.SIGINT)  # once: a second one ends it at once
                interrupted = True
        code = command.wait(60).code
    finally:
        command.process.kill()
        os.close(leader)
    return sent.decode(), code


def test_in_a_terminal_there_is_one_bar_of_one_line(on_terminal):
    sent, code = on_terminal
    assert code == 130
    plain = [re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", sent)]
    assert all(len(line) <= 100 for line in plain if "━" in line)
    bars = [line for line in plain if re.search(r"━ +\d+/400 ", line)]
    assert len(bars) > 3 and "epoch 1 " in bars[0] and "/500" not in sent
    assert any(" left  loss (batch) " in bar and "val/accuracy " in bar for bar in bars)
    # Nothing stands behind a bar, and what ends the run stands on lines of its own.
    assert all(re.search(r"(val/accuracy|loss \(batch\)) [\d.e-]+ *$|validating \d/\d *$", bar) for bar in bars)
    assert any(line.startswith("interrupted") or "stopped" in line for line in plain)
