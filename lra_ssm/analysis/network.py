"""The layers of a network: where they are, their inputs, and the loss whose gradients reach them.

Shapes: B batch, L length, D channels.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.errors import InputError
from lra_ssm.layers.recurrent import RecurrentLayer


class Example(NamedTuple):
    """One sequence without padding, or one pair of sequences."""

    inputs: Tensor  # (1, L) int64, (1, L, features); pairs (1, 2, L)
    lengths: Tensor | None  # (1,), pairs (1, 2)
    labels: Tensor  # (1,) class; (1, L) targets, -100 where nothing is scored; or real, with the outputs' shape


def layers_of(network: nn.Module) -> dict[str, nn.Module]:
    """Return the recurrent layers of a network by name, in order.

    In a network with a list `blocks`, a layer is each block's attribute `layer`, or the block itself; in any other
    network, each outermost `RecurrentLayer`. Raises InputError if it has none.
    """
    for prefix, module in network.named_modules():
        blocks = getattr(module, "blocks", None)
        if isinstance(blocks, nn.ModuleList) and len(blocks):
            layers = {}
            for i, block in enumerate(blocks):
                inner = getattr(block, "layer", None)
                name = ".".join(
                    filter(None, [prefix, "blocks", str(i), "layer" if isinstance(inner, nn.Module) else ""])
                )
                layers[name] = inner if isinstance(inner, nn.Module) else block
            return layers
    layers = {}
    for name, module in network.named_modules():
        if isinstance(module, RecurrentLayer) and not any(name.startswith(f"{other}.") for other in layers):
            layers[name] = module
    if not layers:
        raise InputError(f"{type(network).__name__} has no list `blocks` and no RecurrentLayer: nothing to look at")
    return layers


def loss_of(network: nn.Module, example: Example) -> Tensor:
    """Return the cross-entropy of a class or of the targets of positions; for real labels the squared error."""
    logits = network(example.inputs) if example.lengths is None else network(example.inputs, example.lengths)
    labels = example.labels
    if labels.is_floating_point():
        return (logits - labels).square().mean()
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)


@contextmanager
def inputs_of(layers: dict[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Record, inside the block, the last input of every layer: by name, x (B, L, D), attached to its graph."""
    inputs: dict[str, Tensor] = {}

    def recorder(name: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, arguments: Any) -> None:
            inputs[name] = arguments[0]
            if arguments[0].requires_grad:
                arguments[0].retain_grad()

        return hook

    handles = [layer.register_forward_pre_hook(recorder(name)) for name, layer in layers.items()]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


def from_embedding(network: nn.Module, example: Example) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return the network as a function of its embedding's output, and that output for an example: (1, L, D).

    So a network of tokens has derivatives by position. Raises InputError if it has no embedding.
    """
    backbone = next((m for m in network.modules() if isinstance(getattr(m, "embedding", None), nn.Module)), None)
    table = next((m for m in network.modules() if isinstance(m, nn.Embedding)), None)
    embedding = backbone.embedding if backbone is not None else table
    if not isinstance(embedding, nn.Module):
        raise InputError(f"{type(network).__name__} has no embedding: its tokens have no derivatives")
    lengths = () if example.lengths is None else (example.lengths,)

    def run(hook: Callable[..., Any]) -> Tensor:
        handle = embedding.register_forward_hook(hook)
        try:
            return network(example.inputs, *lengths)
        finally:
            handle.remove()

    outputs: list[Tensor] = []
    with torch.no_grad():
        run(lambda module, arguments, out: outputs.append(out))
    return (lambda x: run(lambda module, arguments, out: x)), outputs[0]
