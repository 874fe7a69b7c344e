"""What `lra-ssm inspect` measures of a network, and the report that it makes of it."""

import io
import math
import re
from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

from lra_ssm.analysis import report
from lra_ssm.analysis.measure import LayerMeasures, measure, steps
from lra_ssm.analysis.network import Example, from_embedding, inputs_of, layers_of, loss_of
from lra_ssm.analysis.plots import FIGURES, delta_range
from lra_ssm.analysis.report import COLUMNS, figures, page, picture
from lra_ssm.errors import InputError
from lra_ssm.layers import B2S6, LRU, S4D, S6, BlockSpec, LayerSpec, MambaBlock
from lra_ssm.models import Classifier, DualEncoder
from tests.helpers import Bag, PlainBlock, Smooth


def tokens(layer, **settings):
    torch.manual_seed(0)
    return Classifier(LayerSpec(layer, **settings), num_classes=3, vocab_size=7, d_model=8, n_layers=2)


def examples(*lengths):
    torch.manual_seed(1)
    return [
        Example(torch.randint(1, 7, (1, L)), torch.tensor([L]), torch.tensor([i % 3])) for i, L in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def measured():
    return [measure(tokens(layer), examples(40, 25), layer.__name__, ["made up"]) for layer in (S6, S4D, Smooth)]


def test_layers_of_networks():
    assert list(layers_of(tokens(S6))) == ["backbone.blocks.0.layer", "backbone.blocks.1.layer"]
    mamba = Classifier(LayerSpec(S6), num_classes=3, d_input=2, d_model=8, n_layers=1, block=BlockSpec(MambaBlock))
    assert [type(layer) for layer in layers_of(mamba).values()] == [S6]
    plain = Classifier(LayerSpec(Smooth), num_classes=3, d_input=2, d_model=8, n_layers=1, block=BlockSpec(PlainBlock))
    assert [type(layer) for layer in layers_of(plain).values()] == [Smooth]
    assert list(layers_of(Bag(LayerSpec(B2S6, num_blocks=2, bidirectional=True), 2, 5))) == ["layer"]
    with pytest.raises(InputError, match="Linear has no list `blocks` and no RecurrentLayer"):
        layers_of(nn.Linear(2, 2))


def test_from_embedding_is_the_network():
    network, (example,) = tokens(S6).eval(), examples(12)
    function, x = from_embedding(network, example)
    torch.testing.assert_close(function(x), network(example.inputs, example.lengths))
    assert not torch.allclose(function(2 * x), function(x))
    with pytest.raises(InputError, match="no embedding"):
        from_embedding(S6(4), example)


def test_inputs_of_are_what_layers_were_called_with():
    network, (example,) = tokens(S6).eval(), examples(12)
    layers = layers_of(network)
    with inputs_of(layers) as seen:
        loss_of(network, example).backward()
    assert list(seen) == list(layers) and all(x.grad.abs().sum() > 0 for x in seen.values())
    torch.testing.assert_close(seen["backbone.blocks.0.layer"], network.backbone.embedding(example.inputs))


def test_loss_of_positions():
    class Tagger(nn.Module):
        def forward(self, ids, lengths=None):
            return nn.functional.one_hot(ids, 4).float()

    example = Example(torch.tensor([[1, 2, 3]]), None, torch.tensor([[1, -100, 0]]))
    one = torch.tensor([math.e, 1, 1, 1])
    expected = -((one[0] / one.sum()).log() + (one[1] / one.sum()).log()) / 2
    torch.testing.assert_close(loss_of(Tagger(), example), expected)
    real = Example(example.inputs, None, torch.full((1, 3, 4), 0.5))
    assert loss_of(Tagger(), real) == 0.25


def test_measures(measured):
    s6, s4d, smooth = measured
    for network in measured:
        assert network.length == 40 and [m.kind for m in network.layers] == [network.title] * 2
        for m in network.layers:
            assert m.memory.sum() == pytest.approx(1, abs=1e-4) and 1 <= m.effective <= 40
            assert len(m.gradient) == 40 and m.gradient.min() > 0 and m.ratios
            assert all(S.sum() == pytest.approx(1, abs=1e-3) for S in m.scaled.values())
    assert s6.layers[0].causal and s4d.layers[0].causal and not smooth.layers[0].causal
    assert smooth.layers[0].effective == 2  # a convolution over three positions looks at both sides
    assert smooth.layers[0].eigenvalues is None and smooth.layers[0].delta is None
    assert smooth.layers[0].movement is None and smooth.layers[0].distance is None
    assert s4d.layers[0].movement == pytest.approx(1) and s4d.layers[0].forgotten == pytest.approx(1, abs=1e-3)
    assert s6.layers[0].movement > 1.01 and abs(s6.layers[0].forgotten - 1) > 0.01
    assert s6.layers[0].delta.shape == (40, 8) and s6.layers[0].timescales.shape == (8 * 16,)
    assert 0 < s4d.layers[0].distance < 1
    assert s4d.layers[0].timescales.max() > 100  # Δ of 1e-3 to 1e-1 and Re A of -1/2


def test_the_network_is_left_as_it_was():
    network = tokens(S6)
    before = {name: p.clone() for name, p in network.named_parameters()}
    ticks = []
    measure(network, examples(10), "", [], ticks.append)
    assert network.training and all(p.grad is None for p in network.parameters())
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters())
    assert len(ticks) == steps(network, examples(10))


def test_pairs_are_measured_on_their_first():
    torch.manual_seed(0)
    network = DualEncoder(LayerSpec(S6, bidirectional=True), num_classes=2, vocab_size=7, d_model=8, n_layers=1)
    pair = Example(torch.randint(1, 7, (1, 2, 20)), torch.tensor([[15, 20]]), torch.tensor([1]))
    found = measure(network, [pair], "", [])
    assert found.length == 15 and not found.layers[0].causal


def test_a_linear_layer_forgets_nothing_however_large_an_input_is():
    torch.manual_seed(0)
    network = Classifier(LayerSpec(LRU, d_state=8), num_classes=2, vocab_size=7, d_model=24, n_layers=1)
    (layer,) = measure(network, examples(30), "", []).layers
    assert layer.forgotten == pytest.approx(1, abs=1e-4)  # more channels than directions, which are the same


def test_a_state_that_grows_is_seen():
    grows = torch.tensor([[0.5, 1.01]], dtype=torch.complex128)
    m = LayerMeasures("", "", torch.ones(1), 1, True, grows, None, None, {})
    assert m.distance == pytest.approx(-0.01)


def test_page_and_picture(measured, monkeypatch, recwarn):
    # The others are drawn by test_inspect.py.
    some = {name: FIGURES[name] for name in ("delta", "bias", "gradients")}
    monkeypatch.setattr(report, "FIGURES", some)
    odd = replace(measured[0], title="<b>&", facts=["<script>"])
    networks = [odd, measured[2]]
    drawn = figures(networks)
    assert list(drawn) == list(some)
    text = page(networks, drawn)
    assert text.startswith("<!doctype html>")
    assert "<script" not in text and not re.search(r'(src|href)="(?!data:)', text) and "@import" not in text
    assert "&lt;b&gt;&amp;" in text and "&lt;script&gt;" in text
    assert len(re.findall(r'src="data:image/png;base64,\w', text)) == len(some)
    assert text.count("<figcaption>") == len(some)
    for name in COLUMNS:
        assert f"<th>{name}</th>" in text
    assert all(figure.title in text for figure in some.values())
    assert "1 S6" in text and "2 Smooth, both directions" in text
    image = Image.open(io.BytesIO(picture(networks, drawn)))
    assert image.format == "PNG" and image.width > 1000 and image.height > sum(i.height for i in drawn.values()) > 2000
    assert not [w for w in recwarn if "Glyph" in str(w.message)]  # no character is missing in the font


def test_a_diverged_network_is_said_to_be(monkeypatch):
    monkeypatch.setattr(report, "FIGURES", {name: FIGURES[name] for name in ("stability", "gradients")})
    torch.manual_seed(0)
    network = tokens(S6)
    next(network.head.parameters()).data.fill_(torch.nan)
    found = measure(network, examples(20), "", [])
    assert not found.layers[0].gradient.isfinite().any() and found.layers[0].effective > 1
    assert list(figures([found])) == ["stability", "gradients"]


def test_no_figure_is_about_a_delta_that_nobody_has(measured, monkeypatch):
    monkeypatch.setattr(report, "_figure", lambda name, networks: Image.new("RGB", (1, 1)))
    drawn = figures(measured[2:])
    assert list(drawn) == [name for name in FIGURES if name != "delta"]
    assert FIGURES["delta"].title not in page(measured[2:], drawn)


def test_a_long_sequence_is_drawn_to_its_end(measured):
    """Its Δ is 1 in the first part and 3 in the longer rest."""
    delta = torch.cat([torch.ones(120_000, 10), torch.full((180_000, 10), 3.0)])
    axes = Figure().subplots()
    delta_range(axes, replace(measured[0], layers=[replace(measured[0].layers[0], delta=delta)]))
    median = next(line for line in axes.lines if line.get_marker() == "o")
    assert median.get_ydata().tolist() == [3.0]
