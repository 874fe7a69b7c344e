"""SP, NTK, muP and mean-field as exponents of the width, and the conditions under which exponents keep a network
stable.

Layer l computes h_{l+1} = d^{-a_l} W_l h_l, its weights start with variance d^{-2 b_l}, and its learning rate is C
d^{-c_l}. A layer is the embedding (l = 0), hidden (l = 1 … L) or the readout (l = L + 1).

Sources: the note "Scale-Invariant Parameterizations" (K. Stratos), whose equation numbers are in brackets, on Everett
et al. 2024, "Scaling Exponents Across Parameterizations and Optimizers" (ICML).
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

Layer = Literal["embedding", "hidden", "readout"]
Name = Literal["sp", "ntk", "mup", "mean_field"]
# "muon" steps hidden layers by Muon with `match_rms_adamw`, "muon_original" with Jordan's own scale; both have Adam for
# the other layers.
Optimizer = Literal["sgd", "adam", "adafactor", "muon", "muon_original"]
MUON: tuple[Optimizer, ...] = ("muon", "muon_original")
Aligned = Literal["full", "none"]
LAYERS: tuple[Layer, ...] = ("embedding", "hidden", "readout")
_TOLERANCE = 1e-9  # of sums of halves


class Exponents(NamedTuple):
    """A layer's multiplier d^-a, initial variance d^-2b, and learning rate d^-c."""

    a: float
    b: float
    c: float


Parameterization = Mapping[Layer, Exponents]

# The note's table 1: c of Adam (its limit is sign descent, eq. 12) with full alignment.
PARAMETERIZATIONS: dict[Name, Parameterization] = {
    "sp": {"embedding": Exponents(0, 0, 0), "hidden": Exponents(0, 0.5, 1), "readout": Exponents(0, 0.5, 1)},
    "ntk": {"embedding": Exponents(0, 0, 0), "hidden": Exponents(0.5, 0, 0.5), "readout": Exponents(0.5, 0, 0.5)},
    "mup": {
        "embedding": Exponents(-0.5, 0.5, 0.5), "hidden": Exponents(0, 0.5, 1), "readout": Exponents(0.5, 0.5, 0.5),
    },
    "mean_field": {"embedding": Exponents(0, 0, 0), "hidden": Exponents(0.5, 0, 0.5), "readout": Exponents(1, 0, 0)},
}  # fmt: skip

# (a + θ, b − θ, c − κθ) trains the same (section 1.2.1, there for Adam): a gradient is multiplied by d^-θ, and its
# update has to be multiplied by d^θ.
KAPPA: dict[Optimizer, int] = {"sgd": 2, "adam": 1, "adafactor": 0, "muon": 1, "muon_original": 1}


class Alignment(NamedTuple):
    """How strongly updates and activations align, as exponents of the width (15-17)."""

    alpha: float  # ΔW h, for hidden layers and the readout
    u: float  # ΔW Δh
    omega_hidden: float  # W Δh
    omega_readout: float


# Section 1.2: α = u = 1 is full alignment, 1/2 none. ω is assumed to be 1/2 for a hidden layer (23); for the readout
# muP assumes 1, the worst case, and Everett et al. 1/2.
ALIGNMENTS: dict[Aligned, Alignment] = {"full": Alignment(1, 1, 0.5, 0.5), "none": Alignment(0.5, 0.5, 0.5, 0.5)}


def alignment_with(optimizer: Optimizer, layer: Layer, alignment: Alignment) -> Alignment:
    """Return a layer's alignment under an optimizer.

    Muon's update is a multiple of an orthogonal matrix. It lengthens no vector by more than √d times the RMS of its
    entries, whatever the vector: α = u = 1/2.
    """
    return alignment._replace(alpha=0.5, u=0.5) if layer == "hidden" and optimizer in MUON else alignment


def gradient_exponent(parameterization: Parameterization, layer: Layer) -> float:
    """Return g of RMS(∂loss/∂W) = Θ(d^-g) at the start, in a network that is stable there (10)."""
    readout = parameterization["readout"]
    return readout.a if layer == "readout" else readout.a + readout.b + parameterization[layer].a


def update_exponent(parameterization: Parameterization, layer: Layer, optimizer: Optimizer) -> float:
    """Return e of RMS(ΔW) = Θ(d^-(c + e)) (12): g for SGD, 0 for Adam, b for Adafactor.

    For Muon on a hidden layer it is 0 with steps scaled by √max(rows, columns), and 1/2 with √max(1, rows/columns).
    """
    if optimizer == "sgd":
        return gradient_exponent(parameterization, layer)
    if optimizer == "muon_original" and layer == "hidden":
        return 0.5
    return parameterization[layer].b if optimizer == "adafactor" else 0.0


def with_rates(
    parameterization: Parameterization, optimizer: Optimizer = "adam", alignment: Aligned = "full"
) -> Parameterization:
    """Return the parameterization with the largest stable learning rates: equality in (14) and (19), a + c + e = α, 0
    for the embedding.

    The note has the rates of Adam with full alignment; the others are derived in the same way.
    """
    exponents: dict[Layer, Exponents] = {}
    for layer, (a, b, _) in parameterization.items():
        alpha = 0.0 if layer == "embedding" else alignment_with(optimizer, layer, ALIGNMENTS[alignment]).alpha
        exponents[layer] = Exponents(a, b, alpha - a - update_exponent(parameterization, layer, optimizer))
    return exponents


def equivalent(
    parameterization: Parameterization, theta: Mapping[Layer, float], optimizer: Optimizer = "adam"
) -> Parameterization:
    """Return (a + θ, b − θ, c − κθ), layer by layer, which trains the same from the same random draw rescaled.

    Exact for Adam with an epsilon of 0 or one scaled as the gradients, and for weight decay scaled against the learning
    rate. theta: by layer, 0 for layers that it does not name.
    """
    kappa = KAPPA[optimizer]
    return {
        layer: Exponents(a + theta.get(layer, 0.0), b - theta.get(layer, 0.0), c - kappa * theta.get(layer, 0.0))
        for layer, (a, b, c) in parameterization.items()
    }


def without_multipliers(parameterization: Parameterization, optimizer: Optimizer = "adam") -> Parameterization:
    """Return the equivalent parameterization in which every a is 0."""
    return equivalent(parameterization, {layer: -parameterization[layer].a for layer in LAYERS}, optimizer)


class Condition(NamedTuple):
    """A condition of stability, and whether it holds."""

    equation: str
    text: str
    holds: bool


def conditions(
    parameterization: Parameterization,
    optimizer: Optimizer = "adam",
    alignment: Alignment = ALIGNMENTS["full"],
    depth: int = 1,
) -> list[Condition]:
    """Return every condition of stability, in the note's order: at the start (6-8), of an update (14, 18-20).

    Under full alignment they imply (21-24), whose numbers are given too. For SGD and Adafactor c is c + e of
    `update_exponent` throughout, as in (12). depth: L.
    """
    start = [
        _equal("6", "a_0 + b_0", _sum(parameterization["embedding"]), 0),
        _equal("7", "a_h + b_h", _sum(parameterization["hidden"]), 0.5),
        _at_least("8", "a_{L+1} + b_{L+1}", _sum(parameterization["readout"]), 0.5),
    ]
    embedding = parameterization["embedding"]
    r = embedding.a + embedding.c + update_exponent(parameterization, "embedding", optimizer)
    checks = [*start, _at_least("14, 21", "r_1 = a_0 + c_0", r, 0)]
    for layer, name in [*[("hidden", "h")] * depth, ("readout", "{L+1}")]:
        margins = _margins(parameterization, layer, optimizer, alignment, r)  # type: ignore[arg-type]
        texts = (f"a_{name} + b_{name} + r − ω_{name}", f"a_{name} + c_{name} − α", f"a_{name} + c_{name} + r − u")
        equations = ("18, 23" if layer == "hidden" else "18, 24", "19, 22", "20, 22")
        checks += [_at_least(eq, text, value, 0) for eq, text, value in zip(equations, texts, margins, strict=True)]
        r = min(margins)
    return list(dict.fromkeys(checks))


def failed(
    parameterization: Parameterization,
    optimizer: Optimizer = "adam",
    alignment: Alignment = ALIGNMENTS["full"],
) -> list[str]:
    """Return the conditions that do not hold, each with its equation and value."""
    return [
        f"({condition.equation}) {condition.text}"
        for condition in conditions(parameterization, optimizer, alignment)
        if not condition.holds
    ]


def _margins(
    parameterization: Parameterization, layer: Layer, optimizer: Optimizer, alignment: Alignment, r: float
) -> tuple[float, float, float]:
    """Return the margins of (18), (19) and (20), if the RMS of a layer's input changes by d^-r; the least is the next
    r.
    """
    a, b, c = parameterization[layer]
    c += update_exponent(parameterization, layer, optimizer)
    alignment = alignment_with(optimizer, layer, alignment)
    omega = alignment.omega_hidden if layer == "hidden" else alignment.omega_readout
    return a + b + r - omega, a + c - alignment.alpha, a + c + r - alignment.u


def _sum(exponents: Exponents) -> float:
    return exponents.a + exponents.b


def _equal(equation: str, text: str, value: float, expected: float) -> Condition:
    return Condition(equation, f"{text} = {expected:g}, and it is {value:g}", abs(value - expected) < _TOLERANCE)


def _at_least(equation: str, text: str, value: float, minimum: float) -> Condition:
    return Condition(equation, f"{text} ≥ {minimum:g}, and it is {value:g}", value > minimum - _TOLERANCE)
