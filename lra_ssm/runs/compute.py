"""How a run computes, which decides nothing of what it is but rounding."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from lra_ssm.errors import InputError


@dataclass(frozen=True)
class ComputeSettings:
    """How a run computes: no part of its identity, never saved with a model.

    Args:
        recompute_blocks: blocks run again in backward instead of keeping what they computed: little memory, about a
            third more time.
        matmul_precision: of float32 products on a GPU; high is TF32, medium bfloat16.

    run.json has it for every start of a run.
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
