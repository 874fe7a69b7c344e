"""StableSSM, a state-space layer whose eigenvalues are reparameterized for stability.

Shapes: L length, D channels, N states.
Sources: Wang & Li 2024, "StableSSM: Alleviating the Curse of Memory in State-space Models through Stable
Reparameterization", eq. 1-2, and the authors' public code for the layer of its experiments.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.recurrent import RecurrentLayer, ScanContext, linear_recurrence
from lra_ssm.layers.roles import Role, WidthRole
from lra_ssm.layers.s4d import S4D
from lra_ssm.ops import Form, Parameterization, zoh

Readout = Literal["identity", "tanh", "relu", "gelu"]
_READOUTS = {"identity": nn.Identity, "tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}


class StableSSM(RecurrentLayer):
    """S4D with f "best" for the real part of A, or the paper's real diagonal form. x (batch, L, D) -> (batch, L, D).

    form="s4d": the layer of the paper's experiments, an `S4D` that starts with S4D-Lin's A = -1/2 + iπn.
    form="real": dh/dt = Λh + Uu + b, y = C σ(h) (eq. 1-2), Λ real and diagonal, states shared by all channels. It is
    read in discrete time, h_k = Λ h_{k-1} + U u_k + b (appendix C.5), or with a `delta` in continuous time, discretized
    by zero-order hold. Timescales, 1/(1 - λ) or -1/(λ delta) steps, start evenly spaced in their logarithms from 2 to
    1000 (ours: the paper gives no initialization); U and C start as nn.Linear's weights.

    Args:
        d_model: D.
        d_state: N: real states per channel (s4d), or of the layer (real).
        form: "s4d" or "real".
        parameterization: f of λ = f(w), `ops.parameterization`: a name or {name, a, b}.
        init: A's diagonal in the s4d form, "legs", "lin", "inv" or "real".
        delta_min: least Δ of the s4d form at initialization, where it is log-uniform.
        delta_max: greatest Δ of the s4d form at initialization.
        readout: σ of the real form, "identity", "tanh", "relu" or "gelu".
        delta: of the real form, the length of a step in continuous time; None is discrete time.
        bidirectional: as in S4D; in the real form a second recurrence, with its own parameters, over the reversed
            sequence, whose outputs are added.
        learn_B: as in S4D, for the s4d form only; in the public code B is not learned.

    Raises:
        ValueError: settings that do not go together, or f does not reach an initial eigenvalue.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        form: Literal["s4d", "real"] = "s4d",
        parameterization: Form = "best",
        init: Literal["legs", "lin", "inv", "real"] = "lin",
        delta_min: float = 1e-3,
        delta_max: float = 1e-1,
        readout: Readout = "tanh",
        delta: float | None = None,
        bidirectional: bool = False,
        learn_B: bool = True,
    ) -> None:
        super().__init__()
        self.system: RecurrentLayer
        if form == "s4d":
            self.system = S4D(
                d_model, d_state, init, delta_min=delta_min, delta_max=delta_max, bidirectional=bidirectional,
                parameterization=parameterization, learn_B=learn_B,
            )  # fmt: skip
        else:
            if not learn_B:
                raise ValueError("StableSSM learn_B is false; only form s4d has a B")
            self.system = _RealDiagonal(d_model, d_state, parameterization, readout, delta, bidirectional)
        self.state_shape, self.complex_state = self.system.state_shape, self.system.complex_state

    @property
    def bidirectional(self) -> bool:
        return self.system.bidirectional

    def scan(self, x: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentLayer.scan`; state (batch, D, N/2), complex, or (batch, N), real, by the form."""
        return self.system.scan(x, context)

    def bidirectional_scan(self, x: Tensor, lengths: Tensor | None = None, reset: Tensor | None = None) -> Tensor:
        """See `RecurrentLayer.bidirectional_scan`."""
        return self.system.bidirectional_scan(x, lengths, reset)

    def roles(self) -> dict[str, Role]:
        return {f"system.{name}": role for name, role in self.system.optim_roles().items()}


class _RealDiagonal(RecurrentLayer):
    """The real form of StableSSM; arguments and errors as there."""

    def __init__(
        self,
        d_model: int,
        d_state: int,
        parameterization: Form,
        readout: Readout,
        delta: float | None,
        bidirectional: bool,
    ) -> None:
        super().__init__()
        if delta is not None and not 0 < delta < math.inf:
            raise ValueError(f"StableSSM delta is {delta}; it must be greater than 0, or None for discrete time")
        D, N = d_model, d_state
        self.state_shape, self.delta = (N,), delta
        self.parameterization = Parameterization.of(parameterization, "discrete" if delta is None else "continuous")
        steps = torch.logspace(math.log10(2), 3, N, dtype=torch.float64)
        eigenvalues = 1 - 1 / steps if delta is None else -1 / (steps * delta)
        self.eigenvalue_weight = nn.Parameter(self.parameterization.inverse(eigenvalues).float())
        self.U = nn.Parameter(torch.empty(N, D).uniform_(-1, 1) * D**-0.5)
        self.b = nn.Parameter(torch.zeros(N))
        self.C = nn.Parameter(torch.empty(D, N).uniform_(-1, 1) * N**-0.5)
        self.readout = _READOUTS[readout]()
        if bidirectional:
            self.add_reverse()

    def scan(self, x: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentLayer.scan`; state (batch, N)."""
        A_bar, B_bar = self.parameterization.f(self.eigenvalue_weight), torch.ones_like(self.b)
        if self.delta is not None:
            A_bar, B_bar = zoh(A_bar.new_tensor(self.delta), A_bar)
        inputs = F.linear(x, B_bar[:, None] * self.U, B_bar * self.b)
        states, last = linear_recurrence(A_bar, inputs, context)
        return F.linear(self.readout(states).to(self.C.dtype), self.C), last

    def roles(self) -> dict[str, Role]:
        return {"eigenvalue_weight": "recurrent", "b": "no_decay"}

    def width_roles(self) -> dict[str, WidthRole]:
        """The layer's N states do not grow with the width: U maps channels to them, C maps them to channels."""
        return {"eigenvalue_weight": "fixed", "U": "state", "b": "fixed", "C": "embedding"}
