"""Every parameter of every model of ours has a width role that fits its shapes and its initial values."""

import math
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from lra_ssm.layers import (
    B2S6,
    LRU,
    S4D,
    S5,
    S6,
    Attention,
    BlockSpec,
    DeepLinearSSM,
    HyenaBlock,
    LayerSpec,
    MambaBlock,
    NetworkSpec,
    PlainBlock,
    S4Block,
    StableSSM,
    TransformerBlock,
    linear_roles,
    width_roles,
)
from lra_ssm.models import Classifier, DualEncoder, LanguageModel, PlainNetwork, Regressor
from lra_ssm.models.heads import LogitPairHead, LRAPairHead

CONFIGS = Path(__file__).parents[2] / "configs"
GROWING = {"embedding": 1, "hidden": 2, "readout": 1, "state": 1, "vector": 1, "fixed": 0}  # dimensions, by role


def configs():
    """Return each network once, whatever its sizes: (class, arguments) by config."""
    found = {}
    for path in sorted(CONFIGS.rglob("*.yaml")):
        config = yaml.load(path.read_text(), yaml.CSafeLoader)
        if "model" in config:
            network = config["model"]["init_args"]["network"]
            arguments = {**network["init_args"], "n_layers": 2, "d_model": 64}
            layers = arguments.get("layer")
            arguments["n_layers"] = max(2, len(layers)) if isinstance(layers, list) else 2
            found.setdefault(str((network["class_path"], arguments)), (path, network["class_path"], arguments))
    return [pytest.param(*network, id=str(path.relative_to(CONFIGS))) for path, *network in found.values()]


def of_width(class_path, arguments, width):
    layer = arguments.get("layer")
    if isinstance(layer, dict) and layer["init_args"].get("d_head"):  # a wider model has more heads of that size
        heads = {**layer["init_args"], "n_heads": width // layer["init_args"]["d_head"]}
        arguments = {**arguments, "layer": {**layer, "init_args": heads}}
    with torch.device("meta"):
        return NetworkSpec.of({"class_path": class_path, "init_args": {**arguments, "d_model": width}})()


@pytest.mark.parametrize("class_path, arguments", configs())
def test_every_parameter_of_every_config_has_a_role_that_fits_its_shape(class_path, arguments):
    check_shapes(*(of_width(class_path, arguments, width) for width in (64, 128)))


def check_shapes(narrow, wide):
    roles = width_roles(narrow)
    assert roles == width_roles(wide)
    for (name, small), large in zip(narrow.named_parameters(), wide.parameters(), strict=True):
        kind, _ = roles[name]
        growing = sum(a != b for a, b in zip(small.shape, large.shape, strict=True))
        assert growing == GROWING[kind], f"{name} {tuple(small.shape)} -> {tuple(large.shape)} is not {kind}"


LAYERS = [
    *((LayerSpec(layer), BlockSpec(S4Block)) for layer in (S4D, B2S6, DeepLinearSSM, StableSSM)),
    (LayerSpec(S4D, tie_A=True, tie_B=True, tie_C=True), BlockSpec(PlainBlock)),
    (LayerSpec(S6), BlockSpec(MambaBlock, glu=True, bias=True)),
    (LayerSpec(S6, delta_rank=8), BlockSpec(MambaBlock)),
    (LayerSpec(S6, bidirectional=True), BlockSpec(S4Block, norm="layer", prenorm=True)),
    (LayerSpec(B2S6, complex_A=False, bias=False), BlockSpec(MambaBlock)),
    (LayerSpec(LRU), BlockSpec(PlainBlock)),
    (LayerSpec(S5), BlockSpec(PlainBlock)),
    (LayerSpec(S5, C_init="lecun"), BlockSpec(PlainBlock)),
    (LayerSpec(StableSSM, form="real"), BlockSpec(HyenaBlock)),
    (LayerSpec(Attention, positions="learned", max_length=8, bias=True), BlockSpec(TransformerBlock)),
]


@pytest.mark.parametrize("layer, block", LAYERS)
def test_initial_values_go_with_the_width_as_the_roles_say(layer, block):
    """Root mean squares at widths 64 and 1024; those of a few numbers spread more."""
    found = {}
    for width in (64, 1024):
        torch.manual_seed(0)
        network = Regressor(layer, 3, d_input=4, d_model=width, n_layers=1, block=block)
        found[width] = {name: p.detach().square().mean().sqrt() for name, p in network.named_parameters()}
        numbers = {name: p.numel() for name, p in network.named_parameters()}
    for name, (_, exponent) in width_roles(network).items():
        small, large = found[64][name], found[1024][name]
        if small == 0:
            assert large == 0, name
            continue
        slope = math.log(large / small) / math.log(16)
        assert abs(slope - exponent) < (0.1 if numbers[name] > 16 else 0.5), f"{name}: {slope:.2f}, not {exponent}"


@pytest.mark.parametrize(
    "network",
    [
        lambda d: DualEncoder(S4D, 2, vocab_size=5, d_model=d, n_layers=1),
        lambda d: DualEncoder(S4D, 2, vocab_size=5, d_model=d, n_layers=1, head=LRAPairHead),
        lambda d: DualEncoder(S4D, 2, vocab_size=5, d_model=d, n_layers=1, head=LogitPairHead),
        lambda d: PlainNetwork(LRU, 2, vocab_size=5, d_model=d),
        lambda d: LanguageModel(S6, 5, d, 1, tie_embeddings=False),
        lambda d: LanguageModel(S6, 5, d, 1),
    ],
)
def test_heads_and_networks(network):
    check_shapes(network(16), network(32))


class Own(nn.Module):
    """A user's layer, with the width roles that it is told to declare."""

    def __init__(self, d_model: int, roles: dict[str, str] | None = None) -> None:
        super().__init__()
        self.mix, self.roles = nn.Linear(d_model, d_model), roles or {}

    def forward(self, x, lengths=None):
        return self.mix(x)

    def width_roles(self):
        return self.roles or linear_roles(mix=(self.mix, "hidden"))


class Silent(Own):
    width_roles = None


def test_roles_of_a_users_layer():
    def model(layer):
        return Classifier(layer, 2, vocab_size=5, d_model=4, n_layers=1)

    roles = width_roles(model(Own))
    assert roles["backbone.blocks.0.layer.mix.weight"] == ("hidden", -0.5)
    assert roles["backbone.blocks.0.layer.mix.bias"] == ("vector", -0.5)
    with pytest.raises(ValueError, match=r"backbone\.blocks\.0\.layer\.mix\.weight has no width role.* of Linear"):
        width_roles(model(Silent))
    with pytest.raises(ValueError, match="the role 'hiden'; it must be one of embedding, hidden"):
        width_roles(model(LayerSpec(Own, roles={"mix.weight": "hiden"})))
