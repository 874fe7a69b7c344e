"""What a network gives to its layers: where they are, what comes in, what comes back in training.

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
    """One sequence, or one pair of them, without padding where it is one."""

    inputs: Tensor  # (1, L) int64, (1, L, features); pairs (1, 2, L)
    lengths: Tensor | None  # (1,), pairs (1, 2)
    labels: Tensor  # (1,) class; (1, L) targets, -100 where nothing is scored; or real ones, as the outputs are


def layers_of(network: nn.Module) -> dict[str, nn.Module]:
    """The recurrent layers of a network by name, in order.

    Of a network with a list `blocks` what each calls `layer`, else the block itself; of another one its outermost
    `RecurrentLayer`s. Raises InputError where there is none.
    """
    for prefix, module in network.named_modules():
        blocks = getattr(module, "blocks", None)
        if isinstance(blocks, nn.ModuleList) and len(blocks):
            found = {}
            for i, block in enumerate(blocks):
                own = getattr(block, "layer", None)
                name = ".".join(filter(None, [prefix, "blocks", str(i), "layer" if isinstance(own, nn.Module) else ""]))
                found[name] = own if isinstance(own, nn.Module) else block
            return found
    found = {}
    for name, module in network.named_modules():
        if isinstance(module, RecurrentLayer) and not any(name.startswith(f"{other}.") for other in found):
            found[name] = module
    if not found:
        raise InputError(f"{type(network).__name__} has no list `blocks` and no RecurrentLayer: nothing to look at")
    return found


def loss_of(network: nn.Module, example: Example) -> Tensor:
    """Cross-entropy of an example's class or of the targets of its positions; of real targets the squared error."""
    logits = network(example.inputs) if example.lengths is None else network(example.inputs, example.lengths)
    labels = example.labels
    if labels.is_floating_point():
        return (logits - labels).square().mean()
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)


@contextmanager
def inputs_of(layers: dict[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Within, what every layer was last called with: by name, x (B, L, D) in the graph that it came in."""
    seen: dict[str, Tensor] = {}

    def remember(name: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, arguments: Any) -> None:
            seen[name] = arguments[0]
            if arguments[0].requires_grad:
                arguments[0].retain_grad()

        return hook

    handles = [layer.register_forward_pre_hook(remember(name)) for name, layer in layers.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def from_embedding(network: nn.Module, example: Example) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The network as a function of what its embedding gives, and that of an example: (1, L, D).

    So that a network of tokens has derivatives by position. Raises InputError where it has no embedding.
    """
    backbone = next((m for m in network.modules() if isinstance(getattr(m, "embedding", None), nn.Module)), None)
    table = next((m for m in network.modules() if isinstance(m, nn.Embedding)), None)
    embedding = backbone.embedding if backbone is not None else table
    if not isinstance(embedding, nn.Module):
        raise InputError(f"{type(network).__name__} has no embedding: nothing to take its derivatives by")
    lengths = () if example.lengths is None else (example.lengths,)

    def run(hook: Callable[..., Any]) -> Tensor:
        handle = embedding.register_forward_hook(hook)
        try:
            return network(example.inputs, *lengths)
        finally:
            handle.remove()

    seen: list[Tensor] = []
    with torch.no_grad():
        run(lambda module, arguments, out: seen.append(out))
    return (lambda x: run(lambda module, arguments, out: x)), seen[0]
