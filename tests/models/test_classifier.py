"""The classifier and the regressor: padding, poolings, a user's layer, wrong lengths and settings."""

import pytest
import torch

from lra_ssm.layers import B2S6, S4D, S6, BlockSpec, S4Block, mask_padding, parameter_roles
from lra_ssm.models import Classifier, LastPooling, LayerSpec, MaxPooling, MeanPooling, Regressor
from tests.helpers import Smooth

SPEC = LayerSpec(B2S6, num_blocks=2, d_state=4, bidirectional=True)
POOLINGS = [MeanPooling, LastPooling, MaxPooling]


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("prenorm", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_batch_in_any_padding_gives_the_same_logits(pooling, prenorm, training):
    torch.manual_seed(0)
    block = BlockSpec(S4Block, prenorm=prenorm)
    model = Classifier(SPEC, 3, vocab_size=7, d_model=4, n_layers=2, block=block, pooling=pooling).train(training)
    ids, lengths = torch.randint(1, 7, (3, 8)), torch.tensor([8, 3, 1])
    wider = torch.cat([ids, torch.randint(0, 7, (3, 4))], 1)
    together = model(ids, lengths)
    torch.testing.assert_close(together, model(wider, lengths), rtol=1e-4, atol=1e-5)
    for i, n in enumerate([] if training else lengths.tolist()):
        torch.testing.assert_close(together[i], model(ids[i : i + 1, :n])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", [Classifier, Regressor])
def test_pooling_leaves_out_padding_that_the_blocks_see(network):
    torch.manual_seed(0)
    model = network(SPEC, 3, vocab_size=7, d_model=4, n_layers=2, pooling=MeanPooling, padding="seen")
    ids, lengths = torch.randint(1, 7, (3, 8)), torch.tensor([8, 3, 1])
    x = mask_padding(model.backbone(ids), lengths)  # in training, whose batch norm counts all of the batch
    torch.testing.assert_close(model(ids, lengths), model.head(MeanPooling(4)(x, lengths)))


@pytest.mark.parametrize(
    ("pooling", "expected", "full"),
    [(MeanPooling, [-1 / 3, -2], -0.25), (LastPooling, [3, -2], 0.0), (MaxPooling, [3, -2], 3.0)],
)
def test_pooling_over_known_values(pooling, expected, full):
    x = torch.tensor([[[1.0], [-5.0], [3.0], [0.0]], [[-2.0], [0.0], [0.0], [0.0]]])
    pooled = pooling(1)(x, torch.tensor([3, 1]))[:, 0]
    torch.testing.assert_close(pooled, torch.tensor(expected, dtype=x.dtype))
    assert pooling(1)(x, None)[0, 0].item() == pytest.approx(full)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([0, 4], "lengths: 0 among them; expected 1 to L = 4"),
        ([4, 5], "lengths: 5 among them; expected . to L = 4"),
        ([4], r"lengths: shape \(1,\); expected \(B,\) = \(2,\)"),
        ([4.0, 3.0], "lengths: dtype torch.float32; expected whole numbers"),
    ],
)
def test_wrong_lengths_are_one_line(pooling, lengths, message):
    model = Classifier(SPEC, 3, vocab_size=7, d_model=4, n_layers=1, pooling=pooling)
    ids, lengths = torch.ones(2, 4, dtype=torch.long), torch.tensor(lengths)
    for call in (lambda: model(ids, lengths), lambda: pooling(1)(torch.zeros(2, 4, 1), lengths)):
        with pytest.raises(ValueError, match=message):
            call()


def test_lengths_are_not_read_where_that_costs_something():
    block = S4Block(4, S6, norm="layer").eval()
    x, lengths = torch.randn(2, 5, 4), torch.tensor([5, 3])
    compiled = torch.compile(block.layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, lengths), block.layer(x, lengths))
    on_meta = block.to("meta")(x.to("meta"), torch.tensor([9, 9], device="meta"))
    assert on_meta.shape == x.shape and on_meta.is_meta


def test_features_and_a_users_layer_built_once_per_block():
    torch.manual_seed(0)
    model = Classifier(LayerSpec(Smooth, width=5), 2, d_input=3, d_model=4, n_layers=2)
    model(torch.randn(2, 6, 3)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    first, second = (block.layer for block in model.backbone.blocks)
    assert first is not second and first.mix.kernel_size == (5,)


def regressor(**settings):
    torch.manual_seed(0)
    sizes = {"num_outputs": 3, "d_input": 2, "d_model": 6, "n_layers": 1, "block": BlockSpec(S4Block, norm="layer")}
    return Regressor(LayerSpec(S4D, d_state=4), **{**sizes, **settings})


def test_a_regressor_has_an_output_per_sequence_or_without_pooling_per_position():
    x, lengths = torch.randn(3, 8, 2), torch.tensor([8, 3, 1])
    positions = regressor(pooling=None)(x)
    assert positions.shape == (3, 8, 3) and regressor(pooling=MeanPooling)(x, lengths).shape == (3, 3)
    torch.testing.assert_close(regressor()(x), positions[:, -1])  # the last position by default
    padded = regressor(pooling=None)(torch.cat([x, torch.randn(3, 4, 2)], 1), lengths)
    torch.testing.assert_close(padded[1, :3], regressor(pooling=None)(x[1:2, :3])[0], rtol=1e-4, atol=1e-5)
    assert not padded[1, 3:].any()
    roles = parameter_roles(regressor())
    assert roles["head.weight"] == "base" and roles["head.bias"] == "no_decay"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Classifier(SPEC, 2, vocab_size=3, pooling="lra_ssm.models.SumPooling"), "SumPooling' cannot be impo"),
        (lambda: Classifier(SPEC, 2, vocab_size=3, d_model=9), "d_model 9 is not divisible by num_blocks 2"),
        (lambda: Classifier(SPEC, 0, vocab_size=3), "num_classes is 0"),
        (lambda: regressor(num_outputs=0), "num_outputs is 0; it must be at least 1"),
    ],
)
def test_wrong_settings_are_one_line(call, message):
    with pytest.raises(ValueError, match=message):
        call()
