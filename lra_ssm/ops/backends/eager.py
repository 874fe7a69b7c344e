"""The selective scan by PyTorch on any device: the reference, chunk by chunk.

Shapes: u, delta, y (batch, D, L); A (D, N); B, C constant (D, N) or variable (batch, G, N, L); state (batch, D, N).
(D channels, L length, N states, G groups.)

Backward computes each chunk a second time, so that what has N states for every channel and step exists for one chunk at
a time. Only the inputs and the state before every chunk are kept for backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import torch
from torch import Tensor

from lra_ssm.ops.inputs import ScanInputs, ScanTensors
from lra_ssm.ops.reference import run_reference
from lra_ssm.ops.tensors import recompute

STEPS = 64  # of a chunk


def run_eager(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Return (y, last state) for checked inputs without a gate."""

    def run(*tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        return run_reference(inputs._replace(tensors=ScanTensors(*tensors)))  # type: ignore[arg-type]

    chunks: list[Iterator[Tensor | None]] = []
    for name, x in inputs.tensors._asdict().items():
        if x is None or name not in ("u", "delta", "B", "C", "reset") or (name in "BC" and x.dim() == 2):
            chunks.append(repeat(x))
            continue
        # in the arithmetic's dtype: autocast, which backward may run under, concatenates no float16 on a CPU
        x = x.to(inputs.dtype) if x.is_floating_point() else x
        # split, whose gradient is one concatenation; that of a slice is as long as the whole input
        chunks.append(iter(x.split(STEPS, dim=-1)))
    outputs, state = [], inputs.tensors.initial_state
    for tensors in zip(*chunks, strict=False):
        tensors = (*tensors[:-2], state, tensors[-1])
        # torch.compile chooses for itself what to compute twice
        y, state = run(*tensors) if torch.compiler.is_compiling() else recompute(run, *tensors)
        outputs.append(y)
    assert state is not None
    y, like = torch.cat(outputs, dim=-1), torch.empty_like(inputs.tensors.u)
    return (y if y.dtype == like.dtype and y.stride() == like.stride() else like.copy_(y)), state
