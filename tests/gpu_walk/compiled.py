"""Counts the kernels of blocks that inductor compiles for a GPU: it decides what is fused, and compiles nothing."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import detect_fake_mode
from torch._guards import TracingContext
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode
from torch._inductor.virtualized import V
from torch.utils._python_dispatch import _disable_current_modes

from lra_ssm.models.backbone import Backbone
from lra_ssm.runs import cost
from lra_ssm.runs.step_cost import _NO_KERNEL, CountStep

PROBE = "probe"  # the phase of a CountStep that counts one operator alone


def kernels(graph: fx.GraphModule, inputs: list[Any]) -> Counter[str]:
    """What inductor would launch for a graph of fake CUDA tensors: its own kernels as "fused", others by operator. Its
    rewritings of patterns, which compute on the device, are left out."""
    with _disable_current_modes(), V.set_fake_mode(detect_fake_mode(inputs)), V.set_debug_handler(DebugContext()):
        lowered = GraphLowering(graph, example_inputs=inputs)
        with V.set_graph_handler(lowered):
            lowered.run(*inputs)
            lowered._update_scheduler()
        found: Counter[str] = Counter()
        ours = _our_operators(graph)
        for node in lowered.scheduler.nodes:
            if isinstance(node, ExternKernelSchedulerNode):
                operator = getattr(node.node, "op_overload", None)
                name = operator.name().partition(".")[0] if operator else ""
                if operator and not operator.is_view and name not in _NO_KERNEL:
                    found[name] += ours.get(name, 2 if name.startswith("aten::_fft") else 1)
            elif not isinstance(node, NopKernelSchedulerNode):
                found["fused"] += 1
    return found


def _our_operators(graph: fx.GraphModule) -> dict[str, int]:
    """Launches of a call, as CountStep has them."""
    found = {}
    for node in graph.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            name = node.target.name().partition(".")[0]
            if name in CountStep._OPENED:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
                counter = CountStep(torch.device("cuda", 0))
                counter.phase = PROBE
                with detect_fake_mode(args), counter:
                    node.target(*args, **kwargs)
                found[name] = sum(counter.cost.total("phase", "launches").values())
    return found


@contextmanager
def counting(found: Counter[str]) -> Iterator[None]:
    """count_step compiles the blocks, whose kernels go into `found`, forward and backward; of its own it counts the
    others."""

    running: list[fx.GraphModule] = []

    def compiler(graph: fx.GraphModule, inputs: list[Any], **_: Any) -> Callable[..., Any]:
        launched = kernels(graph, inputs)

        def run(*args: Tensor) -> Any:
            found.update(launched)
            running.append(graph)
            try:
                return graph.forward(*args)
            finally:
                running.pop()

        return make_boxed_func(run)

    backend = aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        decompositions=select_decomp_table(),
        partition_fn=min_cut_rematerialization_partition,
    )
    copied = cost._fake_copy

    def fake_copy(*args: Any) -> nn.Module:
        task = copied(*args)  # a copy forgets that it is to be compiled
        for block in (one for module in task.modules() if isinstance(module, Backbone) for one in module.blocks):
            block.compile(backend=backend, dynamic=False)
        return task

    def unflatten(x: Tensor, dim: int, sizes: Any) -> Tensor:
        dim %= x.dim()
        return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])

    add = CountStep._add

    def add_what_runs(counter: CountStep, *args: Any) -> None:
        if counter.phase == PROBE or not (running or TracingContext.try_get()):
            add(counter, *args)

    with (
        patch.object(CountStep, "_add", add_what_runs),
        patch.object(Tensor, "unflatten", unflatten),  # torch's own is not traced for a fake tensor
        patch.object(cost, "_fake_copy", fake_copy),
        patch.object(CountStep, "ignore_compile_internals", classmethod(lambda cls: True)),
        torch._inductor.config.patch(fallback_random=True),
    ):
        yield
