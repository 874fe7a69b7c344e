"""Every backend of the selective scan against the reference: values, last state and every gradient."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from lra_ssm.ops import causal_convolution, s4d_kernel, selective_scan
from lra_ssm.ops.backends import eager
from tests.ops.scan_cases import BACKENDS, FAST, OPTIONAL, Case, assert_close, make_inputs, random_reset, run

# A covering set: every form of B and C and every option in some combination, different groups for B and C.
CASES = [
    Case(B="constant", C="constant"),
    Case(B="constant", C="2 real", softplus=True, reset=True, optional=OPTIONAL),
    Case(B="2 real", C="constant", softplus=True, optional=("D", "B_bias"), tied_A=True),
    Case(B="no group real", C="no group real", softplus=True, optional=("D", "z", "delta_bias")),
    Case(B="1 real", C="4 real", softplus=True, reset=True, optional=("B_bias", "initial_state")),
    Case(B="4 real", C="2 real", reset=True, optional=OPTIONAL, tied_A=True),
    Case(B="constant", C="constant", zoh=True, softplus=True, reset=True, optional=OPTIONAL, tied_A=True),
    Case(B="no group real", C="2 real", zoh=True, optional=("initial_state",)),
    Case(B="2 real", C="no group real", zoh=True, softplus=True, reset=True, optional=OPTIONAL),
    Case(B="2 real", C="constant", zoh=True, softplus=True, optional=("z", "B_bias")),
    Case(B="4 real", C="1 real", zoh=True, softplus=True, optional=("D", "z", "delta_bias"), tied_A=True),
    Case(complex_A=True, B="constant", C="constant", tied_A=True),
    Case(complex_A=True, B="constant real", C="2 complex", softplus=True, reset=True, optional=OPTIONAL),
    Case(complex_A=True, B="constant", C="4 interleaved", softplus=True, optional=("delta_bias", "B_bias")),
    Case(complex_A=True, B="2 interleaved", C="constant", softplus=True, reset=True, optional=OPTIONAL),
    Case(
        complex_A=True,
        B="no group interleaved",
        C="no group interleaved",
        softplus=True,
        optional=("D", "z", "delta_bias"),
    ),
    Case(complex_A=True, B="1 real", C="2 complex", reset=True, optional=("B_bias",)),
    Case(complex_A=True, B="4 complex", C="no group real", softplus=True, reset=True, optional=OPTIONAL, tied_A=True),
    Case(
        complex_A=True,
        B="2 interleaved",
        C="4 real",
        zoh=True,
        softplus=True,
        optional=OPTIONAL,
        tied_A=True,
    ),
    Case(
        complex_A=True,
        B="2 real",
        C="constant real",
        zoh=True,
        softplus=True,
        reset=True,
        optional=("D", "z", "delta_bias", "initial_state"),
    ),
    Case(complex_A=True, B="constant", C="constant", zoh=True, softplus=True, reset=True, optional=OPTIONAL),
    Case(
        complex_A=True,
        B="constant real",
        C="1 interleaved",
        zoh=True,
        optional=("B_bias", "initial_state"),
        tied_A=True,
    ),
    Case(
        complex_A=True,
        B="no group complex",
        C="2 interleaved",
        zoh=True,
        softplus=True,
        reset=True,
        optional=OPTIONAL,
    ),
    Case(complex_A=True, B="4 interleaved", C="4 complex", zoh=True, reset=True, optional=("z",)),
]


def compare(inputs, **flags):
    """Every fast backend with the reference; eager in chunks of 16 steps, so that short inputs cross chunks."""
    expected = run(inputs, "reference", **flags)
    with mock.patch.object(eager, "STEPS", 16):
        for backend in FAST:
            assert_close(run(inputs, backend, **flags), expected, by=f"by {backend}")


@pytest.mark.parametrize("case", CASES)
def test_forms_and_options(case):
    compare(case.inputs(batch=3), **case.flags(batch=3))


@pytest.mark.parametrize("complex_A", [False, True])
@pytest.mark.parametrize("L", [1, 2, 16, 63, 128, 257, 1024])
def test_lengths(L, complex_A):
    form = "2 interleaved" if complex_A else "2 real"
    inputs = make_inputs(complex_A, form, "1 real", batch=1, D=2, N=2, L=L)
    compare(inputs, discretization="zoh" if complex_A else "euler", delta_softplus=True, reset=random_reset(1, L))


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_by_hand(backend):
    """Two steps, one channel, one state, computed by hand."""
    ln2 = torch.log(torch.tensor(2.0, dtype=torch.float64))
    u = torch.tensor([[[3.0, 5.0]]], dtype=torch.float64)
    delta, A = torch.ones_like(u) * ln2, -torch.ones(1, 1, dtype=torch.float64)  # A_bar = 1/2
    B, C = torch.tensor([[[2.0, 7.0]]], dtype=torch.float64), torch.tensor([[[1.0, 10.0]]], dtype=torch.float64)
    y, state = selective_scan(u, delta, A, B, C, discretization="zoh", return_last_state=True, backend=backend)
    # B_bar = (1/2 - 1)/(-1) = 1/2: x_0 = 2*3/2 = 3, x_1 = 3/2 + 7*5/2 = 19
    torch.testing.assert_close(y, torch.tensor([[[3.0, 190.0]]], dtype=torch.float64))
    torch.testing.assert_close(state, torch.tensor([[[19.0]]], dtype=torch.float64))
    y = selective_scan(u, delta, A + 0j, B, C, torch.tensor([1.0], dtype=torch.float64), backend=backend)
    # euler: x_0 = 6 ln2, x_1 = 3 ln2 + 35 ln2; complex: 2 Re; D u
    torch.testing.assert_close(y, torch.stack([12 * ln2 + 3, 760 * ln2 + 5]).view(1, 1, 2))


@pytest.mark.parametrize("discretization", ["euler", "zoh"])
@pytest.mark.parametrize("complex_A", [False, True])
@pytest.mark.parametrize("magnitude", [0.0, 1e-200, 1e-30, 1e-12, 1e-6, 1e-3])
def test_small_A(magnitude, complex_A, discretization):
    """Values and gradients stay right as A -> 0, and at A == 0."""
    inputs = make_inputs(complex_A, "2 real", "1 real", L=21)
    inputs["A"] = magnitude * inputs["A"]
    inputs["A"][0, 0] = -0.5
    compare(inputs, discretization=discretization)


@pytest.mark.parametrize("discretization", ["euler", "zoh"])
@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_errors_of_phases_do_not_add_up(backend, discretization):
    """An impulse, 2,048 steps of different sizes later, in float32: a frequency that was rounded once, or a sine with
    an error of the same sign everywhere, would leave 7e-5 of it at some frequency."""
    generator = torch.Generator().manual_seed(0)
    delta = 0.1 + 0.9 * torch.rand(1, 64, 2048, generator=generator)
    A = torch.complex(torch.full((64, 1), -1e-4), 0.1 + 3 * torch.rand(64, 1, generator=generator))
    u, one = torch.eye(2048)[:1].expand(1, 64, 2048), torch.ones(64, 1, dtype=torch.complex64)
    flags = dict(discretization=discretization, return_last_state=True)
    _, state = selective_scan(u, delta, A, one, one, backend=backend, **flags)
    wide = [x.to(torch.complex128 if x.is_complex() else torch.float64) for x in (u, delta, A, one, one)]
    _, truth = selective_scan(*wide, backend="reference", **flags)
    assert (state / truth - 1).abs().max() < 3e-5


@pytest.mark.parametrize("complex_A", [False, True])
def test_kernel_and_convolution_agree_with_the_scan(complex_A):
    """With constant delta, B and C the scan is a convolution with S4D's kernel."""
    inputs = make_inputs(complex_A, "constant", "constant", L=300, optional=())
    delta = inputs["delta"][0, :, 0].clone()
    inputs["delta"] = delta[:, None].expand_as(inputs["u"])
    y = selective_scan(**inputs, discretization="zoh")
    kernel = s4d_kernel(delta, inputs["A"], inputs["B"], inputs["C"], 300)
    torch.testing.assert_close(y, causal_convolution(inputs["u"], kernel), rtol=1e-9, atol=1e-10)
