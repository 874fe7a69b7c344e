"""What a model remembers and for how long: impulse response, memory function, effective memory length.

A model is any function from (B, T, D) to (B, T, D') that treats the sequences of a batch one by one: a layer, a
backbone's blocks, a user's module; in evaluation mode, where it knows one.

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
    """(f(x + a e) - f(x)) / a: what is left, at every position, of an impulse of height a in one channel.

    For a linear system the impulse response (proof of Prop. 2 of the deep-linear-SSM paper, eq. 23), whatever a and x
    are.

    Args:
        model: f.
        length: T.
        d_model: D.
        channels: where impulses are given, one at a time; None for all.
        amplitude: a.
        background: x (T, D); None for zeros.
        position: of the impulse.
        dtype: of x where there is no background.

    Returns (number of channels, T, D').
    """
    x = torch.zeros(length, d_model, dtype=dtype) if background is None else background
    chosen = range(d_model) if channels is None else channels
    batch = x.repeat(len(chosen) + 1, 1, 1)
    for row, channel in enumerate(chosen):
        batch[row, position, channel] += amplitude
    y = model(batch)
    return (y[:-1] - y[-1:]) / amplitude


@torch.no_grad()
def memory_function(model: Model, values: Tensor, length: int) -> Tensor:
    """M(t) = sup over x of |d/dt H_t(x · 1{t ≥ 0})|∞ / (|x|∞ + 1) (StableSSM, definition 2.1, eq. 4), in discrete time.

    The supremum is over the given values alone, and the derivative is the difference from one position to the next; the
    response to no input at all is taken off, as the paper adjusts its functionals. For linear systems M is the absolute
    impulse response, times |x|∞ / (|x|∞ + 1).

    values (M, D): the heights x that are tried, none of them 0. Returns (length,).
    """
    steps = values[:, None].expand(-1, length, -1)
    y = model(steps) - model(torch.zeros_like(steps[:1]))
    change = torch.diff(y, dim=1, prepend=torch.zeros_like(y[:, :1]))
    size = change.abs().amax(-1) / (values.abs().amax(-1, keepdim=True) + 1)
    return size.amax(0)


def effective_memory_length(sensitivity: Tensor, share: float = 0.95) -> Tensor:
    """How many of the nearest positions hold `share` of the whole sensitivity (our definition).

    sensitivity (..., T) >= 0, by lag, the nearest first: |J| by distance, or an absolute impulse response. -> (...),
    int64, 1 … T.
    """
    total = sensitivity.double().cumsum(-1)
    return (total < share * total[..., -1:]).sum(-1) + 1


def by_lag(weights: Tensor, position: int) -> Tensor:
    """weights (..., T) by position -> (..., lags) by distance from `position`, both sides added."""
    before = weights[..., : position + 1].flip(-1)
    after = weights[..., position + 1 :]
    lags = max(before.shape[-1], after.shape[-1] + 1)
    out = weights.new_zeros(*weights.shape[:-1], lags)
    out[..., : before.shape[-1]] += before
    out[..., 1 : after.shape[-1] + 1] += after
    return out
