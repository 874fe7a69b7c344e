"""A few examples through the network before a fit writes or trains anything: what is broken is said at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from lightning.pytorch.utilities.seed import isolate_rng

EXAMPLES = 3  # odd, so that no other size is easily taken for the batch's


def try_network(task: Any, data: Any, trainer: Trainer) -> None:
    """Sends the first training examples through the task's network, in evaluation, on the device and in the precision
    that will train.

    Of it nothing stays: no gradient, no random number drawn, no buffer changed, nothing compiled. Raises what the
    network raises. Tasks without `try_batch`, data without `sample`, and strategies that make other modules of the
    network (FSDP) or start processes by forking meet their first batch in the Trainer.
    """
    if not (hasattr(task, "try_batch") and hasattr(data, "sample")):
        return
    strategy, precision = trainer.strategy, trainer.precision_plugin
    if not isinstance(strategy, (SingleDeviceStrategy, DDPStrategy)):
        return
    if isinstance(strategy.launcher, _MultiProcessingLauncher):
        return
    if type(precision) not in (Precision, MixedPrecision, HalfPrecision, DoublePrecision):
        return
    device = strategy.root_device
    with isolate_rng(include_cuda=device.type == "cuda"), torch.no_grad(), torch.compiler.set_stance("force_eager"):
        batch = task.transfer_batch_to_device(data.sample(EXAMPLES), device, 0)
        precision.convert_module(task.to(device))  # as the Trainer is about to do
        with _as_before(task), precision.forward_context():
            task.try_batch(precision.convert_input(batch), getattr(data, "num_classes", None))


@contextmanager
def _as_before(task: torch.nn.Module) -> Iterator[None]:
    """Evaluation within the block; modes and buffers are afterwards what they were."""
    modes = [(module, module.training) for module in task.modules()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module, _ in modes
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        task.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training
        for module, name, buffer, value in buffers:
            module._buffers[name] = buffer.copy_(value)
