"""Every layer and block of ours, in the settings that differ in how they compute: for tests of what all of them keep.

Each is built small, in double precision, its Δ larger than at initialization, so that states forget within a test's
length, and its norms' weights away from 1.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lra_ssm import layers
from lra_ssm.layers import BlockSpec, LayerSpec

D = 6
STEPS = {"delta_min": 0.05, "delta_max": 0.5}
OF_S4D = {"d_state": 4, **STEPS}


class Case(NamedTuple):
    """A layer, or a block around one, as specifications; called, it builds the module."""

    width: int
    layer: LayerSpec
    block: BlockSpec | None = None

    @property
    def attends(self) -> bool:
        return self.layer.cls is layers.Attention

    def __call__(self, bidirectional: bool = False, **more: Any) -> nn.Module:
        way = {"causal": not bidirectional} if self.attends else {"bidirectional": bidirectional}
        layer = LayerSpec(self.layer.cls, **{**self.layer.init_args, **way, **more})
        return layer(self.width) if self.block is None else self.block(self.width, layer)


def of(name: str, d_model: int = D, **settings: Any) -> Case:
    return Case(d_model, LayerSpec(getattr(layers, name), **settings))


def around(block: str, layer: str, given: dict[str, Any], **settings: Any) -> Case:
    """A block, of as many channels as its layer's sizes divide."""
    spec = BlockSpec(getattr(layers, block), **settings)
    return Case(8 if layer == "Attention" else 4, LayerSpec(getattr(layers, layer), **given), spec)


LAYERS: dict[str, Case] = {
    "s4d": of("S4D", d_state=8, **STEPS),
    "s4d-tied": of("S4D", init="inv", tie_A=True, tie_B=True, tie_C=True, **OF_S4D),
    "s4d-bilinear": of("S4D", discretization="bilinear", **OF_S4D),
    "s4d-best": of("S4D", parameterization={"name": "best", "a": 2.0, "b": 0.2}, **OF_S4D),
    "s6": of("S6", d_state=4, **STEPS),
    "s6-softplus": of("S6", d_state=4, parameterization="softplus", **STEPS),
    "ssd": of("SSD", d_state=4, head_dim=2, A_max=8, **STEPS),
    "ssd-groups": of("SSD", d_state=3, head_dim=1, n_groups=3, chunk_size=4, **STEPS),
    "mamba3": of("Mamba3", d_state=4, head_dim=2, **STEPS),
    "mamba3-groups": of("Mamba3", d_state=8, head_dim=1, n_groups=3, rope_fraction=1.0, A_function="softplus", **STEPS),
    "b2s6": of("B2S6", num_blocks=3, d_state=8, **STEPS),
    "b2s6-one-block": of("B2S6", num_blocks=1, d_state=4, init="lin", **STEPS),
    "b2s6-no-bias": of("B2S6", num_blocks=2, d_state=4, bias=False, **STEPS),
    "b2s6-as-s6": of("B2S6", num_blocks=1, d_state=3, bias=False, complex_A=False, **STEPS),
    "b2s6-real": of("B2S6", num_blocks=2, d_state=3, complex_A=False, **STEPS),
    "b2s6-complex-C": of("B2S6", num_blocks=6, d_state=4, complex_C=True, **STEPS),
    "b2s6-relu": of("B2S6", num_blocks=2, d_state=4, parameterization="relu", **STEPS),
    "stable": of("StableSSM", d_state=4, **STEPS),
    "stable-real": of("StableSSM", d_state=5, form="real"),
    "stable-real-held": of("StableSSM", d_state=4, form="real", readout="relu", delta=0.1),
    "s5": of("S5", d_state=8, num_blocks=2, **STEPS),
    "s5-clip": of("S5", d_state=4, num_blocks=1, C_init="complex_normal", parameterization="clip", **STEPS),
    "lru": of("LRU", d_state=5),
    "lru-best": of("LRU", d_state=4, r_min=0.3, r_max=0.9, parameterization="best"),
    "rglru": of("RGLRU", num_blocks=3, r_min=0.3),
    "local": of("LocalConvolution", width=4),
    "local-wide": of("LocalConvolution", width=40),
    "deep-linear": of("DeepLinearSSM", n_layers=3, d_state=2),
    "deep-linear-relu": of("DeepLinearSSM", relu=True, normalize=True, trained="AB"),
}
ATTENTION: dict[str, Case] = {
    "attention": of("Attention", 8, n_heads=4),
    "attention-shared keys": of("Attention", 8, n_heads=4, n_kv_heads=2),
    "attention-window": of("Attention", 8, n_heads=4, window=3),
    "attention-window of one": of("Attention", 8, n_heads=4, window=1, positions="none"),
    "attention-learned": of("Attention", 8, n_heads=4, positions="learned", max_length=70, bias=True),
    "attention-none": of("Attention", 8, n_heads=4, positions="none", n_kv_heads=1),
    "attention-wide heads": of("Attention", 8, n_heads=4, d_head=6),
}
OF_S6, OF_SSD = {"d_state": 3, "delta_rank": 2, **STEPS}, {"d_state": 3, "head_dim": 2, **STEPS}
OF_GROUPS = {"d_state": 2, "head_dim": 2, "n_groups": 2, "chunk_size": 4, **STEPS}
OF_MAMBA3 = {"d_state": 4, "head_dim": 2, **STEPS}
OF_REAL = {"d_state": 5, "form": "real", "readout": "identity"}
# S5's form of Hyena's block, of Wang & Li's experiments; and its form for associative recall; both with a small MLP.
OF_WIKITEXT = {"activation": "gelu", "mlp_factor": 1.5}
OF_RECALL = {"activation": "half_glu2", "skip": False, "mlp_factor": 1.5}
BLOCKS: dict[str, Case] = {
    "s4block": around("S4Block", "S4D", OF_S4D, norm="layer", prenorm=True),
    "s4block-behind": around("S4Block", "S6", OF_S6, norm="rms"),
    "s5block": around("S5Block", "S5", {"d_state": 4, "num_blocks": 1, **STEPS}, norm="layer"),
    "s5block-behind": around("S5Block", "S4D", OF_S4D, activation="half_glu2", norm="rms", prenorm=False),
    "s5block-full": around("S5Block", "LRU", {"d_state": 3}, activation="full_glu", norm="layer"),
    "mamba": around("MambaBlock", "S6", OF_S6),
    "mamba-s4d": around("MambaBlock", "S4D", OF_S4D, expand=1.5, d_conv=1),
    "mamba-ssd": around("MambaBlock", "SSD", OF_SSD, glu=True),
    "mamba-b2s6": around("MambaBlock", "B2S6", {"num_blocks": 2, **OF_S4D}),
    "mamba-behind": around("MambaBlock", "B2S6", {"num_blocks": 2, **OF_S4D}, norm="layer", prenorm=False, bias=True),
    "mamba2": around("Mamba2Block", "SSD", OF_SSD),
    "mamba2-groups": around("Mamba2Block", "SSD", OF_GROUPS, expand=3.0, d_conv=1),
    "mamba2-s6": around("Mamba2Block", "S6", OF_S6),
    "mamba2-s4d": around("Mamba2Block", "S4D", OF_S4D),
    "mamba2-behind": around("Mamba2Block", "SSD", OF_SSD, norm="layer", prenorm=False, bias=True),
    "mamba3block": around("Mamba3Block", "Mamba3", OF_MAMBA3),
    "mamba3block-mlp": around(
        "Mamba3Block", "Mamba3", OF_MAMBA3, mlp_factor=1.5, norm="layer", prenorm=False, bias=True
    ),
    "mamba3block-s6": around("Mamba3Block", "S6", OF_S6, expand=1.5),
    "griffin": around("GriffinBlock", "RGLRU", {"num_blocks": 2}, mlp_factor=1.5),
    "griffin-behind": around("GriffinBlock", "S4D", OF_S4D, expand=1.5, mlp_factor=0, norm="layer", prenorm=False),
    "hyena": around("HyenaBlock", "StableSSM", OF_REAL, **OF_WIKITEXT),
    "hyena-recall": around("HyenaBlock", "S4D", OF_S4D, **OF_RECALL),
    "hyena-bare": around("HyenaBlock", "S4D", OF_S4D, skip=False, mlp_factor=0, d_conv=1),
    "hyena-behind": around("HyenaBlock", "StableSSM", OF_REAL, norm="rms", prenorm=False, bias=False),
    "transformer": around("TransformerBlock", "Attention", {"n_heads": 4}, mlp_factor=2.0, norm="rms"),
    "transformer-geglu": around("TransformerBlock", "RGLRU", {"num_blocks": 1}, mlp_activation="geglu"),
    "transformer-swiglu": around("TransformerBlock", "LRU", {"d_state": 3}, mlp_activation="swiglu", prenorm=False),
    "plain": around("PlainBlock", "LRU", {"d_state": 3}, nonlinearity="tanh"),
}
ALL = {**LAYERS, **ATTENTION, **BLOCKS}


def build(name: str, bidirectional: bool = False) -> nn.Module:
    torch.manual_seed(0)
    built = ALL[name](bidirectional=bidirectional).double()
    for module in built.modules():
        if "Norm" in type(module).__name__ and getattr(module, "weight", None) is not None:
            nn.init.normal_(module.weight, 1, 0.1)
    return built


def sequences(B: int = 2, L: int = 7, D: int = D) -> Tensor:
    return torch.randn(B, L, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
