"""The coordinate check's numbers, on a network whose exponents are known."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lra_ssm.layers import S6, LayerSpec
from lra_ssm.models import LanguageModel
from lra_ssm.width.coordinates import LOGITS, Slope, log_slope, measure, promises, slopes
from lra_ssm.width.scaling import WidthSettings

WIDTHS = (16, 64, 256)


class Powers(nn.Module):
    """Its activations are √D, and move by the learning rate."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(1, width, bias=False)
        nn.init.constant_(self.inner.weight, width**0.5)

    def forward(self, x):
        return self.inner(x).mean(-1)


def rows(width, steps=2):
    network, x = Powers(width), torch.ones(3, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.25)
    found = measure(network, lambda: network(x), lambda step: F.mse_loss(network(x), x[:, 0]), optimizer, steps)
    return [{"width": width, **row} for row in found]


def test_rows_and_slopes():
    many = [row for width in WIDTHS for row in rows(width)]
    of_16 = {(row["step"], row["what"], row["name"]): row["rms"] for row in many if row["width"] == 16}
    assert of_16[0, "activation", "inner"] == 4 and of_16[0, "activation", LOGITS] == 4
    # loss (h − 1)², gradient 2 (h − 1) / D of each weight
    assert of_16[0, "gradient", "inner.weight"] == pytest.approx(6 / 16)
    assert of_16[1, "update", "inner"] == pytest.approx(0.25 * 6 / 16)
    assert (2, "gradient", "inner.weight") not in of_16 and (0, "update", "inner") not in of_16
    found = {(one.what, one.step, one.name): one for one in slopes(many, {("activation", "first", "*"): 0.0})}
    start = found["activation", 0, "inner"]
    assert start.found == pytest.approx(0.5) and start.verdict(0.2) == "grows" and start.verdict(0.6) == ""
    assert found["update", 2, "inner"].promised is None and found["update", 2, "inner"].verdict(0.0) == ""
    assert ("activation", 1, "inner") not in found


def test_verdicts_and_slopes_of_nothing():
    assert Slope("h", "update", 3, -0.4, 0.0).verdict(0.2) == "shrinks"
    assert math.isnan(log_slope({1: [0.0], 2: [1.0]})) and log_slope({1: [1.0], 4: [2.0, 6.0]}) == pytest.approx(1)
    assert Slope("h", "update", 3, math.nan, 0.0).verdict(0.2) == ""


def test_what_is_promised_of_a_tied_language_model():
    network = LanguageModel(LayerSpec(S6), 7, 16, 1)
    found = promises(network, WidthSettings("mup", 16), "adam")
    assert found["activation", "first", LOGITS] == -0.5 and found["update", "last", "*"] == 0
    assert found["gradient", "first", "backbone.blocks.0.in_proj.weight"] == -1
    assert found["gradient", "first", "backbone.norm.weight"] == 0
    assert found["activation", "last", "backbone"] == found["update", "last", "backbone.norm"] == -1
    assert set(promises(network, None, "adam")) == {
        (a, b, "*") for a, b in [("activation", "first"), ("activation", "last"), ("update", "last")]
    }


def test_deltas_of_a_layer_are_activations():
    torch.manual_seed(0)
    network, ids = LanguageModel(LayerSpec(S6), 7, 16, 1), torch.arange(7)[None]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    names = {row["name"] for row in measure(network, lambda: network(ids), lambda _: network(ids).mean(), optimizer, 0)}
    assert {"backbone.blocks.0.layer.Δ", "backbone.blocks.0", "backbone.embedding", LOGITS} <= names
