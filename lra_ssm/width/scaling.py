"""A width parameterization applied to any model: factors on initial values, learning rates, decay and epsilon.

Multipliers are folded in: (a, b, c) becomes the equivalent (0, a + b, c + κa), so that no forward pass changes and
saved weights load without it. A readout that is tied to an embedding has no initial values or rate of its own: its
multiplier is folded into the weight of the norm in front of it, which has both.

With m = width / base width, a parameter with the folded exponents (0, b, c) has

- initial values times m^-(b + e), where the model's own are proportional to m^e (`layers.roles`);
- its learning rate times m^-c and its weight decay times m^c: AdamW multiplies the two, and so the share of a weight
  that decays in a step is the same at every width, as equivalence requires;
- Adam's epsilon times m^-g, as its gradients: otherwise it is too large for a wide model (Everett et al. 2024).

At the base width every factor is 1.
"""

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import nn

from lra_ssm.errors import hint
from lra_ssm.layers.roles import WidthKind, width_roles
from lra_ssm.layers.spec import ModuleSpec
from lra_ssm.width.parameterizations import (
    ALIGNMENTS,
    KAPPA,
    LAYERS,
    MUON,
    PARAMETERIZATIONS,
    Aligned,
    Exponents,
    Layer,
    Name,
    Optimizer,
    Parameterization,
    failed,
    gradient_exponent,
    with_rates,
    without_multipliers,
)


@dataclass(frozen=True)
class WidthSettings:
    """How a model is scaled relative to the width at which its settings were tuned.

    Args:
        parameterization: "sp", "ntk", "mup" or "mean_field"; or your own exponents, {embedding: [a, b, c],
            hidden: …, readout: …}, with c for the optimizer of the run.
        base_d_model: the d_model at which the model and its rates are unchanged.
        alignment: of updates and activations, "full" or "none", for which the rates are computed.
        states: maps from channels to a fixed number of states (B, C and Δ of selective layers, B of LRU and S5) are
            scaled as a "hidden" layer or as a "readout": see docs/width.md.

    Raises:
        ValueError: a setting is not valid, or a parameterization is not stable (naming the condition).
    """

    parameterization: str | dict[str, tuple[float, float, float]]
    base_d_model: int
    alignment: Aligned = "full"
    states: Literal["hidden", "readout"] = "hidden"

    def __post_init__(self) -> None:
        if isinstance(self.base_d_model, bool) or not isinstance(self.base_d_model, int) or self.base_d_model < 1:
            raise ValueError(f"width base_d_model is {self.base_d_model!r}; it must be a whole number of at least 1")
        for name, known in {"alignment": ALIGNMENTS, "states": ("hidden", "readout")}.items():
            if getattr(self, name) not in known:
                raise ValueError(f"width {name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}")
        setting = self.parameterization
        if isinstance(setting, str):
            if setting not in get_args(Name):
                raise ValueError(
                    f"width parameterization {setting!r} is unknown; {hint(setting, list(PARAMETERIZATIONS))}"
                )
            return
        if set(setting) != set(LAYERS) or any(len(exponents) != 3 for exponents in setting.values()):
            raise ValueError(f"width parameterization {setting}: it must have [a, b, c] of {', '.join(LAYERS)}")
        custom = {layer: tuple(map(float, exponents)) for layer, exponents in setting.items()}
        object.__setattr__(self, "parameterization", custom)  # plain values, as a checkpoint has them

    @classmethod
    def of(cls, settings: "WidthSettings | Mapping[str, Any] | None") -> "WidthSettings | None":
        """Make settings from themselves, from values by name, or None."""
        return settings if settings is None or isinstance(settings, WidthSettings) else cls(**settings)

    def exponents(self, optimizer: Optimizer = "adam") -> Parameterization:
        """Return the optimizer's exponents. Raises ValueError for own exponents that are not stable."""
        if isinstance(self.parameterization, str):
            named = PARAMETERIZATIONS[cast(Name, self.parameterization)]
            return with_rates(named, optimizer, self.alignment)
        custom = {layer: Exponents(*self.parameterization[layer]) for layer in LAYERS}
        if wrong := failed(custom, optimizer, ALIGNMENTS[self.alignment]):
            raise ValueError(f"width parameterization is not stable with {optimizer}: {'; '.join(wrong)}")
        return custom


class Factors(NamedTuple):
    """Factors of a parameter's settings."""

    kind: WidthKind
    initial: float = 1.0
    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0


def width_of(spec: ModuleSpec) -> int:
    """Return a network's d_model, given or its class's default. Raises ValueError if it has none."""
    parameter = inspect.signature(spec.cls).parameters.get("d_model")
    d_model = spec.init_args.get("d_model", None if parameter is None else parameter.default)
    if not isinstance(d_model, int):
        raise ValueError(f"{spec.class_path} does not take d_model: a width parameterization needs the network's width")
    return d_model


def width_factors(
    network: nn.Module,
    d_model: int,
    settings: WidthSettings,
    optimizer: Optimizer = "adam",
    by_muon: Collection[str] = (),
) -> dict[str, Factors]:
    """Return the factors by full parameter name.

    by_muon: names of the parameters that Muon trains, if the optimizer is "muon" or "muon_original"; Adam trains the
    others, including maps to states, which are scaled as hidden layers.

    Raises ValueError if a parameter has no width role, exponents are not stable, or a readout is tied to the embedding
    under a parameterization that scales the two differently.
    """
    ratio, exponents = d_model / settings.base_d_model, settings.exponents(optimizer)
    folded = without_multipliers(exponents, optimizer)
    by_adam = folded
    if optimizer in MUON:
        hidden = with_rates(exponents, "adam", settings.alignment)["hidden"]
        by_adam = without_multipliers({**exponents, "hidden": hidden}, "adam")
    factors = {}
    for name, (kind, initial) in width_roles(network).items():
        layer = layer_of(kind, settings)
        b, c = (0.0, 0.0) if layer is None else (folded if name in by_muon else by_adam)[layer][1:]
        b = 0.0 if kind == "vector" else b
        g = 0.0 if layer is None else gradient_exponent(folded, layer)
        factors[name] = Factors(kind, ratio ** -(b + initial), ratio**-c, ratio**c, ratio**-g)
    for name, a in tied_multipliers(network, folded, optimizer).items():
        lr = factors[name].lr * ratio ** -(KAPPA[optimizer] * a)
        factors[name] = Factors("readout", factors[name].initial * ratio**-a, lr, 1 / lr, 1.0)
    return factors


def layer_of(kind: WidthKind, settings: WidthSettings) -> Layer | None:
    """Return whose exponents a parameter has, or None if it is fixed; a vector trains as a column of the embedding."""
    if kind == "state":
        return settings.states
    layers: dict[str, Layer] = {"vector": "embedding", **{layer: layer for layer in get_args(Layer)}}
    return layers.get(kind)


def tied_multipliers(network: nn.Module, folded: Parameterization, optimizer: Optimizer) -> dict[str, float]:
    """Return the parameters in a network's `scales_of_a_tied_readout`, each with the a of d^-a that is folded into it.

    With it the weight of the embedding starts and trains as the readout's would. folded: exponents without multipliers.
    Raises ValueError if there is no such a.
    """
    declare = getattr(network, "scales_of_a_tied_readout", None)
    names = declare() if callable(declare) else []
    (_, b_0, c_0), (_, b, c) = folded["embedding"], folded["readout"]
    if names and abs(KAPPA[optimizer] * (b - b_0) - (c - c_0)) > 1e-9:
        raise ValueError(
            "the head is tied to the embedding, and no multiplier makes its weight start and train as a readout of this"
            " width parameterization: take mup or mean_field, or untie them (tie_embeddings: false)"
        )
    return dict.fromkeys(names, b - b_0)


@torch.no_grad()
def scale_initial_values(network: nn.Module, factors: Mapping[str, Factors]) -> None:
    """Multiply initial values by their factors; parameters with the factor 1 are not touched."""
    for name, parameter in network.named_parameters():
        if factors[name].initial != 1:
            parameter.mul_(factors[name].initial)
