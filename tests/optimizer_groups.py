"""Write the optimizer groups of every shipped config, as `optimizer_groups.txt` has them.

`python -m tests.optimizer_groups > tests/optimizer_groups.txt` writes the table again.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
import yaml

from lra_ssm.layers.spec import import_object
from lra_ssm.tasks.optim import optimizer_and_schedule

CONFIGS = Path(__file__).parents[1] / "configs"
TABLE = Path(__file__).with_suffix(".txt")


def files() -> list[Path]:
    """Every config that has a model."""
    return sorted(set(CONFIGS.rglob("*.yaml")) - set(CONFIGS.glob("lm/strategies/*.yaml")))


def name_of(path: Path) -> str:
    return str(path.relative_to(CONFIGS).with_suffix(""))


def groups(path: Path) -> Iterator[str]:
    """One line per group: config | roles | parameters | lr | weight decay | algorithm."""
    model = yaml.load(path.read_text(), yaml.CSafeLoader)["model"]
    with torch.device("meta"):
        task = import_object(model["class_path"])(**model["init_args"])
    settings = task.optimizer_settings
    optimizer = optimizer_and_schedule(task.network, settings, 1000, 100, task.width_factors)["optimizer"]
    for group in optimizer.param_groups:
        count = sum(p.numel() for p in group["params"])
        rate, decay = f"{group['initial_lr']:.12g}", f"{group['weight_decay']:.12g}"
        algorithm = group.get("algorithm", type(optimizer).__name__)
        yield f"{name_of(path)} | {group['name']} | {count} | {rate} | {decay} | {algorithm}"


if __name__ == "__main__":
    for path in files():
        print(*groups(path), sep="\n")
