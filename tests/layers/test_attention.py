"""Attention against its equations, one query and one head after another; states, documents, windows, padding; and the
Transformer's block around it."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lra_ssm.layers import LRU, Attention, LayerSpec, TransformerBlock, parameter_roles
from lra_ssm.layers.contract import check_call
from tests.each import each
from tests.layers.contract_checks import assert_same, gradients, sequences

FORMS = {
    "plain": {},
    "shared keys": {"n_kv_heads": 2},
    "window": {"window": 3},
    "window of one": {"window": 1, "positions": "none"},
    "learned": {"positions": "learned", "max_length": 70, "bias": True},
    "none": {"positions": "none", "n_kv_heads": 1},
    "wide heads": {"d_head": 6},
}
every_form = each("form", FORMS)
D, H = 8, 4


def build(form, **settings):
    torch.manual_seed(0)
    return Attention(D, H, **{**FORMS[form], **settings}).double()


def naive(layer, x):
    """Of one sequence x (L, D), a document whole."""
    L, K = len(x), layer.d_head
    if layer.position_embedding is not None:
        x = x + layer.position_embedding.weight[:L]
    qkv = x @ layer.qkv_proj.weight.T + (0 if layer.qkv_proj.bias is None else layer.qkv_proj.bias)
    G = layer.n_kv_heads
    q, k, v = (part.view(L, -1, K) for part in qkv.split([H * K, G * K, G * K], dim=-1))
    if layer.positions == "rope":  # channel j and j + K/2 are a complex number, turned by position times base^(-2j/K)
        waves = torch.tensor([10_000 ** (-2 * j / K) for j in range(K // 2)], dtype=torch.float64)
        turns = torch.polar(torch.ones(()).double(), torch.arange(L)[:, None, None] * waves)
        turned = [torch.complex(*part.chunk(2, -1)) * turns for part in (q, k)]
        q, k = (torch.cat([part.real, part.imag], -1) for part in turned)
    rows = []
    for t in range(L):
        seen = [s for s in range(L) if (s <= t or not layer.causal) and abs(s - t) < (layer.window or L)]
        heads = []
        for h in range(H):
            g = h // (H // G)
            weights = torch.stack([q[t, h] @ k[s, g] for s in seen]).div(math.sqrt(K)).softmax(0)
            heads.append(sum(w * v[s, g] for w, s in zip(weights, seen, strict=True)))
        rows.append(torch.cat(heads))
    return F.linear(torch.stack(rows), layer.out_proj.weight, layer.out_proj.bias)


@every_form
@each("causal", [True, False])
@each("L", [1, 2, 13])
def test_equals_its_equations_with_every_gradient(form, causal, L):
    layer, x = build(form, causal=causal), sequences(L=L, D=D).requires_grad_()
    inputs = [x, *layer.parameters()]
    fast, slow = layer(x), torch.stack([naive(layer, row) for row in x])
    assert_same(fast, slow)
    for a, b in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@every_form
def test_steps_and_prefixes_equal_the_whole(form):
    layer, x = build(form), sequences(L=9, D=D)
    whole, last = layer(x, return_last_state=True)
    state, outputs = layer.initial_state(2), []
    for t in range(9):
        y, state = layer.step(x[:, t], state)
        outputs.append(y)
        assert state[0].shape[1] == min(t + 1, layer.window or 9)
    assert_same(torch.stack(outputs, 1), whole)
    for a, b in zip(state, last, strict=True):
        assert_same(a.double(), b.double())
    y, state = layer(x[:, :4], return_last_state=True)
    assert_same(torch.cat([y, layer(x[:, 4:], initial_state=state)], 1), whole)


@every_form
@each("causal", [True, False])
def test_padding_never_leaks_and_documents_are_apart(form, causal):
    layer, x, lengths = build(form, causal=causal), sequences(B=3, L=9, D=D), torch.tensor([9, 4, 1])
    y = layer(x, lengths)
    for i, n in enumerate(lengths.tolist()):
        assert_same(y[i, :n], layer(x[i : i + 1, :n])[0])
        assert (y[i, n:] == 0).all()
    reset = torch.zeros(3, 9, dtype=torch.bool)
    reset[0, 4] = reset[1, 0] = reset[1, 7] = reset[1, 8] = True
    y = layer(x, reset=reset)
    for row, ends in ((0, (0, 4, 9)), (1, (0, 7, 8, 9)), (2, (0, 9))):
        parts = [layer(x[row : row + 1, a:b])[0] for a, b in zip(ends, ends[1:], strict=False)]
        assert_same(y[row], torch.cat(parts))


@every_form
def test_pieces_with_lengths_and_documents_go_on_as_the_whole(form):
    """What stands at padding is in no state, and rows of different lengths step on each from its own end."""
    layer, x, lengths = build(form), sequences(B=4, L=9, D=D), torch.tensor([9, 5, 1, 0])
    reset = torch.zeros(4, 9, dtype=torch.bool)
    reset[0, 4] = reset[1, 0] = reset[1, 7] = reset[1, 8] = reset[3, 2] = True
    reset &= torch.arange(9) < lengths[:, None]
    whole, last = layer(x, lengths, reset=reset, return_last_state=True)
    state, outputs = layer.initial_state(4), []
    for t in range(0, 9, 2):
        piece = slice(t, t + 2)
        real = (lengths - t).clamp(0, min(2, 9 - t))
        y, state = layer(x[:, piece], real, reset=reset[:, piece], initial_state=state, return_last_state=True)
        outputs.append(y)
    assert_same(torch.cat(outputs, 1), whole)
    next_x = sequences(B=4, L=1, D=D)[:, 0]
    y = layer.step(next_x, last)[0]
    assert_same(layer.step(next_x, state)[0], y)
    for row, begin in enumerate((4, 0, 0, 0)):
        own = torch.cat([x[row, begin : lengths[row]], next_x[row : row + 1]])
        assert_same(y[row], layer(own[None])[0, -1])


def test_positions_far_behind_are_exact_in_float32():
    """The angle at position 10^6 is known to a rounding of itself."""
    layer, x = build("plain").float(), sequences(L=3, D=D).float()
    far = (*(part[:, :0].new_zeros(2, 1, H, D // H) for part in (x, x)), torch.full((2, 1), 10**6))
    hidden = (*far[:2], torch.full((2, 1), -1))
    near = layer(x, initial_state=hidden)
    cut = torch.zeros(2, 3, dtype=torch.bool)
    cut[:, 0] = True
    assert torch.allclose(layer(x, reset=cut, initial_state=far), near, atol=1e-6)
    q = layer._project(x, torch.arange(3)[None] + 10**6)[0].double()
    expected = layer.double()._project(x.double(), torch.arange(3)[None] + 10**6)[0]
    torch.testing.assert_close(q, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_heads": 3}, "n_heads is 3; it must divide d_model 8"),
        ({"n_kv_heads": 3}, "n_kv_heads is 3; it must divide n_heads 4"),
        ({"n_heads": 8}, "heads of 1 channels; rotary positions need an even number"),
        ({"positions": "sine"}, "positions is 'sine'; it must be rope, learned or none"),
        ({"positions": "learned"}, "max_length is given with positions learned"),
        ({"window": 0}, "window is 0; it must be at least 1"),
        ({"dropout": 1.0}, "dropout is 1.0; it must be at least 0 and below 1"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        Attention(D, **{"n_heads": H, **settings})


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="not causal: it has no state"):
        build("plain", causal=False)(sequences(D=D), return_last_state=True)
    with pytest.raises(ValueError, match="x has 7 positions, and Attention learns max_length 5"):
        build("learned", max_length=5)(sequences(D=D))
    with pytest.raises(ValueError, match="mlp_activation is 'relu'; it must be gelu or swiglu"):
        TransformerBlock(D, LayerSpec(Attention, n_heads=H), mlp_activation="relu")
    with pytest.raises(ValueError, match="TransformerBlock mlp_factor 0.3: times d_model 8"):
        TransformerBlock(D, LayerSpec(Attention, n_heads=H), mlp_factor=0.3)


def transformer(block, x):
    """The block's equations, around a layer that is right."""
    mlp = {
        False: lambda y: block.fc2(nn.GELU("tanh")(block.fc1(y))),
        True: lambda y: block.fc2(F.silu(block.fc1(y)[..., :16]) * block.fc1(y)[..., 16:]),
    }[block._gated]
    if block.prenorm:
        x = x + block.layer(block.norm(x))
        return x + mlp(block.norm2(x))
    x = block.norm(x + block.layer(x))
    return block.norm2(x + mlp(x))


@each("prenorm", [True, False])
@each("activation", ["gelu", "swiglu"])
@each("layer", [LayerSpec(Attention, n_heads=H), LayerSpec(LRU, d_state=3)])
def test_the_block_is_its_equations(prenorm, activation, layer):
    torch.manual_seed(0)
    block = TransformerBlock(D, layer, 2.0, activation, norm="rms", prenorm=prenorm).double()
    check_call(block, "block", "x", "lengths")
    x, lengths = sequences(L=6, D=D), torch.tensor([6, 3])
    assert_same(block(x), transformer(block, x))
    y = block(x, lengths)
    assert_same(y[1, :3], block(x[1:, :3])[0])
    assert (y[1, 3:] == 0).all()
    state, outputs = block.initial_state(2), []
    for t in range(6):
        one, state = block.step(x[:, t], state)
        outputs.append(one)
    assert_same(torch.stack(outputs, 1), block(x))


def test_dropout_roles_and_scales():
    torch.manual_seed(0)
    block = TransformerBlock(D, LayerSpec(Attention, n_heads=H, dropout=0.5, bias=True), dropout=0.5)
    x = sequences(D=D).float()
    assert not torch.equal(block(x), block(x)) and torch.equal(block.eval()(x), block(x))
    without = {name for name, role in parameter_roles(block).items() if role == "no_decay"}
    assert without == {name for name, _ in block.named_parameters() if name.endswith(".bias")}
    before = block.layer.out_proj.weight.clone(), block.fc2.weight.clone()
    block.scale_residual(0.5)
    for old, new in zip(before, (block.layer.out_proj.weight, block.fc2.weight), strict=True):
        torch.testing.assert_close(new, old * 0.5 * 2**-0.5)
