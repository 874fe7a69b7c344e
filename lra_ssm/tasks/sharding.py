"""Networks whose parameters, gradients and optimizer states are sharded over devices by block: torch's FSDP2.

The computation is that of one device: each block's parameters are gathered before it runs and released after it. In
bf16-mixed they are sent in bfloat16, except for norms and modules that own a recurrence's or Δ's parameters, which stay
float32. FSDP2 has one precision for all parameters of a group, so these are groups of their own.
"""

import warnings
from collections.abc import Iterator
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from lra_ssm.layers import parameter_roles
from lra_ssm.layers.norms import BatchNorm
from lra_ssm.layers.roles import NORMS
from lra_ssm.models import Backbone

# Methods of a network that are called in place of its forward.
_METHODS = ("negative_log_likelihood",)


def shard(network: nn.Module, mesh: DeviceMesh, low_precision: torch.dtype | None = None) -> None:
    """Shard a network in place over a mesh of one dimension; each process has the same weights before.

    Units are the blocks of the `Backbone`s in it. The rest is gathered for the whole step, so that a network without a
    `Backbone` only saves optimizer states. Gradients are averaged over the processes in float32.

    lower: the precision in which parameters are sent, except for the float32 ones above; None for their own.
    """
    if isinstance(network, FSDPModule):  # a second fit of the same task
        return
    # Layers return transposed views, which are never changed in place.
    warnings.filterwarnings("ignore", message=r".*returned a view tensor.*", module=r"torch\.distributed\.fsdp")
    # Autocast decides the precision of each operation: a float32 residual and states are not cast.
    policy = partial(MixedPrecisionPolicy, reduce_dtype=torch.float32, cast_forward_inputs=False)
    recurrent = {name for name, role in parameter_roles(network).items() if role in ("recurrent", "delta")}
    owners = {network.get_submodule(name.rpartition(".")[0]) for name in recurrent}
    blocks = [block for module in network.modules() if isinstance(module, Backbone) for block in module.blocks]
    for unit in (*blocks, network):
        float32_modules = list(_float32_modules(unit, owners)) if low_precision is not None else []
        if float32_modules:
            fully_shard(float32_modules, mesh=mesh, mp_policy=policy())
        fully_shard(unit, mesh=mesh, mp_policy=policy(param_dtype=low_precision))
    for method in _METHODS:
        if hasattr(network, method):
            register_fsdp_forward_method(network, method)


def _float32_modules(unit: nn.Module, owners: set[nn.Module]) -> Iterator[nn.Module]:
    """Yield the outermost modules below a unit that stay float32; for a layer of two directions this is the layer."""
    for child in unit.children():
        if isinstance(child, FSDPModule):
            continue
        if isinstance(child, (BatchNorm, *NORMS)) or child in owners:
            yield child
        else:
            yield from _float32_modules(child, owners)
