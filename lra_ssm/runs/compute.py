"""How a run computes, which decides nothing of what it computes but rounding."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from lra_ssm.errors import InputError


@dataclass(frozen=True)
class ComputeSettings:
    """No part of a run's identity, and never saved with a model; each start is recorded with its own in run.json.

    Args:
        recompute_blocks: in training, a network's blocks are run again in backward instead of keeping what they
            computed: the memory of one block and the inputs of all, for about a third more time.
        matmul_precision: of float32 matrix products on a GPU: "high" and "medium" compute them in TF32 and bfloat16
            (`torch.set_float32_matmul_precision`).
    """

    recompute_blocks: bool = False
    matmul_precision: Literal["highest", "high", "medium"] = "highest"

    def apply(self, network: nn.Module) -> None:
        """Raises InputError: the network has no blocks that can be recomputed."""
        torch.set_float32_matmul_precision(self.matmul_precision)
        if not self.recompute_blocks:
            return
        able = [part for part in network.modules() if hasattr(part, "activation_checkpointing")]
        if not able:
            name = type(network).__name__
            raise InputError(f"compute.recompute_blocks: {name} has no Backbone, whose blocks it is of; leave it out")
        for part in able:
            part.activation_checkpointing = True  # type: ignore[assignment]
