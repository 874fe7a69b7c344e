"""Mamba-2: SSD, its selective unit with one rate of decay and one step size for a whole head, and its block.

Shapes: L length, D channels, H heads, P = D / H channels per head, G groups of heads, N states; of the block B batch,
E = expand · D inner channels, W taps of the convolution, S features that it makes for the layer through the
convolution, and H features that bypass it.
Source: Dao & Gu 2024, "Transformers are SSMs", section 7, and its public code (modules/mamba2.py).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.blocks import Block, RunPart, apply_linear, inner_width
from lra_ssm.layers.convolution import ShortConvolution
from lra_ssm.layers.dropout import TiedDropout
from lra_ssm.layers.norms import GatedRMSNorm, NormName
from lra_ssm.layers.recurrent import RecurrentLayer, ScanContext, run_scan
from lra_ssm.layers.roles import Role, WidthRole, channel_maps
from lra_ssm.layers.spec import LayerFactory, LayerSpec
from lra_ssm.ops import (
    Form,
    Parameterization,
    eigenvalues,
    inverse_eigenvalues,
    inverse_softplus,
    log_uniform_delta,
    ssd_scan,
    ssd_step,
    step_linear,
)


class SSD(RecurrentLayer):
    """State-space dual layer with a scalar A per head. x (batch, L, D) -> (batch, L, D).

    Every head has a state P × N: S_k = exp(Δ_k A) S_{k-1} + Δ_k x_k B_kᵀ, y_k = S_k C_k + D x_k; the H / G heads of a
    group share B and C, Δ = softplus(Δ's projection + b). By default the layer projects its own input to B, C and Δ, as
    S6 does; in a `Mamba2Block` the block projects to them (`use_external_projections`).

    Args:
        d_model: D.
        d_state: N, real states per channel.
        head_dim: P, must divide D.
        n_groups: G, must divide H.
        chunk_size: how many positions the scan combines by matrix products; None takes what is fast. It only changes
            rounding.
        A_min: least -A at initialization, where it is uniform.
        A_max: greatest -A at initialization.
        delta_min: least softplus(b) at initialization, where it is log-uniform.
        delta_max: greatest softplus(b) at initialization.
        bidirectional: a second scan, with its own parameters, over the reversed sequence; its outputs are added. In a
            `Mamba2Block` both directions read the same B, C and Δ's projection.
        parameterization: f of A = f(w), `ops.parameterization`: "exp", or a name or {name, a, b} of continuous time.

    Raises:
        ValueError: sizes that do not divide each other, an invalid range of A, or f does not reach an initial A.
    """

    zero_preserving = True  # x Bᵀ is 0 where x is

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        head_dim: int = 64,
        n_groups: int = 1,
        chunk_size: int | None = None,
        A_min: float = 1.0,
        A_max: float = 16.0,
        delta_min: float = 1e-3,
        delta_max: float = 1e-1,
        bidirectional: bool = False,
        parameterization: Form = "exp",
    ) -> None:
        super().__init__()
        if head_dim < 1 or d_model % head_dim:
            raise ValueError(f"SSD d_model {d_model} is not divisible by head_dim {head_dim}")
        D, H, N = d_model, d_model // head_dim, d_state
        if n_groups < 1 or H % n_groups:
            raise ValueError(f"SSD has {H} heads (d_model {d_model} / head_dim {head_dim}), no multiple of n_groups"
                             f" {n_groups}")  # fmt: skip
        if not 0 < A_min <= A_max:
            raise ValueError(f"SSD A_min {A_min}, A_max {A_max}: expected 0 < A_min <= A_max")
        self.d_model, self.n_groups, self.chunk_size = D, n_groups, chunk_size
        self.state_shape = (H, head_dim, N)
        self.parameterization = Parameterization.of(parameterization, "continuous")
        A = -torch.empty(H).uniform_(A_min, A_max)
        # w of A = f(w), a logarithm for "exp"
        self.A_log = nn.Parameter(inverse_eigenvalues(A, self.parameterization))
        self.delta_bias = nn.Parameter(inverse_softplus(log_uniform_delta(H, delta_min, delta_max)))
        self.D = nn.Parameter(torch.ones(H))
        self.B: nn.Parameter | None = nn.Parameter(_uniform(n_groups * N, D))
        self.C: nn.Parameter | None = nn.Parameter(_uniform(n_groups * N, D))
        self.delta_weight: nn.Parameter | None = nn.Parameter(_uniform(H, D))
        if bidirectional:
            self.add_reverse()

    def use_external_projections(self) -> tuple[int, int]:
        """Drop the layer's own projections: from now on its input is (x, B, C, Δ), D + 2 G N + H features.

        Returns how many of the added features go through a block's convolution, 2 G N, and how many bypass it, H.
        """
        H, _, N = self.state_shape
        self.B = self.C = self.delta_weight = None
        if isinstance(self.reverse, SSD):
            self.reverse.use_external_projections()
        return 2 * self.n_groups * N, H

    def scan(self, x: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentLayer.scan`; state (batch, H, P, N)."""
        x, B, C, delta = self._projections(x)
        delta = self._softplus(delta)
        if context.valid is not None:
            delta = delta.masked_fill(~context.valid, 0)
        A, size = self._A(), self.chunk_size
        y, state = run_scan(ssd_scan, x, delta, A, B, C, self.D, chunk_size=size, context=context)
        return y.flatten(2), state

    def scan_step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `RecurrentLayer.scan_step`."""
        x, B, C, delta = self._projections(x_t)
        y, state = ssd_step(x, self._softplus(delta), self._A(), B, C, self.D, state)
        return y.flatten(1), state

    def _projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return x (…, H, P), B and C (…, G, N) and Δ before its bias and softplus (…, H).

        x: (…, D), or with B, C and Δ appended. All maps of x are one matrix product.
        """
        H, P, N = self.state_shape
        sizes = [self.n_groups * N, self.n_groups * N, H]
        if self.B is None or self.C is None or self.delta_weight is None:
            x, B, C, delta = x.split([self.d_model, *sizes], dim=-1)
        else:
            B, C, delta = step_linear(x, torch.cat([self.B, self.C, self.delta_weight])).split(sizes, dim=-1)
        x, B, C = x.unflatten(-1, (H, P)), B.unflatten(-1, (-1, N)), C.unflatten(-1, (-1, N))
        return x, B, C, delta

    def _softplus(self, delta: Tensor) -> Tensor:
        """Return Δ from its projection: (…, H) -> (…, H), in at least single precision."""
        work = torch.promote_types(delta.dtype, torch.float32)
        return F.softplus(delta.to(work) + self.delta_bias.to(work))

    def _A(self) -> Tensor:
        return eigenvalues(self.A_log, parameterization=self.parameterization)

    def step_sizes(self, x: Tensor) -> Tensor:
        """Return Δ of the scan from the left at every position and head: x (batch, L, D) -> (batch, L, H)."""
        return self._softplus(self._projections(x)[-1])

    def roles(self) -> dict[str, Role]:
        return {"A_log": "recurrent", "delta_bias": "delta", "delta_weight": "delta", "D": "no_decay"}

    def width_roles(self) -> dict[str, WidthRole]:
        """A wider layer has more heads of the same size; B and C map to the states of a fixed number of groups."""
        own: dict[str, WidthRole] = {"B": "state", "C": "state", "delta_weight": "hidden"}
        return {"A_log": "vector", "delta_bias": "vector", "D": "vector", **own}


def _uniform(*shape: int) -> Tensor:
    """Draw as nn.Linear draws its weight."""
    return torch.empty(shape).uniform_(-1, 1) * shape[-1] ** -0.5


class Mamba2Block(Block):
    """Mamba-2's block: mixer(x) = out_proj(RMSNorm(Γ(SiLU(conv(u)), Δ) · SiLU(z))).

    Here (z, u) = in_proj(x) and Δ = delta_proj(x).

    Γ is `SSD`, which reads x, B and C, all three contained in u, and Δ. All are projections of the block's input, so
    none has to wait for another (Dao & Gu 2024, section 7.1, "parallel"). Γ may also be any other layer: then u is just
    its input, and there is no Δ. A layer requests the other features by a method `use_external_projections`, see SSD's.
    Δ has its own linear map, which is the last rows of in_proj in Mamba's code, so that the optimizer can treat it
    separately.

    Sources: Dao & Gu 2024, figure 6, and its public code (modules/mamba2.py).

    Args:
        d_model: D.
        layer: Γ, built as `layer(E)`.
        expand: E / D, such that E is a whole number.
        d_conv: W, the taps of the depthwise convolution, which is causal whatever Γ is.
        norm: "batch", "batch_padded", "layer" or "rms", which is Mamba's.
        prenorm: the norm is applied before the mixer, as in Mamba; otherwise after the residual.
        dropout: before the residual, tied over length; Mamba has none.
        bias: of the projections.
        conv_bias: of the convolution.

    Raises:
        ValueError: E is not a whole number, or there is no tap.
    """

    stateful = ("conv1d", "layer")
    residual_maps = ("out_proj",)

    def __init__(
        self,
        d_model: int,
        layer: LayerFactory,
        expand: float = 2.0,
        d_conv: int = 4,
        norm: NormName = "rms",
        prenorm: bool = True,
        dropout: float = 0.0,
        bias: bool = False,
        conv_bias: bool = True,
    ) -> None:
        super().__init__(d_model, norm, prenorm)
        E = inner_width("Mamba2Block expand", expand, d_model)
        self.layer = LayerSpec.of(layer)(E)
        use_external_projections = getattr(self.layer, "use_external_projections", None)
        S, H = (0, 0) if use_external_projections is None else use_external_projections()
        self.E = E
        self.in_proj = nn.Linear(d_model, 2 * E + S, bias=bias)
        self.delta_proj = nn.Linear(d_model, H, bias=bias) if H else None
        self.conv1d = ShortConvolution(E + S, d_conv, bias=conv_bias, silu=True)
        self.gated_norm = GatedRMSNorm(E, getattr(self.layer, "n_groups", 1))
        self.out_proj = nn.Linear(E, d_model, bias=bias)
        self.dropout = TiedDropout(dropout)

    def mixer(self, x: Tensor, run_part: RunPart) -> Tensor:
        z, u = apply_linear(self.in_proj, x).split([self.E, self.in_proj.out_features - self.E], dim=-1)
        v = run_part("conv1d", u)
        if self.delta_proj is not None:
            v = torch.cat([v, apply_linear(self.delta_proj, x)], dim=-1)
        y = run_part("layer", v, width=self.E)
        return self.dropout(apply_linear(self.out_proj, self.gated_norm(y, z)))

    def optim_roles(self) -> dict[str, Role]:
        return {"delta_proj.weight": "delta", "delta_proj.bias": "delta"}

    width_roles = channel_maps  # in_proj's rows for B and C, which map to states, are scaled as its rows for channels
