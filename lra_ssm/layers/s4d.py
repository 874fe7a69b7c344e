"""S4D, the diagonal linear time-invariant state-space layer.

Shapes: L length, D channels, N states (conjugate pairs), K directions (1, or 2 if bidirectional).
Sources: Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space Models"; notation from
Yu & Erichson 2025, eq. 1-2.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from lra_ssm.layers.recurrent import RecurrentLayer, ScanContext, flip_reset, run_scan
from lra_ssm.layers.roles import Role, WidthRole
from lra_ssm.ops import (
    Form,
    Parameterization,
    as_complex,
    bidirectional_convolution,
    bilinear_as_zoh,
    causal_convolution,
    eigenvalues,
    initialize_A,
    inverse_eigenvalues,
    log_uniform_delta,
    s4d_kernel,
    selective_scan,
)


class S4D(RecurrentLayer):
    """y = SSM(u) + D u with x_k = Ā x_{k-1} + B̄ u_k, computed as one FFT convolution. x (batch, L, D) -> (batch, L, D).

    Δ is per channel. B starts at 1 (the public full kernel takes LegS's B from HiPPO; its minimal form, and ours,
    leaves it to C), C is complex normal with E|C|² = 1, and D is normal, as in the public code.

    Args:
        d_model: D.
        d_state: real states per channel; the layer holds d_state / 2 conjugate pairs.
        init: A's diagonal, "legs", "lin", "inv" or "real".
        tie_A: one A for all channels, as in Yu & Erichson 2025, eq. 1; the public S4D has one per channel.
        tie_B: one B for all channels (Yu & Erichson 2025, section 3, ablates tie_B and tie_C).
        tie_C: one C for all channels.
        delta_min: least Δ at initialization, where it is log-uniform.
        delta_max: greatest Δ at initialization.
        bidirectional: as in the public S4: a second C for the reversed direction, which starts one position later;
            the directions share A, B and Δ.
        discretization: how Ā and B̄ follow from A, B and Δ (`ops.discretization`): "zoh", or "bilinear" as in
            state-spaces/s4 up to v3.
        parameterization: f of Re A = f(w), `ops.parameterization`: "exp", or a name or {name, a, b} of continuous time.
        learn_B: whether B is trained. If not, it stays 1 and is a buffer, which loses nothing: y only depends on the
            product of B and C, and C has as many parameters.

    Raises:
        ValueError: d_state is odd, f does not reach an initial Re A, or there is no such discretization.
    """

    B: Tensor
    complex_state = True

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        init: Literal["legs", "lin", "inv", "real"] = "legs",
        tie_A: bool = False,
        tie_B: bool = False,
        tie_C: bool = False,
        delta_min: float = 1e-3,
        delta_max: float = 1e-1,
        bidirectional: bool = False,
        parameterization: Form = "exp",
        discretization: Literal["zoh", "bilinear"] = "zoh",
        learn_B: bool = True,
    ) -> None:
        super().__init__()
        if d_state % 2:
            raise ValueError(f"S4D d_state {d_state} is odd: the layer holds d_state / 2 conjugate pairs")
        D, N, K = d_model, d_state // 2, 2 if bidirectional else 1
        self.state_shape, self.discretization = (D, N), discretization
        self.log_delta = nn.Parameter(log_uniform_delta(D, delta_min, delta_max).log())
        A = initialize_A(init, N).to(torch.complex64)
        self.parameterization = Parameterization.of(parameterization, "continuous")
        # w of Re A = f(w): a logarithm for "exp", hence its name
        self.A_log = nn.Parameter(inverse_eigenvalues(A, self.parameterization).repeat(1 if tie_A else D, 1))
        self.A_imag = nn.Parameter(A.imag.repeat(1 if tie_A else D, 1))
        one = torch.ones(1 if tie_B else D, N, 1)
        B = torch.cat([one, 0 * one], -1)
        if learn_B:
            self.B = nn.Parameter(B)
        else:
            self.register_buffer("B", B)
        self.C = nn.Parameter(torch.randn(K, 1 if tie_C else D, N, 2) * 0.5**0.5)
        self.D = nn.Parameter(torch.randn(D))

    @property
    def bidirectional(self) -> bool:
        return self.C.shape[0] == 2

    def _system(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return delta (D,), A (D, N), B (D, N) and C (K, D, N), the last three complex."""
        D = self.D.shape[0]
        A = eigenvalues(self.A_log, self.A_imag, self.parameterization).expand(D, -1)
        return self.log_delta.exp(), A, as_complex(self.B).expand(D, -1), as_complex(self.C).expand(-1, D, -1)

    def _kernel(self, L: int) -> Tensor:
        """Return the convolution's kernel (K, D, L)."""
        return s4d_kernel(*self._system(), L, self.discretization)

    def scan(self, x: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentLayer.scan`; state (batch, D, N), complex.

        A convolution has no states and no boundaries, so a call with reset, initial_state or return_last_state runs
        the same system as a scan: equal values, slower.
        """
        if context.reset is not None or context.initial_state is not None or context.return_last_state:
            y, state = self._run_scan(x, 0, context)
            return y + self.D * x, state
        y = causal_convolution(x.transpose(1, 2), self._kernel(x.shape[1])[0])
        return y.transpose(1, 2) + self.D * x, None

    def bidirectional_scan(self, x: Tensor, lengths: Tensor | None = None, reset: Tensor | None = None) -> Tensor:
        """See `RecurrentLayer.bidirectional_scan`; from the right, y_t sees what comes after t, and x_t is left out."""
        if reset is None:
            y = bidirectional_convolution(x.transpose(1, 2), *self._kernel(x.shape[1]))
            return y.transpose(1, 2) + self.D * x
        # The reversed scan's output at t + 1, unless a document starts there.
        backward = self._run_scan(x.flip(1), 1, ScanContext(reset=flip_reset(reset)))[0].flip(1)[:, 1:]
        backward = backward.masked_fill(reset[:, 1:, None], 0)
        return self.scan(x, ScanContext(reset=reset))[0] + nn.functional.pad(backward, (0, 0, 0, 1))

    def _run_scan(self, x: Tensor, direction: int, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """Run the system with one direction's C as a scan, without D u: (y (batch, L, D), last state or None)."""
        delta, A, B, C = self._system()
        if self.discretization == "bilinear":  # scans only know the zero-order hold: the A and B with the same Ā and B̄
            A, factor = bilinear_as_zoh(delta[:, None], A)
            B = factor * B
        u = x.transpose(1, 2)
        if context.valid is not None:  # no time passes at padding
            delta = delta[:, None].expand_as(u).masked_fill(~context.valid.transpose(1, 2), 0)
        y, state = run_scan(selective_scan, u, delta, A, B, C[direction], discretization="zoh", context=context)
        return y.transpose(1, 2), state

    def step_sizes(self, x: Tensor) -> Tensor:
        """Return Δ at every position, always the same: x (batch, L, D) -> (batch, L, D)."""
        return self.log_delta.exp().expand_as(x)

    def roles(self) -> dict[str, Role]:
        return {"A_log": "recurrent", "A_imag": "recurrent", "B": "recurrent", "log_delta": "delta"}

    def width_roles(self) -> dict[str, WidthRole]:
        """Every channel has a system of its own; what all channels share does not grow with the width."""
        rows = {"A_log": len(self.A_log), "A_imag": len(self.A_imag), "B": len(self.B), "C": self.C.shape[1]}
        roles: dict[str, WidthRole] = {name: "fixed" if n == 1 else "vector" for name, n in rows.items()}
        return {"log_delta": "vector", "D": "vector", **roles}
