"""Two processes (gloo): sharded networks (FSDP2) compared with the whole network in each, and gathered states."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from lra_ssm.analysis import gradient_over_weight
from lra_ssm.callbacks import StopOnNonFinite
from lra_ssm.errors import InputError
from lra_ssm.layers import B2S6, LRU, S4D, S6, BlockSpec, LayerSpec, MambaBlock, S4Block, StableSSM
from lra_ssm.models import Classifier, LanguageModel
from lra_ssm.tasks.language_modelling import gather_rows
from lra_ssm.tasks.sharding import shard
from tests.runner import Command, rendezvous

SIZES = {"vocab_size": 11, "d_model": 8, "n_layers": 2}
B2S6_MODEL = partial(LanguageModel, LayerSpec(B2S6, num_blocks=2, d_state=4), **SIZES)
TWO_DIRECTIONS = LayerSpec(S6, d_state=4, bidirectional=True)
BATCH_BLOCK = BlockSpec(S4Block, norm="batch")


class Own(nn.Module):
    """A user's network; its bias has fewer entries than there are processes."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.bias = nn.Embedding(11, 11), nn.Parameter(torch.zeros(1))

    def forward(self, inputs: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        return self.table(inputs) + self.bias


NETWORKS = {
    "B2S6": B2S6_MODEL,
    "untied, checkpointed": partial(B2S6_MODEL, tie_embeddings=False, activation_checkpointing=True),
    "S6": partial(LanguageModel, LayerSpec(S6, d_state=4), **SIZES),
    "StableSSM": partial(LanguageModel, LayerSpec(StableSSM, d_state=4), **SIZES),
    "two directions, batch norm": partial(Classifier, TWO_DIRECTIONS, num_classes=3, block=BATCH_BLOCK, **SIZES),
    "S4D": partial(Classifier, LayerSpec(S4D, d_state=4), num_classes=3, **SIZES),
    "LRU": partial(LanguageModel, LayerSpec(LRU, d_state=4), block=MambaBlock, **SIZES),
    "own": Own,
}


def loss_of(network: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    if isinstance(network, LanguageModel):
        return network.negative_log_likelihood(ids[:, :-1], ids[:, 1:], reduction="sum")[0]
    return network(ids, torch.full((len(ids),), ids.shape[1])).square().sum()


def sharded_and_whole(build, precision: torch.dtype | None) -> tuple[nn.Module, nn.Module, torch.Tensor, torch.Tensor]:
    """Return both after forward and backward; each process has two of a global batch's four rows."""
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    whole = build()
    torch.manual_seed(0)
    parts = build()
    shard(parts, mesh, precision)
    shard(parts, mesh, precision)  # a second fit changes nothing
    assert all(isinstance(p, DTensor) for p in parts.parameters())
    ids = torch.randint(11, (4, 7), generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision is not None):
        loss = loss_of(parts, ids[rank::2])
        # Batch norm shares its statistics, so that a loss by one process needs the other, as in training.
        mine = loss_of(whole, ids[rank::2])
    (2 * loss / 4).backward()  # gradients are averaged over two
    (mine / 4).backward()
    for p in whole.parameters():
        dist.all_reduce(p.grad)
    return parts, whole, loss.detach(), mine.detach()


def equal() -> None:
    for name, build in NETWORKS.items():
        parts, whole, loss, mine = sharded_and_whole(build, None)
        torch.testing.assert_close(loss, mine, rtol=1e-5, atol=1e-6, msg=name)
        for (path, p), (_, q) in zip(parts.named_parameters(), whole.named_parameters(), strict=True):
            torch.testing.assert_close(p.grad.full_tensor(), q.grad, rtol=1e-4, atol=1e-5, msg=f"{name}: {path}")


def reduce(tensor: torch.Tensor, reduce_op: str) -> torch.Tensor:
    dist.all_reduce(tensor, getattr(dist.ReduceOp, reduce_op.upper()))
    return tensor


def watched() -> None:
    """Compare what callbacks measure on sharded gradients."""
    parts, whole, _, _ = sharded_and_whole(B2S6_MODEL, None)
    ours, theirs = gradient_over_weight(parts), gradient_over_weight(whole)
    assert ours.keys() == theirs.keys() and len(ours) > 10
    for name in ours:
        assert ours[name] == pytest.approx(theirs[name], rel=1e-3), name
    norms = [torch.nn.utils.get_total_norm([p.grad for p in net.parameters()]) for net in (parts, whole)]
    torch.testing.assert_close(norms[0].full_tensor(), norms[1])
    # One entry, of one process
    stop, strategy = StopOnNonFinite(), SimpleNamespace(reduce=reduce)
    trainer: Any = SimpleNamespace(strategy=strategy, precision_plugin=None, global_step=3, current_epoch=0)
    stop.on_before_optimizer_step(trainer, parts, None)  # type: ignore[arg-type]
    if dist.get_rank() == 1:
        parts.backbone.blocks[1].layer.delta_bias.grad.to_local()[0] = torch.nan  # type: ignore[union-attr]
    with pytest.raises(InputError, match="the largest gradient is inf in backbone.blocks.1.layer.delta_bias"):
        stop.on_before_optimizer_step(trainer, parts, None)  # type: ignore[arg-type]


def mixed() -> None:
    seen: dict[str, set[torch.dtype]] = {}

    def build() -> nn.Module:
        model = B2S6_MODEL()
        block = model.backbone.blocks[0]
        for name, module in {"norm": block.norm, "layer": block.layer, "in_proj": block.in_proj}.items():
            seen[name] = set()
            see = partial(lambda kept, m, args: kept.update(p.dtype for p in m.parameters()), seen[name])
            module.register_forward_pre_hook(see)
        seen["residual"] = set()
        block.register_forward_pre_hook(lambda m, args: seen["residual"].add(args[0].dtype))
        return model

    parts, whole, loss, mine = sharded_and_whole(build, torch.bfloat16)
    # The hooks of the network that was built last
    assert seen == {"norm": {torch.float32}, "layer": {torch.float32}, "in_proj": {torch.bfloat16},
                    "residual": {torch.float32}}, seen  # fmt: skip
    torch.testing.assert_close(loss, mine, rtol=1e-3, atol=0)
    ours, theirs = (torch.cat([g.flatten() for g in grads]) for grads in (
        [p.grad.full_tensor() for p in parts.parameters()], [p.grad for p in whole.parameters()]))  # fmt: skip
    assert ours.dtype == torch.float32 and (ours - theirs).norm() < 0.03 * theirs.norm()


def carried() -> None:
    """Attention's caches may have different lengths; shorter ones get empty slots in front."""
    rank = dist.get_rank()
    keys, positions = torch.full((2, 2 + rank, 3), rank + 1.0), torch.arange(2 + rank).expand(2, -1)
    keys, positions, state = (gather_rows(part) for part in (keys, positions, torch.full((2, 4), rank + 1j)))
    assert keys.shape == (4, 3, 3) and positions.tolist() == [[-1, 0, 1], [0, 1, 2]] * 2
    assert keys[0, :2, 0].tolist() == [0, 1] and keys[1, 0, 0] == 2
    assert state[:, 0].tolist() == [1j, 1 + 1j] * 2


def everything(_: list[str]) -> int:
    dist.init_process_group("gloo")
    for check in (equal, watched, mixed, carried):
        check()
    dist.destroy_process_group()
    return 0


def test_sharded_networks_equal_whole_ones_and_states_are_gathered(tmp_path: Path) -> None:
    with rendezvous() as given:
        processes = ({**given, "WORLD_SIZE": "2", "RANK": rank} for rank in "01")
        started = [Command([], tmp_path, env, call=everything) for env in processes]
        results = [command.wait() for command in started]
    assert all(result.code == 0 for result in results), [result.err[-3000:] for result in results]
