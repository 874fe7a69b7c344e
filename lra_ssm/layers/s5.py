"""S5, one diagonal state-space system for all channels at once, and its block.

Shapes: L length, D channels, N complex states (conjugate pairs), J blocks, K directions (1, or 2 if bidirectional).
Sources: Smith et al. 2023, "Simplified State Space Layers for Sequence Modeling", section 3 and appendix B; its public
code, lindermanlab/S5, for scales at initialization, the second direction and the block (s5/layers.py).
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.blocks import RunPart, S4Block
from lra_ssm.layers.norms import BatchNorm, NormName
from lra_ssm.layers.recurrent import RecurrentLayer, ScanContext, flip_reset, linear_recurrence
from lra_ssm.layers.roles import Role, WidthRole
from lra_ssm.layers.spec import LayerFactory
from lra_ssm.ops import (
    Form,
    Parameterization,
    as_complex,
    eigenvalues,
    hippo_legs_normal,
    inverse_eigenvalues,
    log_uniform_delta,
    zoh,
)


class S5(RecurrentLayer):
    """x_t = Ā x_{t-1} + B̄ u_t, y_t = 2 Re(C x_t) + D u_t, Ā and B̄ by zero-order hold. x (batch, L, D) -> (batch, L, D).

    All channels share the states, and each state has its own Δ. A starts as J copies of the eigenvalues of
    HiPPO-LegS's normal part of size d_state / J; B and C start as real matrices, in the basis of its eigenvectors.

    Args:
        d_model: D.
        d_state: real states of the layer, which holds N = d_state / 2 conjugate pairs.
        num_blocks: J.
        C_init: C before it is transformed into that basis: "lecun", complex normal, each part with variance
            1/(d_state D); "lecun_row" ("trunc_standard_normal" in the public code), with variance 1/d_state; or
            "complex_normal", which sets C itself, with E|C|² = 1.
        delta_min: least Δ at initialization, where it is log-uniform.
        delta_max: greatest Δ at initialization.
        bidirectional: a second C for the reversed direction, which sees the present position too; the directions share
            A, B and Δ.
        parameterization: f of Re A = f(w), `ops.parameterization`: "direct", as in the public code, "clip", its
            clip_eigs, or another form of continuous time.
        fast_B: B trains at the base rate and decays ("BfastandCdecay" in the public code); otherwise it has the role
            "recurrent", as A.

    Raises:
        ValueError: d_state is not an even multiple of num_blocks, there is no such C_init, or f does not reach an
            initial Re A.
    """

    complex_state = True
    zero_preserving = True

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        num_blocks: int = 8,
        C_init: Literal["lecun", "lecun_row", "complex_normal"] = "lecun_row",
        delta_min: float = 1e-3,
        delta_max: float = 1e-1,
        bidirectional: bool = False,
        parameterization: Form = "direct",
        fast_B: bool = False,
    ) -> None:
        super().__init__()
        if num_blocks < 1 or d_state < 1 or d_state % (2 * num_blocks):
            raise ValueError(f"S5 d_state is {d_state}; it must be a multiple of 2 × num_blocks {num_blocks}")
        D, N, K = d_model, d_state // 2, 2 if bidirectional else 1
        self.state_shape, self.fast_B = (N,), fast_B
        self.parameterization = Parameterization.of(parameterization, "continuous")
        A, V = hippo_legs_normal(N // num_blocks)
        A, V = A.repeat(num_blocks), torch.block_diag(*[V] * num_blocks)  # (N,), (2N, N)
        self.A_weight = nn.Parameter(inverse_eigenvalues(A, self.parameterization).float())  # w of Re A = f(w)
        self.A_imag = nn.Parameter(A.imag.float())
        self.log_delta = nn.Parameter(log_uniform_delta(N, delta_min, delta_max).log())
        B = V.mH @ _lecun(2 * N, 2 * N, D).to(V.dtype)
        self.B = nn.Parameter(torch.view_as_real(B).float())
        if C_init == "complex_normal":
            C = torch.randn(K, D, N, dtype=torch.complex64)
        else:
            fan = 2 * N * (D if C_init == "lecun" else 1)
            C = torch.complex(*(_lecun(fan, K, D, 2 * N) for _ in range(2))) @ V
        self.C = nn.Parameter(torch.view_as_real(C).float())
        self.D = nn.Parameter(torch.randn(D))
        self.C_scales_with_D = C_init == "lecun"

    @property
    def bidirectional(self) -> bool:
        return self.C.shape[0] == 2

    def scan(self, x: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentLayer.scan`; state (batch, N), complex."""
        y, last = self._one_direction(x, 0, context)
        return y + self.D * x, last

    def bidirectional_scan(self, x: Tensor, lengths: Tensor | None = None, reset: Tensor | None = None) -> Tensor:
        """See `RecurrentLayer.bidirectional_scan`."""
        backward = self._one_direction(x.flip(1), 1, ScanContext(reset=flip_reset(reset)))[0].flip(1)
        return self.scan(x, ScanContext(reset=reset))[0] + backward

    def _one_direction(self, x: Tensor, direction: int, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """Return 2 Re(C x) with one direction's C, and the last state or None."""
        N, D, _ = self.B.shape
        A_bar, B_bar = zoh(self.log_delta.exp(), eigenvalues(self.A_weight, self.A_imag, self.parameterization))
        # Complex products as real ones: re and im of B are rows of one matrix, re and im of C its columns.
        B = torch.view_as_real(B_bar[:, None] * as_complex(self.B)).transpose(1, 2).reshape(2 * N, D)
        C = torch.stack([2 * self.C[direction, ..., 0], -2 * self.C[direction, ..., 1]], -1).reshape(D, 2 * N)
        inputs = as_complex(F.linear(x, B.to(self.B.dtype)).unflatten(-1, (N, 2)))
        states, last = linear_recurrence(A_bar, inputs, context)
        return F.linear(torch.view_as_real(states).flatten(-2).to(x.dtype), C), last

    def roles(self) -> dict[str, Role]:
        """C and D train at the base rate, with decay, as in the public code's standard setting."""
        roles: dict[str, Role] = {"A_weight": "recurrent", "A_imag": "recurrent", "log_delta": "delta"}
        return roles if self.fast_B else {**roles, "B": "recurrent"}

    def width_roles(self) -> dict[str, WidthRole]:
        """The layer's N states do not grow with the width: B maps channels to them, with initial values by their number
        and not by D; C maps them to channels, with variance 1/D as well if C_init is "lecun"."""
        fixed: dict[str, WidthRole] = dict.fromkeys(("A_weight", "A_imag", "log_delta"), "fixed")
        return {**fixed, "B": ("state", 0.0), "C": ("embedding", -0.5 if self.C_scales_with_D else 0.0), "D": "vector"}


def _lecun(fan_in: int, *shape: int) -> Tensor:
    """Draw from the normal distribution with variance 1/fan_in, truncated at two deviations; float64."""
    std = fan_in**-0.5 / 0.87962566103423978  # truncation reduces the variance
    return nn.init.trunc_normal_(torch.empty(*shape, dtype=torch.float64), std=std, a=-2 * std, b=2 * std)


class S5Block(S4Block):
    """S4's block with half of its gated linear unit, or all of it, and no norm after the last block.

    mixer(x) = dropout(h · sigmoid(linear(g))) with g = dropout(GELU(y)), y the layer's output, and h one of g, y and
    another linear map of g. GELU is approximated by tanh, which is Flax's default.

    Args:
        d_model: D.
        layer: built as `layer(D)`.
        activation: h, by the public code's names: "half_glu1" is g; "half_glu2" is y; "full_glu" is a linear map of g,
            as in minimal-LRU, which builds on this code.
        norm: "batch", "batch_padded", "layer" or "rms".
        norm_momentum: the share of a batch norm's running statistics that a step keeps; torch's own BatchNorm keeps
            0.9, Flax's, and so minimal-LRU, 0.99.
        prenorm: the norm is applied before the mixer; otherwise after the residual.
        dropout: its probability; tied over length.

    Raises:
        ValueError: there is no such activation, or norm_momentum is not between 0 and 1.
    """

    def __init__(
        self,
        d_model: int,
        layer: LayerFactory,
        activation: Literal["half_glu1", "half_glu2", "full_glu"] = "half_glu1",
        norm: NormName = "batch",
        norm_momentum: float = 0.95,
        prenorm: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(d_model, layer, norm, prenorm, dropout)
        if not 0 <= norm_momentum <= 1:
            raise ValueError(f"S5Block norm_momentum is {norm_momentum}; it must be from 0 to 1")
        self.activation = activation
        if activation != "full_glu":
            self.glu = nn.Linear(d_model, d_model)
        if isinstance(self.norm, BatchNorm):
            self.norm.norm.momentum = 1 - norm_momentum  # torch's momentum is the share of the new batch

    def mixer(self, x: Tensor, run_part: RunPart) -> Tensor:
        y = run_part("layer", x)
        g = self.dropout(F.gelu(y, approximate="tanh"))
        if self.activation == "full_glu":
            return self.dropout(F.glu(self.glu(g), dim=-1))
        return self.dropout((g if self.activation == "half_glu1" else y) * self.glu(g).sigmoid())

    def final_norm(self, d_model: int) -> None:
        """Return None: the stack ends with the residual itself."""
        return None
