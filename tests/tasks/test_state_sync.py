"""Rows of carried states, gathered from processes that hold caches of different lengths."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from lra_ssm.tasks.state_sync import gather_rows


def _gather(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    T = 2 + rank
    keys, positions = torch.full((2, T, 3), rank + 1.0), torch.arange(T).expand(2, T)
    state = torch.full((2, 4), rank + 1j)
    torch.save([gather_rows(part) for part in (keys, positions, state)], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_shorter_caches_get_empty_slots_in_front(tmp_path):
    mp.spawn(_gather, (str(tmp_path),), nprocs=2)
    for rank in range(2):
        keys, positions, state = torch.load(tmp_path / f"{rank}.pt")
        assert keys.shape == (4, 3, 3) and state.shape == (4, 4) and state.is_complex()
        assert positions.tolist() == [[-1, 0, 1], [0, 1, 2]] * 2
        assert keys[0, 0].tolist() == [0, 0, 0] and keys[0, 1, 0] == 1 and keys[1, 0, 0] == 2
