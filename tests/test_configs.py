"""Every config parses, is complete, says where its values come from, and trains."""

import re
from pathlib import Path

import pytest
import yaml

from tests.runner import succeed

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))
# A full-size config for one step: the model as published, the data small.
SMALL_DATA = ["--data.num_train=4", "--data.num_val=4", "--data.num_test=4", "--data.length_bounds=[3,12]",
              "--data.max_depth=3", "--trainer.max_steps=1", "--trainer.accelerator=cpu"]  # fmt: skip


def values(node, path=()):
    if isinstance(node, dict):
        for key, value in node.items():
            yield from values(value, (*path, key))
    else:
        yield ".".join(path), node


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(CONFIGS)))
def test_one_step(path, tmp_path):
    succeed(["fit", "--config", str(path), f"--data.root={tmp_path / 'data'}", *SMALL_DATA], tmp_path)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(CONFIGS)))
def test_every_setting_of_model_and_data_stands_in_the_file(path, tmp_path):
    given = dict(values(yaml.safe_load(path.read_text())))
    resolved = dict(values(yaml.safe_load(succeed(["fit", "--config", str(path), "--print_config"], tmp_path).out)))
    for key, value in resolved.items():
        if key.startswith(("model.", "data.", "checkpoint.")):
            assert key in given, f"{path} leaves {key} to a default"
            assert given[key] == value or list(given[key]) == list(value), key


ORIGIN = (
    r"our choice: unpublished|configs/[\w/]+\.yaml|Yu & Erichson 2025|Tay et al\. 2021|Gu & Dao 2023|state-spaces/s4"
)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(CONFIGS)))
def test_every_value_carries_its_origin(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if re.match(r"\s*\w+: [^\s#]", line):
            assert re.search(f"  # .*({ORIGIN})", line), f"{path}:{number} has no origin: {line}"


def load(name):
    return dict(values(yaml.safe_load((CONFIGS / f"lra/listops/{name}.yaml").read_text())))


def test_b2s6_has_the_values_of_table_4():
    b2s6 = load("b2s6")
    prefix = "model.init_args."
    table = {"n_layers": 8, "d_model": 128, "norm": "batch", "prenorm": False, "lr": 0.008, "weight_decay": 0.03}
    assert {key: b2s6[prefix + key] for key in table} == table
    assert b2s6["data.init_args.batch_size"] == 32 and b2s6["trainer.max_epochs"] == 120
    assert b2s6[prefix + "layer.init_args.num_blocks"] == 8 and b2s6[prefix + "layer.init_args.bidirectional"]


def test_s4d_has_the_values_of_v3():
    s4d = load("s4d")
    prefix = "model.init_args."
    table = {"n_layers": 8, "d_model": 128, "norm": "batch", "prenorm": False, "lr": 0.01, "weight_decay": 0.05,
             "dropout": 0.0, "warmup_steps": 1000, "recurrent_lr": 0.001, "pooling": "mean"}  # fmt: skip
    assert {key: s4d[prefix + key] for key in table} == table
    assert s4d["data.init_args.batch_size"] == 50 and s4d["trainer.max_steps"] == 80_000
    layer = {"d_state": 64, "init": "legs", "bidirectional": True, "delta_min": 0.001, "delta_max": 0.1}
    assert {key: s4d[f"{prefix}layer.init_args.{key}"] for key in layer} == layer


def test_what_configs_take_from_each_other_is_the_same():
    own = {"experiment", "model.class_path", "model.init_args.layer.class_path", "data.class_path"}
    for path in FILES:
        name, text = path.stem, path.read_text()
        ours = dict(values(yaml.safe_load(text)))
        for line in text.splitlines():
            found = re.match(r"\s*(\w+): .*#.*configs/lra/listops/(\w+)\.yaml", line)
            if found:
                key, source = found.groups()
                if key == "class_path":
                    continue
                (mine,) = [v for k, v in ours.items() if k.split(".")[-1] == key and k not in own]
                (theirs,) = [v for k, v in load(source).items() if k.split(".")[-1] == key and k not in own]
                assert mine == theirs, f"{name}: {key} is not {source}'s"
