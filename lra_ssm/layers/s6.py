"""S6, the selective unit of Mamba.

Shapes: B batch, L length, D channels, N states, R rank of the Δ projection.
Sources: Gu & Dao 2023 (Mamba) and its public code; Yu & Erichson 2025, eq. 3-4, for the paper form.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.selective import ScanUnit, SelectiveLayer
from lra_ssm.layers.spec import Role
from lra_ssm.ops import initialize_A, inverse_softplus, log_uniform_delta


class S6(SelectiveLayer):
    """Selective state-space layer with real A. x (B, L, D) -> (B, L, D).

    form="mamba": Δ = softplus(W_up W_down u + b) of rank R, A per channel, Euler discretization B̄ = Δ B (Mamba's code).
    form="paper": Δ_i = softplus(wᵀu + b_i), one A for all channels, zero-order hold (Yu & Erichson 2025, eq. 4).

    d_state: N real states per channel. delta_rank: R of the mamba form; None is ceil(D / 16), Mamba's choice.
    delta_min, delta_max: range of softplus(b) at initialization, log-uniform (Mamba's 1e-3 to 1e-1).
    bidirectional: a second scan, with its own parameters, over the reversed sequence; the outputs are added.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        form: Literal["mamba", "paper"] = "mamba",
        delta_rank: int | None = None,
        delta_min: float = 1e-3,
        delta_max: float = 1e-1,
        bidirectional: bool = False,
    ) -> None:
        if form not in ("mamba", "paper"):
            raise ValueError(f"S6 form is {form!r}; it must be mamba or paper")
        if form == "paper" and delta_rank is not None:
            raise ValueError(
                "S6 delta_rank belongs to form='mamba': the paper's Δ has one vector w, no low-rank matrix"
            )
        if delta_rank is not None and delta_rank < 1:
            raise ValueError(f"S6 delta_rank is {delta_rank}; it must be at least 1, or None for ceil(d_model / 16)")
        rank = (delta_rank or math.ceil(d_model / 16)) if form == "mamba" else 0
        super().__init__(
            [_S6Unit(d_model, d_state, rank, delta_min, delta_max) for _ in range(2 if bidirectional else 1)]
        )


class _S6Unit(ScanUnit):
    complex_state = False

    def __init__(self, D: int, N: int, R: int, delta_min: float, delta_max: float) -> None:
        super().__init__()
        self.state_shape = (D, N)
        A = initialize_A("real", N)  # -(1, …, N), S4D-Real
        if R:
            # Mamba's initialization: delta_up uniform ± R^-1/2, the rest as nn.Linear.
            self.A_log = nn.Parameter((-A).log().repeat(D, 1))
            self.delta_down = nn.Parameter(_uniform(R, D, bound=D**-0.5))
            self.delta_up = nn.Parameter(_uniform(D, R, bound=R**-0.5))
            self.discretization = "euler"
        else:
            self.A_log = nn.Parameter((-A).log())
            self.delta_weight = nn.Parameter(_uniform(D, bound=D**-0.5))
            self.discretization = "zoh"
        self.delta_bias = nn.Parameter(inverse_softplus(log_uniform_delta(D, delta_min, delta_max)))
        self.B = nn.Parameter(_uniform(N, D, bound=D**-0.5))
        self.C = nn.Parameter(_uniform(N, D, bound=D**-0.5))
        self.D = nn.Parameter(torch.ones(D))
        self.low_rank = R > 0

    def scan_arguments(self, x: Tensor) -> dict[str, Any]:
        if self.low_rank:
            delta = F.linear(F.linear(x, self.delta_down), self.delta_up)
        else:
            delta = (x @ self.delta_weight).unsqueeze(-1).expand_as(x)
        return {
            "u": x.transpose(1, 2),
            "delta": delta.transpose(1, 2),
            "A": -self.A_log.exp(),
            "B": F.linear(x, self.B).transpose(1, 2),
            "C": F.linear(x, self.C).transpose(1, 2),
            "D": self.D,
            "delta_bias": self.delta_bias,
            "discretization": self.discretization,
        }

    def optim_roles(self) -> dict[str, Role]:
        roles: dict[str, Role] = {"A_log": "recurrent", "D": "no_decay", "delta_bias": "delta"}
        for name in ("delta_down", "delta_up") if self.low_rank else ("delta_weight",):
            roles[name] = "delta"
        return roles


def _uniform(*shape: int, bound: float) -> Tensor:
    return torch.empty(shape).uniform_(-bound, bound)
