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
        local = torch.view_as_real(state) if state.is_complex() else state  # gloo does not send complex numbers
        local = local.contiguous()
        if local.dim() > 1:
            longest = torch.tensor(local.shape[1], device=local.device)
            dist.all_reduce(longest, dist.ReduceOp.MAX)
            padding_shape = (len(local), int(longest) - local.shape[1], *local.shape[2:])
            local = torch.cat([local.new_full(padding_shape, 0 if local.is_floating_point() else -1), local], dim=1)
        parts = [torch.empty_like(local) for _ in range(world_size())]
        dist.all_gather(parts, local)
        rows = torch.stack(parts, dim=1).flatten(0, 1)
        state = torch.view_as_complex(rows) if state.is_complex() else rows
    return state.cpu()


def local_rows(state: Tensor) -> Tensor:
    """Return this process's rows of the global batch."""
    return state.clone() if world_size() == 1 else state[dist.get_rank() :: world_size()].clone()
