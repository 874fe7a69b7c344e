"""Specifications within specifications: plain dicts, and the modules that they build."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from lra_ssm.layers import B2S6, S4D, BlockSpec, LayerSpec, MambaBlock, NetworkSpec
from lra_ssm.layers.spec import LayerFactory, import_object
from lra_ssm.models import Classifier, LastPooling, MLPHead
from tests.helpers import Smooth

LINEAR = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 5}}


class Defaults(Smooth):
    """A layer whose width has a default."""

    def __init__(self, d_model: int = 64, width: int = 3) -> None:
        super().__init__(d_model, width)


class Wrapped(nn.Module):
    """A layer around another; the norm is built with one number and is not a layer."""

    def __init__(self, d_model: int, layer: LayerFactory, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.layer, self.norm = layer(d_model), norm(d_model)

    def forward(self, x, lengths=None):
        return self.norm(self.layer(x, lengths))


class Unresolved(Defaults):
    def __init__(self, d_model: int, unknown: "OnlyForTypeCheckers" = 0) -> None:  # noqa: F821
        super().__init__(d_model)


class Outer:
    class Inner(Defaults):
        pass

    @classmethod
    def factory(cls, d_model: int) -> nn.Module:
        return Defaults(d_model)


def test_a_network_is_one_plain_dict_with_public_paths_and_every_default():
    parts = {"block": BlockSpec(MambaBlock, expand=1.5), "pooling": LastPooling, "head": MLPHead}
    stored = NetworkSpec(Classifier, layer=S4D, num_classes=3, vocab_size=5, d_model=4, **parts).as_dict()
    arguments = stored["init_args"]
    assert stored["class_path"] == "lra_ssm.models.Classifier"
    assert arguments["layer"]["class_path"] == "lra_ssm.layers.S4D" and arguments["layer"]["init_args"]["d_state"] == 64
    assert arguments["block"]["init_args"]["expand"] == 1.5 and arguments["block"]["init_args"]["d_conv"] == 4
    assert arguments["pooling"] == {"class_path": "lra_ssm.models.LastPooling", "init_args": {}}
    assert arguments["head"]["init_args"] == {"width": None}
    assert arguments["embedding"] is None and arguments["n_layers"] == 8
    assert NetworkSpec.of(stored).as_dict() == stored and len(NetworkSpec.of(stored)().head) == 3


@pytest.mark.parametrize(("spec", "arguments"), [
    (LayerSpec(Defaults), {"width": 3}),
    (LayerSpec(Defaults, width=5), {"width": 5}),
    (LayerSpec(Outer.Inner), {"width": 3}),
    (LayerSpec(Outer.factory), {}),
    (LayerSpec(Unresolved, unknown=2), {"unknown": 2}),
    *((LayerSpec(Wrapped, layer=LayerSpec(S4D, d_state=4), **norm), {})
      for norm in ({}, {"norm": LayerSpec(S4D)}, {"norm": nn.LayerNorm})),
], ids=repr)  # fmt: skip
def test_a_layers_arguments_are_stored_and_build_it_again(spec, arguments):
    stored, x = spec.as_dict(), torch.randn(2, 5, 4)
    assert arguments.items() <= stored["init_args"].items()
    again = LayerSpec.of(stored)
    assert again.cls == spec.cls and again.as_dict() == stored
    for built in (spec(4), again(4)):
        assert built(x).shape == x.shape
        assert "width" not in arguments or built.mix.kernel_size == (arguments["width"],)


class Many(nn.Module):
    """A user's network with every way to take parts, annotations as text among them."""

    def __init__(
        self,
        layers: "list[Callable[[int], nn.Module]]",
        by: dict[str, LayerFactory],
        body: "nn.Module | None" = None,
        more: "tuple[nn.Module, ...]" = (),
        act: type[nn.Module] = nn.GELU,
        spare: "Callable[[int], nn.Module] | None" = None,
        function: Callable = torch.relu,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(4) for layer in layers)
        self.by = nn.ModuleDict({name: layer(4) for name, layer in by.items()})
        self.body, self.more, self.act, self.spare = body, nn.ModuleList(more), act(), spare
        self.function, self.dtype = function, dtype


def test_parts_in_lists_dicts_and_options_and_defaults_that_are_not_plain_values():
    spec = NetworkSpec(
        Many, layers=[LayerSpec(S4D, d_state=8), S4D], by={"a": LayerSpec(S4D, d_state=4)}, spare=S4D, body=LINEAR,
        more=(LINEAR, nn.Identity),
    )  # fmt: skip
    stored = spec.as_dict()
    assert NetworkSpec.of(stored).as_dict() == stored and "function" not in stored["init_args"]
    assert stored["init_args"]["layers"][0]["init_args"]["d_state"] == 8
    for one in (spec, NetworkSpec.of(stored)):
        network = one()
        assert [layer.A_log.shape[1] for layer in network.layers] == [4, 32]
        assert network.by["a"].A_log.shape == (4, 2) and network.spare(3).A_log.shape[0] == 3
        assert isinstance(network.body, nn.Linear) and isinstance(network.act, nn.GELU) and len(network.more) == 2
        assert network.function is torch.relu and network.dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LayerSpec(S4D, d_stat=8), "takes no argument 'd_stat'; did you mean 'd_state'"),
        (lambda: LayerSpec("lra_ssm.layers"), "not a module"),
        (lambda: LayerSpec(Outer), "is not a layer"),
        (lambda: LayerSpec.of({"class_path": "lra_ssm.layers.S4D", "args": {}}), "args"),
        (lambda: BlockSpec(B2S6), "is not a block: it must be a class or function that takes d_model and layer"),
        (lambda: NetworkSpec("lra_ssm.models.Clasifier"), "network class_path 'lra_ssm.models.Clasifier' cannot"),
        (lambda: NetworkSpec.of({"init_args": {}}), "a network is given as class_path and init_args"),
        (lambda: Classifier(S4D(8), 3, vocab_size=5), r"layer is built by its .* LayerSpec\(Class, …\), .* not a S4D"),
        (lambda: LayerSpec(partial(S4D, d_state=8)), "the class or function itself, not a partial"),
        (lambda: LayerSpec(lambda d_model: nn.Identity()).as_dict(), "<lambda> cannot be imported again: define it at"),
        (lambda: LayerSpec(type), "no signature found"),
        (lambda: LayerSpec(S4D, d_state=np.int64(8)).as_dict(), "S4D, argument d_state is a int64; only plain values"),
        (lambda: Classifier([], 3, vocab_size=5), "layer is an empty list; give one, or several that are repeated"),
        (lambda: import_object("shutil:os.system"), "is not an import path"),
        (lambda: import_object("lra_ssm.layers.S4D()"), "is not an import path"),
    ],
)
def test_wrong_specifications_are_one_line(call, message):
    with pytest.raises(ValueError, match=message):
        call()
