"""What all recurrent layers share: padding, document boundaries, both directions, states and steps.

A layer gives `scan`, one causal recurrence; `RecurrentLayer` turns it into what models call.

Shapes: B batch, L length, D channels, N states; a layer's state is (B, *state_shape).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lra_ssm.layers.arguments import KeepsArguments
from lra_ssm.layers.masking import check_sequence, mask_padding, real_resets, valid_mask
from lra_ssm.layers.roles import Role
from lra_ssm.ops import linear_scan


class ScanContext(NamedTuple):
    """The arguments of a causal recurrence other than its input.

    valid: (B, L, 1) bool. Where it is false the state does not change, whatever x is: a layer with step sizes makes
        them 0 there, a layer with x_t = a_t x_{t-1} + b_t has a_t = 1 and b_t = 0. It is only given together with
        return_last_state, because padding on the right changes nothing else that is read from the left.
    reset: (B, L) bool, true where a new document starts: the state before that position is dropped.
    initial_state: (B, *state_shape), the state before position 0; None is zero.
    return_last_state: whether to return the state after position L - 1.
    """

    valid: Tensor | None = None
    reset: Tensor | None = None
    initial_state: Tensor | None = None
    return_last_state: bool = False


class RecurrentLayer(KeepsArguments, ABC):
    """A causal recurrence, or two in opposite directions whose outputs are added. x (B, L, D) -> (B, L, D).

    A subclass sets `state_shape` and `complex_state`, and implements `scan` and `roles`. If it takes `bidirectional`,
    its constructor ends with `if bidirectional: self.add_reverse()`. A layer whose directions share parameters
    overrides `bidirectional` and `bidirectional_scan` instead.
    `zero_preserving` states that input 0 keeps state 0 at 0. The reversed scan reads the padding first; with such a
    layer that needs no care.
    """

    state_shape: tuple[int, ...]
    complex_state: bool = False
    zero_preserving: bool = False

    def __init__(self) -> None:
        super().__init__()
        self.reverse: RecurrentLayer | None = None

    def add_reverse(self) -> None:
        """Set `reverse`: a causal layer with the same arguments and its own parameters, for the reversed sequence."""
        self.reverse = type(self)(**self.constructor_arguments() | {"bidirectional": False})

    @abstractmethod
    def scan(self, x: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """Run the causal recurrence: x (B, L, D) -> (y (B, L, D), last state or None).

        The state after position L - 1, (B, *state_shape), is only needed with `context.return_last_state`.
        """

    @abstractmethod
    def roles(self) -> dict[str, Role]:
        """Return the optimizer's roles of one direction's parameters, by name; see lra_ssm.layers.roles."""

    def bidirectional_scan(self, x: Tensor, lengths: Tensor | None = None, reset: Tensor | None = None) -> Tensor:
        """Return the sum of both directions: x (B, L, D), 0 at padding -> (B, L, D); other arguments as in `forward`.

        Padding is on the right, hence first in the flipped sequence. If it may change the state, a reset at the first
        real position drops what it did: flipping everything then equals reversing only the valid part.
        """
        assert self.reverse is not None
        flipped = flip_reset(reset)
        if lengths is not None and not self.zero_preserving:
            first = torch.arange(x.shape[1], device=x.device) == x.shape[1] - lengths[:, None].long()
            flipped = first if flipped is None else flipped | first
        backward = self.reverse.scan(x.flip(1), ScanContext(reset=flipped))[0].flip(1)
        return self.scan(x, ScanContext(reset=reset))[0] + backward

    @property
    def bidirectional(self) -> bool:
        return self.reverse is not None

    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        initial_state: Tensor | None = None,
        return_last_state: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Map x (B, L, D) to y (B, L, D), or to (y, state) with `return_last_state`.

        lengths: (B,), the number of real positions of each sequence. Outputs at padding are 0, and the last state is
            the one after the last real position.
        reset: (B, L) bool, true where a new document starts.
        initial_state: (B, *state_shape), the state before position 0.

        Raises ValueError for a state on a bidirectional layer, for an x of another shape or without positions, and
        for invalid lengths (see `check_lengths`).
        """
        check_sequence(x, self)
        if self.bidirectional and (initial_state is not None or return_last_state):
            self._refuse_state()
        x, reset = mask_padding(x, lengths), real_resets(reset, lengths)
        if self.bidirectional:
            return mask_padding(self.bidirectional_scan(x, lengths, reset), lengths)
        # That padding changes the state only matters to a caller who wants the last one.
        valid = valid_mask(lengths, x.shape[1]) if lengths is not None and return_last_state else None
        y, state = self.scan(x, ScanContext(valid, reset, initial_state, return_last_state))
        y = mask_padding(y, lengths)
        if not return_last_state:
            return y
        assert state is not None
        return y, state

    def initial_state(self, batch_size: int) -> Tensor:
        """Return the state before the first position: zeros (batch_size, *state_shape) in the arithmetic's dtype."""
        if self.bidirectional:
            self._refuse_state()
        weight = next(self.parameters(), torch.zeros(()))
        dtype = torch.promote_types(weight.dtype, torch.float32)
        dtype = dtype.to_complex() if self.complex_state else dtype
        return torch.zeros(batch_size, *self.state_shape, dtype=dtype, device=weight.device)

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Advance by one position: x_t (B, D), state (B, *state_shape) -> (y_t (B, D), state)."""
        if self.bidirectional:
            self._refuse_state()
        return self.scan_step(x_t, state)

    def scan_step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run the causal recurrence at one position; a subclass may override it by something faster than this scan."""
        y, after = self.scan(x_t.unsqueeze(1), ScanContext(initial_state=state, return_last_state=True))
        assert after is not None
        return y.squeeze(1), after

    def optim_roles(self) -> dict[str, Role]:
        """Return the roles of both directions' parameters, by name."""
        roles = self.roles()
        if self.reverse is not None:
            roles |= {f"reverse.{name}": role for name, role in self.reverse.roles().items()}
        return roles

    def extra_repr(self) -> str:
        """Name the arguments that the layer was built with."""
        return ", ".join(f"{name}={value!r}" for name, value in self.constructor_arguments().items())

    def _refuse_state(self) -> None:
        raise ValueError(
            f"{type(self).__name__} is bidirectional: it has no state to start from, to return or to step; "
            "build it with bidirectional=False"
        )


def run_scan(
    scan: Callable[..., Tensor | tuple[Tensor, Tensor]], *inputs: Tensor, context: ScanContext, **settings: Any
) -> tuple[Tensor, Tensor | None]:
    """Call a scan of `ops` with the context, except for `valid`; return (y, last state or None)."""
    _, reset, initial, last = context
    out = scan(*inputs, **settings, reset=reset, initial_state=initial, return_last_state=last)
    return out if isinstance(out, tuple) else (out, None)


def linear_recurrence(a: Tensor, b: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
    """Compute x_t = a x_{t-1} + b_t for a constant a: a (N,), b (B, L, N) -> (x (B, L, N), last state (B, N) or None).

    x at padding has no meaning.
    """
    x, last = run_scan(linear_scan, a, b.transpose(1, 2), context=context)
    x, valid, initial = x.transpose(1, 2), context.valid, context.initial_state
    if last is not None and valid is not None:
        # the state after the last real position; at padding a goes on changing it
        count = valid.sum(1)  # (B, 1)
        end = x.gather(1, (count - 1).clamp(min=0).unsqueeze(-1).expand(-1, 1, x.shape[-1])).squeeze(1)
        before = torch.zeros_like(last) if initial is None else initial.to(last.dtype)
        last = torch.where(count > 0, end.to(last.dtype), before)
    return x, last


def flip_reset(reset: Tensor | None) -> Tensor | None:
    """Return the resets of the flipped sequence: a document that starts at k ends, from the right, before k - 1."""
    if reset is None:
        return None
    return torch.cat([reset[:, 1:], torch.zeros_like(reset[:, :1])], dim=1).flip(1)
