"""S4D, S6 and B2S6 as Yu & Erichson 2025 define them, for the scripts b2s6_*."""

from typing import Any

from torch import nn

from lra_ssm.layers import B2S6, S4D, LayerSpec

S6 = {"num_blocks": 1, "bias": False, "complex_A": False}
COLORS = {"S4D": "#1f6fb4", "S6": "#c0392b", "B2S6": "#2e8b57"}


def unit_spec(name: str, **b2s6: Any) -> LayerSpec:
    """Return a unit with 16 states: S4D with A tied across channels (eq. 1), S6 (eq. 3-4) or B2S6 (eq. 7-8).

    The keyword arguments are for B2S6 only. The paper's S6 is a B2S6 with one real block and without bias.
    """
    if name == "S4D":
        return LayerSpec(S4D, d_state=16, tie_A=True)
    return LayerSpec(B2S6, d_state=16, **(S6 if name == "S6" else b2s6))


def without_skip(module: nn.Module) -> nn.Module:
    """Set D to 0, freeze it and return the module: the paper's units have no skip term D u."""
    for name, weight in module.named_parameters():
        if name.rpartition(".")[2] == "D":
            nn.init.zeros_(weight)
            weight.requires_grad_(False)
    return module
