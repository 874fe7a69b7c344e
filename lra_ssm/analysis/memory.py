"""What a model remembers and for how long: impulse response, memory function, effective memory length.

A model is any function from (B, T, D) to (B, T, D') that treats each sequence of a batch separately, such as a layer, a
backbone's blocks, or a module of your own in evaluation mode.

Shapes: B batch, T positions, D input channels, D' output channels.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Model = Callable[[Tensor], Tensor]


@torch.no_grad()
def impulse_response(
    model: Model,
    length: int,
    d_model: int,
    channels: Sequence[int] | None = None,
    amplitude: float = 1.0,
    background: Tensor | None = None,
    position: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return (f(x + a e) - f(x)) / a, the response at every position to an impulse e of height a in one channel.

    For a linear system this is the impulse response (proof of Prop. 2 of the deep-linear-SSM paper, eq. 23), for any a
    and x.

    Args:
        model: f.
        length: T.
        d_model: D.
        channels: channels that receive an impulse, one at a time; None for all.
        amplitude: a.
        background: x (T, D); None for zeros.
        position: the impulse's position.
        dtype: dtype of x without a background.

    Returns (number of channels, T, D').
    """
    x = torch.zeros(length, d_model, dtype=dtype) if background is None else background
    channels = range(d_model) if channels is None else channels
    batch = x.repeat(len(channels) + 1, 1, 1)
    for row, channel in enumerate(channels):
        batch[row, position, channel] += amplitude
    y = model(batch)
    return (y[:-1] - y[-1:]) / amplitude


@torch.no_grad()
def memory_function(model: Model, values: Tensor, length: int) -> Tensor:
    """Return M(t) = sup over x of |d/dt H_t(x · 1{t ≥ 0})|∞ / (|x|∞ + 1) (StableSSM, definition 2.1, eq. 4).

    In discrete time: the supremum is over the given values only, and the derivative is the difference from one position
    to the next. The response to a zero input is subtracted, as the paper adjusts its functionals. For linear systems M
    is the absolute impulse response times |x|∞ / (|x|∞ + 1).

    values (M, D): the heights x to try, none of them 0. Returns (length,).
    """
    steps = values[:, None].expand(-1, length, -1)
    y = model(steps) - model(torch.zeros_like(steps[:1]))
    change = torch.diff(y, dim=1, prepend=torch.zeros_like(y[:, :1]))
    size = change.abs().amax(-1) / (values.abs().amax(-1, keepdim=True) + 1)
    return size.amax(0)


def effective_memory_length(sensitivity: Tensor, share: float = 0.95) -> Tensor:
    """Return how many of the nearest positions hold `share` of the whole sensitivity (our definition).

    sensitivity (..., T) >= 0, by lag, the nearest first, such as ‖J‖ by distance or an absolute impulse response.
    Returns (...) int64, from 1 to T.
    """
    total = sensitivity.double().cumsum(-1)
    return (total < share * total[..., -1:]).sum(-1) + 1


def by_lag(weights: Tensor, position: int) -> Tensor:
    """Sum weights (..., T) by position into (..., lags) by distance from `position`, on both sides."""
    before = weights[..., : position + 1].flip(-1)
    after = weights[..., position + 1 :]
    lags = max(before.shape[-1], after.shape[-1] + 1)
    out = weights.new_zeros(*weights.shape[:-1], lags)
    out[..., : before.shape[-1]] += before
    out[..., 1 : after.shape[-1] + 1] += after
    return out
