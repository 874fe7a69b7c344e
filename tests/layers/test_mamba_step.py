"""A step of Mamba's block with S6 in one call: what it gives, and when it is not taken."""

import pytest
import torch
from torch import nn

from lra_ssm.layers import B2S6, S6, LayerSpec, MambaBlock
from lra_ssm.layers.blocks import Block
from lra_ssm.layers.recurrent import RecurrentLayer
from lra_ssm.ops.backends import cpu_pieces
from tests.ops.scan_cases import needs_compiled

pytestmark = needs_compiled


def built(d_model: int = 20, layer: object = None, **settings: object) -> MambaBlock:
    torch.manual_seed(0)
    block = MambaBlock(d_model, LayerSpec.of(layer or S6), **settings).eval()
    with torch.no_grad():
        for parameter in block.parameters():  # none at 1 or 0, where a mistake does not show
            parameter += 0.4 * d_model**-0.5 * torch.randn_like(parameter)
    return block


def after_some(block: MambaBlock, rows: int, D: int = 20) -> tuple[torch.Tensor, object]:
    """An input and a state that is not zero."""
    _, state = block(torch.randn(rows, 5, D), return_last_state=True)
    return torch.randn(rows, D), state


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls, native = [], cpu_pieces.mamba_step
    monkeypatch.setattr(cpu_pieces, "mamba_step", lambda *a, **k: calls.append(1) or native(*a, **k))
    return calls


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("d_model", "unit", "settings"),
    [
        (20, {}, {}),
        (7, {"d_state": 3, "delta_rank": 5}, {"expand": 1, "d_conv": 1}),
        (33, {"d_state": 37}, {"conv_bias": False, "d_conv": 3}),
        (512, {"d_state": 16}, {}),  # enough for several threads
    ],
    ids=["small", "one-tap", "odd", "threads"],
)
@torch.inference_mode()
def test_is_the_plain_step(rows: int, d_model: int, unit: dict, settings: dict, called: list[int]) -> None:
    block = built(d_model, LayerSpec(S6, **unit), **settings)
    x, state = after_some(block, rows, d_model)
    y, after = block.step(x, state)
    assert called
    wanted, wanted_after = Block.step(block, x, state)
    torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)
    for a, b in zip(after, wanted_after, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_its_steps_continue_each_other(called: list[int]) -> None:
    block, x = built(), torch.randn(2, 9, 20)
    state, outputs = block.initial_state(2), []
    for t in range(9):
        y, state = block.step(x[:, t], state)
        outputs.append(y)
    assert len(called) == 9
    whole, last = block(x, return_last_state=True)
    torch.testing.assert_close(torch.stack(outputs, 1), whole, rtol=1e-5, atol=1e-5)
    for a, b in zip(state, last, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


class OwnS6(S6):
    def _projections(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        delta, B, C = super()._projections(x)
        return delta, 2 * B, C

    def scan_step(self, x_t: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return RecurrentLayer.scan_step(self, x_t, state)


OTHERS = {
    "another norm": built(norm="layer"),
    "norm behind": built(prenorm=False),
    "biases": built(bias=True),
    "gated": built(glu=True),
    "another layer": built(layer=LayerSpec(B2S6, num_blocks=1, bias=False, complex_A=False)),
    "another f": built(layer=LayerSpec(S6, parameterization="softplus")),
    "a layer of one's own": built(layer=OwnS6),
    "double": built().double(),
}


@pytest.mark.parametrize("name", OTHERS)
@torch.no_grad()
def test_another_block_steps_as_ever(name: str, called: list[int]) -> None:
    block = OTHERS[name]
    x = torch.randn(2, 20).to(block.in_proj.weight)
    y, _ = block.step(x, block.initial_state(2))
    assert not called
    torch.testing.assert_close(y, block(x[:, None])[:, 0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_what_stands_in_a_projections_place_is_called(called: list[int]) -> None:
    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    block, hooked, x = built(), built(), torch.randn(1, 20)
    doubled = Doubled(40, 20, bias=False)
    doubled.weight.copy_(block.out_proj.weight)
    block.out_proj = doubled
    hooked.out_proj.register_forward_hook(lambda module, inputs, y: 2 * y)
    a, b = (one.step(x, one.initial_state(1))[0] for one in (block, hooked))
    assert not called
    torch.testing.assert_close(a, b)


def test_gradients_and_many_rows_take_the_plain_way(called: list[int]) -> None:
    block = built()
    y, _ = block.step(torch.randn(2, 20), block.initial_state(2))
    assert y.requires_grad
    with torch.no_grad():
        block.step(torch.randn(9, 20), block.initial_state(9))
        with torch.autocast("cpu", torch.bfloat16):
            block.step(torch.randn(1, 20), block.initial_state(1))
        block.train()
        block.dropout.p = 0.5
        block.step(torch.randn(1, 20), block.initial_state(1))
    assert not called


@torch.no_grad()
def test_takes_whatever_lies_otherwise_in_memory(called: list[int]) -> None:
    block = built()
    x, (window, state) = after_some(block, 2)
    strided = [part.transpose(0, 1).contiguous().transpose(0, 1) for part in (x, window, state)]
    wanted, _ = block.step(x, (window, state))
    torch.testing.assert_close(block.step(strided[0], (strided[1], strided[2]))[0], wanted)
    assert len(called) == 2
    block.out_proj.weight = nn.Parameter(block.out_proj.weight.t().contiguous().t())  # no copy of weights at each step
    torch.testing.assert_close(block.step(x, (window, state))[0], wanted)
    assert len(called) == 2
