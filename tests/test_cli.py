"""The commands: how they start, what a run leaves, how it is scored; the traps of LightningCLI closed."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml

from lra_ssm.cli import COMMANDS, main
from lra_ssm.cli.config import read_fit_options
from lra_ssm.datamodules import ListOps
from tests.runner import FIT, SHORT, everything_below, fail, only_run, refused, run_here, succeed

SCORE = [*FIT[1:], *SHORT]


def rows_of(file):
    with open(file, newline="") as opened:
        return list(csv.DictReader(opened))


# --- how commands start ---


@pytest.mark.parametrize("command", [["lightning"], ["lra-ssm"], [sys.executable, "-m", "lra_ssm"]])
def test_all_three_ways_to_start(command):
    command = [str(Path(sys.executable).parent / command[0]), *command[1:]] if len(command) == 1 else command
    out = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "usage: lra-ssm COMMAND" in out and "lightning fit --config" in out
    wrong = subprocess.run([*command, "fitt"], capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr == "lra-ssm: error: unknown command 'fitt'; did you mean 'fit'?\n"
    scripts = {e.name: e.value for e in entry_points(group="console_scripts") if e.name in ("lightning", "lra-ssm")}
    assert scripts == {"lightning": "lra_ssm.cli:main", "lra-ssm": "lra_ssm.cli:main"}


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
    path = only_run(folder)
    fitted = {"config.yaml", "run.json", "progress.json", "metrics.csv", "curves.png", "checkpoints"}
    names = {p.name for p in path.iterdir() if not p.name.startswith(".")}
    assert fitted <= names <= fitted | {"validate.json", "test.json", "predictions-val.csv"}
    assert {p.name for p in (path / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}
    record = json.loads((path / "run.json").read_text())
    assert record["status"] == "finished" and record["run_id"] == path.name
    (start,) = record["starts"]
    assert start["versions"]["torch"] == torch.__version__ and start["versions"]["lra_ssm"].startswith("0.")
    assert start["hardware"]["cpus"] >= 1 and start["command"][1] == "fit"
    rows = rows_of(path / "metrics.csv")
    assert [row["step"] for row in rows] == ["0", "1", "1", "1"]
    assert all(row["train/loss"] and float(row["train/samples_per_s"]) > 0 for row in rows[:2])
    assert [row["lr/base"] for row in rows] == ["0.0", "0.005", "", ""]  # a warm-up of two steps to 0.01
    losses = [float(row["train/loss"]) for row in rows[:2]]
    assert float(rows[3]["train/loss_epoch"]) == pytest.approx(sum(losses) / 2, abs=1e-6)
    assert record["metrics"]["val/accuracy"] == pytest.approx(float(rows[2]["val/accuracy"]))
    shown = {line.split()[0] for line in result.out.splitlines() if line.startswith("  ")}
    assert shown >= {"train/accuracy_epoch", "train/loss_epoch"} and not any(name.startswith("lr/") for name in shown)
    lines = result.out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("group "))
    groups = [line[: lines[start].index("parameters") - 2].strip() for line in lines[start + 1 : start + 4]]
    assert groups == ["base", "no_decay", "recurrent, delta"]


def test_the_same_settings_find_the_finished_run_and_others_do_not(trained):
    folder, _ = trained
    saved = only_run(folder) / "config.yaml"
    network = yaml.safe_load(saved.read_text())["model"]["init_args"]["network"]["init_args"]
    assert network["layer"]["init_args"]["num_blocks"] == 2
    neutral = ["--data.num_workers=1", f"--data.root={folder / 'elsewhere'}", "--trainer.log_every_n_steps=2",
               "--trainer.profiler=simple", "--trainer.enable_progress_bar=true", "--trainer.logger=false",
               "--data.eval_batch_size=3", "--trainer.limit_test_batches=1"]  # fmt: skip
    for given in ([f"--config={saved}"], SCORE, [*SCORE, *neutral]):
        assert "is finished" in succeed(["fit", *given], folder).out
    others = ("--seed_everything=2", "--model.optimizer.lr=0.02", "--data.generator_seed=3")
    paths = {read_fit_options([*SCORE, other]).path.name for other in others}
    assert len(paths | {only_run(folder).name}) == 4


def test_validate_test_and_predict_take_the_runs_best_checkpoint(trained):
    folder, _ = trained
    path, found = only_run(folder), {}
    for command, name in (("validate", "val/accuracy"), ("test", "test/accuracy")):
        succeed([command, *SCORE], folder)
        written = json.loads((path / f"{command}.json").read_text())
        assert written["checkpoint"].endswith("best.ckpt")
        found[name] = written["metrics"][name]
    logged = [float(row["val/accuracy"]) for row in rows_of(path / "metrics.csv") if row["val/accuracy"]]
    assert found["val/accuracy"] == pytest.approx(max(logged))
    settings = yaml.safe_load((path / "config.yaml").read_text())["data"]["init_args"]
    data = ListOps(**{**settings, "root": str(folder / "data")})
    for split, examples in {"val": 20, "test": 20, "train": 16}.items():
        out = succeed(["predict", *SCORE, *([f"--split={split}"] if split != "val" else [])], folder).out
        rows = rows_of(path / f"predictions-{split}.csv")
        right = sum(row["prediction"] == row["label"] for row in rows) / examples
        assert f"{examples} predictions, {right:.2%} of them right," in out and len(rows) == examples
        assert right == pytest.approx(found.get(f"{split}/accuracy", right))
        data.predict_split = split
        data.setup("predict")
        labels = torch.cat([batch.labels for batch in data.predict_dataloader()]).tolist()
        assert [int(row["label"]) for row in rows] == labels
        for row in rows:
            probabilities = [float(row[f"p_{i}"]) for i in range(10)]
            assert sum(probabilities) == pytest.approx(1, abs=1e-4)
            assert probabilities[int(row["prediction"])] == max(probabilities)
    for split in ("test", "train"):
        (path / f"predictions-{split}.csv").unlink()


def test_fit_and_validate_never_touch_the_test_split(trained, tmp_path):
    folder = shutil.copytree(trained[0], tmp_path / "copy")
    (prepared,) = (p for p in (folder / "data/listops").iterdir() if p.is_dir())
    files = list(prepared.glob("test*"))
    assert files
    for file in files:  # the same size, no meaning: whoever reads it fails
        file.write_bytes(b"\xff" * file.stat().st_size)
    succeed([*FIT, *SHORT, "--fresh"], folder)
    succeed(["validate", *SCORE], folder)
    assert run_here(["test", *SCORE], folder).code > 0
    one, two = (torch.load(p, weights_only=True)["state_dict"] for p in folder.rglob("last.ckpt"))
    assert all(torch.equal(one[name], two[name]) for name in one)


# --- the traps of LightningCLI ---


def test_a_checkpoint_never_overrides_flags(trained, tmp_path):
    folder, _ = trained
    best, last = (only_run(folder) / f"checkpoints/{name}.ckpt" for name in ("best", "last"))
    fit = [*FIT, *SHORT, f"--data.root={folder / 'data'}"]
    message = fail([*fit, f"--ckpt_path={best}", "--model.optimizer.lr=0.5"], tmp_path)
    assert "optimizer.lr 0.01 there, 0.5 here" in message and "--init_from" in message
    message = fail([*fit, f"--ckpt_path={best}", "--model.network.d_model=16"], tmp_path)
    assert "of another shape" in message or "network.d_model 8 there, 16 here" in message
    # Only its weights: the flags hold.
    still = ["--model.optimizer.lr=1e-30", "--model.optimizer.roles.recurrent.lr=0", "--model.optimizer.weight_decay=0"]
    fresh = succeed([*fit, f"--init_from={last}", *still], tmp_path)
    assert "1e-30" in next(line for line in fresh.out.splitlines() if line.startswith("base"))
    ours = torch.load(only_run(tmp_path) / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    theirs = torch.load(last, weights_only=True)["state_dict"]
    names = [n for n in ours if "running" not in n and "batches" not in n]
    assert names and all(torch.allclose(ours[n], theirs[n], atol=1e-12) for n in names)


def test_checkpoints_from_the_cli_and_from_python_load_alike(trained, tmp_path):
    from lightning import Trainer

    from lra_ssm.layers import B2S6, LayerSpec, NetworkSpec
    from lra_ssm.models import Classifier
    from lra_ssm.tasks import Classification, OptimizerSettings

    layer = LayerSpec(B2S6, num_blocks=2, d_state=4, bidirectional=True)
    network = NetworkSpec(Classifier, layer=layer, num_classes=10, vocab_size=18, d_model=8, n_layers=1)
    task = Classification(network, OptimizerSettings(warmup_steps=2))
    sizes = {"length_bounds": (3, 20), "max_depth": 3, "num_train": 16, "num_val": 8, "num_test": 8}
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, logger=False, default_root_dir=tmp_path, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(task, ListOps(root=str(tmp_path), batch_size=8, **sizes))
    trainer.save_checkpoint(tmp_path / "python.ckpt")
    settings = []
    for path in (tmp_path / "python.ckpt", only_run(trained[0]) / "checkpoints/best.ckpt"):
        checkpoint = torch.load(path, weights_only=True)
        settings.append(checkpoint["hyper_parameters"])
        layer = checkpoint["hyper_parameters"]["network"]["init_args"]["layer"]
        assert layer["class_path"] == "lra_ssm.layers.B2S6" and layer["init_args"]["num_blocks"] == 2
        loaded = Classification.load_from_checkpoint(path, weights_only=True)
        assert all(torch.equal(value, checkpoint["state_dict"][name]) for name, value in loaded.state_dict().items())
    settings[1]["network"]["init_args"]["block"]["init_args"]["dropout"] = 0.0
    assert settings[0] == settings[1]


# --- loggers ---


def test_tensorboard_stands_next_to_the_csv_and_a_run_needs_no_logger(tmp_path):
    """wandb likewise: test_wandb.py."""
    succeed([*FIT, *SHORT, "--trainer.logger=TensorBoardLogger"], tmp_path)
    path = only_run(tmp_path)
    assert (path / "metrics.csv").is_file() and list(path.glob("tensorboard/events.*"))
    assert {each.name for each in tmp_path.iterdir()} == {"runs", "data"}
    succeed([*FIT, *SHORT, "--trainer.logger=false", "--experiment=without"], tmp_path)
    path = only_run(tmp_path, "without")
    assert not (path / "metrics.csv").exists() and (path / "checkpoints/best.ckpt").is_file()
    assert "val/accuracy" in json.loads((path / "run.json").read_text())["metrics"]


def test_a_logger_whose_package_is_missing_says_what_to_install(tmp_path, monkeypatch, capsys):
    import lightning.fabric.loggers.tensorboard as tensorboard
    import lightning.pytorch.loggers.wandb as wandb
    from lightning_utilities.core.imports import RequirementCache

    for module, name in ((tensorboard, "_TENSORBOARD"), (tensorboard, "_TENSORBOARDX"), (wandb, "_WANDB")):
        monkeypatch.setattr(module, f"{name}_AVAILABLE", RequirementCache("not-there-at-all"))
    monkeypatch.chdir(tmp_path)
    for logger in ("WandbLogger", "TensorBoardLogger"):
        flags = [f"--trainer.logger=lightning.pytorch.loggers.{logger}", "--trainer.logger.save_dir=."]
        assert "Try running `pip install -U 'not-there-at-all'`" in refused([*FIT, *flags], capsys)
    assert everything_below(tmp_path) == []


# --- a loss that is not finite; Lightning's ways to run less ---


@pytest.mark.parametrize(
    ("layer", "begins", "ends"),
    [("Blowing", "loss is nan at step 2 (epoch 0); the largest gradient of the step before ", ""),
     ("BadGradient", "", "but the largest gradient is inf in network.backbone.blocks.0.layer.mix.weight")],
)  # fmt: skip
def test_what_is_not_finite_stops_the_run_before_the_weights_are_touched_and_says_where(layer, begins, ends, tmp_path):
    flags = ["--trainer.max_epochs=1", "--checkpoint.every_n_steps=1"]
    message = fail([*FIT, f"--model.network.layer=tests.helpers.{layer}", *flags], tmp_path)
    assert message.startswith(begins) and message.endswith(ends)
    assert " at step 2 (epoch 0)" in message and message.rsplit(" in ", 1)[1].startswith("network.")
    path = only_run(tmp_path)
    record = json.loads((path / "run.json").read_text())
    assert record["status"] == "failed" and record["reason"] == message
    last = torch.load(path / "checkpoints/last.ckpt", weights_only=True)
    assert last["global_step"] == 2 and all(torch.isfinite(w).all() for w in last["state_dict"].values())


def test_fast_dev_run_leaves_nothing_and_a_checkpoint_of_ones_own_is_no_obstacle(tmp_path):
    """Nothing is saved then, nor when a run is scored, and Lightning refuses a callback that would."""
    own = "--trainer.callbacks+={class_path: ModelCheckpoint, init_args: {monitor: val/accuracy}}"
    succeed([*FIT, *SHORT, own, "--trainer.fast_dev_run=2"], tmp_path)
    assert not (tmp_path / "runs").exists()
    succeed([*FIT, *SHORT, own], tmp_path)
    assert "test/accuracy" in succeed(["test", *SCORE, own], tmp_path).out


def test_overfit_batches_are_the_same_in_every_epoch(tmp_path):
    succeed([*FIT, "--trainer.overfit_batches=1", "--trainer.max_epochs=3", "--model.optimizer.lr=0",
             "--model.optimizer.roles.recurrent.lr=0", "--model.network.block.dropout=0"], tmp_path)  # fmt: skip
    losses = [row["train/loss"] for row in rows_of(only_run(tmp_path) / "metrics.csv") if row["train/loss"]]
    assert len(losses) == 3 and len(set(losses)) == 1


def test_max_time_stops_a_run_that_is_not_finished(tmp_path):
    flags = ["--trainer.max_epochs=500", "--trainer.max_time=00:00:00:01"]
    assert "stopped by max_time" in succeed([*FIT, *flags], tmp_path).out
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["status"] == "stopped by max_time"
