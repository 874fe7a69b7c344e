"""Sequence layers: modules that map (B, L, D) to (B, L, D), and the blocks around them.

A layer of your own needs `forward(x, lengths=None)` alone; `optim_roles`, `step`, `initial_state` and `reset` are
asked for by name where they are needed. See the README, "A layer of your own".
"""

from lra_ssm.layers.b2s6 import B2S6
from lra_ssm.layers.blocks import ResidualBlock
from lra_ssm.layers.dropout import TiedDropout
from lra_ssm.layers.masking import mask_padding, valid_mask
from lra_ssm.layers.norms import BatchNorm, LayerNorm, RMSNorm, make_norm
from lra_ssm.layers.s4d import S4D
from lra_ssm.layers.s6 import S6
from lra_ssm.layers.spec import LayerSpec, Role

__all__ = [
    "B2S6",
    "S4D",
    "S6",
    "BatchNorm",
    "LayerNorm",
    "LayerSpec",
    "RMSNorm",
    "ResidualBlock",
    "Role",
    "TiedDropout",
    "make_norm",
    "mask_padding",
    "valid_mask",
]
