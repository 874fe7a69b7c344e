"""The plain block: a layer between two linear maps, as theory has it.

Shapes: B batch, L length, D channels.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.blocks import State, need, run_with_state
from lra_ssm.layers.dropout import TiedDropout
from lra_ssm.layers.masking import check_lengths, check_sequence, mask_padding
from lra_ssm.layers.norms import NormName, make_norm
from lra_ssm.layers.roles import Role, WidthRole, linear_roles
from lra_ssm.layers.spec import LayerFactory, LayerSpec

Nonlinearity = Literal["none", "relu", "gelu", "tanh"]
NONLINEARITIES = {"none": nn.Identity, "relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


class PlainBlock(nn.Module):
    """N σ(Γ(M x) + θ), Γ any layer: the network of Yu & Erichson 2025, eq. 5, at every position.

    Args:
        d_model: D.
        layer: Γ, built as `layer(D)`.
        nonlinearity: σ; "none" is the identity.
        linear_in: M; without it Γ reads x.
        linear_out: N.
        bias: θ.
        glu: N is a gated linear unit, as in `S4Block`.
        norm: in front of M; None for none.
        residual: x is added.
        dropout: tied over length, in front of N and before the residual.

    Raises:
        ValueError: there is no such nonlinearity, or a GLU without N.
    """

    def __init__(
        self,
        d_model: int,
        layer: LayerFactory,
        nonlinearity: Nonlinearity = "gelu",
        linear_in: bool = True,
        linear_out: bool = True,
        bias: bool = True,
        glu: bool = False,
        norm: NormName | None = None,
        residual: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if nonlinearity not in NONLINEARITIES:
            known = ", ".join(NONLINEARITIES)
            raise ValueError(f"PlainBlock nonlinearity is {nonlinearity!r}; it must be one of {known}")
        if glu and not linear_out:
            raise ValueError("PlainBlock glu is a form of the linear map out, which linear_out leaves away")
        self.norm = None if norm is None else make_norm(norm, d_model)
        self.linear_in = nn.Linear(d_model, d_model, bias=False) if linear_in else None
        self.layer = LayerSpec.of(layer)(d_model)
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None
        self.nonlinearity = NONLINEARITIES[nonlinearity]()
        self.linear_out = nn.Linear(d_model, d_model * (2 if glu else 1), bias=False) if linear_out else None
        self.glu, self.residual, self.dropout = glu, residual, TiedDropout(dropout)

    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        initial_state: State = None,
        return_last_state: bool = False,
    ) -> Tensor | tuple[Tensor, State]:
        """x (B, L, D) -> (B, L, D), or with the layer's state; arguments and errors as of `Block.forward`."""
        check_sequence(x, self)
        check_lengths(lengths, x)
        u = self._before(x, lengths)
        y, state = run_with_state(self.layer, u, lengths, reset, initial_state, return_last_state)
        y = mask_padding(self._after(x, y), lengths)
        return (y, state) if return_last_state else y

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One position: x_t (B, D), state -> (y_t (B, D), state)."""
        x = x_t[:, None]
        y, state = need(self.layer, "step")(self._before(x)[:, 0], state)
        return self._after(x, y[:, None])[:, 0], state

    def initial_state(self, batch_size: int) -> State:
        """The layer's state before the first position."""
        return need(self.layer, "initial_state")(batch_size)

    def _before(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        x = x if self.norm is None else self.norm(x, lengths)
        return x if self.linear_in is None else self.linear_in(x)

    def _after(self, x: Tensor, y: Tensor) -> Tensor:
        y = self.dropout(self.nonlinearity(y if self.bias is None else y + self.bias))
        if self.linear_out is not None:
            y = self.linear_out(y)
            y = self.dropout(F.glu(y, dim=-1) if self.glu else y)
        return x + y if self.residual else y

    def optim_roles(self) -> dict[str, Role]:
        return {} if self.bias is None else {"bias": "no_decay"}

    def width_roles(self) -> dict[str, WidthRole]:
        roles = linear_roles(linear_in=(self.linear_in, "hidden"), linear_out=(self.linear_out, "hidden"))
        return roles if self.bias is None else {**roles, "bias": "vector"}
