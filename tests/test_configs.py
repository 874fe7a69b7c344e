"""Every config parses, is complete, says where its values come from, and trains."""

import re
from pathlib import Path

import pytest
import yaml

from tests.runner import succeed
from tests.small_data import options

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))
# The model as published but for its depth, the data small.
ONE_STEP = [
    "--model.network.n_layers=1",
    "--trainer.max_steps=1",
    "--trainer.accelerator=cpu",
    "--data.batch_size=2",
    "--data.num_workers=0",
]
TASKS = ("text", "retrieval", "image", "pathfinder", "pathx")


def values(node, path=()):
    if isinstance(node, dict):
        for key, value in node.items():
            yield from values(value, (*path, key))
    else:
        yield ".".join(path), node


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(CONFIGS)))
def test_one_step(path, tmp_path):
    cls = yaml.safe_load(path.read_text())["data"]["class_path"].rpartition(".")[2]
    small = [f"--data.root={tmp_path / 'data'}", *options(cls, tmp_path), *ONE_STEP]
    succeed(["fit", "--config", str(path), *small], tmp_path)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(CONFIGS)))
def test_every_setting_of_model_and_data_stands_in_the_file(path, tmp_path):
    given = dict(values(yaml.safe_load(path.read_text())))
    resolved = dict(values(yaml.safe_load(succeed(["fit", "--config", str(path), "--print_config"], tmp_path).out)))
    for key, value in resolved.items():
        key = key if key in given else key.removesuffix(".class_path")  # one without arguments is its path alone
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
    return dict(values(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())))


# depth, features, norm, prenorm, lr, batch, epochs, weight decay
TABLE_4 = {
    "listops": (8, 128, "batch", False, 0.008, 32, 120, 0.03),
    "text": (6, 256, "batch", True, 0.01, 16, 40, 0.05),
    "retrieval": (6, 128, "batch", True, 0.004, 60, 200, 0.03),
    "image": (6, 512, "layer", False, 0.01, 48, 500, 0.05),
    "pathfinder": (6, 256, "batch", True, 0.004, 48, 250, 0.03),
    "pathx": (6, 128, "batch", True, 0.001, 24, 120, 0.03),
}
NETWORK, OPTIMIZER = "model.init_args.network.init_args.", "model.init_args.optimizer."
BLOCK, LAYER = NETWORK + "block.init_args.", NETWORK + "layer.init_args."
KEYS = [NETWORK + "n_layers", NETWORK + "d_model", BLOCK + "norm", BLOCK + "prenorm", OPTIMIZER + "lr"]
KEYS += ["data.init_args.batch_size", "trainer.max_epochs", OPTIMIZER + "weight_decay"]


@pytest.mark.parametrize("task", TABLE_4)
def test_b2s6_has_the_values_of_table_4(task):
    b2s6, s6 = load(f"lra/{task}/b2s6"), load(f"lra/{task}/s6")
    assert tuple(b2s6[key] for key in KEYS) == tuple(s6[key] for key in KEYS) == TABLE_4[task]
    assert b2s6[LAYER + "num_blocks"] == 8 and b2s6[LAYER + "bidirectional"]


# depth, features, norm, prenorm, lr, batch, weight decay, steps, warm-up, dropout, pooling, recurrent lr, least Δ
MEAN, LAST = "lra_ssm.models.MeanPooling", "lra_ssm.models.LastPooling"
V3 = {
    "listops": (8, 128, "batch", False, 0.01, 50, 0.05, 80_000, 1000, 0.0, MEAN, 0.001, 0.001),
    "text": (6, 256, "batch", True, 0.01, 16, 0.05, 50_000, 1000, 0.0, MEAN, 0.001, 0.001),
    "retrieval": (6, 256, "batch", True, 0.01, 64, 0.05, 50_000, 2500, 0.0, MEAN, 0.001, 0.001),
    "image": (6, 512, "layer", False, 0.01, 50, 0.05, 180_000, 900, 0.1, MEAN, 0.001, 0.001),
    "pathfinder": (6, 256, "batch", True, 0.004, 64, 0.03, 500_000, 2500, 0.0, LAST, 0.001, 0.001),
    "pathx": (6, 256, "batch", True, 0.0005, 16, 0.05, 500_000, 10_000, 0.0, MEAN, 0.0005, 0.0001),
}
V3_KEYS = [*KEYS[:6], KEYS[7], "trainer.max_steps"]
V3_KEYS += [OPTIMIZER + "warmup_steps", BLOCK + "dropout", NETWORK + "pooling", OPTIMIZER + "recurrent_lr"]
V3_KEYS += [LAYER + "delta_min"]


@pytest.mark.parametrize("task", V3)
def test_s4d_has_the_values_of_v3(task):
    s4d = load(f"lra/{task}/s4d")
    assert tuple(s4d[key] for key in V3_KEYS) == V3[task]
    layer = {"d_state": 64, "init": "legs", "bidirectional": True, "delta_max": 0.1}
    assert {key: s4d[LAYER + key] for key in layer} == layer


def test_what_configs_take_from_each_other_is_the_same():
    own = {"experiment", "model.class_path", NETWORK + "layer.class_path", "data.class_path"}
    checked = 0
    for path in FILES:
        text = path.read_text()
        ours = dict(values(yaml.safe_load(text)))
        for line in text.splitlines():
            found = re.match(r"\s*(\w+): .*#.*configs/([\w/]+)\.yaml", line)
            if found:
                key, source = found.groups()
                if key == "class_path":
                    continue
                (mine,) = [v for k, v in ours.items() if k.split(".")[-1] == key and k not in own]
                (theirs,) = [v for k, v in load(source).items() if k.split(".")[-1] == key and k not in own]
                assert mine == theirs, f"{path}: {key} is not {source}'s"
                checked += 1
    assert checked > 100


SWEEP = Path(__file__).parents[1] / "slurm/sweeps/scifar-b2s6-ablation.txt"


def test_the_ablation_has_every_cell_of_table_1():
    lines = [line for line in SWEEP.read_text().splitlines() if not line.startswith("#")]
    cells = set()
    for line in lines:
        options = dict(option.removeprefix("--").split("=", 1) for option in line.split() if "=" in option)
        layer = "model.network.layer."
        cells.add((options[layer + "num_blocks"], options[layer + "complex_A"], options[layer + "bias"]))
    forms = [("true", "true"), ("true", "false"), ("false", "true")]
    assert cells == {(str(2**k), *form) for k in range(8) for form in forms} and len(lines) == 24
    resolved = yaml.safe_load(succeed(["fit", *lines[-1].split(), "--print_config"], CONFIGS.parent).out)
    assert dict(values(resolved))[LAYER + "num_blocks"] == 128
