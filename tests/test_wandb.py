"""wandb by configuration: what a run is there, over stops and resumptions. Offline."""

import json
import os
from pathlib import Path

import pytest
import yaml
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


def logger_of(path, record=None, **given):
    """A logger's arguments to wandb.init in a run of that directory."""
    logger = WandbLogger(project="lra", **given)
    identify([logger], path, {"experiment": "mine", **(record or {})})
    return logger._wandb_init


def test_an_id_is_of_one_run_and_stays(tmp_path, monkeypatch):
    path = tmp_path / "mine/0123456789"
    first = logger_of(path)
    assert first["id"].startswith("0123456789-") and first["resume"] == "allow"
    assert (first["dir"], first["group"], first["name"]) == (str(path), "mine", "mine/0123456789")
    assert logger_of(path)["id"] != first["id"]  # of a run that was deleted and is trained again
    before = {"wandb": {"id": "as before"}}
    assert logger_of(path, before)["id"] == "as before"
    given = {"id": "x", "name": "y", "group": "z", "resume": "never"}
    assert {**given, "dir": "elsewhere"}.items() <= logger_of(path, save_dir="elsewhere", **given).items()
    for name in ("RUN_ID", "NAME", "RUN_GROUP"):
        monkeypatch.setenv(f"WANDB_{name}", "chosen")
    chosen = logger_of(path, before)
    assert (chosen["id"], chosen["name"], chosen.get("group")) == ("chosen", None, None)  # wandb reads them


def test_the_sweep_is_one_whose_commands_are_fits():
    """As wandb's agent starts a trial: its command with arguments filled in."""
    sweep = yaml.safe_load((ROOT / "slurm/wandb-sweep.yaml").read_text())
    assert sweep["metric"] == {"name": "val/accuracy", "goal": "maximize"} and sweep["method"] == "bayes"
    values = {"lr": 0.002, "weight_decay": 0.01, "num_blocks": 2, "seed_everything": 0}
    filled = {"${env}": [], "${args}": [f"--{name}={values[name.rpartition('.')[2]]}" for name in sweep["parameters"]]}
    line = [word for part in sweep["command"] for word in filled.get(part, [part])]
    assert line[:4] == ["python", "-m", "lra_ssm", "fit"]
    config = yaml.safe_load(succeed([*line[3:], "--print_config"], ROOT).out)
    assert config["experiment"] == "wandb-sweep" and config["trainer"]["logger"]["class_path"].endswith("WandbLogger")
    assert config["model"]["init_args"]["optimizer"]["lr"] == 0.002 and config["seed_everything"] == 0


def test_without_an_account_one_line_says_what_needs_none(tmp_path):
    message = fail([*FIT, *SHORT, *LOGGED], tmp_path, {})
    assert message.startswith("wandb: No API key configured") and "trainer.logger.offline=true" in message
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["reason"] == message


@pytest.mark.slow
def test_a_run_goes_on_in_its_own_whatever_ended_it(tmp_path):
    """Slurm's signal before a job's end goes to all processes of a step, wandb's too: the run is saved all the same."""
    records = []
    for more, code in (("$PPID", 143), ("", 0)):
        ends = {"KILL_AT": "train_batch_start:3", "RUN": f"kill $(pgrep -P $PPID wandb-core) {more}; sleep 1"}
        result = run([*FIT, *LOGGED], tmp_path, OFFLINE | ends)
        assert result.code == code
        records.append(json.loads((only_run(tmp_path) / "run.json").read_text()))
    assert result.err.count("wandb's process has ended") == 1
    assert [record["status"] for record in records] == ["interrupted", "finished"]
    assert records[0]["wandb"] == records[1]["wandb"]
    succeed(["test", *FIT[1:], *LOGGED], tmp_path, OFFLINE)
    assert len(list(tmp_path.rglob(f"wandb/offline-run-*-{records[0]['wandb']['id']}*"))) == 3


def test_runs_of_one_process_are_one_each_in_wandb(here, data, monkeypatch):
    """In a notebook: the second is not logged into the first, and a logger goes on after its run's end."""
    import wandb

    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    ids = []
    for seed in (1, 2):
        task, module = parts(data, seed=seed)
        made = Run(f"runs/mine/{seed}")
        trainer = Trainer(**made.trainer_arguments(**QUIET, max_epochs=1, logger=WandbLogger(project="lra")))
        made.fit(trainer, task, module)
        assert wandb.run is None
        ids.append(made.record["wandb"]["id"])
    trainer.test(task, module, verbose=False)
    assert wandb.run.id == ids[1] != ids[0]
    wandb.finish()
    started = [len(list(Path("runs/mine").glob(f"*/wandb/offline-run-*-{each}*"))) for each in ids]
    assert started == [1, 2] and not Path("wandb").exists()  # within one second, the second one ends in -1
