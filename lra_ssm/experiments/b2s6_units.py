"""S4D, S6 and B2S6 as Yu & Erichson 2025 define them, for the experiments on their theory."""

from torch import nn

from lra_ssm.layers import B2S6, S4D, S6
from lra_ssm.layers.spec import LayerSpec

COLORS = {"S4D": "#1f6fb4", "S6": "#c0392b", "B2S6": "#2e8b57"}


def unit(name: str, d_state: int = 16, num_blocks: int = 1, bias: bool = True, complex_A: bool = True) -> LayerSpec:
    """S4D with A tied across channels (eq. 1), S6 in the paper's form (eq. 3-4), or B2S6 (eq. 7-8), whose are the rest
    of the arguments."""
    if name == "S4D":
        return LayerSpec(S4D, d_state=d_state, tie_A=True)
    if name == "S6":
        return LayerSpec(S6, d_state=d_state, form="paper")
    return LayerSpec(B2S6, d_state=d_state, num_blocks=num_blocks, bias=bias, complex_A=complex_A)


def without_skip(module: nn.Module) -> nn.Module:
    """The paper's units have no D u: D is 0 and stays so."""
    for name, weight in module.named_parameters():
        if name.rpartition(".")[2] == "D":
            nn.init.zeros_(weight)
            weight.requires_grad_(False)
    return module
