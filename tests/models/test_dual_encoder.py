"""The dual encoder: both documents through one encoder, the published heads, padding."""

import pytest
import torch

from lra_ssm.layers import S4D, BlockSpec, LayerSpec, S4Block, parameter_roles
from lra_ssm.models import DualEncoder, LogitPairHead, LRAPairHead, NLIHead

SPEC = LayerSpec(S4D, d_state=4, bidirectional=True)


def model(**settings):
    torch.manual_seed(0)
    block = BlockSpec(S4Block, norm="layer")
    return DualEncoder(
        SPEC, **{"num_classes": 2, "vocab_size": 9, "d_model": 6, "n_layers": 1, "block": block, **settings}
    )


def pairs():
    generator = torch.Generator().manual_seed(1)
    inputs, lengths = torch.randint(1, 9, (3, 2, 7), generator=generator), torch.tensor([[7, 3], [1, 5], [4, 4]])
    for pair, sizes in zip(inputs, lengths, strict=True):
        for row, size in zip(pair, sizes, strict=True):
            row[size:] = 0
    return inputs, lengths


@pytest.mark.parametrize("head", [NLIHead, LRAPairHead])
def test_each_document_is_encoded_by_itself(head):
    network, (inputs, lengths) = model(head=head), pairs()
    logits = network(inputs, lengths)
    assert logits.shape == (3, 2)
    for i in range(3):
        x, y = (network.encode(inputs[i, j : j + 1, : lengths[i, j]], lengths[i, j : j + 1]) for j in (0, 1))
        linears = [module for module in network.head if isinstance(module, torch.nn.Linear)]
        expected = torch.cat([x, y, x - y, x * y] if head is NLIHead else [x, y], -1)
        for linear in linears:
            expected = linear(expected)
            if linear is not linears[-1]:
                expected = torch.nn.functional.gelu(expected) if head is NLIHead else expected.relu()
        torch.testing.assert_close(logits[i : i + 1], expected)


def test_heads_have_the_published_shapes():
    shapes = {head: [tuple(p.shape) for p in model(head=head).head.parameters()] for head in (None, LRAPairHead)}
    assert shapes == {None: [(6, 24), (6,), (2, 6), (2,)], LRAPairHead: [(6, 12), (6,), (3, 6), (3,), (2, 3), (2,)]}


def test_a_head_may_compare_what_a_classifier_says_of_each():
    network, (inputs, lengths) = model(head=LogitPairHead), pairs()
    shapes = [tuple(p.shape) for p in network.head.parameters()]
    assert shapes == [(2, 6), (2,), (512, 4), (512,), (256, 512), (256,), (2, 256), (2,)]
    x, y = (network.encode(inputs[:, j], lengths[:, j]) @ network.head.each.weight.T for j in (0, 1))
    weights = [p for name, p in network.head.match.named_parameters() if name.endswith("weight")]
    with torch.no_grad():
        for name, parameter in network.head.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    expected = ((torch.cat([x, y], -1) @ weights[0].T).relu() @ weights[1].T).relu() @ weights[2].T
    torch.testing.assert_close(network(inputs, lengths), expected)
    roles = parameter_roles(network)
    assert {r for name, r in roles.items() if name.startswith("head") and name.endswith("bias")} == {"no_decay"}


def test_biases_do_not_decay():
    roles = parameter_roles(model())
    assert roles["head.0.bias"] == roles["head.2.bias"] == "no_decay" and roles["head.0.weight"] == "base"


def test_bad_input():
    with pytest.raises(ValueError, match=r"inputs \(3, 7\): a dual encoder takes pairs \(batch, 2, length\)"):
        model()(pairs()[0][:, 0])
    with pytest.raises(ValueError, match="num_classes is 0"):
        model(num_classes=0)
