"""B2S6, the block-biased selective unit.

Shapes: B batch, L length, D channels, H blocks, P = D / H channels per block, N states (conjugate pairs where complex).
Source: Yu & Erichson 2025, "Block-Biased Mamba for Long-Range Sequence Processing", eq. 7-8 and algorithm 2.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from lra_ssm.layers.complex import as_complex, stable_diagonal
from lra_ssm.layers.selective import ScanUnit, SelectiveLayer
from lra_ssm.layers.spec import Role
from lra_ssm.ops import initialize_A, inverse_softplus, log_uniform_delta


class B2S6(SelectiveLayer):
    """Block-biased selective layer. x (B, L, D) -> (B, L, D).

    The D channels are cut into H blocks of P; each block's Δ, B and C see their own P channels alone:
    Δ_i = softplus(wᵀu + b_i), B = B_weight u + B_bias_i, C = uᵀC, one A for the layer, zero-order hold.

    num_blocks: H, must divide d_model. d_state: real states; a complex layer holds d_state / 2 conjugate pairs.
    bias: B_bias on or off. complex_A: A, B_weight and B_bias complex, or all real. complex_C: C too (the paper's is
    real). init: A's diagonal, "legs", "lin" or "inv" (a real layer is S4D-Real, -(1, …, N)). delta_min, delta_max:
    range of softplus(b) at initialization, log-uniform. bidirectional: a second scan with its own parameters over
    the reversed sequence; the outputs are added. The paper gives no initialization: B_bias starts at 1, as B does in
    S4D, and the projections as nn.Linear's do.
    Raises ValueError where d_model, num_blocks and d_state do not fit together.
    """

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
    ) -> None:
        if num_blocks < 1 or d_model % num_blocks:
            raise ValueError(f"B2S6 d_model {d_model} is not divisible by num_blocks {num_blocks}")
        if complex_A and d_state % 2:
            raise ValueError(f"B2S6 d_state {d_state} is odd: a complex layer holds d_state / 2 conjugate pairs")
        if complex_C and not complex_A:
            raise ValueError("B2S6 complex_C needs complex_A: a real recurrence has real outputs")
        A = initialize_A(init, d_state // 2) if complex_A else initialize_A("real", d_state)
        super().__init__(
            [
                _B2S6Unit(d_model, num_blocks, A, bias, complex_C, delta_min, delta_max)
                for _ in range(2 if bidirectional else 1)
            ]
        )


class _B2S6Unit(ScanUnit):
    def __init__(
        self, D: int, H: int, A: Tensor, bias: bool, complex_C: bool, delta_min: float, delta_max: float
    ) -> None:
        super().__init__()
        P, N = D // H, A.shape[0]
        self.state_shape = (D, N)
        self.H, self.P, self.N = H, P, N
        self.complex_state, self.complex_C = A.is_complex(), complex_C
        parts = 2 if A.is_complex() else 1
        self.A_log = nn.Parameter((-A.real).log())
        if A.is_complex():
            self.A_imag = nn.Parameter(A.imag.clone())
        self.delta_weight = nn.Parameter(torch.empty(H, P).uniform_(-1, 1) * P**-0.5)
        self.delta_bias = nn.Parameter(inverse_softplus(log_uniform_delta(D, delta_min, delta_max)))
        # |B_weight| keeps nn.Linear's variance whether it is real or complex.
        self.B_weight = nn.Parameter(torch.empty(H, P, N * parts).uniform_(-1, 1) * (P * parts) ** -0.5)
        self.C = nn.Parameter(torch.empty(H, P, N * (2 if complex_C else 1)).uniform_(-1, 1) * P**-0.5)
        self.D = nn.Parameter(torch.ones(D))
        self.B_bias: nn.Parameter | None = None
        if bias:
            one = torch.ones(D, N, 1)
            self.B_bias = nn.Parameter(torch.cat([one, 0 * one], -1) if parts == 2 else one.squeeze(-1))

    def scan_arguments(self, x: Tensor) -> dict[str, Any]:
        Bt, L, D = x.shape
        blocks = x.unflatten(-1, (self.H, self.P))
        delta = torch.einsum("blhp,hp->blh", blocks, self.delta_weight).unsqueeze(-1).expand(Bt, L, self.H, self.P)
        A = -self.A_log.exp()
        B_bias: Tensor | None = self.B_bias
        if self.complex_state:
            A = stable_diagonal(self.A_log, self.A_imag)
            B_bias = None if B_bias is None else as_complex(B_bias)
        return {
            "u": x.transpose(1, 2),
            "delta": delta.reshape(Bt, L, D).transpose(1, 2),
            "A": A,
            "B": self._project(blocks, self.B_weight, self.complex_state),
            "C": self._project(blocks, self.C, self.complex_C),
            "D": self.D,
            "delta_bias": self.delta_bias,
            "B_bias": B_bias,
            "discretization": "zoh",
        }

    def _project(self, blocks: Tensor, weight: Tensor, is_complex: bool) -> Tensor:
        """blocks (B, L, H, P) times weight (H, P, N or 2N interleaved) -> (B, H, N, L), real or complex."""
        out = torch.einsum("blhp,hpn->blhn", blocks, weight)
        if is_complex:
            out = as_complex(out.unflatten(-1, (self.N, 2)))
        return out.permute(0, 2, 3, 1)

    def optim_roles(self) -> dict[str, Role]:
        roles: dict[str, Role] = {"A_log": "recurrent", "delta_weight": "delta", "delta_bias": "delta", "D": "no_decay"}
        if self.complex_state:
            roles["A_imag"] = "recurrent"
        if self.B_bias is not None:
            roles["B_bias"] = "no_decay"
        return roles
