"""The commands: how they start, what a run leaves, what it may begin from; the traps of LightningCLI closed."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml

from lra_ssm.cli import COMMANDS, main
from lra_ssm.files import sha256
from lra_ssm.layers import B2S6, BlockSpec, LayerSpec, NetworkSpec, S4Block
from lra_ssm.models import Classifier
from lra_ssm.tasks import Classification, OptimizerSettings
from tests.runner import FIT, SHORT, TINY, fail, only_run, printed, refused, succeed


def rows_of(file):
    with open(file, newline="") as opened:
        return list(csv.DictReader(opened))


def record_of(folder, experiment="tiny"):
    return json.loads((only_run(folder, experiment) / "run.json").read_text())


# --- how commands start ---


@pytest.mark.parametrize("command", [["lightning"], ["lra-ssm"], [sys.executable, "-m", "lra_ssm"]])
def test_all_three_ways_to_start(command):
    command = [str(Path(sys.executable).parent / command[0]), *command[1:]] if len(command) == 1 else command
    out = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "usage: lra-ssm COMMAND" in out and "lightning fit --config" in out
    wrong = subprocess.run([*command, "fitt"], capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr == "lra-ssm: error: unknown command 'fitt'; did you mean 'fit'?\n"


def test_waiting_threads_sleep_unless_the_user_says_otherwise():
    others = {name: value for name, value in os.environ.items() if name.split("_")[0] not in ("OMP", "GOMP", "KMP")}
    for given in ({}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "5"}, {"KMP_BLOCKTIME": "7"}):
        with mock.patch.dict(os.environ, {**others, **given}, clear=True):
            assert main(["--version"]) == 0
            assert os.environ == others | (given or {"OMP_WAIT_POLICY": "passive"})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, tmp_path):
    out = succeed([command, "--help"], tmp_path).out
    assert "usage" in out and "example" in out and "default: null" not in out


def test_a_reader_that_goes_away_ends_the_command_quietly(trained):
    """As `lra-ssm status | head -1`: the pipe is closed before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    for command in ("status", "--help"):
        started = [sys.executable, "-m", "lra_ssm", command]
        ended = subprocess.run(started, cwd=trained[0], stdout=writer, stderr=subprocess.PIPE)
        assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")
    os.close(writer)


# --- what a run leaves ---


def test_the_run_directory_has_what_the_design_says(trained):
    folder, result = trained
    path, record = only_run(folder), record_of(folder)
    names = {p.name for p in path.iterdir() if not p.name.startswith(".")}
    assert names == {"config.yaml", "run.json", "progress.json", "metrics.csv", "curves.png", "checkpoints"}
    assert {p.name for p in (path / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}
    assert record["status"] == "finished" and record["run_id"] == path.name
    (start,) = record["starts"]
    assert start["versions"]["torch"] == torch.__version__ and start["versions"]["lra_ssm"].startswith("0.")
    assert start["hardware"]["cpus"] >= 1 and start["command"][1] == "fit"
    # Of the settings those beyond the defaults, so that a setting that a later version adds changes no id.
    given, identity = yaml.safe_load(TINY.read_text()), record["identity"]
    network = identity["model"]["init_args"]["network"]["init_args"]
    assert network == given["model"]["init_args"]["network"]["init_args"] and identity["seed_everything"] == 1
    assert identity["model"]["init_args"]["optimizer"] == {"warmup_steps": 2}
    assert identity["data"]["init_args"].keys() <= given["data"]["init_args"].keys()
    rows = rows_of(path / "metrics.csv")
    assert [row["step"] for row in rows] == ["0", "1", "1", "1"]
    assert all(row["train/loss"] and float(row["train/samples_per_s"]) > 0 for row in rows[:2])
    assert [row["lr/base"] for row in rows] == ["0.0", "0.005", "", ""]  # a warm-up of two steps to 0.01
    assert "lr/recurrent-delta" in rows[0]  # loggers refuse commas
    assert record["metrics"]["val/accuracy"] == pytest.approx(float(rows[2]["val/accuracy"]))
    shown = {line.split()[0] for line in result.out.splitlines() if line.startswith("  ")}
    assert shown >= {"train/accuracy_epoch", "train/loss_epoch"} and not any(name.startswith("lr/") for name in shown)
    assert [line.split()[0] for line in result.out.partition("group ")[2].splitlines()[1:4]] == [
        "base", "no_decay", "recurrent,"
    ]  # fmt: skip


def test_a_changed_default_is_named_when_a_run_is_resumed(finished, capsys):
    config, record = finished / "config.yaml", finished / "run.json"
    config.write_text(config.read_text().replace("padding: masked", "padding: seen"))
    message = "a default has changed since this run was trained: model.network.padding 'seen' there"
    assert message in printed([*FIT, *SHORT], capsys)
    record.write_text(record.read_text().replace('"finished"', '"interrupted"'))
    message = "began with other settings: model.network.padding 'seen' there, 'masked' here"
    assert message in refused([*FIT, *SHORT], capsys)


# --- what a run begins from ---


def test_a_checkpoint_never_overrides_flags_and_is_recorded(trained, tmp_path):
    folder, _ = trained
    last = Path(shutil.copy(only_run(folder) / "checkpoints/last.ckpt", tmp_path / "theirs.ckpt"))
    fit = [*FIT, f"--data.root={folder / 'data'}", "--trainer.max_epochs=2", "--data.num_train=16"]
    for flag, message in (
        ("--model.optimizer.lr=0.5", "model.optimizer.lr 0.01 there, 0.5 here; give the same"),
        ("--data.batch_size=4", "made with other settings: data.batch_size 8 there, 4 here"),
        ("--model.network.layer=S6", "made with other settings: model.network.layer B2S6 there, S6 here; give"),
    ):
        found = fail([*fit, f"--ckpt_path={last}", flag], tmp_path)
        assert message in found and "--init_from" in found
    assert not (tmp_path / "runs").exists()
    succeed([*fit, f"--ckpt_path={last}"], tmp_path)
    assert record_of(tmp_path)["ckpt_path"] == {"file": str(last), "sha256": sha256(last)}
    # Only its weights: the flags hold.
    still = ["--model.optimizer.lr=1e-30", "--model.optimizer.roles.recurrent.lr=0", "--model.optimizer.weight_decay=0"]
    fresh = succeed([*fit, f"--init_from={last}", *still, "--experiment=still"], tmp_path)
    assert "1e-30" in next(line for line in fresh.out.splitlines() if line.startswith("base"))
    files = (only_run(tmp_path, "still") / "checkpoints/last.ckpt", last)
    ours, theirs = (torch.load(file, weights_only=True)["state_dict"] for file in files)
    names = [n for n in ours if "running" not in n and "batches" not in n]
    assert names and all(torch.allclose(ours[n], theirs[n], atol=1e-12) for n in names)


def test_a_checkpoint_of_the_cli_has_the_settings_of_python_and_loads_without_the_cli(trained):
    layer = LayerSpec(B2S6, num_blocks=2, d_state=4, bidirectional=True)
    sizes = {"num_classes": 10, "vocab_size": 18, "d_model": 8, "n_layers": 1}
    network = NetworkSpec(Classifier, layer=layer, block=BlockSpec(S4Block, dropout=0.2), **sizes)
    path = only_run(trained[0]) / "checkpoints/best.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    assert checkpoint["hyper_parameters"] == dict(Classification(network, OptimizerSettings(warmup_steps=2)).hparams)
    layer = checkpoint["hyper_parameters"]["network"]["init_args"]["layer"]
    assert layer["class_path"] == "lra_ssm.layers.B2S6" and layer["init_args"]["num_blocks"] == 2
    loaded = Classification.load_from_checkpoint(path, weights_only=True)
    assert all(torch.equal(value, checkpoint["state_dict"][name]) for name, value in loaded.state_dict().items())


def test_tensorboard_stands_next_to_the_csv_and_a_run_needs_no_logger_or_keeps_nothing(tmp_path):
    """wandb likewise: test_wandb.py. Lightning refuses a callback that saves checkpoints where nothing is saved."""
    own = "--trainer.callbacks+={class_path: ModelCheckpoint, init_args: {monitor: val/accuracy}}"
    succeed([*FIT, *SHORT, own, "--trainer.fast_dev_run=2"], tmp_path)
    assert not (tmp_path / "runs").exists()
    succeed([*FIT, *SHORT, own, "--trainer.logger=TensorBoardLogger"], tmp_path)
    path = only_run(tmp_path)
    assert (path / "metrics.csv").is_file() and list(path.glob("tensorboard/events.*"))
    assert {each.name for each in tmp_path.iterdir()} == {"runs", "data"}
    assert "test/accuracy" in succeed(["test", *FIT[1:], *SHORT, own], tmp_path).out
    succeed([*FIT, *SHORT, "--trainer.logger=false", "--experiment=without"], tmp_path)
    path = only_run(tmp_path, "without")
    assert not (path / "metrics.csv").exists() and (path / "checkpoints/best.ckpt").is_file()
    assert "val/accuracy" in record_of(tmp_path, "without")["metrics"]


def test_max_time_stops_a_run_that_is_not_finished(tmp_path):
    flags = ["--trainer.max_epochs=500", "--trainer.max_time=00:00:00:01", "--trainer.val_check_interval=00:00:00:01"]
    assert "stopped by max_time" in succeed([*FIT, *flags], tmp_path).out
    assert record_of(tmp_path)["status"] == "stopped by max_time"
