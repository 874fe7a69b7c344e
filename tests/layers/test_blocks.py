"""Norms, dropout, residuals and user's parts of blocks; test_contract.py has what all blocks share."""

import pytest
import torch
from torch import nn

from lra_ssm import layers
from lra_ssm.layers import S4D, S6, BatchNorm, Block, HyenaBlock, LayerSpec, MambaBlock, S4Block, S5Block, TiedDropout
from lra_ssm.layers.masking import valid_mask
from tests.helpers import Smooth
from tests.layers.cases import OF_REAL, sequences

STABLE = LayerSpec(layers.StableSSM, **OF_REAL)
ATTENTION = LayerSpec(layers.Attention, n_heads=2)


def padded():
    x = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([6, 2, 3])
    return x.masked_fill(~valid_mask(lengths, 6), 0), lengths


@pytest.mark.parametrize("masked", [False, True])
def test_batch_norm_is_that_of_the_real_positions(masked):
    """As a CPU computes it, by packing them, and as a GPU does, by masked sums; what stands at padding is not seen."""
    x, lengths = padded()
    x, valid, weights = x.double(), valid_mask(lengths, 6), torch.arange(4.0).double()
    x[1, 2:] = 7.0
    ours, plain = BatchNorm(4).double(), nn.BatchNorm1d(4).double()
    ours.norm.weight.data = plain.weight.data = weights + 1
    for training in (True, True, False):
        ours.train(training), plain.train(training)
        a, b = (x.clone().requires_grad_() for _ in range(2))
        y = ours._masked(a, valid) if masked else ours(a, lengths)
        expected = torch.zeros_like(x).index_put((valid.squeeze(-1),), plain(b[valid.squeeze(-1)]))
        torch.testing.assert_close(y, expected)
        got, wanted = (
            torch.autograd.grad((out * weights).square().sum(), (given, *norm.parameters()))
            for out, given, norm in ((y, a, ours), (expected, b, plain))
        )
        torch.testing.assert_close(got, wanted)
    for name, value in plain.named_buffers():
        torch.testing.assert_close(getattr(ours.norm, name), value)


@pytest.mark.parametrize("kind", [S4Block, HyenaBlock])
@pytest.mark.parametrize("prenorm", [False, True])
def test_batch_norm_in_a_block_counts_no_padding(kind, prenorm):
    torch.manual_seed(0)
    block = kind(4, LayerSpec(S4D, d_state=4, bidirectional=True), norm="batch", prenorm=prenorm)
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


def test_hyenas_dropout_is_of_single_positions_before_the_mixer_and_both_residuals():
    block, x = HyenaBlock(4, STABLE, skip=False, gate_dropout=0.5), torch.ones(1, 64, 4)
    seen = []
    block.layer.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    block(x)
    dropped = seen[0] == 0
    assert 0.3 < dropped.double().mean() < 0.7 and 0 < dropped[0, :, 0].sum() < 64
    torch.manual_seed(3)
    block = HyenaBlock(4, STABLE, dropout=0.5)
    assert 0.1 < ((block(x) - x)[0] == 0).double().mean() < 0.4  # where both sublayers were dropped
    assert torch.equal(block.eval()(x), block(x))


@pytest.mark.parametrize(
    ("kind", "layer", "settings", "factors"),
    [
        (HyenaBlock, STABLE, {}, {"out_proj.weight": 2**-0.5, "mlp.fc2.weight": 2**-0.5}),
        (HyenaBlock, STABLE, {"mlp_factor": 0}, {"out_proj.weight": 1}),
        (layers.TransformerBlock, ATTENTION, {}, {"layer.out_proj.weight": 2**-0.5, "mlp.fc2.weight": 2**-0.5}),
    ],
)
def test_what_is_added_to_the_residual_is_scaled_at_initialization(kind, layer, settings, factors):
    block = kind(4, layer, **settings)
    before = {name: weight.clone() for name, weight in block.named_parameters()}
    block.scale_residual(0.5)
    for name, after in block.named_parameters():
        torch.testing.assert_close(after, 0.5 * factors[name] * before[name] if name in factors else before[name])


class Wrapped(S6):
    def forward(self, x, lengths=None, **given):
        return super().forward(x, lengths, **given)


@pytest.mark.slow
def test_a_wrapped_or_compiled_layer_is_accepted():
    x, block = sequences(D=4).float(), MambaBlock(4, S6)
    block.layer = torch.compile(block.layer, backend="eager")
    for each in (MambaBlock(4, Wrapped), block):
        y, (taps, state) = each(x, return_last_state=True)
        assert y.shape == x.shape and state.shape == (2, 8, 16)


def test_sizes_that_floats_only_nearly_hold_and_s5s_momentum():
    for expand, d_model in ((2.3, 100), (2.2, 25), (1.1, 50)):
        assert MambaBlock(d_model, Smooth, expand=expand).out_proj.in_features == round(expand * d_model)
    assert S5Block(4, Smooth).norm.norm.momentum == pytest.approx(0.05)


class Own(Block):
    """A block of a user's own, which does not have to keep a state."""

    stateful = ()

    def mixer(self, x, run_part):
        return x.sin()


def test_a_block_without_a_state_has_steps():
    block, x = Own(4, "layer", prenorm=True), torch.randn(2, 5, 4)
    y, state = block(x, return_last_state=True)
    assert state == block.initial_state(2) == ()
    torch.testing.assert_close(torch.stack([block.step(x_t, state)[0] for x_t in x.unbind(1)], 1), y)
