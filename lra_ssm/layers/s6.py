"""S6, the selective unit of Mamba.

Shapes: L length, D channels, N states, R rank of the Δ projection.
Sources: Gu & Dao 2023 (Mamba) and its public code; Yu & Erichson 2025, eq. 3-4, for the paper form.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.recurrent import RecurrentLayer, ScanContext
from lra_ssm.layers.roles import Role, WidthRole
from lra_ssm.ops import (
    Form,
    Parameterization,
    SelectiveWeights,
    eigenvalues,
    initialize_A,
    inverse_eigenvalues,
    inverse_softplus,
    log_uniform_delta,
    selective_scan,
    selective_step,
    step_linear,
    step_sizes,
)


class S6(RecurrentLayer):
    """Selective state-space layer with real A. x (batch, L, D) -> (batch, L, D).

    form="mamba": Δ = softplus(W_up W_down u + b) of rank R, A per channel, Euler discretization B̄ = Δ B (Mamba's code).
    form="paper": Δ_i = softplus(wᵀu + b_i), one A for all channels, zero-order hold (Yu & Erichson 2025, eq. 4).

    Args:
        d_model: D.
        d_state: N, real states per channel.
        form: "mamba" or "paper".
        delta_rank: R of the mamba form; None is ceil(D / 16). (Mamba's is of the model's width, not of
            its block's inner one.)
        delta_min: least softplus(b) at initialization, where it is log-uniform (Mamba's 1e-3).
        delta_max: greatest softplus(b) at initialization (Mamba's 1e-1).
        bidirectional: a second scan, with its own parameters, over the reversed sequence; its outputs are added.
        parameterization: f of A = f(w), `ops.parameterization`: "exp", or a name or {name, a, b} of continuous time.

    Raises:
        ValueError: a form that is none, a rank that does not go with it, or f does not reach an initial A.
    """

    zero_preserving = True  # B(u) u is 0 where u is

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        form: Literal["mamba", "paper"] = "mamba",
        delta_rank: int | None = None,
        delta_min: float = 1e-3,
        delta_max: float = 1e-1,
        bidirectional: bool = False,
        parameterization: Form = "exp",
    ) -> None:
        super().__init__()
        if form not in ("mamba", "paper"):
            raise ValueError(f"S6 form is {form!r}; it must be mamba or paper")
        if form == "paper" and delta_rank is not None:
            raise ValueError(
                "S6 delta_rank belongs to form='mamba': the paper's Δ has one vector w, no low-rank matrix"
            )
        if delta_rank is not None and delta_rank < 1:
            raise ValueError(f"S6 delta_rank is {delta_rank}; it must be at least 1, or None for ceil(d_model / 16)")
        D, N, R = d_model, d_state, delta_rank or math.ceil(d_model / 16)
        self.low_rank, self.rank_grows = form == "mamba", delta_rank is None
        self.state_shape = (D, N)
        self.parameterization = Parameterization.of(parameterization, "continuous")
        # w of A = f(w), a logarithm for exp; A = -(1, …, N), S4D-Real
        A_log = inverse_eigenvalues(initialize_A("real", N), self.parameterization)
        if self.low_rank:
            # Mamba's initialization: delta_up uniform ± R^-1/2, the rest as nn.Linear.
            self.A_log = nn.Parameter(A_log.repeat(D, 1))
            self.delta_down = nn.Parameter(_uniform(R, D, bound=D**-0.5))
            self.delta_up = nn.Parameter(_uniform(D, R, bound=R**-0.5))
        else:
            self.A_log = nn.Parameter(A_log)
            self.delta_weight = nn.Parameter(_uniform(D, bound=D**-0.5))
        self.delta_bias = nn.Parameter(inverse_softplus(log_uniform_delta(D, delta_min, delta_max)))
        self.B = nn.Parameter(_uniform(N, D, bound=D**-0.5))
        self.C = nn.Parameter(_uniform(N, D, bound=D**-0.5))
        self.D = nn.Parameter(torch.ones(D))
        if bidirectional:
            self.add_reverse()

    def scan(self, x: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentLayer.scan`; state (batch, D, N)."""
        delta, B, C = self._projections(x)
        out = selective_scan(
            x.transpose(1, 2),
            **step_sizes(delta.transpose(1, 2), self.delta_bias, context.valid),
            A=eigenvalues(self.A_log, parameterization=self.parameterization),
            B=B.transpose(1, 2),
            C=C.transpose(1, 2),
            D=self.D,
            discretization="euler" if self.low_rank else "zoh",
            reset=context.reset,
            initial_state=context.initial_state,
            return_last_state=context.return_last_state,
        )
        y, state = out if isinstance(out, tuple) else (out, None)
        return y.transpose(1, 2), state

    def scan_step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `RecurrentLayer.scan_step`; reads the projections' weights in place, without `cat`."""
        B, C = (step_linear(x_t, weight).unsqueeze(1) for weight in (self.B, self.C))
        delta = self._delta(x_t)
        A = eigenvalues(self.A_log, parameterization=self.parameterization)
        rule = "euler" if self.low_rank else "zoh"
        return selective_step(x_t, delta, A, B, C, self.D, state, self.delta_bias, rule)

    def selective_weights(self) -> SelectiveWeights | None:
        """Return the weights for `ops.mamba_step`, or None if this layer is not exactly Mamba's S6."""
        is_mamba = self.low_rank and self.parameterization.name == "exp" and type(self) is S6
        if not is_mamba or self.bidirectional:
            return None
        return SelectiveWeights(self.delta_down, self.delta_up, self.delta_bias, self.A_log, self.B, self.C, self.D)

    def _projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return Δ before its bias and softplus (batch, L, D), and B and C (batch, L, N), of x (batch, L, D).

        All maps of x are one matrix product: three narrow products take half as long again, forward and backward.
        """
        N = self.B.shape[0]
        if not self.low_rank:
            B, C = F.linear(x, torch.cat([self.B, self.C])).split(N, dim=-1)
            return self._delta(x), B, C
        weights = torch.cat([self.delta_down, self.B, self.C])
        low, B, C = F.linear(x, weights).split([len(self.delta_down), N, N], dim=-1)
        return F.linear(low, self.delta_up), B, C

    def _delta(self, x: Tensor) -> Tensor:
        """Return Δ before its bias and softplus: x (batch, L, D) -> (batch, L, D)."""
        if self.low_rank:
            return step_linear(step_linear(x, self.delta_down), self.delta_up)
        return (x @ self.delta_weight).unsqueeze(-1).expand_as(x)

    def step_sizes(self, x: Tensor) -> Tensor:
        """Return Δ of the scan from the left at every position: x (batch, L, D) -> (batch, L, D)."""
        return F.softplus(self._delta(x) + self.delta_bias)

    def extra_repr(self) -> str:
        D, N = self.state_shape
        form = f"mamba, delta_rank={self.delta_up.shape[1]}" if self.low_rank else "paper"
        return f"d_model={D}, d_state={N}, form={form}, bidirectional={self.bidirectional}"

    def roles(self) -> dict[str, Role]:
        roles: dict[str, Role] = {"A_log": "recurrent", "D": "no_decay", "delta_bias": "delta"}
        for name in ("delta_down", "delta_up") if self.low_rank else ("delta_weight",):
            roles[name] = "delta"
        return roles

    def width_roles(self) -> dict[str, WidthRole]:
        """B and C map channels to N states. Δ's rank grows with the channels unless it is given, as Mamba's does."""
        roles: dict[str, WidthRole] = {"B": "state", "C": "state", "D": "vector", "delta_bias": "vector"}
        if not self.low_rank:
            return {**roles, "A_log": "fixed", "delta_weight": "state"}
        down: WidthRole = "hidden" if self.rank_grows else "state"
        up: WidthRole = "hidden" if self.rank_grows else "embedding"
        return {**roles, "A_log": "vector", "delta_down": down, "delta_up": up}


def _uniform(*shape: int, bound: float) -> Tensor:
    return torch.empty(shape).uniform_(-bound, bound)
