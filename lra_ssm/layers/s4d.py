"""S4D, the diagonal linear time-invariant state-space layer.

Shapes: L length, D channels, N states (conjugate pairs), K directions (1, or 2 where bidirectional).
Sources: Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space Models"; the notation of
Yu & Erichson 2025, eq. 1-2.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from lra_ssm.layers.recurrent import RecurrentLayer, flip_reset
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
    selective_step,
)


class S4D(RecurrentLayer):
    """y = SSM(u) + D u with x_k = Ā x_{k-1} + B̄ u_k, discretized as chosen, as one FFT convolution.
    x (batch, L, D) -> (batch, L, D).

    Δ is per channel. B starts at 1 (the public full kernel takes LegS's B from HiPPO; its minimal form, and ours,
    leaves it to C), C complex normal with E|C|² = 1 and D normal, as in the public code.

    Args:
        d_model: D.
        d_state: real states per channel; the layer holds d_state / 2 conjugate pairs.
        init: A's diagonal, "legs", "lin", "inv" or "real".
        tie_A: one A for all channels, as in Yu & Erichson 2025, eq. 1; the public S4D has one per channel.
        tie_B: one B for all channels (Yu & Erichson 2025, section 3, ablates this and the next).
        tie_C: one C for all channels.
        delta_min: least Δ at initialization, where it is log-uniform.
        delta_max: greatest.
        bidirectional: as the public S4: a second C for the reversed direction, which starts one position later; A, B
            and Δ are shared.
        discretization: how Ā and B̄ come from A, B and Δ (`ops.discretization`): "zoh", or "bilinear" as in
            state-spaces/s4 up to v3.
        parameterization: f of Re A = f(w), `ops.parameterization`: "exp", or a name or {name, a, b} of continuous time.

    Raises:
        ValueError: d_state is odd, f does not reach an initial Re A, or another discretization is asked for.
    """

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
    ) -> None:
        super().__init__()
        if discretization not in ("zoh", "bilinear"):
            raise ValueError(f"S4D discretization is {discretization!r}; it must be zoh or bilinear")
        self.discretization = discretization
        if d_state % 2:
            raise ValueError(f"S4D d_state {d_state} is odd: the layer holds d_state / 2 conjugate pairs")
        D, N, K = d_model, d_state // 2, 2 if bidirectional else 1
        self.state_shape, self.complex_state = (D, N), True
        A = initialize_A(init, N).to(torch.complex64)
        self.log_delta = nn.Parameter(log_uniform_delta(D, delta_min, delta_max).log())
        self.parameterization = Parameterization.of(parameterization, "continuous")
        # w of Re A = f(w): a logarithm for exp, whence its name
        self.A_log = nn.Parameter(inverse_eigenvalues(A, self.parameterization).repeat(1 if tie_A else D, 1))
        self.A_imag = nn.Parameter(A.imag.repeat(1 if tie_A else D, 1))
        one = torch.ones(1 if tie_B else D, N, 1)
        self.B = nn.Parameter(torch.cat([one, 0 * one], -1))
        self.C = nn.Parameter(torch.randn(K, 1 if tie_C else D, N, 2) * 0.5**0.5)
        self.D = nn.Parameter(torch.randn(D))

    @property
    def bidirectional(self) -> bool:
        return self.C.shape[0] == 2

    def _system(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """delta (D,), A (D, N), B (D, N), C (K, D, N), the last three complex."""
        D = self.D.shape[0]
        A = eigenvalues(self.A_log, self.A_imag, self.parameterization).expand(D, -1)
        return self.log_delta.exp(), A, as_complex(self.B).expand(D, -1), as_complex(self.C).expand(-1, D, -1)

    def _zoh_system(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same, with A and B such that zero-order hold gives this layer's Ā and B̄: scans have no bilinear rule."""
        delta, A, B, C = self._system()
        if self.discretization == "bilinear":
            A, factor = bilinear_as_zoh(delta[:, None], A)
            B = factor * B
        return delta, A, B, C

    def _kernel(self, L: int) -> Tensor:
        """(K, D, L)."""
        return s4d_kernel(*self._system(), L, self.discretization)

    def scan(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        reset: Tensor | None = None,
        initial_state: Tensor | None = None,
        return_last_state: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentLayer.scan`; state (batch, D, N), complex.

        A convolution has no states and no boundaries, so a call with reset, initial_state or return_last_state runs
        the same system as a scan: equal values, slower.
        """
        if reset is not None or initial_state is not None or return_last_state:
            y, state = self._recur(x, 0, valid, reset, initial_state, return_last_state)
            return y + self.D * x, state
        y = causal_convolution(x.transpose(1, 2), self._kernel(x.shape[1])[0])
        return y.transpose(1, 2) + self.D * x, None

    def scan_step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `RecurrentLayer.scan_step`."""
        delta, A, B, C = self._zoh_system()
        return selective_step(x_t, delta[None], A, B, C[0], self.D, state, discretization="zoh")

    def scan_both(self, x: Tensor, lengths: Tensor | None = None, reset: Tensor | None = None) -> Tensor:
        """See `RecurrentLayer.scan_both`; y_t takes what the reversed scan has seen after t, x_t itself left out."""
        if reset is None:
            y = bidirectional_convolution(x.transpose(1, 2), *self._kernel(x.shape[1]))
            return y.transpose(1, 2) + self.D * x
        # The reversed scan's output at t + 1, unless a document starts there.
        backward = self._recur(x.flip(1), 1, reset=flip_reset(reset))[0].flip(1)[:, 1:]
        backward = backward.masked_fill(reset[:, 1:, None], 0)
        return self.scan(x, reset=reset)[0] + nn.functional.pad(backward, (0, 0, 0, 1))

    def _recur(
        self,
        x: Tensor,
        direction: int,
        valid: Tensor | None = None,
        reset: Tensor | None = None,
        initial_state: Tensor | None = None,
        return_last_state: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Run one direction's C as a scan, without D: (y (batch, L, D), last state (batch, D, N) if asked for)."""
        delta, A, B, C = self._zoh_system()
        u = x.transpose(1, 2)
        if valid is not None:  # no time passes at padding
            delta = delta[:, None].expand_as(u).masked_fill(~valid.transpose(1, 2), 0)
        out = selective_scan(
            u, delta, A, B, C[direction], discretization="zoh", reset=reset, initial_state=initial_state,
            return_last_state=return_last_state,
        )  # fmt: skip
        y, state = out if isinstance(out, tuple) else (out, None)
        return y.transpose(1, 2), state

    def step_sizes(self, x: Tensor) -> Tensor:
        """Δ at every position, the same at all: x (batch, L, D) -> (batch, L, D)."""
        return self.log_delta.exp().expand_as(x)

    def extra_repr(self) -> str:
        D, N = self.state_shape
        return f"d_model={D}, d_state={2 * N}, bidirectional={self.bidirectional}"

    def roles(self) -> dict[str, Role]:
        return {
            "A_log": "recurrent",
            "A_imag": "recurrent",
            "B": "recurrent",
            "log_delta": "delta",
        }

    def width_roles(self) -> dict[str, WidthRole]:
        """Every channel has a system of its own; what they share with tie_A, tie_B or tie_C grows with nothing."""
        owners = {
            "A_log": self.A_log.shape[0],
            "A_imag": self.A_imag.shape[0],
            "B": self.B.shape[0],
            "C": self.C.shape[1],
        }
        shared: dict[str, WidthRole] = {name: "fixed" if n == 1 else "vector" for name, n in owners.items()}
        return {"log_delta": "vector", "D": "vector", **shared}
