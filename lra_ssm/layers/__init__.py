"""Sequence layers, modules that map (B, L, D) to (B, L, D), and the blocks around them.

Your own layer only needs `forward(x, lengths=None)`. If a feature needs more (`optim_roles`, `step`, `initial_state`,
`reset`), an error names what is missing. `RecurrentLayer` adds all of it to a causal recurrence. See
docs/extending.md.
"""

from lra_ssm.layers.attention import Attention
from lra_ssm.layers.b2s6 import B2S6
from lra_ssm.layers.blocks import Block, MambaBlock, S4Block
from lra_ssm.layers.deep_linear import DeepLinearSSM
from lra_ssm.layers.dropout import TiedDropout
from lra_ssm.layers.hyena import HyenaBlock
from lra_ssm.layers.local_convolution import LocalConvolution
from lra_ssm.layers.lru import LRU
from lra_ssm.layers.mamba2 import SSD, Mamba2Block
from lra_ssm.layers.mamba3 import Mamba3, Mamba3Block
from lra_ssm.layers.masking import check_lengths, mask_padding, valid_mask
from lra_ssm.layers.mlp import TransformerBlock
from lra_ssm.layers.norms import BatchNorm, LayerNorm, RMSNorm, make_norm
from lra_ssm.layers.plain import PlainBlock
from lra_ssm.layers.recurrent import RecurrentLayer, ScanContext
from lra_ssm.layers.rglru import RGLRU, GriffinBlock
from lra_ssm.layers.roles import Role, WidthRole, linear_roles, parameter_roles, width_roles
from lra_ssm.layers.s4d import S4D
from lra_ssm.layers.s5 import S5, S5Block
from lra_ssm.layers.s6 import S6
from lra_ssm.layers.spec import BlockSpec, EmbeddingSpec, HeadSpec, LayerSpec, ModuleSpec, NetworkSpec, PoolingSpec
from lra_ssm.layers.stable_ssm import StableSSM

__all__ = [
    "B2S6",
    "LRU",
    "RGLRU",
    "S4D",
    "S5",
    "S6",
    "SSD",
    "Attention",
    "BatchNorm",
    "Block",
    "BlockSpec",
    "DeepLinearSSM",
    "EmbeddingSpec",
    "GriffinBlock",
    "HeadSpec",
    "HyenaBlock",
    "LayerNorm",
    "LayerSpec",
    "LocalConvolution",
    "Mamba2Block",
    "Mamba3",
    "Mamba3Block",
    "MambaBlock",
    "ModuleSpec",
    "NetworkSpec",
    "PlainBlock",
    "PoolingSpec",
    "RMSNorm",
    "RecurrentLayer",
    "Role",
    "S4Block",
    "S5Block",
    "ScanContext",
    "StableSSM",
    "TiedDropout",
    "TransformerBlock",
    "WidthRole",
    "check_lengths",
    "linear_roles",
    "make_norm",
    "mask_padding",
    "parameter_roles",
    "valid_mask",
    "width_roles",
]
