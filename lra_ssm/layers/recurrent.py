"""What every recurrent layer shares: padding, document boundaries, both directions, states and steps.

A layer gives `scan`, one causal recurrence; `RecurrentLayer` makes of it what models call.

Shapes: B batch, L length, D channels; the state is the layer's own, (B, *state_shape).
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from lra_ssm.layers.masking import check_sequence, mask_padding, real_resets, valid_mask
from lra_ssm.layers.roles import Role
from lra_ssm.ops import linear_scan


class RecurrentLayer(nn.Module, ABC):
    """A causal recurrence, or two in opposite directions whose outputs are added. x (B, L, D) -> (B, L, D).

    A subclass sets `state_shape` and `complex_state`, and gives `scan` and `roles`. Where it is bidirectional it sets
    `reverse`: a causal layer of the same kind, with parameters of its own, that reads the sequence from the right; or
    it overrides `bidirectional` and `scan_both`, where the directions share parameters.
    `zero_stays_zero` says that input 0 leaves state 0 at 0; padding, which the reversed scan meets first, then needs no
    care.
    """

    state_shape: tuple[int, ...]
    complex_state: bool = False
    zero_stays_zero: bool = False

    def __init__(self) -> None:
        super().__init__()
        self.reverse: RecurrentLayer | None = None

    @abstractmethod
    def scan(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        reset: Tensor | None = None,
        initial_state: Tensor | None = None,
        return_last_state: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The causal recurrence: x (B, L, D) -> (y (B, L, D), state after position L - 1 where it is asked for).

        valid (B, L, 1) bool: where it is false the state stands still: it is afterwards what it was before, whatever
        x is. A layer with step sizes makes them 0 there, one that has x_t = a_t x_{t-1} + b_t sets a_t = 1, b_t = 0.
        It comes with return_last_state alone: padding on the right changes nothing else of what is read from the left.
        reset (B, L) bool: the state before such a position is dropped. initial_state (B, *state_shape).
        """

    @abstractmethod
    def roles(self) -> dict[str, Role]:
        """How the optimizer treats the parameters of one direction, by name; see lra_ssm.layers.roles."""

    def scan_both(self, x: Tensor, lengths: Tensor | None = None, reset: Tensor | None = None) -> Tensor:
        """The sum of both directions, lengths and reset as in `forward`: x (B, L, D), 0 at padding -> (B, L, D).

        Padding is on the right, hence first in the flipped sequence. Where it moved the state, that is dropped before
        the last real position: flipping everything is then the same as reversing the valid part alone.
        """
        assert self.reverse is not None
        flipped = flip_reset(reset)
        if lengths is not None and not self.zero_stays_zero:
            first = torch.arange(x.shape[1], device=x.device) == x.shape[1] - lengths[:, None].long()
            flipped = first if flipped is None else flipped | first
        backward = self.reverse.scan(x.flip(1), reset=flipped)[0].flip(1)
        return self.scan(x, reset=reset)[0] + backward

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
        """x (B, L, D) -> y (B, L, D), or (y, state) with `return_last_state`.

        lengths (B,): real positions of each sequence; outputs at padding are 0, and the last state is the one after
        the last real position. reset (B, L) bool: true where a new document starts. initial_state (B, *state_shape):
        the state before position 0. Raises ValueError for the last two on a bidirectional layer, for an x of
        another shape or without a position, and for lengths that it cannot have: see `check_lengths`.
        """
        check_sequence(x, self)
        if self.bidirectional and (initial_state is not None or return_last_state):
            self._refuse_state()
        x, reset = mask_padding(x, lengths), real_resets(reset, lengths)
        if self.bidirectional:
            return mask_padding(self.scan_both(x, lengths, reset), lengths)
        # Padding moves the state only where somebody asks for it.
        valid = valid_mask(lengths, x.shape[1]) if lengths is not None and return_last_state else None
        y, state = self.scan(x, valid, reset, initial_state, return_last_state)
        y = mask_padding(y, lengths)
        if not return_last_state:
            return y
        assert state is not None
        return y, state

    def initial_state(self, batch_size: int) -> Tensor:
        """The state before the first position: zeros (batch_size, *state_shape) in the arithmetic's dtype."""
        if self.bidirectional:
            self._refuse_state()
        weight = next(self.parameters(), torch.zeros(()))
        dtype = torch.promote_types(weight.dtype, torch.float32)
        dtype = dtype.to_complex() if self.complex_state else dtype
        return torch.zeros(batch_size, *self.state_shape, dtype=dtype, device=weight.device)

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: x_t (B, D), state (B, *state_shape) -> (y_t (B, D), state)."""
        if self.bidirectional:
            self._refuse_state()
        return self.scan_step(x_t, state)

    def scan_step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The causal recurrence at one position; a subclass may have a shorter way than a scan of length 1."""
        y, after = self.scan(x_t.unsqueeze(1), initial_state=state, return_last_state=True)
        assert after is not None
        return y.squeeze(1), after

    def optim_roles(self) -> dict[str, Role]:
        roles = self.roles()
        if self.reverse is not None:
            roles |= {f"reverse.{name}": role for name, role in self.reverse.roles().items()}
        return roles

    def extra_repr(self) -> str:
        """The state's shape; a subclass says its sizes by the names of its arguments."""
        return f"state_shape={self.state_shape}, bidirectional={self.bidirectional}"

    def _refuse_state(self) -> None:
        raise ValueError(
            f"{type(self).__name__} is bidirectional: it has no state to start from, to return or to step; "
            "build it with bidirectional=False"
        )


def linear_recurrence(
    a: Tensor,
    b: Tensor,
    valid: Tensor | None = None,
    reset: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x_t = a x_{t-1} + b_t for a constant a: a (N,), b (B, L, N) -> (x (B, L, N), last state (B, N)).

    valid, reset and initial_state as in `RecurrentLayer.scan`; x at padding is not meant to be read.
    """
    x, last = linear_scan(a, b.transpose(1, 2), initial_state=initial_state, reset=reset, return_last_state=True)
    x = x.transpose(1, 2)
    if valid is not None:  # the state after the last real position, which a goes on changing
        count = valid.sum(1)  # (B, 1)
        end = x.gather(1, (count - 1).clamp(min=0).unsqueeze(-1).expand(-1, 1, x.shape[-1])).squeeze(1)
        before = torch.zeros_like(last) if initial_state is None else initial_state.to(last.dtype)
        last = torch.where(count > 0, end.to(last.dtype), before)
    return x, last


def flip_reset(reset: Tensor | None) -> Tensor | None:
    """Document starts seen from the right: a boundary before position k is met just before reading k - 1."""
    if reset is None:
        return None
    return torch.cat([reset[:, 1:], torch.zeros_like(reset[:, :1])], dim=1).flip(1)
