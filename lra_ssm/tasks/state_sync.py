"""Carried states in checkpoints: those of all processes, so that any number of processes can continue with them.

Row r of a global batch is row r // W of process r % W (W processes, B rows per process).
Attention's caches (B, T, …) may have another T in each process; shorter ones get empty slots in front, position −1.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from lra_ssm.layers.norms import world_size


def gather_rows(state: Tensor) -> Tensor:
    """Gather one process's rows (B, …) into those of the global batch (B · W, …), on the CPU.

    Every process calls it.
    """
    if world_size() > 1:
        own = torch.view_as_real(state) if state.is_complex() else state  # gloo does not send complex numbers
        own = own.contiguous()
        if own.dim() > 1:
            longest = torch.tensor(own.shape[1], device=own.device)
            dist.all_reduce(longest, dist.ReduceOp.MAX)
            empty = (len(own), int(longest) - own.shape[1], *own.shape[2:])
            own = torch.cat([own.new_full(empty, 0 if own.is_floating_point() else -1), own], dim=1)
        parts = [torch.empty_like(own) for _ in range(world_size())]
        dist.all_gather(parts, own)
        rows = torch.stack(parts, dim=1).flatten(0, 1)
        state = torch.view_as_complex(rows) if state.is_complex() else rows
    return state.cpu()


def local_rows(state: Tensor) -> Tensor:
    """Return this process's rows of the global batch."""
    return state.clone() if world_size() == 1 else state[dist.get_rank() :: world_size()].clone()
