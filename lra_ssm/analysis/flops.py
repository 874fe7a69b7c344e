"""Model FLOPs: the floating-point operations that a model needs for a token, whatever kernels compute it.

Matrix products (a multiplication and an addition each), as torch dispatches them, and the recurrences of the layers
are counted. Lookups, convolutions of a few taps, norms and other elementwise functions are not, nor is what activation
checkpointing computes twice.
"""

import inspect
import math

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lra_ssm.layers.recurrent import RecurrentLayer

# For an entry h of the state at one position, h ← e^{Δ a} h + (Δ b) u and y ← y + c h: products with Δ (2), the
# exponential, products with h, u and c, and two sums. For a complex entry, with real u and y: 6 for a product of two
# complex numbers; 2 for each product with a real one (Δ a, Δ b, times u), for the exponential and for a sum; 3 for
# Re(c h) and 1 for its sum.
_REAL, _COMPLEX = 8, 20
_BACKWARD = 2  # times forward: a matrix product has two gradients, each a product of the same size


def training_flops_per_token(network: nn.Module, length: int) -> float:
    """Return the operations of forward and backward for each position of a sequence (1, length) of tokens.

    network: maps ids to logits; on the meta device, where nothing is computed. Its errors on that device pass through.
    """
    ids = torch.zeros(1, length, dtype=torch.int64, device="meta")
    # In recurrent form: the products that make S4D's kernel for a whole sequence are not part of the model.
    state = {"return_last_state": True} if "return_last_state" in inspect.signature(network.forward).parameters else {}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(ids, **state)
    layers = [module for module in network.modules() if isinstance(module, RecurrentLayer)]
    entries = [(_COMPLEX if layer.complex_state else _REAL) * math.prod(layer.state_shape) for layer in layers]
    return (1 + _BACKWARD) * (counter.get_total_flops() / length + sum(entries))
