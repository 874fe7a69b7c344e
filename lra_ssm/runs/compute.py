"""How a run computes, which decides nothing of what it is but rounding."""

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
    """How a run computes: no part of its identity, never saved with a model.

    Args:
        recompute_blocks: run blocks again in backward: little memory, a third more time.
        compile: blocks, by torch.compile when they first run.
        backend: of scans and S4D's kernel; auto: the fastest that can.
        matmul_precision: of float32 products on a GPU; high is TF32.

    run.json has it for every start of a run.
    """

    recompute_blocks: bool = False
    compile: bool = False
    backend: Literal["auto", "triton", "mamba_ssm", "cpu", "eager", "reference"] = "auto"
    matmul_precision: Literal["highest", "high", "medium"] = "high"

    @contextmanager
    def applied(self, network: nn.Module, device: torch.device) -> Iterator[None]:
        """Within it all computes so; the network keeps what is said of its blocks.

        Raises InputError: the backend cannot run on the device, or the network has no blocks as they are asked for.
        """
        if self.backend != "auto" and (reason := scan_backends(device)[self.backend]):
            raise InputError(f"compute.backend: {self.backend} cannot run here: {reason}")
        backbones = [part for part in network.modules() if isinstance(part, Backbone)]
        for name in ("recompute_blocks", "compile"):
            if getattr(self, name) and not backbones:
                kind = type(network).__name__
                raise InputError(f"compute.{name}: {kind} has no Backbone, whose blocks it is of; leave it out")
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
    """Dropout drops what it would drop uncompiled; inductor draws in another way."""
    from torch._inductor import config  # a second to import

    return config.patch(fallback_random=True)
