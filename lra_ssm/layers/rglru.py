"""RG-LRU, the real-gated linear recurrent unit, and the recurrent block of Griffin around it.

Shapes: L length, D channels, K blocks of D / K channels; E = expand · D inner channels of the block.
Sources: De et al. 2024, "Griffin: Mixing Gated Linear Recurrences with Local Attention for Efficient Language Models"
(arXiv 2402.19427), section 2; its public code (google-deepmind/recurrentgemma).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lra_ssm.layers.blocks import RunPart, apply_linear, inner_width
from lra_ssm.layers.convolution import ShortConvolution
from lra_ssm.layers.dropout import TiedDropout
from lra_ssm.layers.mlp import MLPBlock
from lra_ssm.layers.norms import NormName
from lra_ssm.layers.recurrent import RecurrentLayer, ScanContext, run_scan
from lra_ssm.layers.roles import Role, WidthRole, channel_maps
from lra_ssm.layers.spec import LayerFactory, LayerSpec
from lra_ssm.ops import inverse_softplus, linear_scan
from lra_ssm.ops.block_linear import block_linear

RATE = 8.0  # c of the paper


class RGLRU(RecurrentLayer):
    """h_t = a_t h_{t-1} + sqrt(1 - a_t²) (i_t u_t), y_t = h_t. x (batch, L, D) -> (batch, L, D).

    a_t = exp(-8 r_t softplus(Λ)) for each channel; the gates r_t and i_t are sigmoids of block-diagonal linear maps of
    u_t. At initialization a_t at r_t = 1 is uniform in [r_min, r_max].

    The public code differs in two ways: it takes a factor of 1 in place of sqrt(1 - a²) at the first position of a
    document, and its a at initialization is the 8th power of a number in that range.

    Args:
        d_model: D.
        num_blocks: K, of both gates' maps; must divide D. The public models have as many as attention heads.
        r_min: least a at r = 1 at initialization.
        r_max: greatest a at r = 1 at initialization.
        bidirectional: a second recurrence, with its own parameters, over the reversed sequence; its outputs are added.

    Raises:
        ValueError: num_blocks does not divide D, or r_min or r_max is out of range.
    """

    zero_preserving = True

    def __init__(
        self,
        d_model: int,
        num_blocks: int = 8,
        r_min: float = 0.9,
        r_max: float = 0.999,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        if num_blocks < 1 or d_model % num_blocks:
            raise ValueError(f"RGLRU d_model {d_model} is not divisible by num_blocks {num_blocks}")
        if not 0 < r_min <= r_max < 1:
            raise ValueError(f"RGLRU r_min {r_min}, r_max {r_max}: expected 0 < r_min <= r_max < 1")
        D, P = d_model, d_model // num_blocks
        self.state_shape = (D,)
        a = torch.empty(D, dtype=torch.float64).uniform_(r_min, r_max)
        self.decay_weight = nn.Parameter(inverse_softplus(-a.log() / RATE).float())  # Λ
        # Public code: normal with variance 1 / P, biases 0.
        self.gate_weight = nn.Parameter(torch.randn(num_blocks, P, 2 * P) * P**-0.5)  # of r and i
        self.gate_bias = nn.Parameter(torch.zeros(2, D))
        if bidirectional:
            self.add_reverse()

    def scan(self, x: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentLayer.scan`; state (batch, D)."""
        K = self.gate_weight.shape[0]
        gates = block_linear(x.unflatten(-1, (K, -1)), self.gate_weight)[0].unflatten(-1, (2, -1))
        work = torch.promote_types(gates.dtype, torch.float32)
        r, i = (
            (gate.flatten(-2).to(work) + bias.to(work)).sigmoid()
            for gate, bias in zip(gates.unbind(-2), self.gate_bias, strict=True)
        )
        log_a = -RATE * r * F.softplus(self.decay_weight.to(work))
        b = _BoundedSqrt.apply(-torch.expm1(2 * log_a)) * i * x.to(work)
        a = log_a.exp()
        if context.valid is not None:
            a, b = torch.where(context.valid, a, 1), b.masked_fill(~context.valid, 0)
        y, last = run_scan(linear_scan, a.transpose(1, 2), b.transpose(1, 2), context=context)
        return y.transpose(1, 2).to(x.dtype), last

    def roles(self) -> dict[str, Role]:
        """Λ is the recurrence; the gates' maps train as other weights."""
        return {"decay_weight": "recurrent", "gate_bias": "no_decay"}

    def width_roles(self) -> dict[str, WidthRole]:
        """The blocks of the gates grow with the width."""
        return {"decay_weight": "vector", "gate_weight": "hidden", "gate_bias": "vector"}


class _BoundedSqrt(torch.autograd.Function):
    """The square root, with a derivative of at most 1,000, as in the public code: 1 - a² may be 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sqrt()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (4 * x).clamp(min=1e-6).rsqrt()


class GriffinBlock(MLPBlock):
    """Griffin's recurrent block: mixer(x) = out_proj(Γ(conv(u)) · GELU(z)), then an MLP. Γ is any layer.

    Here (u, z) = in_proj(x); the convolution has no activation. The MLP is gated by GELU.
    Sources: De et al. 2024, section 2.3 and figure 2; the hybrid puts one `TransformerBlock` with local attention after
    two such blocks.

    Args:
        d_model: D.
        layer: Γ, built as `layer(E)`.
        expand: E / D, such that E is a whole number.
        d_conv: W, the taps of the depthwise convolution, which is causal whatever Γ is.
        mlp_factor: the MLP's width / D, such that the width is a whole number; 0 for a block without MLP.
        norm: "batch", "batch_padded", "layer" or "rms", which is Griffin's.
        prenorm: the norms are applied before the sublayers; otherwise after the residuals.
        dropout: before the residuals, tied over length; Griffin has none.
        bias: of the linear maps.

    Raises:
        ValueError: E or the MLP's width is not a whole number, or there is no tap.
    """

    stateful = ("conv1d", "layer")
    residual_maps = ("out_proj", "mlp.fc2")

    def __init__(
        self,
        d_model: int,
        layer: LayerFactory,
        expand: float = 1.0,
        d_conv: int = 4,
        mlp_factor: float = 3.0,
        norm: NormName = "rms",
        prenorm: bool = True,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(d_model, norm, prenorm)
        E = inner_width("GriffinBlock expand", expand, d_model)
        self.in_proj = nn.Linear(d_model, 2 * E, bias=bias)
        self.conv1d = ShortConvolution(E, d_conv)
        self.layer = LayerSpec.of(layer)(E)
        self.out_proj = nn.Linear(E, d_model, bias=bias)
        self.dropout = TiedDropout(dropout)
        self.add_mlp(d_model, mlp_factor, bias, "geglu")

    def mixer(self, x: Tensor, run_part: RunPart) -> Tensor:
        u, z = apply_linear(self.in_proj, x).chunk(2, dim=-1)
        y = run_part("layer", run_part("conv1d", u))
        return apply_linear(self.out_proj, y * F.gelu(z, approximate="tanh"))

    width_roles = channel_maps
