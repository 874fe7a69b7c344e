import pytest
import torch

from lra_ssm.layers import B2S6, S6, BlockSpec, S4Block, mask_padding
from lra_ssm.models import Classifier, LastPooling, LayerSpec, MaxPooling, MeanPooling, Regressor
from tests.helpers import Smooth

SPEC = LayerSpec(B2S6, num_blocks=2, d_state=4, bidirectional=True)


@pytest.mark.parametrize("pooling", [MeanPooling, LastPooling, MaxPooling])
@pytest.mark.parametrize("prenorm", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_batch_in_any_padding_gives_the_same_logits(pooling, prenorm, training):
    torch.manual_seed(0)
    block = BlockSpec(S4Block, prenorm=prenorm)
    model = Classifier(SPEC, 3, vocab_size=7, d_model=4, n_layers=2, block=block, pooling=pooling).train(training)
    ids = torch.randint(1, 7, (3, 8))
    lengths = torch.tensor([8, 3, 1])
    wider = torch.cat([ids, torch.randint(0, 7, (3, 4))], 1)
    torch.testing.assert_close(model(ids, lengths), model(wider, lengths), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", [Classifier, Regressor])
@pytest.mark.parametrize("pooling", [MeanPooling, LastPooling, MaxPooling])
def test_pooling_leaves_out_padding_that_the_blocks_see(network, pooling):
    torch.manual_seed(0)
    model = network(SPEC, 3, vocab_size=7, d_model=4, n_layers=2, pooling=pooling, padding="seen")
    ids, lengths = torch.randint(1, 7, (3, 8)), torch.tensor([8, 3, 1])
    x = mask_padding(model.backbone(ids), lengths)  # in training, whose batch norm counts all of the batch
    torch.testing.assert_close(model(ids, lengths), model.head(pooling(4)(x, lengths)))


def test_each_sequence_alone_gives_its_row():
    torch.manual_seed(0)
    model = Classifier(SPEC, 3, vocab_size=7, d_model=4, n_layers=2).eval()
    ids, lengths = torch.randint(1, 7, (3, 8)), torch.tensor([8, 3, 1])
    together = model(ids, lengths)
    for i, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(together[i], model(ids[i : i + 1, :n])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", [MeanPooling, LastPooling, MaxPooling])
def test_pooling_over_known_values(pooling):
    x = torch.tensor([[[1.0], [-5.0], [3.0], [0.0]], [[-2.0], [0.0], [0.0], [0.0]]])
    lengths = torch.tensor([3, 1])
    expected = {MeanPooling: [-1 / 3, -2], LastPooling: [3, -2], MaxPooling: [3, -2]}[pooling]
    torch.testing.assert_close(pooling(1)(x, lengths)[:, 0], torch.tensor(expected, dtype=x.dtype))
    full = {MeanPooling: -0.25, LastPooling: 0.0, MaxPooling: 3.0}[pooling]
    assert pooling(1)(x, None)[0, 0].item() == pytest.approx(full)


@pytest.mark.parametrize("pooling", [MeanPooling, LastPooling, MaxPooling])
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([0, 4], "lengths: 0 among them; expected 1 to L = 4"),
        ([4, 5], "lengths: 5 among them; expected . to L = 4"),
        ([-1, 4], "lengths: -1 among them; expected . to L = 4"),
        ([4], r"lengths: shape \(1,\); expected \(B,\) = \(2,\)"),
        ([4.0, 3.0], "lengths: dtype torch.float32; expected whole numbers"),
    ],
)
def test_lengths_that_cannot_be_are_one_line(pooling, lengths, message):
    model = Classifier(SPEC, 3, vocab_size=7, d_model=4, n_layers=1, pooling=pooling)
    ids, lengths = torch.ones(2, 4, dtype=torch.long), torch.tensor(lengths)
    for call in (lambda: model(ids, lengths), lambda: pooling(1)(torch.zeros(2, 4, 1), lengths)):
        with pytest.raises(ValueError, match=message):
            call()


def test_lengths_are_not_looked_at_where_that_costs_something():
    block = S4Block(4, S6, norm="layer").eval()
    x, lengths = torch.randn(2, 5, 4), torch.tensor([5, 3])
    compiled = torch.compile(block.layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, lengths), block.layer(x, lengths))
    on_meta = block.to("meta")(x.to("meta"), torch.tensor([9, 9], device="meta"))
    assert on_meta.shape == x.shape and on_meta.is_meta


def test_features_and_a_layer_of_ones_own():
    torch.manual_seed(0)
    model = Classifier(LayerSpec(Smooth, width=5), 2, d_input=3, d_model=4, n_layers=1)
    logits = model(torch.randn(2, 6, 3))
    assert logits.shape == (2, 2)
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert model.backbone.blocks[0].layer.mix.kernel_size == (5,)


def test_layers_are_built_apart():
    model = Classifier(S6, 2, vocab_size=3, d_model=4, n_layers=2)
    assert len({id(p) for p in model.parameters()}) == len(list(model.parameters()))
    assert model.backbone.blocks[0].layer is not model.backbone.blocks[1].layer


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "vocab_size for token inputs or d_input"),
        ({"vocab_size": 3, "d_input": 3}, "not both"),
        ({"vocab_size": 3, "d_model": -8}, "d_model is -8"),
        ({"vocab_size": 3, "n_layers": 0}, "n_layers is 0"),
        ({"vocab_size": 3, "pooling": "lra_ssm.models.SumPooling"}, "lra_ssm.models.SumPooling' cannot be imported"),
        ({"vocab_size": 3, "d_model": 9}, "d_model 9 is not divisible by num_blocks 2"),
    ],
)
def test_settings_that_do_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        Classifier(SPEC, 2, **settings)
