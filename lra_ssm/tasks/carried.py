"""States carried from batch to batch, in checkpoints: of all processes, so that any number of them can take them up.

Row r of a global batch is row r // W of process r % W.  (W processes, B rows of a process.)
Attention's caches (B, T, …) may have another T in each process; shorter ones get empty slots in front, position −1.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from lra_ssm.layers.norms import processes


def all_rows(state: Tensor) -> Tensor:
    """One process's rows (B, …) -> the rows of the global batch (B · W, …), on the CPU. Every process calls it."""
    if processes() > 1:
        own = (torch.view_as_real(state) if state.is_complex() else state).contiguous()  # gloo sends no complex ones
        if own.dim() > 1:
            longest = torch.tensor(own.shape[1], device=own.device)
            dist.all_reduce(longest, dist.ReduceOp.MAX)
            empty = (len(own), int(longest) - own.shape[1], *own.shape[2:])
            own = torch.cat([own.new_full(empty, 0 if own.is_floating_point() else -1), own], dim=1)
        parts = [torch.empty_like(own) for _ in range(processes())]
        dist.all_gather(parts, own)
        rows = torch.stack(parts, dim=1).flatten(0, 1)
        state = torch.view_as_complex(rows) if state.is_complex() else rows
    return state.cpu()


def own_rows(state: Tensor) -> Tensor:
    """The rows of the global batch -> this process's."""
    return state.clone() if processes() == 1 else state[dist.get_rank() :: processes()].clone()
