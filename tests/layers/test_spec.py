"""Specifications within specifications: plain dicts that build what they say."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from lra_ssm.layers import B2S6, S4D, BlockSpec, LayerSpec, MambaBlock, NetworkSpec, S4Block
from lra_ssm.layers.spec import LayerFactory, import_object
from lra_ssm.models import Classifier, LastPooling, NLIHead
from lra_ssm.tasks import Classification


class Takes(nn.Module):
    """A network of a user's own: one part it builds itself, one it is given."""

    def __init__(self, layer, body: nn.Module, width: int = 3) -> None:
        super().__init__()
        self.layer, self.body = layer(width), body


def test_layer_spec_is_a_plain_dict_with_the_public_path():
    spec = LayerSpec(S4D, d_state=8)
    stored = spec.as_dict()
    assert stored["class_path"] == "lra_ssm.layers.S4D"
    assert stored["init_args"]["d_state"] == 8 and stored["init_args"]["init"] == "legs"  # defaults are written out
    again = LayerSpec.of(spec.as_dict())
    assert again.cls is S4D and again(4).A_log.shape == (4, 4)
    assert LayerSpec.of(S4D).as_dict()["init_args"]["d_state"] == 64


def test_a_network_is_one_plain_dict_with_every_default():
    block = BlockSpec(MambaBlock, expand=1.5)
    spec = NetworkSpec(Classifier, layer=S4D, num_classes=3, vocab_size=5, d_model=4, block=block, pooling=LastPooling)
    stored = spec.as_dict()
    arguments = stored["init_args"]
    assert stored["class_path"] == "lra_ssm.models.Classifier"
    assert arguments["layer"]["class_path"] == "lra_ssm.layers.S4D"
    assert arguments["block"]["init_args"]["expand"] == 1.5 and arguments["block"]["init_args"]["d_conv"] == 4
    assert arguments["pooling"] == {"class_path": "lra_ssm.models.LastPooling", "init_args": {}}
    assert arguments["head"] is None and arguments["n_layers"] == 8
    again = NetworkSpec.of(stored)
    assert again.as_dict() == stored
    assert {k: v.shape for k, v in again().state_dict().items()} == {k: v.shape for k, v in spec().state_dict().items()}


def test_parts_reach_a_network_of_ones_own_as_it_takes_them():
    parts = {
        "layer": {"class_path": "lra_ssm.layers.S4D", "init_args": {"d_state": 8}},
        "body": {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 5}},
    }
    for given in (parts, {**parts, "layer": LayerSpec(S4D, d_state=8)}):
        network = NetworkSpec(Takes, **given)()
        assert network.layer.A_log.shape == (3, 4)
        assert isinstance(network.body, nn.Linear) and network.body(torch.zeros(1, 2)).shape == (1, 5)


class Defaults(nn.Module):
    """A layer whose width has a default."""

    def __init__(self, d_model: int = 64, width: int = 3) -> None:
        super().__init__()
        self.linear, self.width = nn.Linear(d_model, d_model), width

    def forward(self, x, lengths=None):
        return self.linear(x)


class DefaultHead(nn.Linear):
    def __init__(self, d_model: int = 64, num_classes: int = 10, scale: float = 1.0) -> None:
        super().__init__(d_model, num_classes)


@pytest.mark.parametrize("layer", [Defaults, LayerSpec(Defaults, width=5)])
def test_what_the_builder_gives_may_have_defaults(layer):
    spec = NetworkSpec(Classifier, layer=layer, num_classes=3, vocab_size=5, d_model=4, n_layers=1, head=DefaultHead)
    arguments = spec.as_dict()["init_args"]
    assert arguments["layer"]["init_args"] == {"width": 3 if layer is Defaults else 5}
    assert arguments["head"]["init_args"] == {"scale": 1.0}
    task = Classification(spec)
    again = Classification(**task.hparams)
    assert again.network.backbone.blocks[0].layer.linear.weight.shape == (4, 4)
    assert again.network.head.weight.shape == (3, 4) and again.hparams == task.hparams


class Many(nn.Module):
    """A network with every way to take parts."""

    def __init__(
        self,
        layers: "list[Callable[[int], nn.Module]]",
        body: "nn.Module | None" = None,
        act: type[nn.Module] = nn.GELU,
        spare: "Callable[[int], nn.Module] | None" = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(4) for layer in layers)
        self.body, self.act, self.spare = body, act(), spare


def test_parts_in_lists_options_and_annotations_that_are_text():
    spec = NetworkSpec(
        Many, layers=[LayerSpec(S4D, d_state=8), S4D], spare=S4D,
        body={"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 5}},
    )  # fmt: skip
    for one in (spec, NetworkSpec.of(spec.as_dict())):
        network = one()
        assert [layer.A_log.shape[1] for layer in network.layers] == [4, 32]
        assert isinstance(network.body, nn.Linear) and isinstance(network.act, nn.GELU)
        assert network.spare(3).A_log.shape[0] == 3
    assert NetworkSpec.of(spec.as_dict()).as_dict() == spec.as_dict()
    assert spec.as_dict()["init_args"]["layers"][0]["init_args"]["d_state"] == 8


class Outer:
    class Inner(Defaults):
        pass


def test_a_nested_class_is_found_again():
    stored = LayerSpec(Outer.Inner).as_dict()
    assert stored["class_path"].endswith("test_spec.Outer.Inner") and LayerSpec.of(stored).cls is Outer.Inner


class Factory:
    """Ways to make a layer that are no class."""

    def method(self, d_model: int) -> nn.Module:
        return Defaults(d_model)

    @classmethod
    def of_the_class(cls, d_model: int) -> nn.Module:
        return Defaults(d_model)

    def __call__(self, d_model: int) -> nn.Module:
        return Defaults(d_model)


def test_a_method_of_a_class_can_be_named_and_is_stored():
    spec = NetworkSpec(Classifier, layer=Factory.of_the_class, num_classes=3, vocab_size=5, d_model=4, n_layers=1)
    again = Classification(**Classification(spec).hparams)
    assert isinstance(again.network.backbone.blocks[0].layer, Defaults)


def nothing() -> None: ...


NOWHERE = type("Nowhere", (Defaults,), {})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LayerSpec(S4D, d_stat=8), "takes no argument 'd_stat'; did you mean 'd_state'"),
        (lambda: LayerSpec("lra_ssm.layers.S7"), "'lra_ssm.layers.S7' cannot be imported"),
        (lambda: LayerSpec("lra_ssm.layers"), "not a module"),
        (lambda: LayerSpec(nothing), "is not a layer"),
        (lambda: LayerSpec.of({"init_args": {}}), "class_path"),
        (lambda: LayerSpec.of({"class_path": "lra_ssm.layers.S4D", "args": {}}), "args"),
        (lambda: BlockSpec(nn.GELU), "is not a block: it must be a class or function that takes d_model and layer"),
        (lambda: NetworkSpec("lra_ssm.models.Clasifier"), "network class_path 'lra_ssm.models.Clasifier' cannot"),
        (lambda: NetworkSpec(Classifier, n_layer=3), "takes no argument 'n_layer'; did you mean 'n_layers'"),
        (lambda: NetworkSpec.of({"init_args": {}}), "a network is given as class_path and init_args"),
        (lambda: Classifier(S4D(8), 3, vocab_size=5), r"layer is built by its .* LayerSpec\(Class, …\), .* not a S4D"),
        (lambda: LayerSpec(partial(S4D, d_state=8)), "the class or function itself, not a partial"),
        (lambda: BlockSpec(S4Block(8, S4D)), r"give BlockSpec\(Class, …\), .*, not a S4Block"),
        (lambda: LayerSpec(LayerSpec(S4D)), "the class or function itself, not a LayerSpec"),
        (lambda: LayerSpec(Factory()), "the class or function itself, not a Factory"),
        (lambda: LayerSpec(lambda d_model: nn.Identity()).as_dict(), "<lambda> cannot be imported again"),
        (lambda: LayerSpec(Factory().method).as_dict(), "Factory.method cannot be imported again"),
        (lambda: LayerSpec(type), "no signature found"),
        (lambda: LayerSpec(NOWHERE).as_dict(), "Nowhere cannot be imported again: define it at the top"),
        (lambda: BlockSpec(B2S6), "is not a block: it must be a class or function that takes d_model and layer"),
        (lambda: LayerSpec(S4D, d_state=np.int64(8)).as_dict(), "S4D, argument d_state is a int64; only plain values"),
        (lambda: Classifier(S4D, 3, vocab_size=5, head=NLIHead), r"Classifier has 1 vector\(s\) .*, NLIHead takes 2"),
    ],
)
def test_what_cannot_be_built_or_stored_is_said_at_once(call, message):
    with pytest.raises(ValueError, match=message):
        call()


class Odd(nn.Module):
    """Defaults that are no plain values."""

    def __init__(
        self,
        inner: "nn.Module",
        more: "tuple[nn.Module, ...]" = (),
        act: Callable = torch.relu,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.inner, self.more, self.act, self.dtype = inner, nn.ModuleList(more), act, dtype


def test_defaults_that_are_no_plain_values_stay_the_classs_own():
    linear = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 5}}
    spec = NetworkSpec(Odd, inner=nn.Identity, more=(linear, linear))
    for one in (spec, NetworkSpec.of(spec.as_dict())):
        network = one()
        assert isinstance(network.inner, nn.Identity) and len(network.more) == 2
        assert network.act is torch.relu and network.dtype == torch.float32
    assert "act" not in spec.as_dict()["init_args"]
    with pytest.raises(ValueError, match="argument dtype is a dtype; only plain values"):
        NetworkSpec(Odd, inner=nn.Identity, dtype=torch.float64).as_dict()


class Norm(nn.Module):
    """A part of one number that is not a layer."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x):
        return self.norm(x)


class Several(nn.Module):
    def __init__(
        self,
        d_model: int,
        by: dict[str, LayerFactory],
        act: nn.Module,
        drop: type[nn.Module],
        unknown: "Nowhere" = 0,  # noqa: F821
    ) -> None:
        super().__init__()
        assert isinstance(drop, type)
        self.by, self.act = nn.ModuleDict({name: layer(d_model) for name, layer in by.items()}), act

    def forward(self, x, lengths=None):
        return self.act(sum(layer(x) for layer in self.by.values()))


def test_dicts_of_specifications_are_built_and_an_annotation_that_is_unknown_is_alone():
    spec = LayerSpec(Several, by={"a": LayerSpec(S4D, d_state=4), "b": LayerSpec(S4D)}, act=nn.GELU, drop=nn.Dropout)
    for built in (spec(4), LayerSpec.of(spec.as_dict())(4)):
        assert isinstance(built.act, nn.GELU) and built(torch.randn(2, 5, 4)).shape == (2, 5, 4)


class Wrapped(nn.Module):
    def __init__(self, d_model: int, layer: LayerFactory, norm: Callable[[int], nn.Module] = Norm) -> None:
        super().__init__()
        self.layer, self.norm = layer(d_model), norm(d_model)

    def forward(self, x, lengths=None):
        return self.norm(self.layer(x, lengths))


@pytest.mark.parametrize("norm", [{}, {"norm": LayerSpec(S4D)}, {"norm": nn.LayerNorm}], ids=str)
def test_a_part_built_of_one_number_need_not_be_a_layer(norm):
    spec = LayerSpec(Wrapped, layer=LayerSpec(S4D, d_state=4), **norm)
    x = torch.randn(2, 5, 4)
    for built in (spec(4), LayerSpec.of(spec.as_dict())(4)):
        assert built(x).shape == x.shape


@pytest.mark.parametrize("path", ["shutil:os.system", "tests.layers.a-b", "S4D", "lra_ssm.layers.S4D()", ""])
def test_what_is_no_import_path_is_never_imported(path):
    with pytest.raises(ValueError, match="is not an import path"):
        import_object(path)
