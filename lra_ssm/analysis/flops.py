"""How many floating-point operations a model needs for a token, whatever computes it: model FLOPs.

Counted are matrix products (a multiplication and an addition each), as torch dispatches them, and the recurrences of
the layers. Not counted: lookups, convolutions of a few taps, norms and other functions of one element, and what a
backward computes a second time (activation checkpointing).
"""

import inspect
import math

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lra_ssm.layers.recurrent import RecurrentLayer

# Of an entry h of the state at one position, h ← e^{Δ a} h + (Δ b) u and y ← y + c h: products with Δ (2), the
# exponential, products with h, u and c, two sums. Of a complex entry, u and y real, 6 for a product of two complex
# numbers, 2 with a real one (Δ a, Δ b, times u), for the exponential and for a sum, 3 for Re(c h), 1 for its sum.
_REAL, _COMPLEX = 8, 20
_BACKWARD = 2  # times forward: a product of matrices has two gradients, each a product of the same size


def training_flops_per_token(network: nn.Module, length: int) -> float:
    """Operations of forward and backward for each position of a sequence (1, length) of tokens.

    network: on the meta device, where nothing is computed; maps ids to logits. Raises what it raises on that device.
    """
    ids = torch.zeros(1, length, dtype=torch.int64, device="meta")
    # In its recurrent form: S4D's kernel for a whole sequence is made by products that are no part of the model.
    state = {"return_last_state": True} if "return_last_state" in inspect.signature(network.forward).parameters else {}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(ids, **state)
    layers = [module for module in network.modules() if isinstance(module, RecurrentLayer)]
    entries = [(_COMPLEX if layer.complex_state else _REAL) * math.prod(layer.state_shape) for layer in layers]
    return (1 + _BACKWARD) * (counter.get_total_flops() / length + sum(entries))
