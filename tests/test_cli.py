"""The commands: what a run leaves, the traps of LightningCLI closed."""

import csv
import json
import os
import shlex
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
from tests.runner import FIT, SHORT, TINY, everything_below, fail, only_run, refused, run_here, succeed


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of the finished run and its data."""
    return shutil.copytree(trained[0], tmp_path / "copy")


def layer_of(config):
    return config["model"]["init_args"]["network"]["init_args"]["layer"]


# --- entry points ---


def test_the_lightning_command_is_ours():
    scripts = {e.name: e.value for e in entry_points(group="console_scripts") if e.name in ("lightning", "lra-ssm")}
    assert scripts == {"lightning": "lra_ssm.cli:main", "lra-ssm": "lra_ssm.cli:main"}


@pytest.mark.parametrize("command", [["lightning"], ["lra-ssm"], [sys.executable, "-m", "lra_ssm"]])
def test_all_three_ways_to_start(command):
    command = [str(Path(sys.executable).parent / command[0]), *command[1:]] if len(command) == 1 else command
    out = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "usage: lra-ssm COMMAND" in out and "lightning fit --config" in out
    wrong = subprocess.run([*command, "fitt"], capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr == "lra-ssm: error: unknown command 'fitt'; did you mean 'fit'?\n"


@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "5"}, {"KMP_BLOCKTIME": "7"}])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(given):
    others = {name: value for name, value in os.environ.items() if name.split("_")[0] not in ("OMP", "GOMP", "KMP")}
    with mock.patch.dict(os.environ, {**others, **given}, clear=True):
        assert main(["--version"]) == 0
        assert os.environ == others | (given or {"OMP_WAIT_POLICY": "passive"})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, tmp_path):
    out = succeed([command, "--help"], tmp_path).out
    assert "usage" in out and "example" in out


def test_whoever_reads_no_further_ends_the_command_quietly(trained):
    """As `lra-ssm status | head -1`: the pipe is closed before anything is written."""
    end, tip = os.pipe()
    os.close(end)
    for command in ("status", "--help"):
        started = [sys.executable, "-m", "lra_ssm", command]
        ended = subprocess.run(started, cwd=trained[0], stdout=tip, stderr=subprocess.PIPE)
        assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")
    os.close(tip)


# --- what a run leaves ---


def test_the_run_directory_has_what_the_design_says(trained):
    folder, result = trained
    path = only_run(folder)
    fitted, scored = (
        {"config.yaml", "run.json", "progress.json", "metrics.csv", "curves.png", "checkpoints"},
        {"validate.json", "test.json", "predictions-val.csv"},
    )
    names = {p.name for p in path.iterdir() if not p.name.startswith(".")}
    assert fitted <= names <= fitted | scored
    assert {p.name for p in (path / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}
    record = json.loads((path / "run.json").read_text())
    assert record["status"] == "finished" and record["run_id"] == path.name
    (start,) = record["starts"]
    assert start["versions"]["torch"] == torch.__version__ and start["versions"]["lra_ssm"].startswith("0.")
    assert start["hardware"]["cpus"] >= 1 and start["command"][1] == "fit"
    with open(path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["0", "1", "1", "1"]
    assert all(row["train/loss"] and float(row["train/samples_per_s"]) > 0 for row in rows[:2])
    assert [row["lr/base"] for row in rows] == ["0.0", "0.005", "", ""]  # a warm-up of two steps to 0.01
    assert rows[2]["val/accuracy"] and rows[2]["val/loss"]
    losses = [float(row["train/loss"]) for row in rows[:2]]
    assert float(rows[3]["train/loss_epoch"]) == pytest.approx(sum(losses) / 2, abs=1e-6)
    assert record["metrics"]["val/accuracy"] == pytest.approx(float(rows[2]["val/accuracy"]))
    shown = {line.split()[0] for line in result.out.splitlines() if line.startswith("  ")}
    assert shown >= {"train/accuracy_epoch", "train/loss_epoch"} and not any(name.startswith("lr/") for name in shown)


def test_the_groups_are_printed_one_row_each(trained):
    lines = trained[1].out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("group "))
    names = [line[: lines[start].index("parameters") - 2].strip() for line in lines[start + 1 : start + 4]]
    assert names == ["base", "no_decay", "recurrent, delta"]


def test_the_saved_config_is_complete_and_starts_the_same_run(trained):
    folder, _ = trained
    saved = only_run(folder) / "config.yaml"
    assert layer_of(yaml.safe_load(saved.read_text()))["init_args"]["num_blocks"] == 2
    assert "is finished" in succeed(["fit", "--config", str(saved)], folder).out
    assert "is finished" in succeed([*FIT, *SHORT], folder).out


def test_validate_test_and_predict_take_the_runs_best_checkpoint(trained):
    folder, _ = trained
    path = only_run(folder)
    for command in ("validate", "test"):
        succeed([command, *FIT[1:], *SHORT], folder)
        written = json.loads((path / f"{command}.json").read_text())
        assert written["checkpoint"].endswith("best.ckpt")
        assert 0 <= written["metrics"][f"{'val' if command == 'validate' else 'test'}/accuracy"] <= 1
    with open(path / "metrics.csv", newline="") as file:
        scored = [float(row["val/accuracy"]) for row in csv.DictReader(file) if row["val/accuracy"]]
    assert json.loads((path / "validate.json").read_text())["metrics"]["val/accuracy"] == pytest.approx(max(scored))
    succeed(["predict", *FIT[1:], *SHORT], folder)
    with open(path / "predictions-val.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    for row in rows:
        probabilities = [float(row[f"p_{i}"]) for i in range(10)]
        assert sum(probabilities) == pytest.approx(1, abs=1e-4)
        assert probabilities[int(row["prediction"])] == max(probabilities)
    accuracy = json.loads((path / "validate.json").read_text())["metrics"]["val/accuracy"]
    from lra_ssm.datamodules import ListOps

    settings = yaml.safe_load((path / "config.yaml").read_text())["data"]["init_args"]
    data = ListOps(**{**settings, "root": str(folder / "data")})
    data.setup("predict")
    labels = torch.cat([batch.labels for batch in data.predict_dataloader()]).tolist()
    assert [int(row["label"]) for row in rows] == labels
    assert sum(row["prediction"] == row["label"] for row in rows) / 20 == pytest.approx(accuracy)


def test_in_a_job_of_slurm_that_srun_did_not_start_one_line_says_the_command(trained):
    folder, _ = trained
    given = [*FIT[1:], *SHORT]
    with mock.patch.dict(os.environ, SLURM_JOB_ID="1"):
        said = succeed(["validate", *given], folder).err
    (line,) = [line for line in said.splitlines() if "srun" in line]
    started = shlex.join(["srun", "lightning", "validate", *given])
    assert line == f"note: in a job of Slurm srun starts each process: {started}"


def test_predict_takes_the_split_that_it_is_told(trained):
    folder, _ = trained
    path, right = only_run(folder), {}
    for split, examples in {"test": 20, "train": 16}.items():
        out = succeed(["predict", *FIT[1:], *SHORT, f"--split={split}"], folder).out
        rows = list(csv.DictReader((path / f"predictions-{split}.csv").read_text().splitlines()))
        (path / f"predictions-{split}.csv").unlink()
        right[split] = sum(row["prediction"] == row["label"] for row in rows) / examples
        assert f"{examples} predictions, {right[split]:.2%} of them right," in out and len(rows) == examples
    succeed(["test", *FIT[1:], *SHORT], folder)
    assert right["test"] == pytest.approx(json.loads((path / "test.json").read_text())["metrics"]["test/accuracy"])
    assert "split" in (said := fail(["predict", *FIT[1:], *SHORT, "--split=vall"], folder)) and "vall" in said
    assert "unknown option --split" in fail([*FIT, "--split=val"], folder)


def test_fit_and_validate_never_touch_the_test_split(folder):
    (prepared,) = (p for p in (folder / "data/listops").iterdir() if p.is_dir())
    files = list(prepared.glob("test*"))
    assert files
    for file in files:  # the same size, no meaning: whoever reads it fails
        file.write_bytes(b"\xff" * file.stat().st_size)
    succeed([*FIT, *SHORT, "--fresh"], folder)
    succeed(["validate", *FIT[1:], *SHORT], folder)
    assert run_here(["test", *FIT[1:], *SHORT], folder).code > 0
    one, two = (torch.load(p, weights_only=True)["state_dict"] for p in folder.rglob("last.ckpt"))
    assert all(torch.equal(one[name], two[name]) for name in one)


# --- the traps of LightningCLI ---


def test_a_checkpoint_never_overrides_flags(trained, tmp_path):
    folder, _ = trained
    best = only_run(folder) / "checkpoints/best.ckpt"
    data = f"--data.root={folder / 'data'}"
    message = fail([*FIT, *SHORT, data, f"--ckpt_path={best}", "--model.optimizer.lr=0.5"], tmp_path)
    assert "optimizer.lr 0.01 there, 0.5 here" in message and "--init_from" in message
    message = fail([*FIT, *SHORT, data, f"--ckpt_path={best}", "--model.network.d_model=16"], tmp_path)
    assert "of another shape" in message or "network.d_model 8 there, 16 here" in message
    # its weights alone: the flags hold
    fresh = succeed([*FIT, *SHORT, data, f"--init_from={best}", "--model.optimizer.lr=0.5"], tmp_path)
    assert "0.5" in next(line for line in fresh.out.splitlines() if line.startswith("base"))


def test_init_from_starts_from_the_weights(trained, tmp_path):
    folder, _ = trained
    last = only_run(folder) / "checkpoints/last.ckpt"
    flags = [f"--data.root={folder / 'data'}", f"--init_from={last}", "--model.optimizer.lr=1e-30",
             "--model.optimizer.roles.recurrent.lr=0", "--model.optimizer.weight_decay=0"]  # fmt: skip
    succeed([*FIT, *SHORT, *flags], tmp_path)
    ours = torch.load(only_run(tmp_path) / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    theirs = torch.load(last, weights_only=True)["state_dict"]
    names = [n for n in ours if "running" not in n and "batches" not in n]
    assert names and all(torch.allclose(ours[n], theirs[n], atol=1e-12) for n in names)


def test_checkpoints_from_the_cli_and_from_python_load_alike(trained, tmp_path):
    import lightning as L

    from lra_ssm.datamodules import ListOps
    from lra_ssm.layers import B2S6, LayerSpec, NetworkSpec
    from lra_ssm.models import Classifier
    from lra_ssm.tasks import Classification, OptimizerSettings

    folder, _ = trained
    layer = LayerSpec(B2S6, num_blocks=2, d_state=4, bidirectional=True)
    network = NetworkSpec(Classifier, layer=layer, num_classes=10, vocab_size=18, d_model=8, n_layers=1)
    task = Classification(network, OptimizerSettings(warmup_steps=2))
    data = ListOps(
        root=str(tmp_path), batch_size=8, length_bounds=(3, 20), max_depth=3, num_train=16, num_val=8, num_test=8
    )
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, default_root_dir=tmp_path, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(task, data)
    trainer.save_checkpoint(tmp_path / "python.ckpt")
    settings = []
    for path in (tmp_path / "python.ckpt", only_run(folder) / "checkpoints/best.ckpt"):
        checkpoint = torch.load(path, weights_only=True)
        settings.append(checkpoint["hyper_parameters"])
        layer = checkpoint["hyper_parameters"]["network"]["init_args"]["layer"]
        assert layer["class_path"] == "lra_ssm.layers.B2S6" and layer["init_args"]["num_blocks"] == 2
        loaded = Classification.load_from_checkpoint(path, weights_only=True)
        for name, value in loaded.state_dict().items():
            assert torch.equal(value, checkpoint["state_dict"][name])
    settings[1]["network"]["init_args"]["block"]["init_args"]["dropout"] = 0.0
    assert settings[0] == settings[1]


def test_dotted_overrides_and_print_config(tmp_path):
    flags = [
        "--model.network.layer.num_blocks=4",
        "--model.init_args.optimizer.lr=0.5",
        "--model.network.n_layers=3",
        "--data.batch_size=7",
    ]
    printed = yaml.safe_load(succeed([*FIT, *flags, "--print_config"], tmp_path).out)
    model = printed["model"]["init_args"]
    network = model["network"]["init_args"]
    assert network["layer"]["init_args"]["num_blocks"] == 4 and network["n_layers"] == 3
    assert model["optimizer"]["lr"] == 0.5
    assert printed["data"]["init_args"]["batch_size"] == 7
    assert everything_below(tmp_path) == []


def test_null_reaches_every_depth(tmp_path):
    """A library's parser of a class within a class makes the text None of it."""
    config = yaml.safe_load(TINY.read_text())
    network = config["model"]["init_args"]["network"]["init_args"]
    network["head"], network["layer"] = "lra_ssm.models.LinearHead", {"class_path": "lra_ssm.layers.S6"}
    network["layer"]["init_args"], config["model"]["init_args"]["optimizer"] = (
        {"delta_rank": 2},
        {"roles": {"delta": {"lr_factor": 1}}},
    )
    (tmp_path / "given.yaml").write_text(yaml.safe_dump(config))
    flags = ["--model.network.head=null", "--model.network.layer.delta_rank=null",
             "--model.optimizer.roles.delta.lr_factor=null", "--model.network.init_args.vocab_size=null",
             "--data.eval_batch_size=null"]  # fmt: skip
    printed = yaml.safe_load(succeed(["fit", "--config", "given.yaml", *flags, "--print_config"], tmp_path).out)
    network = printed["model"]["init_args"]["network"]["init_args"]
    found = [network["head"], network["layer"]["init_args"]["delta_rank"], network["vocab_size"]]
    found += [printed["model"]["init_args"]["optimizer"]["roles"]["delta"]["lr_factor"]]
    assert found == [None] * 4 and printed["data"]["init_args"]["eval_batch_size"] is None


def test_tensorboard_by_config_stands_beside_the_csv(tmp_path):
    """wandb likewise: test_wandb.py."""
    succeed([*FIT, *SHORT, "--trainer.logger=lightning.pytorch.loggers.TensorBoardLogger"], tmp_path)
    path = only_run(tmp_path)
    assert (path / "metrics.csv").is_file() and list(path.glob("tensorboard/events.*"))
    assert set(everything_below(tmp_path)) >= {"runs", "data"}


@pytest.mark.parametrize("logger", ["WandbLogger", "TensorBoardLogger"])
def test_a_logger_whose_package_is_missing_says_what_to_install(logger, tmp_path, monkeypatch, capsys):
    import lightning.fabric.loggers.tensorboard
    import lightning.pytorch.loggers.wandb
    from lightning_utilities.core.imports import RequirementCache

    missing = RequirementCache("not-there-at-all")
    for module, names in (
        (lightning.fabric.loggers.tensorboard, ("_TENSORBOARD_AVAILABLE", "_TENSORBOARDX_AVAILABLE")),
        (lightning.pytorch.loggers.wandb, ("_WANDB_AVAILABLE",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, missing)
    monkeypatch.chdir(tmp_path)
    flags = [f"--trainer.logger=lightning.pytorch.loggers.{logger}", "--trainer.logger.save_dir=."]
    assert "Try running `pip install -U 'not-there-at-all'`" in refused([*FIT, *flags], capsys)
    assert everything_below(tmp_path) == []


def test_what_cannot_change_the_result_is_no_part_of_the_identity(trained):
    folder, _ = trained
    neutral = ["--data.num_workers=1", f"--data.root={folder / 'elsewhere'}", "--trainer.log_every_n_steps=2",
               "--trainer.profiler=simple", "--trainer.enable_progress_bar=true", "--trainer.logger=false",
               "--data.eval_batch_size=3", "--trainer.limit_test_batches=1"]  # fmt: skip
    assert "is finished" in succeed([*FIT, *SHORT, *neutral], folder).out
    others = ("--seed_everything=2", "--model.optimizer.lr=0.02", "--data.generator_seed=3")
    paths = {read_fit_options([*FIT[1:], *SHORT, other]).path.name for other in others}
    assert len(paths | {only_run(folder).name}) == 4


# --- a loss that is not finite ---


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


# --- Lightning's ways to run less ---


def test_fast_dev_run_leaves_nothing(tmp_path):
    succeed([*FIT, "--trainer.fast_dev_run=2"], tmp_path)
    assert not (tmp_path / "runs").exists()


def test_overfit_batches_are_the_same_in_every_epoch(tmp_path):
    succeed([*FIT, "--trainer.overfit_batches=1", "--trainer.max_epochs=3", "--model.optimizer.lr=0",
             "--model.optimizer.roles.recurrent.lr=0", "--model.network.block.dropout=0"], tmp_path)  # fmt: skip
    with open(only_run(tmp_path) / "metrics.csv", newline="") as file:
        losses = [row["train/loss"] for row in csv.DictReader(file) if row["train/loss"]]
    assert len(losses) == 3 and len(set(losses)) == 1


def test_max_time_stops_a_run_that_is_not_finished(tmp_path, monkeypatch):
    monkeypatch.setenv("DELAY", "0.1")
    flags = ["--trainer.max_epochs=500", "--trainer.max_time=00:00:00:01"]
    assert "stopped by max_time" in succeed([*FIT, *flags], tmp_path).out
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["status"] == "stopped by max_time"


def test_without_a_logger_a_run_still_finishes(tmp_path):
    succeed([*FIT, *SHORT, "--trainer.logger=false"], tmp_path)
    path = only_run(tmp_path)
    assert not (path / "metrics.csv").exists() and (path / "checkpoints/best.ckpt").is_file()
    assert "val/accuracy" in json.loads((path / "run.json").read_text())["metrics"]


@pytest.mark.slow
def test_a_checkpoint_of_ones_own_is_no_obstacle_to_scoring(tmp_path):
    """Nothing is saved then, and Lightning refuses a callback that would."""
    (tmp_path / "own.yaml").write_text(
        "trainer:\n  callbacks:\n  - class_path: lightning.pytorch.callbacks.ModelCheckpoint\n"
        "    init_args: {monitor: val/accuracy}\n"
    )
    line = [*FIT, *SHORT, "--config=own.yaml"]
    succeed([*line, "--trainer.fast_dev_run=1"], tmp_path)
    succeed(line, tmp_path)
    assert "test/accuracy" in succeed(["test", *line[1:]], tmp_path).out
