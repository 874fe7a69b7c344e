"""wandb by configuration: what a run is there, over kills and resumptions. Offline, and against a stand-in server."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from lightning.pytorch import seed_everything
from lightning.pytorch.loggers import WandbLogger

from lra_ssm.runs.loggers import identify
from tests.local_server import serving
from tests.runner import FIT, SHORT, Command, fail, only_run, run, succeed
from tests.test_runs import QUIET, parts
from tests.wandb_server import Runs, WandbServer

pytest.importorskip("wandb")
ROOT = Path(__file__).parents[1]
LOGGED = ["--trainer.logger=WandbLogger", "--trainer.logger.project=lra"]
OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}


@pytest.fixture(autouse=True)
def of_nobody(monkeypatch, tmp_path):
    """No account of whoever runs the tests, and none of their settings."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "nobody"))
    monkeypatch.setenv("NETRC", str(tmp_path / "nobody/netrc"))


def here(tmp_path, **more):
    """What a command started by `tests.runner` is to have in its environment, as this test has it."""
    return {"WANDB_CONFIG_DIR": str(tmp_path / "nobody"), "NETRC": str(tmp_path / "nobody/netrc"), **more}


def online(tmp_path, address, **more):
    more = {"WANDB_FINISH_TIMEOUT": "30", **more}
    return here(tmp_path, WANDB_BASE_URL=address, WANDB_API_KEY="0" * 40, WANDB_SILENT="true", **more)


def sync(pieces, env, tmp_path):
    """As a user sends them off: all of a run at once."""
    command = [sys.executable, "-m", "wandb", "sync", *map(str, pieces)]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, **env}, check=True, capture_output=True, timeout=60)


def rows(path):
    with open(path / "metrics.csv") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "mode", [pytest.param("offline", marks=pytest.mark.slow), pytest.param("online", marks=pytest.mark.trials)]
)
def test_a_stopped_or_killed_run_goes_on_in_its_own_and_test_too(mode, tmp_path):
    """Offline, the pieces of the run become one when they are synced; steps after the checkpoint are there twice."""
    with serving(WandbServer, runs := Runs()) as address:
        env = online(tmp_path, address)
        how = {**env, "WANDB_MODE": mode}
        # Online, a signal that lets it send what it has: what wandb had not sent of a killed one is gone there.
        how_it_ends = {"RUN": "sleep 2; kill -9 $PPID"} if mode == "offline" else {"KILL_WITH": "SIGTERM"}
        run([*FIT, *LOGGED], tmp_path, {**how, "KILL_AT": "train_batch_start:6", **how_it_ends})
        succeed([*FIT, *LOGGED], tmp_path, how)
        succeed(["test", *FIT[1:], *LOGGED], tmp_path, how)
        path = only_run(tmp_path)
        if mode == "offline":
            assert not runs
            pieces = sorted(path.glob("wandb/offline-run-*"))
            assert len(pieces) == 3
            sync(pieces, env, tmp_path)
    record = json.loads((path / "run.json").read_text())
    ((name, found),) = runs.items()
    assert name == record["wandb"]["id"] and name.startswith(path.name) and found["exit"] == 0
    assert (found["name"], found["group"]) == (f"tiny/{path.name}", "tiny")

    history, expected = runs.history(name), rows(path)
    assert [line["_step"] for line in history] == list(range(len(history)))
    *fitted, scored = history
    losses = {}
    for line in fitted:  # a step that was made twice gave the same
        if "train/loss" in line:
            losses.setdefault(line["trainer/global_step"], set()).add(line["train/loss"])
    assert losses == {int(row["step"]): {float(row["train/loss"])} for row in expected if row["train/loss"]}
    if mode == "offline":
        assert [line["trainer/global_step"] for line in fitted if "train/loss" in line] == [
            0,
            1,
            2,
            3,
            4,
            *range(4, 12),
        ]
    best = max((row for row in expected if row["val/accuracy"]), key=lambda row: float(row["val/accuracy"]))
    assert "test/accuracy" in scored and scored["trainer/global_step"] == int(best["step"])
    assert found["summary"]["test/accuracy"] == scored["test/accuracy"]
    assert found["summary"]["best val/accuracy"] == pytest.approx(record["metrics"]["best val/accuracy"])

    config = {key: item["value"] for key, item in found["config"].items()}
    resolved = yaml.safe_load((path / "config.yaml").read_text())
    settings = resolved["model"]["init_args"]["optimizer"]  # wandb's offline files leave out what is an empty mapping
    for name in ("roles", "arguments", "schedule_arguments"):
        assert settings.pop(name) == {} == config["model"]["init_args"]["optimizer"].pop(name, {})
    assert {key: config[key] for key in ("model", "data", "seed_everything", "checkpoint")} == {
        key: resolved[key] for key in ("model", "data", "seed_everything", "checkpoint")
    }
    made = config["provenance"]
    assert made["git"] == record["starts"][1]["git"] and made["versions"] == record["starts"][1]["versions"]
    assert made["data"]["dataset"] == "listops" and "hardware" in made


def logger_of(path, experiment="mine", record=None, **given):
    """A logger's arguments to wandb.init in a run of that directory."""
    logger = WandbLogger(project="lra", **given)
    identify([logger], path, record or {"experiment": experiment, "starts": [{"time": "noon"}]})
    return logger._wandb_init


def test_an_id_is_of_one_run_and_stays(tmp_path, monkeypatch):
    path = tmp_path / "mine/0123456789"
    first = logger_of(path)
    assert logger_of(path) == first and first["id"].startswith("0123456789-") and first["resume"] == "allow"
    assert (first["dir"], first["group"], first["name"]) == (str(path), "mine", "mine/0123456789")
    # the same settings in another experiment, trained anew, and beside the first
    others = [logger_of(path, experiment="other")["id"], logger_of(path.with_name("0123456789-2"))["id"]]
    others.append(logger_of(path, record={"experiment": "mine", "starts": [{"time": "later"}]})["id"])
    assert len({first["id"], *others}) == 4
    assert logger_of(path, record={"wandb": {"id": "as before"}})["id"] == "as before"
    given = {"id": "x", "name": "y", "group": "z", "save_dir": "elsewhere", "resume": "never"}
    assert {**given, "dir": "elsewhere"}.items() - {("save_dir", "elsewhere")} <= logger_of(path, **given).items()
    for name in ("RUN_ID", "NAME", "RUN_GROUP"):
        monkeypatch.setenv(f"WANDB_{name}", "chosen")
    chosen = logger_of(path, record={"wandb": {"id": "as before"}})
    assert (chosen["id"], chosen["name"], chosen.get("group")) == ("chosen", None, None)  # wandb reads them


@pytest.mark.slow
def test_the_sweep_is_one_whose_commands_train(tmp_path):
    """As wandb's agent starts a trial: its command with arguments filled in, and the run's id in the environment."""
    from wandb.sdk.launch.sweeps import utils

    sweep = utils.load_sweep_config(str(ROOT / "slurm/wandb-sweep.yaml"))
    assert sweep["metric"] == {"name": "val/accuracy", "goal": "maximize"} and sweep["method"] == "bayes"
    values = {"lr": 0.002, "weight_decay": 0.01, "num_blocks": 2, "seed_everything": 0}
    args = {name: {"value": values[name.rpartition(".")[2]]} for name in sweep["parameters"]}
    filled = {"${env}": ["/usr/bin/env"], "${args}": utils.create_sweep_command_args({"args": args})["args"]}
    line = [word for part in utils.create_sweep_command(sweep["command"]) for word in filled.get(part, [part])]
    assert line[:4] == ["/usr/bin/env", "python", "-m", "lra_ssm"]
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    small = ["--data.num_train=64", "--data.num_val=32", "--data.num_test=32", "--data.length_bounds=[3,20]",
             "--data.max_depth=3", "--model.network.n_layers=1", "--model.network.d_model=8", "--trainer.max_steps=2",
             "--trainer.accelerator=cpu", "--data.num_workers=0"]  # fmt: skip
    agent = {"WANDB_RUN_ID": "trial7", "WANDB_SWEEP_ID": "abc", "WANDB_PROJECT": "lra", "WANDB_DIR": str(tmp_path)}
    succeed([*line[4:], *small], tmp_path, here(tmp_path, **OFFLINE, **agent))
    path = only_run(tmp_path, "wandb-sweep")
    assert json.loads((path / "run.json").read_text())["wandb"] == {"id": "trial7"}
    assert list(path.glob("wandb/offline-run-*-trial7/run-trial7.wandb"))
    assert "val/accuracy" in rows(path)[0]


def test_no_account_is_said_in_one_line_and_asks_nobody(tmp_path):
    message = fail([*FIT, *SHORT, *LOGGED], tmp_path, here(tmp_path))
    assert message.startswith("wandb: No API key configured") and "trainer.logger.offline=true" in message
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["reason"] == message
    succeed([*FIT, *SHORT], tmp_path)  # what it is good for is not spoilt


@pytest.mark.slow
def test_a_server_that_goes_away_stops_no_training(tmp_path):
    with serving(WandbServer, Runs()) as address:
        env = online(
            tmp_path, address, WANDB_FINISH_TIMEOUT="1", KILL_AT="train_batch_start:2", RUN="touch gone; sleep 2"
        )
        command = Command([*FIT, *SHORT, *LOGGED], tmp_path, env)
        while not (tmp_path / "gone").exists():
            assert command.process.is_alive()
            command.process.join(0.05)
    result = command.wait()
    path = only_run(tmp_path)
    assert result.code == 0, result.err
    assert json.loads((path / "run.json").read_text())["status"] == "finished"
    assert list(path.glob("wandb/run-*/run-*.wandb"))  # to be synced


@pytest.mark.slow
@pytest.mark.parametrize(
    ("also", "code", "status"),
    [("", 0, "finished"), pytest.param("$PPID", 143, "interrupted", marks=pytest.mark.slow)],
)
def test_the_end_of_wandbs_own_process_is_not_the_runs(also, code, status, tmp_path):
    """Slurm's signal before a job's end goes to all processes of a step: the run is saved all the same."""
    ends = {"KILL_AT": "train_batch_start:3", "RUN": f"kill $(pgrep -P $PPID wandb-core) {also}; sleep 1"}
    result = run([*FIT, *LOGGED], tmp_path, here(tmp_path, **OFFLINE, **ends))
    record = json.loads((only_run(tmp_path) / "run.json").read_text())
    assert record["status"] == status and result.code == code
    if not also:
        assert result.err.count("wandb's process has ended") == 1


def test_runs_of_one_process_are_one_each_in_wandb(tmp_path, monkeypatch):
    """In a notebook: the second is not logged into the first, and a logger goes on after its run's end."""
    import wandb
    from lightning.pytorch import Trainer

    from lra_ssm.runs import Run

    monkeypatch.chdir(tmp_path)
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PL_GLOBAL_SEED", "")
    ids = []
    for seed in (1, 2):
        task, data = parts(tmp_path / "data", seed=seed)
        seed_everything(seed, verbose=False)
        logger = WandbLogger(project="lra")
        made = Run(f"runs/mine/{seed}")
        trainer = Trainer(**made.trainer_arguments(**QUIET, max_epochs=1, logger=logger))
        made.fit(trainer, task, data)
        assert wandb.run is None
        ids.append(json.loads((made.path / "run.json").read_text())["wandb"]["id"])
        assert list(made.path.glob(f"wandb/offline-run-*-{ids[-1]}"))
    assert len(set(ids)) == 2
    trainer.test(task, data, verbose=False)
    assert wandb.run.id == ids[-1]
    wandb.finish()
    assert len(list(made.path.glob(f"wandb/offline-run-*-{ids[-1]}*"))) == 2  # of one second, it ends in -1
    assert not (tmp_path / "wandb").exists()
