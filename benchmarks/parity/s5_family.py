"""Rebuild with our modules what lindermanlab/S5 and minimal-LRU, which is based on it, share beyond their layers.

These are the schedule, tokens as one-hot vectors, padding and initialization.

Shapes: B batch, L length, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from compare import smaller
from lra_ssm.datamodules import ListOps, Pathfinder


def gradient_group(ours: str, groups: dict[str, str]) -> str:
    """Return the group in which the gradient of one of our parameters is counted. groups: by a name's last part."""
    if ".layer." in ours:
        return groups.get(ours.rpartition(".")[2], "C, D")
    return "norms" if ".norm." in ours else "maps"


def public_schedule(
    optimizer: Optimizer, steps_per_epoch: int, epochs: int, warmup_epochs: int, lr_min: float = 0.0
) -> LambdaLR:
    """Return the schedule of train.py and train_helpers.py in both repositories.

    They set the rates after step k, counted from 0, so that the first step has each group's own rate. During warm-up
    the factor is (k + 1) / warm-up steps. Then it is half a cosine that counts from the start of the run and takes all
    steps but the warm-up's: it begins below the rate, and stays at lr_min in the last `warmup_epochs`.
    """
    warmup, total = warmup_epochs * steps_per_epoch, epochs * steps_per_epoch

    def share(step: int, rate: float) -> float:
        k = step - 1
        if step == 0:
            return 1.0
        if k < warmup:
            return (k + 1) / warmup
        cosine = 0.5 * (1 + math.cos(math.pi * min(k / (total - warmup), 1.0)))
        return ((rate - lr_min) * cosine + lr_min) / rate

    rates = [group["lr"] for group in optimizer.param_groups]
    return LambdaLR(optimizer, [lambda step, rate=rate: share(step, rate) for rate in rates])


def features(inputs: Tensor, d_input: int, length: int) -> Tensor:
    """Return token ids (…, L) as one-hot vectors (…, length, d_input), padding as token 0; features as they are."""
    if inputs.is_floating_point():
        return inputs
    return F.one_hot(F.pad(inputs, (0, length - inputs.shape[-1])), d_input).float()


def loss_on_features(d_input: int, length: int, pooled: str) -> Callable[[nn.Module, Any], Tensor]:
    """Return the loss of our classifier on the inputs that the public code reads.

    pooled: "real", the mean over real positions, or "all", over padding too.
    """

    def loss(network: nn.Module, batch: Any) -> Tensor:
        inputs, lengths, labels = batch
        logits = network(features(inputs, d_input, length), lengths if pooled == "real" else None)
        return F.cross_entropy(logits, labels)

    return loss


def start_as_flax(network: nn.Module) -> None:
    """Initialize linear maps as Flax's Dense: normal of variance 1 / inputs, cut off at two deviations; biases 0."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            std = module.in_features**-0.5 / 0.87962566103423978  # what is cut off makes the variance smaller
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
            nn.init.zeros_(module.bias)


def generated(folder: str, padded: bool, length: int, batch_size: int, steps: int) -> list[Any]:
    """Return different `Batch`es: ListOps of up to `length` tokens, padded, or Pathfinder's images of 16 × 16 pixels,
    each the mean of four of 32 × 32."""
    if padded:
        data: Any = ListOps(root=folder, batch_size=batch_size, length_bounds=(10, length), max_depth=5,
                            num_train=batch_size * steps, num_val=10, num_test=10)  # fmt: skip
    else:
        data = Pathfinder(root=folder, batch_size=batch_size, num_images=2000, inputs="symmetric")
    data.prepare_data()
    data.setup("fit")
    return [batch if padded else batch._replace(inputs=smaller(batch.inputs, 2)) for batch in data.train_dataloader()]


def paired(batch: Any) -> Any:
    """Return a batch of ListOps as half as many pairs (B, 2, L), labeled by whether both have the same value."""
    inputs, lengths, labels = (x.unflatten(0, (-1, 2)) for x in batch)
    return batch._replace(inputs=inputs, lengths=lengths, labels=(labels[:, 0] == labels[:, 1]).long())
