"""The measurements of `lra-ssm inspect`."""

import copy
import math
import re
from dataclasses import replace
from itertools import count

import pytest
import torch
from torch import nn

from lra_ssm.analysis.measure import COLUMNS, count_ticks, format_value, measure, summary
from lra_ssm.analysis.network import Example, from_embedding, inputs_of, layers_of, loss_of
from lra_ssm.errors import InputError
from lra_ssm.layers import B2S6, LRU, S4D, S6, BlockSpec, LayerSpec, MambaBlock
from lra_ssm.models import Classifier, DualEncoder
from tests.helpers import Bag, PlainBlock, Smooth


def tokens(layer, n_layers=2, **settings):
    torch.manual_seed(0)
    return Classifier(LayerSpec(layer, **settings), num_classes=3, vocab_size=7, d_model=8, n_layers=n_layers)


def examples(*lengths):
    torch.manual_seed(1)
    return [
        Example(torch.randint(1, 7, (1, L)), torch.tensor([L]), torch.tensor([i % 3])) for i, L in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def measured():
    return [measure(tokens(layer), examples(40, 25), layer.__name__, ["a fact"]) for layer in (S6, S4D, Smooth)]


def test_layers_of_networks():
    assert list(layers_of(tokens(S6))) == ["backbone.blocks.0.layer", "backbone.blocks.1.layer"]
    mamba = Classifier(LayerSpec(S6), num_classes=3, d_input=2, d_model=8, n_layers=1, block=BlockSpec(MambaBlock))
    assert [type(layer) for layer in layers_of(mamba).values()] == [S6]
    plain = Classifier(LayerSpec(Smooth), num_classes=3, d_input=2, d_model=8, n_layers=1, block=BlockSpec(PlainBlock))
    assert [type(layer) for layer in layers_of(plain).values()] == [Smooth]
    assert list(layers_of(Bag(LayerSpec(B2S6, num_blocks=2, bidirectional=True), 2, 5))) == ["layer"]
    with pytest.raises(InputError, match="Linear has no list `blocks` and no RecurrentLayer"):
        layers_of(nn.Linear(2, 2))


def test_from_embedding_is_the_network_and_inputs_are_what_layers_were_called_with():
    network, (example,) = tokens(S6).eval(), examples(12)
    function, x = from_embedding(network, example)
    torch.testing.assert_close(function(x), network(example.inputs, example.lengths))
    assert not torch.allclose(function(2 * x), function(x))
    with pytest.raises(InputError, match="no embedding"):
        from_embedding(S6(4), example)
    layers = layers_of(network)
    with inputs_of(layers) as seen:
        loss_of(network, example).backward()
    assert list(seen) == list(layers) and all(inputs.grad.abs().sum() > 0 for inputs in seen.values())
    torch.testing.assert_close(seen["backbone.blocks.0.layer"], x)


def test_losses_by_hand():
    ids, labels = torch.tensor([[1, 2, 3]]), torch.tensor([[1, -100, 0]])
    one_hot = lambda ids: nn.functional.one_hot(ids, 4).float()  # noqa: E731
    p = torch.tensor([1, math.e]) / (3 + math.e)  # of a wrong and of the right class
    torch.testing.assert_close(loss_of(one_hot, Example(ids, None, labels)), -(p[1].log() + p[0].log()) / 2)
    assert loss_of(one_hot, Example(ids, None, torch.full((1, 3, 4), 0.5))) == 0.25


def test_measures(measured):
    s6, s4d, smooth = measured
    for network in measured:
        assert network.length == 40 and [m.kind for m in network.layers] == [network.title] * 2
        for m in network.layers:
            assert m.memory.sum() == pytest.approx(1, abs=1e-4) and 1 <= m.memory_length <= 40
            assert len(m.gradient) == 40 and m.gradient.min() > 0 and m.ratios
            assert all(S.sum() == pytest.approx(1, abs=1e-3) for S in m.scaled.values())
    assert s6.layers[0].causal and s4d.layers[0].causal and not smooth.layers[0].causal
    assert smooth.layers[0].memory_length == 2  # a convolution over three positions looks at both sides
    assert smooth.layers[0].eigenvalues is None and smooth.layers[0].delta is None
    assert smooth.layers[0].delta_range is None and smooth.layers[0].stability_margin is None
    assert s4d.layers[0].delta_range == pytest.approx(1) and s4d.layers[0].forgetting == pytest.approx(1, abs=1e-3)
    assert s6.layers[0].delta_range > 1.01 and abs(s6.layers[0].forgetting - 1) > 0.01
    assert s6.layers[0].delta.shape == (40, 8) and s6.layers[0].timescales.shape == (8 * 16,)
    assert 0 < s4d.layers[0].stability_margin < 1
    assert s4d.layers[0].timescales.max() > 100  # Δ of 1e-3 to 1e-1 and Re A of -1/2


def test_the_network_is_left_as_it_was_and_pairs_are_measured_on_their_first():
    torch.manual_seed(0)
    network = DualEncoder(LayerSpec(S6, bidirectional=True), num_classes=2, vocab_size=7, d_model=8, n_layers=1)
    pair = Example(torch.randint(1, 7, (1, 2, 20)), torch.tensor([[15, 20]]), torch.tensor([1]))
    before, ticks = copy.deepcopy(network.state_dict()), count()
    found = measure(network, [pair], "", [], lambda: next(ticks))
    assert found.length == 15 and not found.layers[0].causal
    assert network.training and all(p.grad is None for p in network.parameters())
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters())
    assert next(ticks) == count_ticks(network, [pair])


def test_a_linear_layer_does_not_forget_and_a_growing_state_has_a_negative_margin():
    torch.manual_seed(0)
    network = Classifier(LayerSpec(LRU, d_state=8), num_classes=2, vocab_size=7, d_model=24, n_layers=1)
    (layer,) = measure(network, examples(30), "", []).layers
    assert layer.forgetting == pytest.approx(1, abs=1e-4)  # more channels than directions, which are the same
    grows = torch.tensor([[0.5, 1.01]], dtype=torch.complex128)
    assert replace(layer, eigenvalues=grows).stability_margin == pytest.approx(-0.01)


def test_summary_has_a_row_for_each_layer(measured):
    s6, _, smooth = measured
    head, first, _ = (re.split("  +", line) for line in summary(s6).splitlines())
    assert head == list(COLUMNS) and len(first) == len(head)
    layer = s6.layers[0]
    outlive = 100 * float((layer.timescales > 40).double().mean())
    assert first[:2] == ["1 S6", f"{layer.memory_length:.0f}"] and first[3] == f"{outlive:.3g} %"
    assert first[-1].split()[0] == max(layer.ratios, key=lambda name: layer.ratios[name].norm)
    cells = re.split("  +", summary(smooth).splitlines()[2])
    assert cells[0] == "2 Smooth, both directions" and cells[2:7] == ["–"] * 5  # neither eigenvalues nor a Δ
    values = {0.00123456: "0.00123", 12.34: "12.3", 999.5: "1e+03", 118063.2: "118,063", 2.5e6: "2.5e+06"}
    assert {x: format_value(x) for x in values} == values
