"""λ = f(w): ranges, inverses, derivatives and gradient bounds against finite differences, in float64."""

import math
import runpy
from pathlib import Path

import pytest
import torch

from lra_ssm.ops import Parameterization, eigenvalues, inverse_eigenvalues
from lra_ssm.ops.parameterization import FORMS

ALL = [Parameterization(name, time) for name, time in FORMS]
NUMBERS = [Parameterization("best", "continuous", a=2.0, b=0.0), Parameterization("best", "discrete", a=0.5, b=2.0)]
every_form = pytest.mark.parametrize("p", [*ALL, *NUMBERS])
WEIGHTS = torch.linspace(-6, 6, 241, dtype=torch.float64)
KINKS = {"relu": [0.0], "clip": [-1e-4, 1 - 1e-4, -1 + 1e-4]}


def away_from_kinks(p):
    """Weights where f is smooth within the step of a finite difference, and λ is no pole of G_f."""
    w = WEIGHTS + 0.0123
    for kink in KINKS.get(p.name, []):
        w = w[(w - kink).abs() > 1e-3]
    return w[w.abs() > 0.1] if p.b == 0 else w  # a pole at 0


def slope(p, w, step=1e-5):
    return (p.f(w + step) - p.f(w - step)) / (2 * step)


@every_form
def test_derivative_and_gradient_bound_are_those_of_finite_differences(p):
    w = away_from_kinks(p)
    torch.testing.assert_close(p.derivative(w), slope(p, w), rtol=1e-7, atol=1e-9)
    distance = p.f(w) if p.time == "continuous" else 1 - p.f(w)
    kept = distance.abs() > 1e-3  # eq. 15-16 divide by its square
    expected = slope(p, w).abs() / distance.square()
    torch.testing.assert_close(p.gradient_bound(w)[kept], expected[kept], rtol=1e-6, atol=1e-7)


# Wang & Li 2024, table 5, and 1/w² and 1/(1 - w)² for f(w) = w.
TABLE_5 = {
    ("direct", "continuous"): lambda w: 1 / w**2,
    ("relu", "continuous"): lambda w: (w > 0) / w**2,
    ("exp", "continuous"): lambda w: torch.exp(-w),
    ("softplus", "continuous"): lambda w: w.exp() / ((1 + w.exp()) * torch.log(1 + w.exp()) ** 2),
    ("best", "continuous"): lambda w: 2 * w.abs(),
    ("direct", "discrete"): lambda w: 1 / (1 - w) ** 2,
    ("relu", "discrete"): lambda w: torch.where(w > 0, torch.exp(-w) / (1 - torch.exp(-w)) ** 2, 0),
    ("exp", "discrete"): lambda w: torch.exp(w - w.exp()) / (1 - torch.exp(-w.exp())) ** 2,
    ("softplus", "discrete"): lambda w: torch.exp(-w),
    ("tanh", "discrete"): lambda w: torch.exp(2 * w),
    ("best", "discrete"): lambda w: 2 * w.abs(),
}


@pytest.mark.parametrize("key", TABLE_5)
def test_gradient_bounds_are_table_5(key):
    p, w = Parameterization(*key), WEIGHTS + 0.0123
    torch.testing.assert_close(p.gradient_bound(w), TABLE_5[key](w).double(), rtol=1e-8, atol=1e-12)


@every_form
def test_values_fill_the_range_and_the_inverse_finds_a_weight_for_each(p):
    values, (low, high) = p.f(WEIGHTS), p.range
    assert (values >= low).all() and (values <= high).all()
    torch.testing.assert_close(p.f(p.inverse(values)), values, rtol=1e-9, atol=1e-12)
    if p.name not in ("relu", "best", "clip"):  # these are not one to one
        torch.testing.assert_close(p.inverse(values), WEIGHTS, rtol=1e-9, atol=1e-9)
    if p.row.stable == "always":
        assert (values < 0).all() if p.time == "continuous" else (values.abs() < 1).all()
    far = p.f(torch.tensor([-1e9, -30, -1.0, 0.0, 1.0, 30, 1e9], dtype=torch.float64))
    for end, reached in ((low, far.min()), (high, far.max())):
        assert reached.abs() > 1e8 if math.isinf(end) else (reached - end).abs() < 1e-8


# Facts of the paper: best with b = 0.1 reaches -10, with b = 0.5 only -2; tanh (-1, 1), …
RANGES = {
    ("direct", "continuous"): ("(-inf, inf)", [-1e6, 3.0], []),
    ("clip", "continuous"): ("(-inf, -0.0001]", [-9.0, -1e-4], [-1e-5, 0.0]),
    ("relu", "continuous"): ("(-inf, 0]", [-9.0, 0.0], [1e-9]),
    ("exp", "continuous"): ("(-inf, 0)", [-9.0, -1e-9], [0.0, 1.0]),
    ("softplus", "continuous"): ("(-inf, 0)", [-9.0, -1e-9], [0.0, 1.0]),
    ("best", "continuous"): ("[-10, 0)", [-10.0, -1e-9], [-10.001, 0.0, 1.0]),
    ("direct", "discrete"): ("(-inf, inf)", [-5.0, 5.0], []),
    ("clip", "discrete"): ("[-0.9999, 0.9999]", [-0.9999, 0.9999], [1.0, -1.0]),
    ("relu", "discrete"): ("(0, 1]", [1e-9, 1.0], [0.0, 1.1, -0.5]),
    ("exp", "discrete"): ("(0, 1)", [1e-9, 0.999], [0.0, 1.0, -0.5]),
    ("softplus", "discrete"): ("(0, 1)", [1e-9, 0.999], [0.0, 1.0, -0.5]),
    ("tanh", "discrete"): ("(-1, 1)", [-0.999, 0.999], [-1.0, 1.0]),
    ("best", "discrete"): ("[-1, 1)", [-1.0, 0.999], [-1.01, 1.0]),
}


@pytest.mark.parametrize("key", FORMS)
def test_an_eigenvalue_outside_the_range_is_refused_with_the_range(key):
    p = Parameterization(*key)
    text, inside, outside = RANGES[key]
    assert p.range_text == text
    values = torch.tensor(inside, dtype=torch.float64)
    torch.testing.assert_close(p.f(p.inverse(values)), values, rtol=1e-9, atol=1e-12)
    for value in [*outside, math.nan]:
        with pytest.raises(ValueError) as error:
            p.inverse(torch.tensor([*inside, value], dtype=torch.float64))
        assert f"eigenvalue {value:g} is outside the range of {p.name} ({p.time}" in str(error.value)
        assert str(error.value).endswith(text)


def test_eigenvalues_take_the_form_and_are_exp_without_one():
    w, imag = torch.randn(5), torch.randn(5)
    assert torch.equal(eigenvalues(w), -w.exp())
    assert torch.equal(eigenvalues(w, imag), torch.complex(-w.exp(), imag))
    assert torch.equal(inverse_eigenvalues(eigenvalues(w, imag)), w.exp().log())
    p = Parameterization("softplus", "continuous")
    torch.testing.assert_close(inverse_eigenvalues(eigenvalues(w, imag, p), p), w)
    assert eigenvalues(w.bfloat16(), imag.bfloat16(), p).dtype == torch.complex64


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("tanh", "'tanh'; in continuous time it is one of direct, clip, relu, exp, softplus, best"),
        ({"name": "exp", "b": 0.5}, "a and b belong to best; exp has none"),
        ({"name": "best", "a": 0.0}, "expected a > 0 and b >= 0"),
        ({"name": "best", "b": -1.0}, "expected a > 0 and b >= 0"),
        ({"name": "best", "c": 1.0}, "expected a name, or name, a and b"),
        ({"a": 1.0}, "expected a name, or name, a and b"),
        (3, "expected a name, or name, a and b"),
    ],
)
def test_settings_that_are_none(form, message):
    with pytest.raises(ValueError, match="parameterization: ") as error:
        Parameterization.of(form, "continuous")
    assert message in str(error.value)


def test_the_tables_of_the_page_are_the_codes():
    script = Path(__file__).parents[2] / "docs/parameterization_table.py"
    made = runpy.run_path(str(script))
    text = made["PAGE"].read_text()
    assert made["page"](text) == text, "run python docs/parameterization_table.py"
