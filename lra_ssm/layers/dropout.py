"""Dropout tied over length: a channel is dropped for the whole sequence or not at all.

The published LRA models use it (`tie_dropout`): dropping single positions would feed noise into the recurrence.

Shapes: B batch, L length, D channels.
"""

from torch import Tensor, nn
from torch.nn import functional as F


class TiedDropout(nn.Module):
    """In training set each (sample, channel) to 0 with probability p and scale the others by 1/(1 - p).

    x (B, L, D), or one position (B, D) -> the same shape.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout is {p}; it must be at least 0 and below 1")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        per_channel = (x.shape[0], *[1] * (x.dim() - 2), x.shape[-1])
        return x * F.dropout(x.new_ones(per_channel), self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"
