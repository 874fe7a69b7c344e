"""wandb by configuration: what a run is there, over stops and resumptions. Offline."""

import json
import os
from pathlib import Path

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import WandbLogger

from lra_ssm.runs import Run
from lra_ssm.runs.loggers import identify
from tests.runner import FIT, SHORT, fail, only_run, run, succeed
from tests.test_runs import QUIET, parts

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
    succeed([*line[4:], *small], tmp_path, {**OFFLINE, **agent})
    path = only_run(tmp_path, "wandb-sweep")
    assert json.loads((path / "run.json").read_text())["wandb"] == {"id": "trial7"}
    assert list(path.glob("wandb/offline-run-*-trial7/run-trial7.wandb"))


def test_no_account_is_said_in_one_line_and_asks_nobody(tmp_path):
    message = fail([*FIT, *SHORT, *LOGGED], tmp_path, {})
    assert message.startswith("wandb: No API key configured") and "trainer.logger.offline=true" in message
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["reason"] == message


@pytest.mark.slow
def test_a_run_goes_on_in_its_own_whatever_ended_it(tmp_path):
    """Slurm's signal before a job's end goes to all processes of a step, wandb's too: the run is saved all the same."""
    ends = {"KILL_AT": "train_batch_start:3", "RUN": "kill $(pgrep -P $PPID wandb-core) $PPID; sleep 1"}
    assert run([*FIT, *LOGGED], tmp_path, {**OFFLINE, **ends}).code == 143
    path = only_run(tmp_path)
    before = json.loads((path / "run.json").read_text())
    result = succeed(
        [*FIT, *LOGGED], tmp_path, {**OFFLINE, **ends, "RUN": "kill $(pgrep -P $PPID wandb-core); sleep 1"}
    )
    assert result.err.count("wandb's process has ended") == 1
    after = json.loads((path / "run.json").read_text())
    assert before["status"] == "interrupted" and after["status"] == "finished" and after["wandb"] == before["wandb"]
    succeed(["test", *FIT[1:], *LOGGED], tmp_path, OFFLINE)
    assert len(list(path.glob(f"wandb/offline-run-*-{after['wandb']['id']}*"))) == 3


def test_runs_of_one_process_are_one_each_in_wandb(tmp_path, monkeypatch):
    """In a notebook: the second is not logged into the first, and a logger goes on after its run's end."""
    import wandb

    monkeypatch.chdir(tmp_path)
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    ids = []
    for seed in (1, 2):
        task, data = parts(tmp_path / "data", seed=seed)
        made = Run(f"runs/mine/{seed}")
        trainer = Trainer(**made.trainer_arguments(**QUIET, max_epochs=1, logger=WandbLogger(project="lra")))
        made.fit(trainer, task, data)
        assert wandb.run is None
        ids.append(made.record["wandb"]["id"])
        assert list(made.path.glob(f"wandb/offline-run-*-{ids[-1]}"))
    assert len(set(ids)) == 2
    trainer.test(task, data, verbose=False)
    assert wandb.run.id == ids[-1]
    wandb.finish()
    assert len(list(made.path.glob(f"wandb/offline-run-*-{ids[-1]}*"))) == 2  # within one second, it ends in -1
    assert not (tmp_path / "wandb").exists()
