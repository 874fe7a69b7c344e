"""Linear maps of blocks of channels, each with its own matrix, as B2S6 has them.

Shapes: B batch, L length, H blocks, P channels per block, M outputs per block.
"""

import torch
from torch import Tensor


def block_linear(x: Tensor, *weights: Tensor, per_sequence: bool | None = None) -> list[Tensor]:
    """Multiply each block of x (B, L, H, P) by its matrix of each weight (H, P, M): a (B, L, H, M) for each weight.

    per_sequence: one product per sequence instead of one for all positions; None decides by the device. The gradient
        of a weight is then a product per sequence and a sum. On a GPU the single product would only keep H
        multiprocessors busy, which cost a sixth of a training step.
    """
    if x.device.type == "cuda" if per_sequence is None else per_sequence:
        x = x.transpose(1, 2).contiguous().transpose(1, 2)  # laid out once for all products
        return [torch.einsum("blhp,bhpn->blhn", x, weight.expand(len(x), -1, -1, -1)) for weight in weights]
    return [torch.einsum("blhp,hpn->blhn", x, weight) for weight in weights]
