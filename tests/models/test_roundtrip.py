"""Every layer, block, network and config, at odd sizes, is loaded as it was saved."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lra_ssm.layers
import lra_ssm.models
from lra_ssm.layers import (
    S4D,
    S5,
    S6,
    Attention,
    BlockSpec,
    EmbeddingSpec,
    LayerSpec,
    NetworkSpec,
    S4Block,
    TransformerBlock,
)
from lra_ssm.layers.spec import import_object
from lra_ssm.models import (
    Classifier,
    DualEncoder,
    FirstPooling,
    LanguageModel,
    LRAPairHead,
    PlainNetwork,
    PositionEmbedding,
    Pretrained,
    Regressor,
    ScalarEmbedding,
    load_pretrained,
)
from tests.layers.cases import ALL, Leaky
from tests.test_configs import CONFIGS, FILES, network

IDS = torch.randint(5, (2, 7), generator=torch.Generator().manual_seed(0))
LEAKY = f"{Leaky.__module__}.{Leaky.__qualname__}"


class Turn(nn.Module):
    """A user's layer with complex weights and a table that is not saved."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(d_model, d_model, dtype=torch.complex64))
        self.register_buffer("table", torch.arange(1.0, 8.0)[:, None], persistent=False)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return (x.cumsum(1).to(self.w.dtype) @ self.w).real / self.table[: x.shape[1]]


def check_roundtrip(made: Pretrained, inputs: Tensor, folder: Path, trust: tuple[str, ...] = ()) -> None:
    made.eval().save_pretrained(folder)
    loaded = load_pretrained(folder, nn.Module, trust=trust)
    assert type(loaded) is type(made)
    state = made.state_dict()
    assert state.keys() == loaded.state_dict().keys()
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, state[name]) and value.dtype == state[name].dtype, name
    with torch.no_grad():
        assert torch.equal(loaded(inputs), made(inputs))


@pytest.mark.parametrize("name", ALL)
def test_every_layer_and_block(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = ALL[name]
    block = BlockSpec(S4Block, dropout=0.1) if case.block is None else case.block
    made = Classifier(case.layer, 3, vocab_size=5, d_model=case.width, n_layers=3, block=block)
    check_roundtrip(made, IDS, tmp_path / "saved", trust=(LEAKY,))


def test_every_public_layer_and_block_is_among_them() -> None:
    used = {spec.cls for case in ALL.values() for spec in (case.layer, case.block) if spec is not None}
    classes = [getattr(lra_ssm.layers, name) for name in lra_ssm.layers.__all__]
    layers = {c for c in classes if isinstance(c, type) and issubclass(c, nn.Module) and hasattr(c, "step")}
    abstract = {lra_ssm.layers.RecurrentLayer, lra_ssm.layers.Block}
    assert layers - abstract - used == set()


ATTEND, LEARN = LayerSpec(Attention, n_heads=1, window=37), LayerSpec(Attention, positions="learned", max_length=501)
SCALAR = EmbeddingSpec(ScalarEmbedding)
LEARNED = EmbeddingSpec(PositionEmbedding, max_length=41, positions="learned", class_token=True)
SIZES: dict[str, Any] = {"d_model": 8, "n_layers": 1, "vocab_size": 5}
NETWORKS: dict[str, tuple[Pretrained, Tensor]] = {
    "classifier, more layers than blocks": (
        Classifier([LayerSpec(S6), LayerSpec(S4D, d_state=34), ATTEND], 3, **SIZES), IDS),
    "classifier, lists": (
        Classifier([S6, ATTEND], 3, d_input=3, d_model=8, n_layers=3,
                   block=[S4Block, BlockSpec(TransformerBlock, mlp_factor=2.5)]),
        torch.randn(2, 7, 3)),
    "pairs": (DualEncoder(S6, 2, head=LRAPairHead, **SIZES), IDS[:, None].expand(2, 2, 7)),
    "scalar embedding": (Classifier(LayerSpec(S5, d_state=14, num_blocks=7), 3, embedding=SCALAR, **SIZES), IDS),
    "positions": (Classifier(ATTEND, 3, embedding=EmbeddingSpec(PositionEmbedding, max_length=1003), **SIZES), IDS),
    "learned positions": (Classifier(ATTEND, 3, embedding=LEARNED, pooling=FirstPooling, **SIZES), IDS),
    "pairs with positions": (DualEncoder(ATTEND, 3, embedding=LEARNED, **SIZES), IDS[:, None].expand(2, 2, 7)),
    "regressor": (Regressor(LEARN, 3, pooling=None, **SIZES), IDS),
    "language model": (LanguageModel(LEARN, **SIZES), IDS),
    "plain": (PlainNetwork(LayerSpec(S4D, d_state=6), 3, d_input=2, d_model=7, n_layers=3), torch.randn(2, 7, 2)),
    "a user's layer": (LanguageModel(LayerSpec(Turn), **SIZES), IDS),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network(name: str, tmp_path: Path) -> None:
    check_roundtrip(*NETWORKS[name], tmp_path / "saved", trust=(f"{__name__}.Turn",))


@pytest.mark.parametrize(("name", "expected"), [
    ("language model", "(batch, length) ids, int64"), ("pairs", "(batch, length) ids, int64"),
    ("plain", "(batch, length, 2) features, floating"),
])  # fmt: skip
def test_inputs_of_another_shape_are_one_line_and_an_empty_batch_is_empty(name: str, expected: str) -> None:
    network, inputs = NETWORKS[name]
    assert network(inputs[:0]).shape == network(inputs)[:0].shape
    length = inputs[:, :0] if name != "pairs" else inputs[..., :0]
    for wrong in (inputs[..., None], inputs.bool(), length, *([inputs[0]] if name != "pairs" else [])):
        shape = tuple((wrong.flatten(0, 1) if name == "pairs" else wrong).shape)
        with pytest.raises(ValueError) as error:
            network(wrong)
        message = f"inputs: expected {expected}, length at least 1; got shape {shape}, {wrong.dtype}"
        assert str(error.value) == message


def test_every_public_network_is_among_them() -> None:
    classes = [getattr(lra_ssm.models, name) for name in lra_ssm.models.__all__]
    networks = {c for c in classes if isinstance(c, type) and issubclass(c, Pretrained)} - {Pretrained}
    assert networks == {type(made) for made, _ in NETWORKS.values()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS).with_suffix("")))
def test_every_config(path: Path, tmp_path: Path) -> None:
    """Of one block, and of a small vocabulary where it is large."""
    spec = network(str(path.relative_to(CONFIGS).with_suffix("")))
    arguments = {**spec["init_args"], "n_layers": 1}
    if (arguments.get("vocab_size") or 0) > 1000:
        arguments["vocab_size"] = 11
    made = NetworkSpec.of({"class_path": spec["class_path"], "init_args": arguments})()
    made.save_pretrained(tmp_path / "saved")
    loaded = load_pretrained(tmp_path / "saved", import_object(spec["class_path"]))
    for name, value in made.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    assert not any(x.is_meta for x in [*loaded.parameters(), *loaded.buffers()])
    assert json.loads((tmp_path / "saved/config.json").read_text())["network"] == made.specification()
