"""A step of Mamba's block with S6 as one C++ call: its values, and when the plain step runs instead."""

import pytest
import torch
from torch import nn

from lra_ssm.layers import B2S6, S6, LayerSpec, MambaBlock
from lra_ssm.layers.blocks import Block
from lra_ssm.ops.backends import cpu_pieces
from tests.ops.scan_cases import needs_compiled

pytestmark = needs_compiled


def built(d_model: int = 20, layer: object = S6, **settings: object) -> MambaBlock:
    torch.manual_seed(0)
    block = MambaBlock(d_model, LayerSpec.of(layer), **settings).eval()
    with torch.no_grad():
        for parameter in block.parameters():  # away from 1 and 0, where a mistake would not show
            parameter += 0.4 * d_model**-0.5 * torch.randn_like(parameter)
    return block


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls, native = [], cpu_pieces.mamba_step
    monkeypatch.setattr(cpu_pieces, "mamba_step", lambda *a, **k: calls.append(1) or native(*a, **k))
    return calls


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize(
    ("d_model", "unit", "settings"),
    [
        (20, {}, {}),
        (7, {"d_state": 3, "delta_rank": 5}, {"expand": 1, "d_conv": 1}),
        (33, {"d_state": 37}, {"conv_bias": False, "d_conv": 3}),
        (512, {"d_state": 16}, {}),
    ],
    ids=["small", "one-tap", "odd", "threads"],
)
@torch.inference_mode()
def test_equals_the_plain_step(rows: int, d_model: int, unit: dict, settings: dict, calls: list[int]) -> None:
    block = built(d_model, LayerSpec(S6, **unit), **settings)
    _, state = block(torch.randn(rows, 5, d_model), return_last_state=True)
    x = torch.randn(rows, d_model)
    strided = [part.transpose(0, 1).contiguous().transpose(0, 1) for part in (x, *state)]
    y, after = block.step(x, state)
    of_strided, _ = block.step(strided[0], (strided[1], strided[2]))
    assert len(calls) == 2
    wanted, wanted_after = Block.step(block, x, state)
    for a, b in zip((y, *after, of_strided), (wanted, *wanted_after, wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# A user's subclasses, which might compute something else.
OwnS6, OwnLinear = type("OwnS6", (S6,), {}), type("OwnLinear", (nn.Linear,), {})


def stride(block: MambaBlock) -> None:  # the call does not copy weights at each step
    block.out_proj.weight = nn.Parameter(block.out_proj.weight.t().contiguous().t())


OTHERS = {
    "another norm": ({"norm": "layer"}, None),
    "post-norm": ({"prenorm": False}, None),
    "biases": ({"bias": True}, None),
    "gated": ({"glu": True}, None),
    "another layer": ({"layer": LayerSpec(B2S6, num_blocks=1, bias=False, complex_A=False)}, None),
    "another f": ({"layer": LayerSpec(S6, parameterization="softplus")}, None),
    "a user's own layer": ({"layer": OwnS6}, None),
    "float64": ({}, nn.Module.double),
    "another projection": ({}, lambda block: setattr(block, "out_proj", OwnLinear(40, 20, bias=False))),
    "a hook": ({}, lambda block: block.out_proj.register_forward_hook(lambda module, inputs, y: 2 * y)),
    "a strided weight": ({}, stride),
}


@pytest.mark.parametrize(("settings", "change"), OTHERS.values(), ids=OTHERS)
@torch.no_grad()
def test_another_block_takes_the_plain_step(settings: dict, change: object, calls: list[int]) -> None:
    block = built(**settings)
    if change is not None:
        change(block)
    x = torch.randn(2, 20).to(block.in_proj.weight)
    y, _ = block.step(x, block.initial_state(2))
    assert not calls
    torch.testing.assert_close(y, block(x[:, None])[:, 0], rtol=1e-5, atol=1e-5)


def test_gradients_autocast_dropout_and_many_rows_take_the_plain_step(calls: list[int]) -> None:
    block = built()
    assert block.step(torch.randn(2, 20), block.initial_state(2))[0].requires_grad
    with torch.no_grad():
        block.step(torch.randn(9, 20), block.initial_state(9))
        with torch.autocast("cpu", torch.bfloat16):
            block.step(torch.randn(1, 20), block.initial_state(1))
        block.train().dropout.p = 0.5
        block.step(torch.randn(1, 20), block.initial_state(1))
    assert not calls
