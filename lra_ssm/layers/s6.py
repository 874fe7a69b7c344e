"""S6, the selective unit of Mamba.

Shapes: L length, D channels, N states, R rank of the Δ projection.
Source: Gu & Dao 2023 (Mamba) and its public code.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.recurrent import RecurrentLayer, ScanContext, run_scan
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
    """Selective state-space layer with real A, as in Mamba's code. x (batch, L, D) -> (batch, L, D).

    Δ = softplus(W_up W_down u + b) of rank R, B = W_B u, C = W_C u, A per channel, and Euler's rule B̄ = Δ B. The S6 of
    Yu & Erichson 2025, eq. 3-4, with one A, one w for Δ and zero-order hold, is a `B2S6` with one block: see there.

    Args:
        d_model: D.
        d_state: N, real states per channel.
        delta_rank: R; None is ceil(D / 16). (Mamba's is of the model's width, not of its block's inner one.)
        delta_min: least softplus(b) at initialization, where it is log-uniform (Mamba's 1e-3).
        delta_max: greatest softplus(b) at initialization (Mamba's 1e-1).
        bidirectional: a second scan, with its own parameters, over the reversed sequence; its outputs are added.
        parameterization: f of A = f(w), `ops.parameterization`: "exp", or a name or {name, a, b} of continuous time.

    Raises:
        ValueError: the rank is not at least 1, or f does not reach an initial A.
    """

    zero_preserving = True  # B(u) u is 0 where u is

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        delta_rank: int | None = None,
        delta_min: float = 1e-3,
        delta_max: float = 1e-1,
        bidirectional: bool = False,
        parameterization: Form = "exp",
    ) -> None:
        super().__init__()
        if delta_rank is not None and delta_rank < 1:
            raise ValueError(f"S6 delta_rank is {delta_rank}; it must be at least 1, or None for ceil(d_model / 16)")
        D, N, R = d_model, d_state, delta_rank or math.ceil(d_model / 16)
        self.state_shape, self.rank_grows = (D, N), delta_rank is None
        self.parameterization = Parameterization.of(parameterization, "continuous")
        # w of A = f(w), a logarithm for "exp"; A = -(1, …, N), S4D-Real
        self.A_log = nn.Parameter(inverse_eigenvalues(initialize_A("real", N), self.parameterization).repeat(D, 1))
        # Mamba's initialization: delta_up uniform ± R^-1/2, the rest as nn.Linear.
        self.delta_down = nn.Parameter(_uniform(R, D, bound=D**-0.5))
        self.delta_up = nn.Parameter(_uniform(D, R, bound=R**-0.5))
        self.delta_bias = nn.Parameter(inverse_softplus(log_uniform_delta(D, delta_min, delta_max)))
        self.B = nn.Parameter(_uniform(N, D, bound=D**-0.5))
        self.C = nn.Parameter(_uniform(N, D, bound=D**-0.5))
        self.D = nn.Parameter(torch.ones(D))
        if bidirectional:
            self.add_reverse()

    def scan(self, x: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentLayer.scan`; state (batch, D, N)."""
        delta, B, C = self._projections(x)
        y, state = run_scan(
            selective_scan,
            x.transpose(1, 2),
            **step_sizes(delta.transpose(1, 2), self.delta_bias, context.valid),
            A=self._A(),
            B=B.transpose(1, 2),
            C=C.transpose(1, 2),
            D=self.D,
            discretization="euler",
            context=context,
        )
        return y.transpose(1, 2), state

    def scan_step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `RecurrentLayer.scan_step`; reads the projections' weights in place, without `cat`."""
        B, C = (step_linear(x_t, weight).unsqueeze(1) for weight in (self.B, self.C))
        return selective_step(x_t, self._delta(x_t), self._A(), B, C, self.D, state, self.delta_bias)

    def selective_weights(self) -> SelectiveWeights | None:
        """Return the weights for `ops.mamba_step`, or None if this layer is not exactly Mamba's S6."""
        if self.parameterization.name != "exp" or type(self) is not S6 or self.bidirectional:
            return None
        return SelectiveWeights(self.delta_down, self.delta_up, self.delta_bias, self.A_log, self.B, self.C, self.D)

    def _A(self) -> Tensor:
        return eigenvalues(self.A_log, parameterization=self.parameterization)

    def _projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return Δ before its bias and softplus (batch, L, D), and B and C (batch, L, N), from x (batch, L, D).

        All maps of x are one matrix product: three narrow products take half as long again, forward and backward.
        """
        N = self.B.shape[0]
        weights = torch.cat([self.delta_down, self.B, self.C])
        low, B, C = F.linear(x, weights).split([len(self.delta_down), N, N], dim=-1)
        return F.linear(low, self.delta_up), B, C

    def _delta(self, x: Tensor) -> Tensor:
        """Return Δ before its bias and softplus: x (batch, L, D) -> (batch, L, D)."""
        return step_linear(step_linear(x, self.delta_down), self.delta_up)

    def step_sizes(self, x: Tensor) -> Tensor:
        """Return Δ of the scan from the left at every position: x (batch, L, D) -> (batch, L, D)."""
        return F.softplus(self._delta(x) + self.delta_bias)

    def roles(self) -> dict[str, Role]:
        delta: dict[str, Role] = dict.fromkeys(("delta_down", "delta_up", "delta_bias"), "delta")
        return {"A_log": "recurrent", "D": "no_decay", **delta}

    def width_roles(self) -> dict[str, WidthRole]:
        """B and C map channels to N states. Δ's rank grows with the channels unless it is given, as Mamba's does."""
        down: WidthRole = "hidden" if self.rank_grows else "state"
        up: WidthRole = "hidden" if self.rank_grows else "embedding"
        projections: dict[str, WidthRole] = {"B": "state", "C": "state", "delta_down": down, "delta_up": up}
        return {"A_log": "vector", "D": "vector", "delta_bias": "vector", **projections}


def _uniform(*shape: int, bound: float) -> Tensor:
    return torch.empty(shape).uniform_(-bound, bound)
