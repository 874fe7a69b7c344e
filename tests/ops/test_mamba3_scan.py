"""Mamba-3's scan against a loop of the paper's recurrence with complex states, and its step against the scan."""

import pytest
import torch

from lra_ssm.ops import mamba3_scan, mamba3_step
from tests.ops.scan_cases import assert_close, random_reset, weighted_sum

SHAPES = {"batch": 2, "L": 21, "H": 3, "P": 2, "N": 6, "R": 2}


def make(*, batch, L, H, P, N, R, initial=True):
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    inputs = {
        "x": randn(batch, L, H, P), "delta": randn(batch, L, H).abs(), "A": -randn(batch, L, H).abs(),
        "trapezoid": randn(batch, L, H).sigmoid(), "angles": 3 * randn(batch, L, R), "B": randn(batch, L, H, N),
        "C": randn(batch, L, H, N), "D": randn(H), "initial_state": randn(batch, H, P + 1, N + 1),
    }  # fmt: skip
    inputs["initial_state"][..., -1, -1] = 0
    return {name: x for name, x in inputs.items() if initial or name != "initial_state"}


def loop(x, delta, A, trapezoid, angles, B, C, D, initial_state=None, reset=None, valid=None):
    """Lahoti et al. 2026: h_t = α (h_{t-1} + (1 - λ) Δ B_{t-1} x_{t-1}) + λ Δ B_t x_t, α = exp(Δ (A - iθ)) by pairs."""
    (batch, L, H, P), N = x.shape, B.shape[-1]
    rates = torch.cat([angles, angles.new_zeros(batch, L, N // 2 - angles.shape[2])], -1)

    def pairs(t):
        return torch.complex(t[..., 0::2], t[..., 1::2])

    if initial_state is None:
        initial_state = x.new_zeros(batch, H, P + 1, N + 1)
    h, last_x, last_B = pairs(initial_state[..., :P, :N]), initial_state[..., :P, N], initial_state[..., P, :N]
    outputs = []
    for t in range(L):
        if reset is not None:
            keep = ~reset[:, t, None, None]
            h, last_x, last_B = h * keep[..., None], last_x * keep, last_B * keep
        step, mix = delta[:, t, :, None, None], trapezoid[:, t, :, None, None]
        alpha = torch.exp(step * torch.complex(A[:, t, :, None], -rates[:, t, None])[:, :, None])
        after = alpha * (h + (1 - mix) * step * last_x[..., None] * pairs(last_B)[:, :, None])
        after = after + mix * step * x[:, t, ..., None] * pairs(B[:, t])[:, :, None]
        outputs.append((after * pairs(C[:, t])[:, :, None].conj()).sum(-1).real + D[:, None] * x[:, t])
        real = torch.ones(batch, dtype=torch.bool) if valid is None else valid[:, t]
        h = torch.where(real[:, None, None, None], after, h)
        last_x, last_B = (
            torch.where(real[:, None, None], now, before) for now, before in ((x[:, t], last_x), (B[:, t], last_B))
        )
    state = torch.view_as_real(h).flatten(-2)
    state = torch.cat([state, last_x[..., None]], -1)
    corner = torch.cat([last_B, torch.zeros_like(last_B[..., :1])], -1)
    return torch.stack(outputs, 1), torch.cat([state, corner[..., None, :]], -2)


@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("R, chunk_size", [(2, 4), (3, None), (0, 16)])
def test_values_and_every_gradient_against_the_loop(R, chunk_size, initial, with_reset):
    inputs = {name: x.requires_grad_() for name, x in make(**SHAPES | {"R": R}, initial=initial).items()}
    reset = random_reset(2, SHAPES["L"]) if with_reset else None
    ours = mamba3_scan(**inputs, reset=reset, chunk_size=chunk_size, return_last_state=True)
    expected = loop(**inputs, reset=reset)
    results = []
    for y, state in (ours, expected):
        used = [x for x in inputs.values() if x.numel()]
        results.append([y, state, *torch.autograd.grad(weighted_sum(y, state), used)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


def test_padding_leaves_the_state_as_it_was():
    inputs, valid = make(**SHAPES), torch.arange(SHAPES["L"]) < torch.tensor([[9], [0]])
    y, state = mamba3_scan(**inputs, valid=valid, return_last_state=True)
    expected, last = loop(**inputs, valid=valid)
    torch.testing.assert_close(y[0, :9], expected[0, :9], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(state, last, rtol=1e-9, atol=1e-11)


def test_steps_are_the_scan():
    x = {name: value.requires_grad_() for name, value in make(**SHAPES | {"L": 5}).items()}
    y, last = mamba3_scan(**x, return_last_state=True)
    D, state, outputs = x["D"], x["initial_state"], []
    names = ("x", "delta", "A", "trapezoid", "angles", "B", "C")
    for k in range(5):
        y_k, state = mamba3_step(*(x[name][:, k] for name in names), D, state)
        outputs.append(y_k)
    losses = [weighted_sum(*pair) for pair in ((y, last), (torch.stack(outputs, 1), state))]
    grads = [torch.autograd.grad(loss, list(x.values())) for loss in losses]
    assert_close(dict(zip(x, grads[1], strict=True)), dict(zip(x, grads[0], strict=True)))


def test_eulers_rule_without_rotation_is_the_scan_of_mamba2():
    from lra_ssm.ops import ssd_scan

    x = make(**SHAPES, initial=False) | {"angles": torch.zeros(2, SHAPES["L"], 0)}
    A = -torch.rand(SHAPES["H"], dtype=torch.float64)
    y = mamba3_scan(**x | {"trapezoid": torch.ones_like(x["delta"]), "A": A.expand_as(x["delta"])})
    torch.testing.assert_close(y, ssd_scan(x["x"], x["delta"], A, x["B"], x["C"], x["D"]), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("decay", [1e-6, 1e3])
def test_float32(decay):
    wide = make(**SHAPES | {"L": 300}, initial=False)
    wide["A"] = wide["A"] * decay
    y = mamba3_scan(**{name: x.float() for name, x in wide.items()})
    assert y.dtype == torch.float32
    assert_close({"y": y.double()}, {"y": loop(**wide)[0]}, 2e-5)  # phases of up to 900 radians, in float32 inputs


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"A": torch.zeros(3)}, r"A: shape \(3,\); expected \(batch, L, H\) = \(2, 21, 3\)"),
        ({"angles": torch.zeros(2, 21, 4)}, r"angles: shape .*; expected \(batch, L, R\) with 2 R at most N = 6"),
        ({"initial_state": torch.zeros(2, 3, 2, 6)}, r"initial_state: shape .* = \(2, 3, 3, 7\)"),
    ],
)
def test_what_does_not_fit_is_one_line(wrong, message):
    with pytest.raises(ValueError, match=message):
        mamba3_scan(**make(**SHAPES) | wrong)
