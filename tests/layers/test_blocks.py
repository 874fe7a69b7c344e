"""Norms, dropout and the residual block; padding never leaks, also in training."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from lra_ssm.layers import (
    S4D,
    BatchNorm,
    Block,
    HyenaBlock,
    LayerSpec,
    Mamba2Block,
    MambaBlock,
    PlainBlock,
    S4Block,
    S5Block,
    TiedDropout,
    TransformerBlock,
    make_norm,
)
from lra_ssm.layers.masking import valid_mask
from tests.helpers import Smooth


class Identity(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()

    def forward(self, x, lengths=None):
        return x


def padded():
    x = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([6, 2, 3])
    for i, n in enumerate(lengths):
        x[i, n:] = 0
    return x, lengths


def test_batch_norm_sees_only_real_positions():
    x, lengths = padded()
    ours, plain = BatchNorm(4), nn.BatchNorm1d(4)
    y, expected = ours(x, lengths), plain(torch.cat([x[i, :n] for i, n in enumerate(lengths)]))
    torch.testing.assert_close(torch.cat([y[i, :n] for i, n in enumerate(lengths)]), expected)
    assert (y[1, 2:] == 0).all()
    for name, value in plain.named_buffers():
        torch.testing.assert_close(getattr(ours.norm, name), value)


def test_batch_norm_by_masked_sums_equals_that_of_packed_positions():
    """A GPU uses the first, a CPU the second; what stands at padding matters to neither."""
    x, lengths = padded()
    x[1, 2:] = 7.0
    valid, weights = valid_mask(lengths, 6), torch.arange(4.0).double()
    ours, packed = BatchNorm(4).double(), BatchNorm(4).double()
    ours.norm.weight.data = packed.norm.weight.data = weights + 1
    for training in (True, True, False):
        a, b = (x.double().requires_grad_() for _ in range(2))
        y, wanted = ours.train(training)._masked(a, valid), packed.train(training)._packed(b, valid.squeeze(-1))
        torch.testing.assert_close(y, wanted)
        got, expected = (
            torch.autograd.grad((out * weights).square().sum(), (inputs, *norm.parameters()))
            for out, inputs, norm in ((y, a, ours), (wanted, b, packed))
        )
        torch.testing.assert_close(got[1:], expected[1:])
        assert (got[0] - expected[0])[valid.expand_as(x)].abs().max() < 1e-12
    for name, value in packed.norm.named_buffers():
        torch.testing.assert_close(getattr(ours.norm, name), value)


@pytest.mark.parametrize("prenorm", [False, True])
def test_a_norm_that_counts_padding_sees_the_blocks_outputs_there(prenorm):
    """As state-spaces/s4 computes it: the layer reads zeros at padding, and nothing else is masked."""
    x, lengths = torch.randn(3, 6, 4), padded()[1]
    block = S4Block(4, LayerSpec(S4D, d_state=4, bidirectional=True), "batch_padded", prenorm)

    def norm(x):
        return functional.batch_norm(x.flatten(0, 1), None, None, training=True).view_as(x)

    u = (norm(x) if prenorm else x) * valid_mask(lengths, x.shape[1])
    y = x + functional.glu(block.glu(functional.gelu(block.layer(u))), dim=-1)
    y = y if prenorm else norm(y)
    torch.testing.assert_close(block(x, lengths), y)


@pytest.mark.parametrize("kind", [S4Block, HyenaBlock])
@pytest.mark.parametrize("norm", ["batch", "layer", "rms"])
@pytest.mark.parametrize("prenorm", [False, True])
def test_a_block_in_training_gives_the_same_in_any_padding(kind, norm, prenorm):
    torch.manual_seed(0)
    block = kind(4, LayerSpec(S4D, d_state=4, bidirectional=True), norm=norm, prenorm=prenorm)
    x, lengths = padded()
    wider = torch.cat([x, torch.full((3, 5, 4), 7.0)], 1)
    a, b = block(x, lengths), block(wider, lengths)
    torch.testing.assert_close(a, b[:, :6], rtol=1e-5, atol=1e-6)
    assert (b[:, 6:] == 0).all() and (a[1, 2:] == 0).all()


def test_dropout_is_tied_over_length_and_keeps_the_mean():
    torch.manual_seed(0)
    dropout = TiedDropout(0.25)
    y = dropout(torch.ones(200, 7, 50))
    assert (y == y[:, :1]).all()
    assert set(y.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs((y == 0).float().mean() - 0.25) < 0.02
    assert dropout.eval()(y) is y


@pytest.mark.parametrize("kind", [S4Block, S5Block, MambaBlock, Mamba2Block, HyenaBlock, TransformerBlock, PlainBlock])
def test_a_users_layer_only_needs_forward_and_is_named_where_it_lacks_something(kind):
    block, x = kind(4, Smooth), torch.randn(2, 7, 4)
    assert block(x, torch.tensor([7, 3])).shape == x.shape
    assert block.layer.mix.in_channels == (8 if "Mamba" in kind.__name__ else 4)
    state = (block.conv1d.initial_state(2), None) if hasattr(block, "conv1d") else None
    for call, message in [
        (lambda: block(x, reset=torch.zeros(2, 7, dtype=torch.bool)), "takes no `reset`: documents cannot be packed"),
        (lambda: block(x, return_last_state=True), "takes no `return_last_state`"),
        (lambda: block.step(x[:, 0], state), "Smooth has no `step`: it cannot run step by step"),
        (lambda: block.initial_state(2), "Smooth has no `initial_state`: it cannot run step by step"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_s5s_block_starts_as_its_public_code_and_no_norm_ends_the_stack():
    block = S5Block(4, Identity)
    assert block.norm.norm.momentum == pytest.approx(0.05)
    assert block.glu.weight.shape == (4, 4) and block.final_norm(4) is None
    assert S5Block(4, Identity, "full_glu").glu.weight.shape == (8, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: S5Block(4, Identity, "gelu"), "activation is 'gelu'; it must be half_glu1, half_glu2 or full_glu"),
        (lambda: S5Block(4, Identity, norm_momentum=1.5), "norm_momentum is 1.5"),
        (lambda: PlainBlock(4, Identity, "sigmoid"), "nonlinearity is 'sigmoid'; it must be one of none, relu, gelu"),
        (lambda: make_norm("group", 4), "norm is 'group'; it must be one of batch, batch_padded, layer, rms"),
        (lambda: TiedDropout(1), "dropout is 1"),
    ],
)
def test_wrong_settings_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


class Bare(Block):
    """A block in which nothing keeps a state."""

    stateful = ()

    def mixer(self, x, run_part):
        return x.sin()


def test_a_block_without_a_state_has_steps_too():
    block, x = Bare(4, "layer", prenorm=True), torch.randn(2, 5, 4)
    y, state = block(x, return_last_state=True)
    assert state == block.initial_state(2) == ()
    steps = torch.stack([block.step(x_t, state)[0] for x_t in x.unbind(1)], 1)
    torch.testing.assert_close(steps, y)


class Idle(Bare):
    """A block that does not run its stateful part, or runs another one."""

    stateful = ("layer",)

    def __init__(self, d_model: int, runs: tuple[str, ...] = ()) -> None:
        super().__init__(d_model, "layer", prenorm=True)
        self.layer, self.runs = S4D(d_model), runs

    def mixer(self, x, run_part):
        for name in self.runs:
            x = run_part(name, x)
        return x


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ((), "Idle has to run its stateful part 'layer', by run_part"),
        (("norm",), "part 'norm' is not one of its state"),
    ],
)
def test_a_block_that_does_not_run_its_stateful_part_is_named(runs, message):
    block, x = Idle(4, runs), torch.randn(2, 5, 4)
    for call in (lambda: block(x, return_last_state=True), lambda: block.step(x[:, 0], block.initial_state(2))):
        with pytest.raises((ValueError, KeyError), match=message):
            call()
