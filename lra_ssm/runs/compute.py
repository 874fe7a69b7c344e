"""How a run computes: speed and memory, which change a result by rounding only."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from lra_ssm.errors import InputError
from lra_ssm.models.backbone import Backbone
from lra_ssm.ops import note_backend, prefer_backend, scan_backends


@dataclass(frozen=True)
class ComputeSettings:
    """How a run computes. This is not part of its identity; run.json records it for every start.

    Args:
        recompute_blocks: run each block again in backward, for little memory and a third more time.
        compile: compile each block with torch.compile when it first runs.
        backend: backend of scans and of S4D's kernel; auto is the fastest that supports the call.
        matmul_precision: precision of float32 products on a GPU; high is TF32.
    """

    recompute_blocks: bool = False
    compile: bool = False
    backend: Literal["auto", "triton", "mamba_ssm", "cpu", "eager", "reference"] = "auto"
    matmul_precision: Literal["highest", "high", "medium"] = "high"

    @contextmanager
    def applied(self, network: nn.Module, device: torch.device) -> Iterator[None]:
        """Apply the settings within the block; those of the network's blocks stay afterwards.

        Raises InputError if the backend cannot run on the device, or if the network has no Backbone.
        """
        if self.backend != "auto" and (reason := scan_backends(device)[self.backend]):
            raise InputError(f"compute.backend: {self.backend} cannot run here: {reason}")
        backbones = [part for part in network.modules() if isinstance(part, Backbone)]
        for name in ("recompute_blocks", "compile"):
            if getattr(self, name) and not backbones:
                kind = type(network).__name__
                raise InputError(f"compute.{name}: {kind} has no Backbone with blocks; leave it out")
        for backbone in backbones:
            backbone.activation_checkpointing |= self.recompute_blocks
            for block in backbone.blocks if self.compile else ():
                block.compile()
        if self.compile:  # the backend that a trace chooses is recorded, without a guard in the compiled block
            torch.compiler.assume_constant_result(note_backend)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.matmul_precision if device.type == "cuda" else "highest")
        try:
            with prefer_backend(self.backend), _eager_random_numbers() if self.compile else nullcontext():
                yield
        finally:
            torch.set_float32_matmul_precision(before)


def _eager_random_numbers() -> AbstractContextManager[None]:
    """Let dropout draw the same numbers as without compiling; inductor would draw others."""
    from torch._inductor import config  # a second to import

    return config.patch(fallback_random=True)
