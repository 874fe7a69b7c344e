"""What S6 and B2S6 share: one selective scan per direction, padding, steps and states.

A subclass of `SelectiveLayer` says which `ScanUnit` it is made of; a unit computes the arguments of one
`lra_ssm.ops.selective_scan` from its input and owns the parameters.

Shapes: B batch, L length, D channels, N states (conjugate pairs where complex), H blocks.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from lra_ssm.layers.masking import mask_padding, real_resets, valid_mask
from lra_ssm.layers.spec import Role
from lra_ssm.ops import selective_scan

# softplus(delta + bias) is exactly 0 for any sane bias: the state stands still at padding.
_NO_TIME = -1e4


class ScanUnit(nn.Module, ABC):
    """One causal selective recurrence. `state_shape` (D, N); `complex_state` says which dtype a state has."""

    state_shape: tuple[int, int]
    complex_state: bool

    @abstractmethod
    def scan_arguments(self, x: Tensor) -> dict[str, Any]:
        """x (B, L, D) -> the keyword arguments of `selective_scan`, `delta` before bias and softplus."""

    @abstractmethod
    def optim_roles(self) -> dict[str, Role]:
        """How the optimizer treats this unit's parameters, by name; see lra_ssm.tasks.optim."""

    def scan(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        reset: Tensor | None = None,
        initial_state: Tensor | None = None,
        return_last_state: bool = False,
    ) -> Any:
        arguments = self.scan_arguments(x)
        if valid is not None:
            arguments["delta"] = arguments["delta"].masked_fill(~valid.transpose(1, 2), _NO_TIME)
        out = selective_scan(
            **arguments,
            delta_softplus=True,
            reset=reset,
            initial_state=initial_state,
            return_last_state=return_last_state,
        )
        if isinstance(out, tuple):
            return out[0].transpose(1, 2), out[1]
        return out.transpose(1, 2)


class SelectiveLayer(nn.Module):
    """A causal scan, or two scans in opposite directions with parameters of their own, whose outputs are added."""

    def __init__(self, units: list[ScanUnit]) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)

    @property
    def bidirectional(self) -> bool:
        return len(self.units) == 2

    def _unit(self, i: int) -> ScanUnit:
        unit = self.units[i]
        assert isinstance(unit, ScanUnit)
        return unit

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
        the last real position. reset (B, L) bool: true where a new document starts. initial_state (B, D, N): the
        state before position 0. Raises ValueError for the last two on a bidirectional layer.
        """
        if self.bidirectional and (initial_state is not None or return_last_state):
            refuse_state(self)
        x, reset = mask_padding(x, lengths), real_resets(reset, lengths)
        if not self.bidirectional:
            # Padding moves the state only where somebody asks for it, so time is stopped only then.
            valid = valid_mask(lengths, x.shape[1]) if lengths is not None and return_last_state else None
            out = self._unit(0).scan(x, valid, reset, initial_state, return_last_state)
            if return_last_state:
                return mask_padding(out[0], lengths), out[1]
            return mask_padding(out, lengths)
        # Padding is on the right, hence first in the flipped sequence, where input 0 leaves the state at 0: flipping
        # everything is the same as reversing the valid part alone.
        backward = self._unit(1).scan(x.flip(1), reset=flip_reset(reset)).flip(1)
        return mask_padding(self._unit(0).scan(x, reset=reset) + backward, lengths)

    def initial_state(self, batch_size: int) -> Tensor:
        """The state before the first position: zeros (batch_size, D, N) in the arithmetic's dtype."""
        if self.bidirectional:
            refuse_state(self)
        unit = self._unit(0)
        weight = next(unit.parameters())
        dtype = torch.promote_types(weight.dtype, torch.float32)
        dtype = dtype.to_complex() if unit.complex_state else dtype
        return torch.zeros(batch_size, *unit.state_shape, dtype=dtype, device=weight.device)

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: x_t (B, D), state (B, D, N) -> (y_t (B, D), state)."""
        if self.bidirectional:
            refuse_state(self)
        y, state = self._unit(0).scan(x_t.unsqueeze(1), initial_state=state, return_last_state=True)
        return y.squeeze(1), state

    def optim_roles(self) -> dict[str, Role]:
        return {
            f"units.{i}.{name}": role
            for i in range(len(self.units))
            for name, role in self._unit(i).optim_roles().items()
        }


def flip_reset(reset: Tensor | None) -> Tensor | None:
    """Document starts seen from the right: a boundary before position k is met just before reading k - 1."""
    if reset is None:
        return None
    return torch.cat([reset[:, 1:], torch.zeros_like(reset[:, :1])], dim=1).flip(1)


def refuse_state(layer: nn.Module) -> None:
    raise ValueError(
        f"{type(layer).__name__} is bidirectional: it has no state to start from, to return or to step; "
        "build it with bidirectional=False"
    )
