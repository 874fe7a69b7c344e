"""Every network is loaded as it was saved, and padding does not matter to it; poolings, heads, wrong settings."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from lra_ssm import layers, models
from lra_ssm.layers import S4D, S6, BlockSpec, LayerSpec, S4Block, mask_padding
from lra_ssm.models import Classifier, DualEncoder, LanguageModel, MLPHead, PlainNetwork, Regressor
from tests.layers.cases import ALL
from tests.models.cases import BOTH_WAYS, IDS, NETWORKS, PAIRS, SIZES, Turn


def check_roundtrip(made: models.Pretrained, inputs: Tensor, folder: Path) -> None:
    made.train()(inputs)  # norms' statistics are not those of a new network
    made.eval().save_pretrained(folder)
    loaded = models.load_pretrained(folder, nn.Module, trust=[f"{Turn.__module__}.Turn"])
    assert type(loaded) is type(made)
    torch.testing.assert_close(loaded.state_dict(), made.state_dict(), rtol=0, atol=0)
    with torch.no_grad():
        assert torch.equal(loaded(inputs), made(inputs))


@pytest.mark.parametrize("name", ALL)
def test_every_layer_and_block_is_loaded_as_it_was_saved(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = ALL[name]
    block = BlockSpec(S4Block, dropout=0.1) if case.block is None else case.block
    made = Classifier(case.layer, 3, vocab_size=5, d_model=case.width, n_layers=3, block=block)
    check_roundtrip(made, IDS, tmp_path / "saved")


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_loaded_as_it_was_saved(name: str, tmp_path: Path) -> None:
    check_roundtrip(*NETWORKS[name], tmp_path / "saved")


def test_every_public_layer_block_and_network_is_among_them() -> None:
    used = {spec.cls for case in ALL.values() for spec in (case.layer, case.block) if spec is not None}
    classes = [getattr(layers, name) for name in layers.__all__]
    stateful = {c for c in classes if isinstance(c, type) and issubclass(c, nn.Module) and hasattr(c, "step")}
    assert stateful - {layers.RecurrentLayer, layers.Block} - used == set()
    classes = [getattr(models, name) for name in models.__all__]
    networks = {c for c in classes if isinstance(c, type) and issubclass(c, models.Pretrained)} - {models.Pretrained}
    assert networks == {type(made) for made, _ in NETWORKS.values()}


@pytest.mark.parametrize("name", NETWORKS)
def test_an_example_gives_the_same_by_itself_and_positions_matter(name: str) -> None:
    made, inputs = copy.deepcopy(NETWORKS[name][0]).double().eval(), NETWORKS[name][1]
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    at = 2 if isinstance(made, DualEncoder) else 1  # of positions
    lengths = torch.tensor([[7, 3], [2, 5]] if at == 2 else [7, 3])
    y = made(inputs, lengths)
    assert made(inputs[:0]).shape == y[:0].shape
    for i, own in enumerate(lengths):
        n = int(own.max())
        alone = made(inputs[i : i + 1].narrow(at, 0, n), lengths[i : i + 1])[0]
        torch.testing.assert_close(y[i, :n] if y.dim() == 3 else y[i], alone, rtol=1e-4, atol=1e-9)
        assert y.dim() < 3 or not y[i, n:].any()
    assert "positions" not in name or (made(inputs.flip(at)) - made(inputs)).abs().max() > 1e-8


@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_pooling_leaves_out_padding_that_the_blocks_see(kind):
    made, lengths = kind(BOTH_WAYS, 3, pooling=models.MeanPooling, padding="seen", **SIZES), torch.tensor([7, 3])
    x = mask_padding(made.backbone(IDS), lengths)  # in training, whose batch norm counts all of the batch
    torch.testing.assert_close(made(IDS, lengths), made.head(models.MeanPooling(8)(x, lengths)))


@pytest.mark.parametrize(
    ("pooling", "expected", "full"),
    [(models.MeanPooling, [-1 / 3, -2], -0.25), (models.LastPooling, [3, -2], 0.0), (models.MaxPooling, [3, -2], 3.0)],
)
def test_pooling_over_known_values(pooling, expected, full):
    x = torch.tensor([[[1.0], [-5.0], [3.0], [0.0]], [[-2.0], [0.0], [0.0], [0.0]]])
    pooled = pooling(1)(x, torch.tensor([3, 1]))[:, 0]
    torch.testing.assert_close(pooled, torch.tensor(expected, dtype=x.dtype))
    assert pooling(1)(x, None)[0, 0].item() == pytest.approx(full)
    with pytest.raises(ValueError, match="lengths: 0 among them; expected 1 to L = 4"):
        pooling(1)(x, torch.tensor([0, 4]))


def test_a_regressor_has_an_output_per_position_or_its_last_one():
    torch.manual_seed(0)
    last, positions = (Regressor(BOTH_WAYS, 3, **SIZES, **more) for more in ({}, {"pooling": None}))
    last.load_state_dict(positions.state_dict())
    torch.testing.assert_close(last(IDS), positions(IDS)[:, -1])


def through(linears, vectors, activation=torch.relu):
    x = torch.cat(vectors, -1)
    for linear in linears[:-1]:
        x = activation(linear(x))
    return linears[-1](x)


@pytest.mark.parametrize(
    ("head", "expected", "shapes"),
    [
        (models.NLIHead, lambda maps, x, y: through(maps, [x, y, x - y, x * y], gelu), [(8, 32), (2, 8)]),
        (models.LRAPairHead, lambda maps, x, y: through(maps, [x, y]), [(8, 16), (4, 8), (2, 4)]),
        (LayerSpec(models.LRAPairHead, width=6), lambda maps, x, y: through(maps, [x, y]), [(6, 16), (3, 6), (2, 3)]),
        (models.LogitPairHead, lambda maps, x, y: through(maps[1:], [maps[0](x), maps[0](y)]),
         [(2, 8), (512, 4), (256, 512), (2, 256)]),
        (MLPHead, lambda maps, x: through(maps, [x]), [(8, 8), (2, 8)]),
        (LayerSpec(MLPHead, width=5), lambda maps, x: through(maps, [x]), [(5, 8), (2, 5)]),
    ],
)  # fmt: skip
def test_heads_are_the_published_ones(head, expected, shapes):
    alone = head is MLPHead or getattr(head, "cls", None) is MLPHead
    made = (Classifier if alone else DualEncoder)(S4D, 2, head=head, **SIZES).eval()
    linears = [module for module in made.head.modules() if isinstance(module, nn.Linear)]
    assert [tuple(linear.weight.shape) for linear in linears] == shapes
    vectors = [made.encode(IDS)] if alone else [made.encode(PAIRS[:, j]) for j in (0, 1)]
    torch.testing.assert_close(made(IDS if alone else PAIRS), expected(linears, *vectors))


def test_the_network_of_theory_is_the_papers_equation_5():
    made = PlainNetwork(LayerSpec(S4D, d_state=4), num_outputs=3, d_input=2, d_model=4, nonlinearity="tanh").double()
    u = torch.randn(2, 9, 2, dtype=torch.float64)
    block = made.blocks[0]
    block.bias.data.normal_()
    wanted = (block.layer(u @ made.encoder.weight.T)[:, -1] + block.bias).tanh() @ made.decoder.weight.T
    torch.testing.assert_close(made(u), wanted)
    others = {name for name, _ in made.named_parameters() if not name.startswith("blocks.0.layer.")}
    assert others == {"encoder.weight", "blocks.0.bias", "decoder.weight"}
    linear = PlainNetwork(LayerSpec(S4D, d_state=4), 1, d_input=2, d_model=4, nonlinearity="none", bias=False).double()
    torch.testing.assert_close(linear(2 * u[:1] + u[1:]), 2 * linear(u[:1]) + linear(u[1:]))


def given(name: str, inputs: Tensor, lengths: list | None = None) -> None:
    NETWORKS[name][0](inputs, None if lengths is None else torch.tensor(lengths))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PlainNetwork(S4D, 1), "give vocab_size"),
        (lambda: LanguageModel(BOTH_WAYS, **SIZES), "B2S6 is bidirectional: a language model's layers only read from"),
        (lambda: given("language model", IDS.bool()), r"\(batch, length\) ids, int64, .* shape \(2, 7\), torch.bool"),
        (lambda: given("pairs", PAIRS[..., :0]), r"ids, int64, length at least 1; got shape \(4, 0\), torch.int64"),
        (lambda: given("both directions", IDS, [7, 8]), "lengths: 8 among them; expected 0 to L = 7"),
        (lambda: given("both directions", IDS, [7]), r"lengths: shape \(1,\); expected \(B,\) = \(2,\)"),
        (lambda: given("both directions", IDS, [4.0, 3.0]), "lengths: dtype torch.float32; expected whole numbers"),
        (lambda: given("plain", IDS), r"\(batch, length, 2\) features, floating, .*; got shape \(2, 7\), torch.int64"),
        (lambda: DualEncoder(S6, 2, **SIZES)(IDS), r"inputs \(2, 7\): a dual encoder takes pairs \(batch, 2, length\)"),
    ],
)
def test_wrong_settings_and_inputs_are_one_line(call, message):
    with pytest.raises(ValueError, match=message):
        call()
