"""Heads: from one vector per sequence, or two, to logits.

A head is built as `Head(d_model, num_classes)`; a classifier calls `head(x)`, a dual encoder `head(x, y)`, with x and y
(B, D). `per_example` is the number of vectors, checked against the network's; a head without it is not checked.

Shapes: B batch, D channels.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from lra_ssm.layers.roles import WidthRole, linear_roles


class LinearHead(nn.Linear):
    """One linear map."""

    per_example = 1

    def __init__(self, d_model: int, num_classes: int) -> None:
        super().__init__(d_model, num_classes)

    def width_roles(self) -> dict[str, WidthRole]:
        return {"weight": "readout", "bias": ("fixed", -0.5)}


class _MLP(nn.Sequential):
    """Linear maps of these sizes, an activation between each two.

    grows: whether the sizes between the first and the last grow with the width of the model.
    """

    def __init__(self, sizes: Sequence[int], activation: type[nn.Module], grows: bool = True) -> None:
        first, *others = (nn.Linear(a, b) for a, b in pairwise(sizes))
        super().__init__(first, *(part for linear in others for part in (activation(), linear)))
        self.grows = grows

    def width_roles(self) -> dict[str, WidthRole]:
        linear = {name: module for name, module in self.named_children() if isinstance(module, nn.Linear)}
        roles: list[WidthRole] = ["hidden" if self.grows else "fixed" for _ in linear]
        if self.grows:
            roles[-1] = "readout"
        else:
            roles[0] = "state"
        return linear_roles(**{name: (linear[name], role) for name, role in zip(linear, roles, strict=True)})


class MLPHead(_MLP):
    """D -> width -> ReLU -> num_classes: LRA's own head.

    Source: Tay et al. 2021.

    Args:
        d_model: D.
        num_classes: the number of classes.
        width: of the hidden layer; None is D.
    """

    per_example = 1

    def __init__(self, d_model: int, num_classes: int, width: int | None = None) -> None:
        super().__init__([d_model, d_model if width is None else width, num_classes], nn.ReLU, grows=width is None)


class NLIHead(_MLP):
    """[x, y, x − y, x · y] (4D) -> D -> GELU -> num_classes: the public S4 code's head for Retrieval."""

    per_example = 2

    def __init__(self, d_model: int, num_classes: int) -> None:
        super().__init__([4 * d_model, d_model, num_classes], nn.GELU)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(torch.cat([x, y, x - y, x * y], -1))


class LRAPairHead(_MLP):
    """[x, y] (2D) -> width -> ReLU -> width/2 -> ReLU -> num_classes: LRA's own head for pairs.

    Source: Tay et al. 2021, for Retrieval.

    Args:
        d_model: D.
        num_classes: the number of classes.
        width: of the first hidden layer; None is D.
    """

    per_example = 2

    def __init__(self, d_model: int, num_classes: int, width: int | None = None) -> None:
        hidden = d_model if width is None else width
        super().__init__([2 * d_model, hidden, hidden // 2, num_classes], nn.ReLU, grows=width is None)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(torch.cat([x, y], -1))


class LogitPairHead(nn.Module):
    """An LRA pair head on the logits of both, jsie7/ssm-benchmark's head for Retrieval.

    One linear map takes x and y to num_classes; then 2 · num_classes -> 512 -> ReLU -> 256 -> ReLU -> num_classes.
    """

    per_example = 2

    def __init__(self, d_model: int, num_classes: int) -> None:
        super().__init__()
        self.each = LinearHead(d_model, num_classes)
        first, middle, last = nn.Linear(2 * num_classes, 512), nn.Linear(512, 256), nn.Linear(256, num_classes)
        self.match = nn.Sequential(first, nn.ReLU(), middle, nn.ReLU(), last)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x, y (B, D) -> (B, num_classes)."""
        return self.match(torch.cat([self.each(x), self.each(y)], -1))

    def width_roles(self) -> dict[str, WidthRole]:
        """`each` declares its own roles; the other sizes are the number of logits and fixed numbers."""
        return {name: "fixed" for name, _ in self.named_parameters() if name.startswith("match.")}
