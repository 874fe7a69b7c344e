"""Every parameter of every model of ours has a width role that its shapes and its initial values bear out."""

from pathlib import Path

import pytest
import torch
import yaml

from lra_ssm.layers import NetworkSpec, width_roles

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = [path for path in sorted(CONFIGS.rglob("*.yaml")) if "model" in yaml.safe_load(path.read_text())]
GROWING = {"embedding": 1, "hidden": 2, "readout": 1, "state": 1, "vector": 1, "fixed": 0}  # dimensions, by role


def at_width(config, width, n_layers=None, device="meta"):
    network = config["model"]["init_args"]["network"]
    arguments = {**network["init_args"], "d_model": width}
    if n_layers is not None:
        arguments["n_layers"] = n_layers
    with torch.device(device):
        return NetworkSpec.of({"class_path": network["class_path"], "init_args": arguments})()


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(CONFIGS)))
def test_every_parameter_of_every_config_has_a_role_that_fits_its_shape(path):
    config = yaml.safe_load(path.read_text())
    narrow, wide = at_width(config, 64), at_width(config, 128)
    roles = width_roles(narrow)
    assert roles == width_roles(wide)
    for (name, small), large in zip(narrow.named_parameters(), wide.parameters(), strict=True):
        kind, _ = roles[name]
        growing = sum(a != b for a, b in zip(small.shape, large.shape, strict=True))
        assert growing == GROWING[kind], f"{name} {tuple(small.shape)} -> {tuple(large.shape)} is no {kind}"


def spreads(network):
    """Root mean square of each parameter, those at a constant left out."""
    return {
        name: p.detach().square().mean().sqrt()
        for name, p in network.named_parameters()
        if p.numel() > 1 and p.std() > 0
    }
