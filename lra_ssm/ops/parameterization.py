"""How eigenvalues and complex numbers are kept as real parameters: λ = f(w), where the optimizer trains w.

StableSSM (Wang & Li 2024) compares several f. One is a row of `FORMS`, and `Parameterization` is the row with its
numbers: `Parameterization("best", "continuous")`. Layers take it as one setting, a name or {name, a, b}. Where forms
are compared, w comes from the eigenvalues by `inverse`, so that all start from the same ones.

Optimizers, DDP and safetensors take real tensors as they are.  Shapes: w, λ of any shape; N states (conjugate pairs
where complex).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Required, TypedDict

import torch
from torch import Tensor
from torch.nn import functional as F

Time = Literal["continuous", "discrete"]
FormName = Literal["exp", "softplus", "best", "relu", "tanh", "direct", "clip"]


class FormSettings(TypedDict, total=False):
    """A form with its numbers, as in YAML: {name: best, a: 1.0, b: 0.5}."""

    name: Required[FormName]
    a: float
    b: float


Form = FormName | FormSettings  # what a layer's setting takes

Function = Callable[[Tensor, float, float], Tensor]  # of w or λ, a and b


class Row(NamedTuple):
    """f(w), its inverse and its derivative, as text and as functions; the least and the greatest λ, the brackets that
    say whether they are reached; where the system is stable; where the form stands in its paper."""

    formula: str
    f: Function
    inverse: Function
    derivative: Function
    low: Callable[[float, float], float]
    high: Callable[[float, float], float]
    brackets: str
    stable: str
    source: str


_CLIP = 1e-4  # how far from the stability boundary "clip" stays: the public S5 code's clip_eigs, -1e-4
_WANG_LI = "Wang & Li 2024, "


def _at(value: float) -> Callable[[float, float], float]:
    return lambda a, b: value


def _positive(w: Tensor) -> Tensor:
    return (w > 0).to(w.dtype)


# The continuous system is dh/dt = λ h + …, stable for λ < 0; the discrete one h_k = λ h_{k-1} + …, for |λ| < 1.
# "best" solves G_f(w) = 2 a |w| (eq. 18-21); only it has a and b.
FORMS: dict[tuple[str, Time], Row] = {
    ("direct", "continuous"): Row(
        "w", lambda w, a, b: w, lambda s, a, b: s, lambda w, a, b: torch.ones_like(w),
        _at(-math.inf), _at(math.inf), "()", "w < 0", _WANG_LI + "eq. 2",
    ),
    ("clip", "continuous"): Row(
        f"min(w, -{_CLIP:g})", lambda w, a, b: w.clamp(max=-_CLIP), lambda s, a, b: s,
        lambda w, a, b: (w < -_CLIP).to(w.dtype),
        _at(-math.inf), _at(-_CLIP), "(]", "always", _WANG_LI + "table 7; the bound is that of the public S5 code",
    ),
    ("relu", "continuous"): Row(
        "-ReLU(w)", lambda w, a, b: -w.relu(), lambda s, a, b: -s, lambda w, a, b: -_positive(w),
        _at(-math.inf), _at(0.0), "(]", "w > 0", _WANG_LI + "table 5",
    ),
    ("exp", "continuous"): Row(
        "-exp(w)", lambda w, a, b: -w.exp(), lambda s, a, b: (-s).log(), lambda w, a, b: -w.exp(),
        _at(-math.inf), _at(0.0), "()", "always", _WANG_LI + "table 5; Gu et al. 2022 (S4D), section 3.2",
    ),
    ("softplus", "continuous"): Row(
        "-log(1 + exp(w))", lambda w, a, b: F.logsigmoid(-w), lambda s, a, b: -s + torch.log(-torch.expm1(s)),
        lambda w, a, b: -w.sigmoid(),
        _at(-math.inf), _at(0.0), "()", "always", _WANG_LI + "table 5",
    ),
    ("best", "continuous"): Row(
        "-1/(a w² + b)", lambda w, a, b: -1 / (a * w.square() + b),
        lambda s, a, b: ((-1 / s - b).clamp(min=0) / a).sqrt(),
        lambda w, a, b: 2 * a * w / (a * w.square() + b).square(),
        lambda a, b: -1 / b if b else -math.inf, _at(0.0), "[)", "always", _WANG_LI + "eq. 20-21, table 5",
    ),
    ("direct", "discrete"): Row(
        "w", lambda w, a, b: w, lambda s, a, b: s, lambda w, a, b: torch.ones_like(w),
        _at(-math.inf), _at(math.inf), "()", "|w| < 1", _WANG_LI + "eq. 2",
    ),
    ("clip", "discrete"): Row(
        f"clip(w, ±(1 - {_CLIP:g}))", lambda w, a, b: w.clamp(-1 + _CLIP, 1 - _CLIP), lambda s, a, b: s,
        lambda w, a, b: (w.abs() < 1 - _CLIP).to(w.dtype),
        _at(-1 + _CLIP), _at(1 - _CLIP), "[]", "always", _WANG_LI + "table 7; the bound is ours, as in continuous time",
    ),
    ("relu", "discrete"): Row(
        "exp(-ReLU(w))", lambda w, a, b: (-w.relu()).exp(), lambda s, a, b: -s.log(),
        lambda w, a, b: -(-w).exp() * _positive(w),
        _at(0.0), _at(1.0), "(]", "w > 0", _WANG_LI + "table 5",
    ),
    ("exp", "discrete"): Row(
        "exp(-exp(w))", lambda w, a, b: (-w.exp()).exp(), lambda s, a, b: (-s.log()).log(),
        lambda w, a, b: -(w - w.exp()).exp(),
        _at(0.0), _at(1.0), "()", "always", _WANG_LI + "table 5; Orvieto et al. 2023 (LRU)",
    ),
    ("softplus", "discrete"): Row(
        "1/(1 + exp(w))", lambda w, a, b: (-w).sigmoid(), lambda s, a, b: -s.logit(),
        lambda w, a, b: -w.sigmoid() * (-w).sigmoid(),
        _at(0.0), _at(1.0), "()", "always", _WANG_LI + "table 5",
    ),
    ("tanh", "discrete"): Row(
        "tanh(w)", lambda w, a, b: w.tanh(), lambda s, a, b: s.atanh(), lambda w, a, b: w.cosh().square().reciprocal(),
        _at(-1.0), _at(1.0), "()", "always", _WANG_LI + "table 5",
    ),
    ("best", "discrete"): Row(
        "1 - 1/(a w² + b)", lambda w, a, b: 1 - 1 / (a * w.square() + b),
        lambda s, a, b: ((1 / (1 - s) - b).clamp(min=0) / a).sqrt(),
        lambda w, a, b: 2 * a * w / (a * w.square() + b).square(),
        lambda a, b: 1 - 1 / b if b else -math.inf, _at(1.0), "[)", "for b ≥ 0.5 always (at w = 0, b = 0.5: -1)",
        _WANG_LI + "section 3.4, table 5",
    ),
}  # fmt: skip

# b where none is given: the public StableSSM code's 0.1, whose eigenvalues reach -10, and the paper's 0.5.
_DEFAULT_B: dict[Time, float] = {"continuous": 0.1, "discrete": 0.5}


@dataclass(frozen=True)
class Parameterization:
    """λ = f(w), elementwise, of continuous or discrete time.

    Args:
        name: a form of `FORMS`.
        time: of the system whose eigenvalues they are.
        a: of "best", > 0.
        b: of "best", >= 0; None is 0.1 in continuous time and 0.5 in discrete.

    Raises:
        ValueError: there is no such form, or a and b do not suit it.
    """

    name: str
    time: Time
    a: float = 1.0
    b: float | None = None

    def __post_init__(self) -> None:
        if (self.name, self.time) not in FORMS:
            names = ", ".join(name for name, time in FORMS if time == self.time)
            raise ValueError(f"parameterization: {self.name!r}; in {self.time} time it is one of {names}")
        if self.name != "best" and (self.a, self.b) != (1.0, None):
            raise ValueError(f"parameterization: a and b belong to best; {self.name} has none")
        if not (0 < self.a < math.inf and (self.b is None or 0 <= self.b < math.inf)):
            raise ValueError(f"parameterization: best with a = {self.a}, b = {self.b}; expected a > 0 and b >= 0")

    @classmethod
    def of(cls, form: Form, time: Time) -> Parameterization:
        """Build it from a layer's setting: a name, or {name, a, b}. Raises ValueError as the class does."""
        if isinstance(form, str):
            return cls(form, time)
        if not isinstance(form, dict) or "name" not in form or not form.keys() <= {"name", "a", "b"}:
            raise ValueError(f"parameterization: {form!r}; expected a name, or name, a and b")
        return cls(**form, time=time)

    @property
    def row(self) -> Row:
        return FORMS[self.name, self.time]

    @property
    def numbers(self) -> tuple[float, float]:
        """Return a and b."""
        return self.a, _DEFAULT_B[self.time] if self.b is None else self.b

    def f(self, w: Tensor) -> Tensor:
        """Return λ = f(w)."""
        return self.row.f(w, *self.numbers)

    def derivative(self, w: Tensor) -> Tensor:
        """Return f'(w), from one side where f has a kink."""
        return self.row.derivative(w, *self.numbers)

    def inverse(self, eigenvalues: Tensor) -> Tensor:
        """Return the w with f(w) = λ; of "best"'s two, the one >= 0.

        Raises ValueError, naming the range, for an eigenvalue that f does not reach.
        """
        (low, high), closed = self.range, [bracket in "[]" for bracket in self.row.brackets]
        wide = eigenvalues.detach().double()
        reached = (wide > low) | (closed[0] & (wide == low))
        reached &= (wide < high) | (closed[1] & (wide == high))
        if not eigenvalues.is_meta and not reached.all():
            got = wide[~reached].flatten()[0].item()
            raise ValueError(f"parameterization: eigenvalue {got:g} is outside the range of {self}, {self.range_text}")
        return self.row.inverse(eigenvalues, *self.numbers)

    def gradient_bound(self, w: Tensor) -> Tensor:
        """Return G_f(w) up to a constant: |f'(w)| / f(w)², or |f'(w)| / (1 − f(w))² in discrete time (eq. 15-16)."""
        distance = self.f(w) if self.time == "continuous" else 1 - self.f(w)
        slope = self.derivative(w).abs()
        # table 5: 0 where w < 0 in relu, where λ or 1 - λ is 0 too
        return torch.where(slope == 0, slope, slope / distance.square())

    @property
    def range(self) -> tuple[float, float]:
        """Return the least and the greatest λ; `row.brackets` says whether they are reached."""
        return self.row.low(*self.numbers), self.row.high(*self.numbers)

    @property
    def range_text(self) -> str:
        (low, high), brackets = self.range, self.row.brackets
        return f"{'(' if math.isinf(low) else brackets[0]}{low:g}, {high:g}{brackets[1]}"

    def __str__(self) -> str:
        a, b = self.numbers
        return f"{self.name} ({self.time}{f', a = {a:g}, b = {b:g}' if self.name == 'best' else ''})"


_EXP = Parameterization("exp", "continuous")


def eigenvalues(w: Tensor, imag: Tensor | None = None, parameterization: Parameterization = _EXP) -> Tensor:
    """Return λ = f(w), real (..., N), or λ = f(w) + i imag, complex.

    f = -exp (S4D, section 3.2) keeps Re λ < 0 whatever is learned.  Half precision, which has no complex type, becomes
    complex64.
    """
    if imag is None:
        return parameterization.f(w)
    return torch.complex(parameterization.f(_at_least_float32(w)), _at_least_float32(imag))


def inverse_eigenvalues(A: Tensor, parameterization: Parameterization = _EXP) -> Tensor:
    """Return the w (..., N), real, with Re `eigenvalues(w)` = Re A. Raises ValueError if f does not reach it."""
    return parameterization.inverse(A.real)


def as_complex(x: Tensor) -> Tensor:
    """Map real (..., 2), (re, im) last, to complex (...).  Half precision becomes complex64."""
    return torch.view_as_complex(_at_least_float32(x))


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
