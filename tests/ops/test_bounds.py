"""StableSSM's bounds (Wang & Li 2024): outputs and gradients of a state, theorem 3.6, definition 3.4.

For -1 < λ < 0 the paper's bounds of discrete time lack an absolute value: with 1 - |λ| in place of 1 - λ they hold.
"""

import math

import pytest
import torch

from lra_ssm.ops import Parameterization, linear_scan

REACHED = {  # forms that reach the eigenvalues, by time and sign
    ("continuous", -1): ("direct", "relu", "exp", "softplus", "best"),
    ("discrete", 1): ("direct", "relu", "exp", "softplus", "tanh", "best"),
    ("discrete", -1): ("direct", "tanh", "best"),
}


def test_figure_2_the_largest_output_and_gradient_of_a_state():
    """|y| ≤ 1/(1 - |λ|) and |dy/dλ| ≤ 1/(1 - |λ|)² for |x| ≤ 1, with equality for inputs that have the sign of λ^k."""
    values = torch.linspace(-0.99, 0.99, 67, dtype=torch.float64).requires_grad_()
    x = torch.where(values[:, None] < 0, -1.0, 1.0) ** torch.arange(3999, -1, -1)
    last = linear_scan(values, x[None], return_last_state=True)[1][0]
    (gradient,) = torch.autograd.grad(last.sum(), values)
    size = values.detach().abs()
    torch.testing.assert_close(last.detach().abs(), 1 / (1 - size))
    torch.testing.assert_close(gradient.abs(), 1 / (1 - size) ** 2)
    printed = last.detach().abs() * (1 - values.detach())
    assert printed[values >= 0].max() <= 1 + 1e-9 and printed[values < 0].max() > 100


@pytest.mark.parametrize(("time", "sign"), list(REACHED))
def test_theorem_3_6_gradients_of_weights_are_bounded_by_f(time, sign):
    """|∂Loss/∂w| ≤ |c| |f'(w)|/f(w)², or |c| |f'(w)|/(1 - |f(w)|)², for the loss of the proof, ‖ρ - Σ c exp(λt)‖."""
    for name in REACHED[time, sign]:
        f = Parameterization(name, time)
        for trial in range(10):
            generator = torch.Generator().manual_seed(trial)
            steps = 1.1 * torch.exp(torch.rand(4, dtype=torch.float64, generator=generator) * math.log(100 / 1.1))
            c = torch.randn(4, dtype=torch.float64, generator=generator)
            values = -1 / steps if time == "continuous" else sign * (1 - 1 / steps)
            w = f.inverse(values).requires_grad_()
            if time == "continuous":
                t = torch.linspace(0, math.log1p(3000), 6001, dtype=torch.float64).expm1()
                memory = (f.f(w)[:, None] * t).exp()
            else:
                t = torch.arange(3001, dtype=torch.float64)
                memory = f.f(w)[:, None] ** t
            error = ((t + 1) ** -1.1 - (c[:, None] * memory).sum(0)).abs()
            loss = torch.trapezoid(error, t) if time == "continuous" else error.sum()
            (gradient,) = torch.autograd.grad(loss, w)
            bound = c.abs() * f.gradient_bound(w.detach())
            if (time, sign) == ("discrete", -1):
                bound = bound * ((1 - values) / (1 - values.abs())) ** 2
            assert (gradient.abs() <= 1.001 * bound).all()


@pytest.mark.parametrize("beta", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("name", ["exp", "softplus", "best", "direct"])
def test_definition_3_4_stable_reparameterizations(name, beta):
    """|f(w)| sup over |w̃ - w| ≤ β of ∫ |exp(f(w̃)t) - exp(f(w)t)| dt is bounded by a function of β (remark C.4), but
    for direct.

    For best the bound is the supremum over w of a(β² + 2βw)/(aw² + b), a = 1 and b = 0.5: eq. 115 contains w.
    """
    f = Parameterization(name, "continuous", b=0.5 if name == "best" else None)
    values = -torch.logspace(-4, math.log10(1.999 if name == "best" else 50), 60, dtype=torch.float64)
    moved = f.f(f.inverse(values)[:, None] + beta * torch.linspace(-1, 1, 401, dtype=torch.float64))
    # one exponential lies above the other: the integral is the difference of theirs
    size = torch.where(moved < 0, (1 / moved - 1 / values[:, None]).abs(), math.inf)
    largest = (size.amax(1) * values.abs()).max()
    worst = (math.sqrt(beta**2 + 2) - beta) / 2
    bound = (beta**2 + 2 * beta * worst) / (worst**2 + 0.5) if name == "best" else math.expm1(beta)
    assert math.isinf(largest) if name == "direct" else largest <= bound * (1 + 1e-9)
