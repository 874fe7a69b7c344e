"""Heads: from one vector per sequence, or two, to logits.

A head is built as `Head(d_model, num_classes)`; a classifier calls `head(x)`, a dual encoder `head(x, y)`, with x and y
(B, D). `per_example` is the number of vectors, checked against the network's; a head without it is not checked.

Shapes: B batch, D channels.
"""

from collections.abc import Sequence

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


class MLPHead(nn.Sequential):
    """D -> width -> ReLU -> num_classes: LRA's own head.

    Source: Tay et al. 2021.

    Args:
        d_model: D.
        num_classes: the number of classes.
        width: of the hidden layer; None is D.
    """

    per_example = 1

    def __init__(self, d_model: int, num_classes: int, width: int | None = None) -> None:
        hidden = _positive(width, d_model)
        super().__init__(nn.Linear(d_model, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))
        self.grows = width is None

    def width_roles(self) -> dict[str, WidthRole]:
        """A given width does not grow with the model's."""
        roles: tuple[WidthRole, ...] = ("hidden", "readout") if self.grows else ("state", "fixed")
        return _linear_roles(self, roles)


class NLIHead(nn.Sequential):
    """[x, y, x − y, x · y] (4D) -> D -> GELU -> num_classes: the public S4 code's head for Retrieval."""

    per_example = 2

    def __init__(self, d_model: int, num_classes: int) -> None:
        super().__init__(nn.Linear(4 * d_model, d_model), nn.GELU(), nn.Linear(d_model, num_classes))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(torch.cat([x, y, x - y, x * y], -1))

    def width_roles(self) -> dict[str, WidthRole]:
        return _linear_roles(self, ("hidden", "readout"))


class LRAPairHead(nn.Sequential):
    """[x, y] (2D) -> width -> ReLU -> width/2 -> ReLU -> num_classes: LRA's own head for pairs.

    Source: Tay et al. 2021, for Retrieval.

    Args:
        d_model: D.
        num_classes: the number of classes.
        width: of the first hidden layer; None is D.
    """

    per_example = 2

    def __init__(self, d_model: int, num_classes: int, width: int | None = None) -> None:
        hidden = _positive(width, d_model)
        half = nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, num_classes)
        super().__init__(nn.Linear(2 * d_model, hidden), nn.ReLU(), *half)
        self.grows = width is None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(torch.cat([x, y], -1))

    def width_roles(self) -> dict[str, WidthRole]:
        """A given width does not grow with the model's."""
        roles: tuple[WidthRole, ...] = ("hidden", "hidden", "readout") if self.grows else ("state", "fixed", "fixed")
        return _linear_roles(self, roles)


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


def _positive(width: int | None, d_model: int) -> int:
    if width is not None and width < 1:
        raise ValueError(f"head width is {width}; it must be at least 1, or None for d_model")
    return d_model if width is None else width


def _linear_roles(maps: nn.Sequential, roles: Sequence[WidthRole]) -> dict[str, WidthRole]:
    """Return the roles of a head's linear maps, given in their order."""
    linear = [name for name, module in maps.named_children() if isinstance(module, nn.Linear)]
    return linear_roles(**{name: (maps[int(name)], role) for name, role in zip(linear, roles, strict=True)})
