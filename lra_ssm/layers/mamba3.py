"""Mamba-3, single input and single output: the layer and its block.

Shapes: L length, D channels, H heads, P = D / H channels per head, G groups of heads, N states, R rotating pairs of
states; E = expand · D inner channels of the block.
Sources: Lahoti et al. 2026, "Mamba-3: Improved Sequence Modeling using State Space Principles" (arXiv 2603.15569), and
its public code (state-spaces/mamba, modules/mamba3.py).
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.blocks import RunPart, apply_linear, inner_width
from lra_ssm.layers.dropout import TiedDropout
from lra_ssm.layers.mlp import MLPBlock
from lra_ssm.layers.norms import NormName
from lra_ssm.layers.recurrent import RecurrentLayer, ScanContext, run_scan
from lra_ssm.layers.roles import Role, WidthRole, channel_maps
from lra_ssm.layers.spec import LayerFactory, LayerSpec
from lra_ssm.ops import inverse_softplus, log_uniform_delta, mamba3_scan, mamba3_step, step_linear

# The layer's own linear maps: to B, C, A, λ, θ and Δ.
PROJECTIONS = ("B", "C", "A_weight", "trapezoid_weight", "angle_weight", "delta_weight")


class Mamba3(RecurrentLayer):
    """Selective scan with the exponential-trapezoidal rule and rotating states. x (batch, L, D) -> (batch, L, D).

    With α = exp(Δ A), every head has a state P × N, of which R_k rotates R pairs by Δ_k θ_k:
    S_k = α_k R_k S_{k-1} + (1 - λ_k) Δ_k α_k R_k x_{k-1} B_{k-1}ᵀ + λ_k Δ_k x_k B_kᵀ, y_k = S_k C_k + D x_k
    (`ops.mamba3_scan`). All depend on the input: Δ = softplus(projection + b), A = -f(projection), λ =
    sigmoid(projection), θ = π tanh(projection). B and C are projections,
    normalized (RMSNorm over N, shared by the groups), plus a bias for every head.

    By default the layer projects its own input to all of them; in a `Mamba3Block` the block does
    (`use_external_projections`).

    Args:
        d_model: D.
        d_state: N, real states per channel.
        head_dim: P, must divide D.
        n_groups: G, must divide H.
        rope_fraction: the share of the N states that rotate, in pairs.
        chunk_size: how many positions the scan combines by matrix products; None takes what is fast. It only changes
            rounding.
        A_function: f. "heavy_tail" is 1 + a for a >= 0 and 1 / (1 - a) otherwise; the public code has it since June
            2026, because it trains more stably. "softplus" was there when the paper appeared.
        A_min: least -A.
        delta_min: least softplus(b) at initialization, where it is log-uniform.
        delta_max: greatest softplus(b) at initialization.
        bidirectional: a second scan, with its own parameters, over the reversed sequence; its outputs are added. In a
            `Mamba3Block` both directions read the same projections.

    Raises:
        ValueError: sizes that do not divide each other, a rope_fraction outside of [0, 1], or an unknown A_function.
    """

    zero_preserving = True  # x Bᵀ is 0 where x is

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        head_dim: int = 64,
        n_groups: int = 1,
        rope_fraction: float = 0.5,
        chunk_size: int | None = None,
        A_function: Literal["heavy_tail", "softplus"] = "heavy_tail",
        A_min: float = 1e-4,
        delta_min: float = 1e-3,
        delta_max: float = 1e-1,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        if head_dim < 1 or d_model % head_dim:
            raise ValueError(f"Mamba3 d_model {d_model} is not divisible by head_dim {head_dim}")
        D, H, N = d_model, d_model // head_dim, d_state
        if n_groups < 1 or H % n_groups:
            raise ValueError(
                f"Mamba3 has {H} heads (d_model {d_model} / head_dim {head_dim}), no multiple of n_groups {n_groups}"
            )
        if not 0 <= rope_fraction <= 1:
            raise ValueError(f"Mamba3 rope_fraction is {rope_fraction}; it must be from 0 to 1")
        self.d_model, self.n_groups, self.chunk_size = D, n_groups, chunk_size
        self.A_function, self.A_min = A_function, A_min
        self.state_shape = (H, head_dim + 1, N + 1)
        self.n_angles = int(N * rope_fraction) // 2
        # Public code: torch's default for the projections, ones for the biases of B and C.
        self.own_projections = True
        rows = dict(zip(PROJECTIONS, [*self.sizes, H], strict=True))
        for name, n in rows.items():
            self.register_parameter(name, nn.Parameter(torch.empty(n, D).uniform_(-1, 1) * D**-0.5))
        self.delta_bias = nn.Parameter(inverse_softplus(log_uniform_delta(H, delta_min, delta_max)))
        self.B_norm, self.C_norm = nn.Parameter(torch.ones(N)), nn.Parameter(torch.ones(N))
        self.B_bias, self.C_bias = nn.Parameter(torch.ones(H, N)), nn.Parameter(torch.ones(H, N))
        self.D = nn.Parameter(torch.ones(H))
        if bidirectional:
            self.add_reverse()

    @property
    def sizes(self) -> list[int]:
        """The features that are projected besides Δ: of B, C, A, λ and θ."""
        H, N = self.state_shape[0], self.state_shape[2] - 1
        return [self.n_groups * N, self.n_groups * N, H, H, self.n_angles]

    def use_external_projections(self) -> tuple[int, int]:
        """Drop the layer's own projections: from now on its input is (x, B, C, A, λ, θ, Δ), each before its function.

        Returns the number of features of B, C, A, λ and θ together, 2 G N + 2 H + R, and of Δ, H.
        """
        self.own_projections = False
        for name in PROJECTIONS:
            self.register_parameter(name, None)
        if isinstance(self.reverse, Mamba3):
            self.reverse.use_external_projections()
        return sum(self.sizes), self.state_shape[0]

    def scan(self, x: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentLayer.scan`; state (batch, H, P + 1, N + 1)."""
        valid = None if context.valid is None else context.valid.squeeze(-1)
        settings = {"chunk_size": self.chunk_size, "valid": valid}
        y, state = run_scan(mamba3_scan, *self._inputs(x), self.D, **settings, context=context)
        return y.flatten(2), state

    def scan_step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `RecurrentLayer.scan_step`."""
        y, state = mamba3_step(*self._inputs(x_t), self.D, state)
        return y.flatten(1), state

    def _inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return x (…, H, P), Δ, A, λ (…, H), θ (…, R), B and C (…, H, N), by the input (…, D) or with projections."""
        H = self.state_shape[0]
        x, B, C, A, trapezoid, angles, delta = self._project(x)
        work = torch.promote_types(x.dtype, torch.float32)
        A = A.to(work)
        rate = F.softplus(A) if self.A_function == "softplus" else A.clamp(min=0) + 1 / (1 - A.clamp(max=0))
        A = -rate.clamp(min=self.A_min)
        B = self._by_heads(B, self.B_norm, self.B_bias)
        C = self._by_heads(C, self.C_norm, self.C_bias)
        angles = torch.pi * angles.to(work).tanh()
        return x.unflatten(-1, (H, -1)), self._softplus(delta), A, trapezoid.to(work).sigmoid(), angles, B, C

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return x (…, D) and the projections to B, C, A, λ, θ and Δ."""
        sizes = [*self.sizes, self.state_shape[0]]
        if not self.own_projections:
            return x.split([self.d_model, *sizes], dim=-1)
        weights: list[Tensor] = [self.get_parameter(name) for name in PROJECTIONS]
        return x, *step_linear(x, torch.cat(weights)).split(sizes, dim=-1)

    def _by_heads(self, B: Tensor, norm: Tensor, bias: Tensor) -> Tensor:
        """Normalize B or C (…, G N), repeat it for each head of a group, and add the bias: -> (…, H, N)."""
        B = B.unflatten(-1, (self.n_groups, -1))
        B = F.rms_norm(B, norm.shape, norm.to(B.dtype), 1e-5)
        return B.repeat_interleave(bias.shape[0] // self.n_groups, -2) + bias.to(B.dtype)

    def _softplus(self, delta: Tensor) -> Tensor:
        """Return Δ from its projection: (…, H) -> (…, H), in at least single precision."""
        work = torch.promote_types(delta.dtype, torch.float32)
        return F.softplus(delta.to(work) + self.delta_bias.to(work))

    def step_sizes(self, x: Tensor) -> Tensor:
        """Return Δ of the scan from the left at every position and head: x (batch, L, D) -> (batch, L, H)."""
        return self._softplus(self._project(x)[-1])

    def eigenvalues_at(self, x: Tensor) -> Tensor:
        """Return α exp(iΔθ) of every head's rotating pairs, and α if other states stay: x (P, D) -> (P, S), complex."""
        _, delta, A, _, angles, *_ = self._inputs(x)
        phase = delta.unsqueeze(-1) * angles.unsqueeze(-2)
        if 2 * self.n_angles < self.state_shape[2] - 1:
            phase = F.pad(phase, (0, 1))
        return torch.polar((delta * A).exp().unsqueeze(-1).expand_as(phase), phase).flatten(1)

    def roles(self) -> dict[str, Role]:
        """The biases of B and C decay, as in the public code."""
        roles: dict[str, Role] = {"delta_bias": "delta", "delta_weight": "delta"}
        return {**roles, "D": "no_decay", "B_norm": "norm", "C_norm": "norm"}

    def width_roles(self) -> dict[str, WidthRole]:
        """A wider layer has more heads of the same size; B, C and θ are of a fixed number of groups and states."""
        roles: dict[str, WidthRole] = {"B_norm": "fixed", "C_norm": "fixed"}
        roles |= dict.fromkeys(("delta_bias", "B_bias", "C_bias", "D"), "vector")
        roles |= dict.fromkeys(("B", "C", "angle_weight"), "state")
        return roles | dict.fromkeys(("A_weight", "trapezoid_weight", "delta_weight"), "hidden")


class Mamba3Block(MLPBlock):
    """Mamba-3's block: mixer(x) = out_proj(Γ(u) · SiLU(z)) without a convolution, then an MLP as in the paper's models.

    Here (z, u) = in_proj(x). Γ is `Mamba3`, whose input is contained in u, together with Δ = delta_proj(x), which is
    apart so that the optimizer can treat it separately. Γ may also be any other layer: then u is just its input.

    Args:
        d_model: D.
        layer: Γ, built as `layer(E)`.
        expand: E / D, such that E is a whole number.
        mlp_factor: the width / D of a second sublayer, a SwiGLU; 0 for none, as in the public code's block. The
            paper's language models alternate the two.
        norm: "batch", "batch_padded", "layer" or "rms", which is Mamba's.
        prenorm: the norms are applied before the sublayers; otherwise after the residuals.
        dropout: before the residuals, tied over length; Mamba has none.
        bias: of the linear maps.

    Raises:
        ValueError: E or the MLP's width is not a whole number.
    """

    residual_maps = ("out_proj", "mlp.fc2")

    def __init__(
        self,
        d_model: int,
        layer: LayerFactory,
        expand: float = 2.0,
        mlp_factor: float = 0.0,
        norm: NormName = "rms",
        prenorm: bool = True,
        dropout: float = 0.0,
        bias: bool = False,
    ) -> None:
        super().__init__(d_model, norm, prenorm)
        self.E = inner_width("Mamba3Block expand", expand, d_model)
        self.layer = LayerSpec.of(layer)(self.E)
        use_external_projections = getattr(self.layer, "use_external_projections", None)
        S, H = (0, 0) if use_external_projections is None else use_external_projections()
        self.in_proj = nn.Linear(d_model, 2 * self.E + S, bias=bias)
        self.delta_proj = nn.Linear(d_model, H, bias=bias) if H else None
        self.out_proj = nn.Linear(self.E, d_model, bias=bias)
        self.dropout = TiedDropout(dropout)
        self.add_mlp(d_model, mlp_factor, bias, "swiglu")

    def mixer(self, x: Tensor, run_part: RunPart) -> Tensor:
        z, u = apply_linear(self.in_proj, x).split([self.E, self.in_proj.out_features - self.E], dim=-1)
        if self.delta_proj is not None:
            u = torch.cat([u, apply_linear(self.delta_proj, x)], dim=-1)
        return apply_linear(self.out_proj, run_part("layer", u, width=self.E) * F.silu(z))

    def optim_roles(self) -> dict[str, Role]:
        return {"delta_proj.weight": "delta", "delta_proj.bias": "delta"}

    width_roles = channel_maps  # in_proj's rows for states are scaled as its rows for channels
