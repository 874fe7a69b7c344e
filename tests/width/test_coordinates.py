"""The coordinate check's numbers, on a network whose exponents are known."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lra_ssm.layers import S6, LayerSpec
from lra_ssm.models import LanguageModel
from lra_ssm.tasks.algorithms import muon_names, update_rule
from lra_ssm.tasks.optim import OptimizerSettings, optimizer_and_schedule
from lra_ssm.width.coordinates import LOGITS, Slope, log_slope, measure, promises, slopes
from lra_ssm.width.scaling import WidthSettings, scale_initial_values, width_factors


class Powers(nn.Module):
    """Its activations are √D, and change by the learning rate."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(1, width, bias=False)
        nn.init.constant_(self.inner.weight, width**0.5)

    def forward(self, x):
        return self.inner(x).mean(-1)


def test_rows_and_slopes():
    many, x = [], torch.ones(3, 1)
    for width in (16, 64, 256):
        network = Powers(width)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.25)
        loss = lambda _, n=network: F.mse_loss(n(x), x[:, 0])  # noqa: E731
        many += [{"width": width, **row} for row in measure(network, lambda n=network: n(x), loss, optimizer, 2)]
    of_16 = {(row["step"], row["what"], row["name"]): row["rms"] for row in many if row["width"] == 16}
    assert of_16[0, "activation", "inner"] == 4 and of_16[0, "activation", LOGITS] == 4
    # loss (h − 1)², gradient 2 (h − 1) / D of each weight
    assert of_16[0, "gradient", "inner.weight"] == pytest.approx(6 / 16)
    assert of_16[1, "update", "inner"] == pytest.approx(0.25 * 6 / 16)
    assert (2, "gradient", "inner.weight") not in of_16 and (0, "update", "inner") not in of_16
    found = {(one.what, one.step, one.name): one for one in slopes(many, {("activation", "first", "*"): 0.0})}
    start = found["activation", 0, "inner"]
    assert start.measured == pytest.approx(0.5) and start.verdict(0.2) == "grows" and start.verdict(0.6) == ""
    assert found["update", 2, "inner"].promised is None and found["update", 2, "inner"].verdict(0.0) == ""
    assert ("activation", 1, "inner") not in found


def test_verdicts_and_slopes_of_nothing():
    assert Slope("h", "update", 3, -0.4, 0.0).verdict(0.2) == "shrinks"
    assert math.isnan(log_slope({1: [0.0], 2: [1.0]})) and log_slope({1: [1.0], 4: [2.0, 6.0]}) == pytest.approx(1)
    assert Slope("h", "update", 3, math.nan, 0.0).verdict(0.2) == ""
    for bad in (math.nan, math.inf):
        assert log_slope({1: [1.0], 2: [bad, 1.0], 4: [0.0]}) == math.inf
    assert Slope("h", "update", 3, math.inf, None).verdict(0.2) == "diverges"


def test_promises_and_activations_of_a_tied_language_model():
    network, ids = LanguageModel(LayerSpec(S6), 7, 16, 1), torch.arange(7)[None]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    names = {row["name"] for row in measure(network, lambda: network(ids), lambda _: network(ids).mean(), optimizer, 0)}
    assert {"backbone.blocks.0.layer.Δ", "backbone.blocks.0", "backbone.embedding", LOGITS} <= names
    found = promises(network, WidthSettings("mup", 16), "adam")
    assert found["activation", "first", LOGITS] == -0.5 and found["update", "last", "*"] == 0
    assert found["gradient", "first", "backbone.blocks.0.in_proj.weight"] == -1
    assert found["gradient", "first", "backbone.norm.weight"] == 0
    assert found["activation", "last", "backbone"] == found["update", "last", "backbone.norm"] == -1
    always = {("activation", "first", "*"), ("activation", "last", "*"), ("update", "last", "*")}
    assert set(promises(network, None, "adam")) == always


class Stack(nn.Module):
    """A token's embedding, two hidden layers of RMSNorm, linear map and ReLU, and a head: ids (B,) -> logits (B, 8)."""

    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(8, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.head = nn.Linear(width, 8, bias=False)

    def forward(self, ids):
        h = self.embedding(ids)
        for linear in self.hidden:
            h = F.relu(linear(F.rms_norm(h, h.shape[-1:])))
        return self.head(h)

    def optim_roles(self):
        return {"embedding.weight": "embedding", "head.weight": "embedding"}  # Muon trains role base only

    def width_roles(self):
        hidden = {f"hidden.{i}.weight": ("hidden", -0.5) for i in range(2)}
        return {"embedding.weight": ("embedding", 0.0), **hidden, "head.weight": ("readout", -0.5)}


@pytest.mark.parametrize("parameterization", ["sp", "mup"])
@pytest.mark.parametrize(("algorithm", "arguments"), [
    ("AdamW", {}), ("Muon", {}), ("torch.optim.Muon", {"adjust_lr_fn": "original"}),
])  # fmt: skip
def test_what_steps_change_keeps_its_size_at_every_width(algorithm, arguments, parameterization):
    """With each rule's own exponent of hidden rates. With Adam's, Muon's changes would shrink as width^-1/2, or ^-1."""
    ids, labels, many = torch.arange(8), torch.arange(8).roll(1), []
    rate = {"lr": 0.02 if arguments else 0.002, "weight_decay": 0.0, "warmup_steps": 0}
    settings = OptimizerSettings(algorithm=algorithm, arguments=arguments, **rate)
    for width in (64, 128, 256, 512):
        for seed in range(2):
            torch.manual_seed(seed)
            network = Stack(width)
            rule, by_muon = update_rule(algorithm, arguments), muon_names(network, algorithm)
            factors = width_factors(network, width, WidthSettings(parameterization, 64), rule, by_muon)
            scale_initial_values(network, factors)
            # Only what Muon trains moves: AdamW's own changes would hide how large Muon's are.
            for parameter in (network.embedding.weight, network.head.weight):
                parameter.requires_grad_(False)
            optimizer = optimizer_and_schedule(network, settings, 100, width=factors)["optimizer"]
            loss = lambda _, n=network: F.cross_entropy(n(ids), labels)  # noqa: E731
            many += [{"width": width, **row} for row in measure(network, lambda n=network: n(ids), loss, optimizer, 3)]
    updates = {one.name: one.measured for one in slopes(many, {}) if one.what == "update"}
    assert {"hidden.0", "hidden.1"} < updates.keys()
    for name in ("hidden.0", "hidden.1"):
        assert abs(updates[name]) < 0.1, updates
