"""The selective scan by PyTorch on any device: the reference, chunk by chunk.

Shapes: u, delta, z, y (batch, D, L); A (D, N); B, C constant (D, N) or variable (batch, G, N, L or 2L); state
(batch, D, N). (D channels, L length, N states, G groups.)

Backward computes each chunk a second time, so that what has N states for every channel and step exists for one chunk at
a time. Only the inputs and the state before every chunk are kept for backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from lra_ssm.ops.reference import run_reference
from lra_ssm.ops.scan_inputs import ScanInputs, ScanTensors
from lra_ssm.ops.tensors import recompute

STEPS = 64  # of a chunk
NAMES = ScanTensors._fields[:-2] + ("initial_state", "reset")  # of `ScanInputs`' fields


def _run_chunk(inputs: ScanInputs, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
    fields: dict[str, Any] = dict(zip(NAMES, tensors, strict=True))
    return run_reference(replace(inputs, **fields))


def run_eager(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Return (y, last state) for checked inputs."""
    L = inputs.u.shape[-1]
    chunks: list[Iterator[Tensor | None]] = []
    for name, x in zip(NAMES, inputs.tensors, strict=True):
        if x is None or name not in ("u", "delta", "z", "B", "C", "reset") or (name in "BC" and x.dim() == 2):
            chunks.append(repeat(x))
            continue
        # in the arithmetic's dtype: autocast, which backward may run under, concatenates no float16 on a CPU
        x = x.to(inputs.dtype) if x.is_floating_point() else x
        # split, whose gradient is one concatenation; that of a slice is as long as the whole input
        chunks.append(iter(x.split(STEPS * (x.shape[-1] // L), dim=-1)))  # 2 L where re and im are interleaved
    run, outputs, state = partial(_run_chunk, inputs), [], inputs.initial_state
    for tensors in zip(*chunks, strict=False):
        tensors = (*tensors[:-2], state, tensors[-1])
        # torch.compile chooses for itself what to compute twice
        y, state = run(*tensors) if torch.compiler.is_compiling() else recompute(run, *tensors)
        outputs.append(y)
    assert state is not None
    y, like = torch.cat(outputs, dim=-1), torch.empty_like(inputs.u)
    return (y if y.dtype == like.dtype and y.stride() == like.stride() else like.copy_(y)), state
