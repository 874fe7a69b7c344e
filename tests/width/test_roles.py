"""Every parameter of every model of ours has a width role that fits its shapes and its initial values."""

import math

import pytest
import torch
from torch import nn

from lra_ssm import layers
from lra_ssm.layers import LRU, S4D, S5, S6, LayerSpec, StableSSM, linear_roles, width_roles
from lra_ssm.models import Classifier, DualEncoder, LanguageModel, PlainNetwork, Regressor
from lra_ssm.models.heads import LogitPairHead, LRAPairHead, MLPHead
from tests.layers.cases import ALL

GROWING = {"embedding": 1, "hidden": 2, "readout": 1, "state": 1, "vector": 1, "fixed": 0}  # dimensions, by role


def check_shapes(narrow, wide):
    roles = width_roles(narrow)
    assert roles == width_roles(wide)
    for (name, small), large in zip(narrow.named_parameters(), wide.parameters(), strict=True):
        kind, _ = roles[name]
        growing = sum(a != b for a, b in zip(small.shape, large.shape, strict=True))
        assert growing == GROWING[kind], f"{name} {tuple(small.shape)} -> {tuple(large.shape)} is not {kind}"


@pytest.mark.parametrize("name", [name for name in ALL if name != "attention-wide heads"])  # d_head is their number
def test_every_parameter_of_every_layer_and_block_has_a_role_that_fits_its_shape(name):
    case = ALL[name]
    settings = {"layer": case.layer, "block": case.block or layers.S4Block, "n_layers": 1}
    with torch.device("meta"):
        check_shapes(*(Regressor(**settings, num_outputs=3, d_input=4, d_model=n * case.width) for n in (32, 64)))


LAYERS = [
    *((LayerSpec(layer), layers.S4Block) for layer in (S4D, layers.B2S6, layers.DeepLinearSSM, StableSSM)),
    (LayerSpec(S4D, tie_A=True, tie_B=True, tie_C=True), layers.PlainBlock),
    (LayerSpec(S6), layers.BlockSpec(layers.MambaBlock, glu=True, bias=True)),
    (LayerSpec(S6, delta_rank=8), layers.MambaBlock),
    (LayerSpec(S6, bidirectional=True), layers.BlockSpec(layers.S4Block, norm="layer", prenorm=True)),
    (LayerSpec(layers.B2S6, complex_A=False, bias=False), layers.MambaBlock),
    (LayerSpec(LRU), layers.PlainBlock),
    (LayerSpec(S5), layers.PlainBlock),
    (LayerSpec(S5, C_init="lecun"), layers.PlainBlock),
    (LayerSpec(StableSSM, form="real"), layers.HyenaBlock),
    (LayerSpec(layers.Attention, positions="learned", max_length=8, bias=True), layers.TransformerBlock),
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


HEADS = ({}, {"head": LRAPairHead}, {"head": LogitPairHead})


@pytest.mark.parametrize(
    ("network", "arguments"),
    [
        *((DualEncoder, {"layer": S4D, "num_classes": 2, "n_layers": 1, **head}) for head in HEADS),
        (Classifier, {"layer": S4D, "num_classes": 2, "n_layers": 1, "head": MLPHead}),
        (PlainNetwork, {"layer": LRU, "num_outputs": 2}),
        *((LanguageModel, {"layer": S6, "n_layers": 1, "tie_embeddings": tied}) for tied in (True, False)),
    ],
)
def test_heads_and_networks(network, arguments):
    check_shapes(*(network(vocab_size=5, d_model=width, **arguments) for width in (16, 32)))


class Own(nn.Module):
    """A user's layer, with the width roles that it is told to declare."""

    def __init__(self, d_model: int, roles: dict[str, str] | None = None) -> None:
        super().__init__()
        self.mix, self.roles = nn.Linear(d_model, d_model), roles

    def forward(self, x, lengths=None):
        return self.mix(x)

    def width_roles(self):
        return linear_roles(mix=(self.mix, "hidden")) if self.roles is None else self.roles


def test_roles_of_a_users_layer():
    assert width_roles(Own(4)) == {"mix.weight": ("hidden", -0.5), "mix.bias": ("vector", -0.5)}
    layer = LayerSpec(Own, roles={})
    with pytest.raises(ValueError, match=r"backbone\.blocks\.0\.layer\.mix\.weight has no width role.* of Linear"):
        width_roles(Classifier(layer, 2, vocab_size=5, d_model=4, n_layers=1))
    with pytest.raises(ValueError, match="the role 'hiden'; it must be one of embedding, hidden"):
        width_roles(Own(4, {"mix.weight": "hiden"}))
