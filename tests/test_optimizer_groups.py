"""Parameters, learning rate, weight decay and algorithm of every optimizer group of every shipped config.

`python -m tests.test_optimizer_groups > tests/test_optimizer_groups.txt` writes the table again.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lra_ssm.layers import width_roles
from lra_ssm.layers.spec import import_object
from lra_ssm.tasks.optim import optimizer_and_schedule
from tests.test_configs import CONFIGS, FILES, parsed

LINES = Path(__file__).with_suffix(".txt").read_text().splitlines()


def name_of(path: Path) -> str:
    return str(path.relative_to(CONFIGS).with_suffix(""))


def groups(path: Path) -> Iterator[str]:
    """One line per group: config | roles | parameters | lr | weight decay | algorithm."""
    model = parsed(path)["model"]
    with torch.device("meta"):
        task = import_object(model["class_path"])(**model["init_args"])
    width_roles(task.network)  # a parameter without one is an error
    made = optimizer_and_schedule(task.network, task.optimizer_settings, 1000, 100, task.width_factors)
    optimizer = made["optimizer"]
    for group in optimizer.param_groups:
        count = sum(p.numel() for p in group["params"])
        rate, decay = f"{group['initial_lr']:.12g}", f"{group['weight_decay']:.12g}"
        algorithm = group.get("algorithm", type(optimizer).__name__)
        yield f"{name_of(path)} | {group['name']} | {count} | {rate} | {decay} | {algorithm}"


def test_the_table_has_every_config_and_no_other():
    assert {line.partition(" | ")[0] for line in LINES} == {name_of(path) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_groups_are_those_of_the_table(path):
    assert list(groups(path)) == [line for line in LINES if line.startswith(f"{name_of(path)} | ")]


if __name__ == "__main__":
    for path in FILES:
        print(*groups(path), sep="\n")
