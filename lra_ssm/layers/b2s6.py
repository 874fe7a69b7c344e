"""B2S6, the block-biased selective unit.

Shapes: L length, D channels, H blocks, P = D / H channels per block, N states (conjugate pairs where complex).
Source: Yu & Erichson 2025, "Block-Biased Mamba for Long-Range Sequence Processing", eq. 7-8 and algorithm 2.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.recurrent import RecurrentLayer, ScanContext, run_scan
from lra_ssm.layers.roles import Role, WidthRole
from lra_ssm.ops import (
    Form,
    Parameterization,
    as_complex,
    block_linear,
    eigenvalues,
    initialize_A,
    inverse_eigenvalues,
    inverse_softplus,
    log_uniform_delta,
    selective_scan,
    step_sizes,
)


class B2S6(RecurrentLayer):
    """Block-biased selective layer. x (batch, L, D) -> (batch, L, D).

    The D channels are split into H blocks of P; each block's Δ, B and C only see their own P channels:
    Δ_i = softplus(wᵀu + b_i), B = B_weight u + B_bias_i, C = uᵀC, one A for the layer, zero-order hold.

    With one block, real and without B_bias (`num_blocks=1, bias=False, complex_A=False`) this is the paper's S6
    (eq. 3-4).

    The paper gives no initialization: B_bias starts at 1, as B does in S4D, and the projections as nn.Linear's weights.

    Args:
        d_model: D.
        num_blocks: H, must divide D.
        d_state: real states per channel; a complex layer holds d_state / 2 conjugate pairs.
        bias: whether there is a B_bias.
        complex_A: A, B_weight and B_bias are complex; otherwise all are real.
        complex_C: C is complex too; the paper's is real.
        init: A's diagonal, "legs", "lin" or "inv"; a real layer is S4D-Real, -(1, …, N).
        delta_min: least softplus(b) at initialization, where it is log-uniform.
        delta_max: greatest softplus(b) at initialization.
        bidirectional: a second scan, with its own parameters, over the reversed sequence; its outputs are added.
        parameterization: f of Re A = f(w), `ops.parameterization`: "exp", or a name or {name, a, b} of continuous time.

    Raises:
        ValueError: d_model, num_blocks and d_state do not fit together, or f does not reach an initial Re A.
    """

    zero_preserving = True  # B(u) u is 0 where u is

    def __init__(
        self,
        d_model: int,
        num_blocks: int = 8,
        d_state: int = 16,
        bias: bool = True,
        complex_A: bool = True,
        complex_C: bool = False,
        init: Literal["legs", "lin", "inv"] = "legs",
        delta_min: float = 1e-3,
        delta_max: float = 1e-1,
        bidirectional: bool = False,
        parameterization: Form = "exp",
    ) -> None:
        super().__init__()
        if num_blocks < 1 or d_model % num_blocks:
            raise ValueError(f"B2S6 d_model {d_model} is not divisible by num_blocks {num_blocks}")
        if complex_A and d_state % 2:
            raise ValueError(f"B2S6 d_state {d_state} is odd: a complex layer holds d_state / 2 conjugate pairs")
        if complex_C and not complex_A:
            raise ValueError("B2S6 complex_C needs complex_A: a real recurrence has real outputs")
        D, H, P, N = d_model, num_blocks, d_model // num_blocks, d_state // 2 if complex_A else d_state
        self.H, self.P, self.N, self.complex_C = H, P, N, complex_C
        self.state_shape, self.complex_state = (D, N), complex_A
        A, parts = initialize_A(init if complex_A else "real", N), 2 if complex_A else 1
        self.parameterization = Parameterization.of(parameterization, "continuous")
        # w of Re A = f(w), a logarithm for "exp"
        self.A_log = nn.Parameter(inverse_eigenvalues(A, self.parameterization))
        self.A_imag = nn.Parameter(A.imag.clone()) if complex_A else None
        self.delta_weight = nn.Parameter(torch.empty(H, P).uniform_(-1, 1) * P**-0.5)
        self.delta_bias = nn.Parameter(inverse_softplus(log_uniform_delta(D, delta_min, delta_max)))
        # |B_weight|² has the variance of nn.Linear's weight, whether it is real or complex.
        self.B_weight = nn.Parameter(torch.empty(H, P, N * parts).uniform_(-1, 1) * (P * parts) ** -0.5)
        self.C = nn.Parameter(torch.empty(H, P, N * (2 if complex_C else 1)).uniform_(-1, 1) * P**-0.5)
        self.D = nn.Parameter(torch.ones(D))
        one = torch.ones(D, N, 1)
        one = torch.cat([one, 0 * one], -1) if complex_A else one.squeeze(-1)
        self.B_bias = nn.Parameter(one) if bias else None
        if bidirectional:
            self.add_reverse()

    def scan(self, x: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentLayer.scan`; state (batch, D, N), complex with complex_A."""
        Bt, L, D = x.shape
        blocks = x.unflatten(-1, (self.H, self.P))
        delta = self._delta(blocks)
        B, C = self._selection(blocks)
        B_bias: Tensor | None = self.B_bias
        if B_bias is not None and self.complex_state:
            B_bias = as_complex(B_bias)
        y, state = run_scan(
            selective_scan,
            x.transpose(1, 2),
            **step_sizes(delta.reshape(Bt, L, D).transpose(1, 2), self.delta_bias, context.valid),
            A=eigenvalues(self.A_log, self.A_imag, self.parameterization),
            B=B,
            C=C,
            D=self.D,
            B_bias=B_bias,
            discretization="zoh",
            context=context,
        )
        return y.transpose(1, 2), state

    def _delta(self, blocks: Tensor) -> Tensor:
        """Return Δ before its bias and softplus: blocks (batch, L, H, P) -> the same shape."""
        return torch.einsum("blhp,hp->blh", blocks, self.delta_weight).unsqueeze(-1).expand_as(blocks)

    def step_sizes(self, x: Tensor) -> Tensor:
        """Return Δ of the scan from the left at every position: x (batch, L, D) -> (batch, L, D)."""
        return F.softplus(self._delta(x.unflatten(-1, (self.H, self.P))).flatten(-2) + self.delta_bias)

    def _selection(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Return B without its bias and C, (batch, H, N, L), real or complex, from blocks (batch, L, H, P)."""
        B, C = block_linear(blocks, self.B_weight, self.C)
        if self.complex_state:
            B = as_complex(B.unflatten(-1, (self.N, 2)))
        if self.complex_C:
            C = as_complex(C.unflatten(-1, (self.N, 2)))
        return B.permute(0, 2, 3, 1), C.permute(0, 2, 3, 1)

    def roles(self) -> dict[str, Role]:
        roles: dict[str, Role] = dict.fromkeys(("delta_weight", "delta_bias"), "delta")
        return roles | {"A_log": "recurrent", "A_imag": "recurrent", "D": "no_decay", "B_bias": "no_decay"}

    def width_roles(self) -> dict[str, WidthRole]:
        """H is fixed and P grows: each block's Δ, B and C map P channels to one Δ and N states."""
        roles: dict[str, WidthRole] = dict.fromkeys(("delta_weight", "B_weight", "C"), "state")
        return roles | {"A_log": "fixed", "A_imag": "fixed", "delta_bias": "vector", "D": "vector", "B_bias": "vector"}
