"""LRU, the linear recurrent unit: complex diagonal states that all channels share.

Shapes: L length, D channels, N complex states.
Sources: Orvieto et al. 2023, "Resurrecting Recurrent Neural Networks for Long Sequences"; the public minimal-LRU
(NicolasZucchet/minimal-LRU) for scales and roles.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.recurrent import RecurrentLayer, ScanContext, linear_recurrence
from lra_ssm.layers.roles import Role, WidthRole
from lra_ssm.ops import Form, Parameterization, as_complex


class LRU(RecurrentLayer):
    """x_t = λ x_{t-1} + γ B u_t, y_t = Re(C x_t) + D u_t. x (batch, L, D) -> (batch, L, D).

    λ = |λ| exp(iθ) with |λ| = f(w), by default exp(-exp(w)), and θ = exp(θ_log). At initialization |λ|² is uniform in
    [r_min², r_max²], which fills a ring with equal density, θ is uniform in [0, max_phase], and γ = sqrt(1 - |λ|²),
    which gives every state the variance of white noise at its input; γ is then learned. Re has no factor 2, because
    the states are not conjugate pairs.

    Args:
        d_model: D.
        d_state: N, complex states of the layer.
        r_min: least |λ| at initialization.
        r_max: greatest |λ| at initialization.
        max_phase: greatest θ at initialization.
        bidirectional: a second recurrence, with its own parameters, over the reversed sequence; its outputs are added.
        parameterization: f of |λ| = f(w), `ops.parameterization`: "exp", or a name or {name, a, b} of discrete time.

    Raises:
        ValueError: r_min, r_max or max_phase is out of range, or f does not reach an initial |λ|.
    """

    complex_state = True
    zero_preserving = True

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 6.28,
        bidirectional: bool = False,
        parameterization: Form = "exp",
    ) -> None:
        super().__init__()
        if not 0 <= r_min < r_max <= 1:
            raise ValueError(f"LRU r_min {r_min}, r_max {r_max}: the ring needs 0 <= r_min < r_max <= 1")
        if not 0 < max_phase < math.inf:
            raise ValueError(f"LRU max_phase is {max_phase}; it must be greater than 0")
        D, N = d_model, d_state
        self.state_shape = (N,)
        self.parameterization = Parameterization.of(parameterization, "discrete")
        # In double, and away from the ends of [0, 1): γ is 0 at |λ| = 1, and |λ| = 0 or θ = 0 has no logarithm.
        radius, turn = torch.rand(2, N, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
        modulus = (radius * (r_max**2 - r_min**2) + r_min**2).sqrt()
        self.modulus_weight = nn.Parameter(self.parameterization.inverse(modulus).float())
        self.theta_log = nn.Parameter((max_phase * turn).log().float())
        self.gamma_log = nn.Parameter(((1 - modulus.square()).log() / 2).float())
        self.B = nn.Parameter(torch.randn(N, D, 2) * (2 * D) ** -0.5)
        self.C = nn.Parameter(torch.randn(D, N, 2) * N**-0.5)
        self.D = nn.Parameter(torch.randn(D))
        if bidirectional:
            self.add_reverse()

    def eigenvalues(self) -> Tensor:
        """Return λ (N,), complex."""
        wide = torch.promote_types(self.theta_log.dtype, torch.float32)  # half precision has no complex type
        modulus, theta = self.parameterization.f(self.modulus_weight.to(wide)), self.theta_log.to(wide).exp()
        # not torch.polar, whose gradient is wrong where f is negative
        return torch.complex(modulus * theta.cos(), modulus * theta.sin())

    def scan(self, x: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentLayer.scan`; state (batch, N), complex."""
        N, D, _ = self.B.shape
        # Complex products as real ones: re and im of B are rows of one matrix, re and im of C its columns.
        B = (self.gamma_log.exp()[:, None, None] * self.B).transpose(1, 2).reshape(2 * N, D)
        C = torch.stack([self.C[..., 0], -self.C[..., 1]], -1).reshape(D, 2 * N)
        inputs = as_complex(F.linear(x, B).unflatten(-1, (N, 2)))
        states, last = linear_recurrence(self.eigenvalues(), inputs, context)
        y = F.linear(torch.view_as_real(states).flatten(-2).to(x.dtype), C) + self.D * x
        return y, last

    def roles(self) -> dict[str, Role]:
        """C and D train at the base rate, with decay, as in minimal-LRU."""
        return dict.fromkeys(("modulus_weight", "theta_log", "gamma_log", "B"), "recurrent")

    def width_roles(self) -> dict[str, WidthRole]:
        """The layer's N states do not grow with the width: B maps channels to them, C maps them to channels."""
        fixed: dict[str, WidthRole] = dict.fromkeys(("modulus_weight", "theta_log", "gamma_log"), "fixed")
        return {**fixed, "B": "state", "C": "embedding", "D": "vector"}
