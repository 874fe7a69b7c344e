"""Every layer and block of ours, in the settings that differ in how they compute: for tests of what all of them keep.

Each is built small, in double precision, its Δ larger than at initialization, so that states forget within a test's
length, and its norms' weights away from 1.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from lra_ssm.layers import (
    B2S6,
    LRU,
    S4D,
    S5,
    S6,
    SSD,
    Attention,
    BlockSpec,
    DeepLinearSSM,
    HyenaBlock,
    LayerSpec,
    LocalConvolution,
    Mamba2Block,
    Mamba3,
    Mamba3Block,
    MambaBlock,
    PlainBlock,
    RecurrentLayer,
    S4Block,
    S5Block,
    ScanContext,
    StableSSM,
    TransformerBlock,
)
from lra_ssm.ops import linear_scan

D = 6


class Leaky(RecurrentLayer):
    """A recurrence of a user's own, on the plain scan: x_t = λ x_{t-1} + b · u_t + bias, complex λ; y = Re x + u."""

    def __init__(self, d_model: int, bidirectional: bool = False) -> None:
        super().__init__()
        self.state_shape, self.complex_state = (d_model,), True
        self.radius = nn.Parameter(torch.linspace(0.5, 0.95, d_model))
        self.phase = nn.Parameter(torch.linspace(0.1, 2, d_model))
        self.b = nn.Parameter(torch.randn(d_model))
        self.bias = nn.Parameter(torch.randn(d_model))  # input 0 does not leave the state at 0
        if bidirectional:
            self.add_reverse()

    def scan(self, x, context: ScanContext):
        a, b = torch.polar(self.radius, self.phase), (x * self.b + self.bias).transpose(1, 2)
        if context.valid is not None:
            valid = context.valid.transpose(1, 2)
            a, b = torch.where(valid, a[:, None], 1), b.masked_fill(~valid, 0)
        states, last = linear_scan(
            a, b, initial_state=context.initial_state, reset=context.reset, return_last_state=True
        )
        return states.real.transpose(1, 2) + x, last

    def roles(self):
        return {"radius": "recurrent", "phase": "recurrent"}


STEPS = {"delta_min": 0.05, "delta_max": 0.5}
OF_S4D = {"d_state": 4, **STEPS}


class Case:
    """A layer, or a block around one, as specifications; called, it builds the module."""

    def __init__(self, width: int, layer: LayerSpec, block: BlockSpec | None = None) -> None:
        self.width, self.layer, self.block = width, layer, block

    def __call__(self, bidirectional: bool = False, **more: Any) -> nn.Module:
        attends = self.layer.cls is Attention
        way = {"causal": not bidirectional} if attends else {"bidirectional": bidirectional}
        layer = LayerSpec(self.layer.cls, **{**self.layer.init_args, **way, **more})
        return layer(self.width) if self.block is None else self.block(self.width, layer)


def of(kind: type[nn.Module], *sizes: Any, **settings: Any) -> Case:
    names = list(inspect.signature(kind).parameters)[1:]
    return Case(D, LayerSpec(kind, **dict(zip(names, sizes, strict=False)), **settings))


def around(kind: type[nn.Module], layer: type[nn.Module], given: dict[str, Any], **settings: Any) -> Case:
    """A block, of as many channels as its layer's sizes divide."""
    return Case(8 if layer is Attention else 4, LayerSpec(layer, **given), BlockSpec(kind, **settings))


def attending(**settings: Any) -> Case:
    return Case(8, LayerSpec(Attention, n_heads=4, **settings))


LAYERS: dict[str, Case] = {
    "s4d": of(S4D, d_state=8, **STEPS),
    "s4d-tied": of(S4D, init="inv", tie_A=True, tie_B=True, tie_C=True, **OF_S4D),
    "s4d-bilinear": of(S4D, discretization="bilinear", **OF_S4D),
    "s4d-best": of(S4D, parameterization={"name": "best", "a": 2.0, "b": 0.2}, **OF_S4D),
    "s6": of(S6, 4, **STEPS),
    "s6-softplus": of(S6, 4, parameterization="softplus", **STEPS),
    "ssd": of(SSD, 4, 2, A_max=8, **STEPS),
    "ssd-groups": of(SSD, 3, 1, n_groups=3, chunk_size=4, **STEPS),
    "mamba3": of(Mamba3, 4, 2, **STEPS),
    "mamba3-groups": of(Mamba3, 8, 1, n_groups=3, rope_fraction=1.0, chunk_size=4, **STEPS),
    "b2s6": of(B2S6, 3, 8, **STEPS),
    "b2s6-one-block": of(B2S6, 1, 4, init="lin", **STEPS),
    "b2s6-no-bias": of(B2S6, 2, 4, bias=False, **STEPS),
    "b2s6-as-s6": of(B2S6, 1, 3, bias=False, complex_A=False, **STEPS),
    "b2s6-real": of(B2S6, 2, 3, complex_A=False, **STEPS),
    "b2s6-complex-C": of(B2S6, 6, 4, complex_C=True, **STEPS),
    "b2s6-relu": of(B2S6, 2, 4, parameterization="relu", **STEPS),
    "stable": of(StableSSM, 4, **STEPS),
    "stable-real": of(StableSSM, 5, form="real"),
    "stable-real-held": of(StableSSM, 4, form="real", readout="relu", delta=0.1),
    "s5": of(S5, 8, 2, **STEPS),
    "s5-clip": of(S5, 4, 1, C_init="complex_normal", parameterization="clip", **STEPS),
    "lru": of(LRU, 5),
    "lru-best": of(LRU, 4, r_min=0.3, r_max=0.9, parameterization="best"),
    "local": of(LocalConvolution, 4),
    "local-wide": of(LocalConvolution, 40),
    "deep-linear": of(DeepLinearSSM, 3, 2),
    "deep-linear-relu": of(DeepLinearSSM, relu=True, normalize=True, trained="AB"),
    "a user's own": of(Leaky),
}
ATTENTION: dict[str, Case] = {
    "attention": attending(),
    "attention-shared keys": attending(n_kv_heads=2),
    "attention-window": attending(window=3),
    "attention-window of one": attending(window=1, positions="none"),
    "attention-learned": attending(positions="learned", max_length=70, bias=True),
    "attention-none": attending(positions="none", n_kv_heads=1),
    "attention-wide heads": attending(d_head=6),
}
OF_S6, OF_SSD = {"d_state": 3, "delta_rank": 2, **STEPS}, {"d_state": 3, "head_dim": 2, **STEPS}
OF_GROUPS = {"d_state": 2, "head_dim": 2, "n_groups": 2, "chunk_size": 4, **STEPS}
OF_MAMBA3 = {"d_state": 4, "head_dim": 2, **STEPS}
OF_REAL = {"d_state": 5, "form": "real", "readout": "identity"}
# S5's form of Hyena's block, of Wang & Li's experiments; and its form for associative recall; both with a small MLP.
OF_WIKITEXT = {"activation": "gelu", "mlp_factor": 1.5}
OF_RECALL = {"activation": "half_glu2", "skip": False, "mlp_factor": 1.5}
BLOCKS: dict[str, Case] = {
    "s4block": around(S4Block, S4D, OF_S4D, norm="layer", prenorm=True),
    "s4block-behind": around(S4Block, S6, OF_S6, norm="rms"),
    "s5block": around(S5Block, S5, {"d_state": 4, "num_blocks": 1, **STEPS}, norm="layer"),
    "s5block-behind": around(S5Block, S4D, OF_S4D, activation="half_glu2", norm="rms", prenorm=False),
    "s5block-full": around(S5Block, LRU, {"d_state": 3}, activation="full_glu", norm="layer"),
    "mamba": around(MambaBlock, S6, OF_S6),
    "mamba-a user's own": around(MambaBlock, Leaky, {}),
    "mamba-s4d": around(MambaBlock, S4D, OF_S4D, expand=1.5, d_conv=1),
    "mamba-ssd": around(MambaBlock, SSD, OF_SSD, glu=True),
    "mamba-b2s6": around(MambaBlock, B2S6, {"num_blocks": 2, **OF_S4D}),
    "mamba-behind": around(MambaBlock, B2S6, {"num_blocks": 2, **OF_S4D}, norm="layer", prenorm=False, bias=True),
    "mamba2": around(Mamba2Block, SSD, OF_SSD),
    "mamba2-groups": around(Mamba2Block, SSD, OF_GROUPS, expand=3.0, d_conv=1),
    "mamba2-s6": around(Mamba2Block, S6, OF_S6),
    "mamba2-s4d": around(Mamba2Block, S4D, OF_S4D),
    "mamba2-behind": around(Mamba2Block, SSD, OF_SSD, norm="layer", prenorm=False, bias=True),
    "mamba3block": around(Mamba3Block, Mamba3, OF_MAMBA3),
    "mamba3block-mlp": around(Mamba3Block, Mamba3, OF_MAMBA3, mlp_factor=1.5, norm="layer", prenorm=False, bias=True),
    "mamba3block-s6": around(Mamba3Block, S6, OF_S6, expand=1.5),
    "hyena": around(HyenaBlock, StableSSM, OF_REAL, **OF_WIKITEXT),
    "hyena-recall": around(HyenaBlock, S4D, OF_S4D, **OF_RECALL),
    "hyena-bare": around(HyenaBlock, S4D, OF_S4D, skip=False, mlp_factor=0, d_conv=1),
    "hyena-behind": around(HyenaBlock, StableSSM, OF_REAL, norm="rms", prenorm=False, bias=False),
    "transformer": around(TransformerBlock, Attention, {"n_heads": 4}, mlp_factor=2.0, norm="rms"),
    "transformer-swiglu": around(TransformerBlock, LRU, {"d_state": 3}, mlp_activation="swiglu", prenorm=False),
    "plain": around(PlainBlock, LRU, {"d_state": 3}, nonlinearity="tanh"),
}
ALL = {**LAYERS, **ATTENTION, **BLOCKS}


def build(name: str, bidirectional: bool = False) -> nn.Module:
    torch.manual_seed(0)
    built = ALL[name](bidirectional=bidirectional).double()
    for module in built.modules():
        if "Norm" in type(module).__name__ and getattr(module, "weight", None) is not None:
            nn.init.normal_(module.weight, 1, 0.1)
    return built


def attends(name: str) -> bool:
    return ALL[name].layer.cls is Attention


def width(name: str) -> int:
    return ALL[name].width


def sequences(B: int = 2, L: int = 7, D: int = D) -> Tensor:
    return torch.randn(B, L, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
