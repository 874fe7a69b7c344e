"""Run directories as a fit and a test leave them, without either."""

import json
from pathlib import Path

import yaml

from lra_ssm.runs.identity import result_settings
from lra_ssm.runs.record import RunRecord, find_runs

ROOT = Path(__file__).parents[2]
DATA = {"source": {"kind": "generated", "limit": None}, "splits": {}, "inputs": "tokens"}
CODE = {"versions": {"lra_ssm": "0.1.0+0123456789ab"}, "git": {"commit": "a" * 40}}
OPTIMIZER, LAYER = "model.init_args.optimizer", "model.init_args.network.init_args.layer.init_args"
LR = f"{OPTIMIZER}.lr"


def config_of(name, seed, changes):
    """The config of that name with changes by dotted name, `init_args` included."""
    config = yaml.safe_load((ROOT / "configs" / f"{name}.yaml").read_text())
    for key, value in {"seed_everything": seed, **changes}.items():
        node = config
        *path, last = key.split(".")
        for part in path:
            node = node[part]
        node[last] = value
    return config


def make_run(folder, name="lra/listops/s4d", seed=0, value=0.6, changes=None, run_id=None, curve=(), data=DATA,
             status="finished", tested=True, step=80000, minutes=10, **record):  # fmt: skip
    """Writes a run below folder/runs and returns its directory. value: its test accuracy; record: more of run.json."""
    config = config_of(name, seed, changes or {})
    identity = result_settings(config)
    path = folder / "runs" / config["experiment"] / (run_id or f"{len(list(folder.rglob('run.json'))):010x}")
    path.mkdir(parents=True)
    # What a fit resolves has every default too; what was set beyond them is the run's identity.
    config["trainer"] = {"num_nodes": 1, "callbacks": None, "max_steps": -1, "devices": "auto", **config["trainer"]}
    config["checkpoint"] = {"monitor": "val/accuracy", "mode": "max", **config.get("checkpoint", {})}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    start = {"time": f"2026-01-0{1 + seed}T00:00:00+00:00", **CODE}
    if status != "started":
        start["ended"] = f"2026-01-0{1 + seed}T00:{minutes:02}:00+00:00"
    made = {"run_id": path.name, "experiment": config["experiment"], "status": status, "starts": [start],
            "parameters": 1234, "data": data, "identity": identity,
            "metrics": {"best val/accuracy": value}}  # fmt: skip
    (path / "run.json").write_text(json.dumps({**made, **record}))
    (path / "progress.json").write_text(json.dumps({"step": step, "of": None, "time": start["time"]}))
    lines = ["step,epoch,val/accuracy", *(f"{step - 1},0,{v}" for step, v in curve)]
    (path / "metrics.csv").write_text("\n".join(lines) + "\n")
    if tested:
        metrics = {"test/accuracy": value, "test/loss": 1 - value}
        (path / "test.json").write_text(json.dumps({"metrics": metrics, "data": data}))
    return path


def read(*folders):
    return [RunRecord.read(run) for folder in folders for run in find_runs(folder)]
