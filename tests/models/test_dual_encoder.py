"""The dual encoder: both documents through one encoder, the published heads."""

import pytest
import torch
from torch.nn.functional import gelu

from lra_ssm.layers import S4D, BlockSpec, LayerSpec, S4Block, parameter_roles
from lra_ssm.models import DualEncoder, LogitPairHead, LRAPairHead, NLIHead


def model(**settings):
    torch.manual_seed(0)
    sizes = {"num_classes": 2, "vocab_size": 9, "d_model": 6, "n_layers": 1, "block": BlockSpec(S4Block, norm="layer")}
    return DualEncoder(LayerSpec(S4D, d_state=4, bidirectional=True), **{**sizes, **settings})


def pairs():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, 9, (3, 2, 7), generator=generator), torch.tensor([[7, 3], [1, 5], [4, 4]])


def through(linears, x, activation):
    for linear in linears[:-1]:
        x = activation(linear(x))
    return linears[-1](x)


@pytest.mark.parametrize(
    ("head", "shapes"),
    [
        (NLIHead, [(6, 24), (6,), (2, 6), (2,)]),
        (LRAPairHead, [(6, 12), (6,), (3, 6), (3,), (2, 3), (2,)]),
        (LogitPairHead, [(2, 6), (2,), (512, 4), (512,), (256, 512), (256,), (2, 256), (2,)]),
    ],
)
def test_each_document_is_encoded_by_itself_and_heads_are_the_published_ones(head, shapes):
    network, (inputs, lengths) = model(head=head), pairs()
    assert [tuple(p.shape) for p in network.head.parameters()] == shapes
    logits = network(inputs, lengths)
    assert logits.shape == (3, 2)
    linears = [module for module in network.head.modules() if isinstance(module, torch.nn.Linear)]
    for i in range(3):
        x, y = (network.encode(inputs[i, j : j + 1, : lengths[i, j]], lengths[i, j : j + 1]) for j in (0, 1))
        if head is NLIHead:
            expected = through(linears, torch.cat([x, y, x - y, x * y], -1), gelu)
        elif head is LRAPairHead:
            expected = through(linears, torch.cat([x, y], -1), torch.relu)
        else:
            expected = through(linears[1:], torch.cat([linears[0](x), linears[0](y)], -1), torch.relu)
        torch.testing.assert_close(logits[i : i + 1], expected)
    roles = {name: role for name, role in parameter_roles(network).items() if name.startswith("head.")}
    assert all(role == ("no_decay" if name.endswith("bias") else "base") for name, role in roles.items())


def test_inputs_that_are_not_pairs_are_one_line():
    with pytest.raises(ValueError, match=r"inputs \(3, 7\): a dual encoder takes pairs \(batch, 2, length\)"):
        model()(pairs()[0][:, 0])
