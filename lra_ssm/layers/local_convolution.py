"""A convolution of limited width, to measure what a model can do that only looks at neighboring positions.

Shapes: B batch, L length, D channels, W width.
Source: Miralles-González et al. 2025, "On the locality bias and results in the Long Range Arena", section 5: freely
learned convolution kernels in place of those of state-space models.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.recurrent import RecurrentLayer, ScanContext
from lra_ssm.layers.roles import Role, WidthRole
from lra_ssm.ops import causal_convolution, causal_depthwise_convolution, conv_state

# From this width on a transform takes less time than a sum of W shifted products, on a CPU of two cores.
_TRANSFORM_WIDTH = 32


class LocalConvolution(RecurrentLayer):
    """y_t = Σ_{j < W} k_j u_{t−j}, with a free kernel for every channel. x (B, L, D) -> (B, L, D).

    A position sees itself and the W − 1 positions before it; if bidirectional, also the W − 1 positions after it. So
    W = 1 sees no other position, and W = L sees all, as `Attention`'s window does. The state is the last W − 1 inputs.

    Args:
        d_model: D.
        width: W.
        bidirectional: a second kernel for the reversed sequence; its outputs are added.

    Raises:
        ValueError: width is below 1.
    """

    zero_preserving = True

    def __init__(self, d_model: int, width: int = 64, bidirectional: bool = False) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"LocalConvolution width is {width}; it must be at least 1")
        self.width, self.state_shape = width, (d_model, width - 1)
        bound = 1 / math.sqrt(width)  # nn.Conv1d's own
        self.kernel = nn.Parameter(torch.empty(d_model, width).uniform_(-bound, bound))
        if bidirectional:
            self.add_reverse()

    def scan(self, x: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentLayer.scan`; state (B, D, W − 1), the last inputs, the latest last."""
        u, L = x.transpose(1, 2), x.shape[1]
        if context.reset is None and context.initial_state is None and min(self.width, L) >= _TRANSFORM_WIDTH:
            y = causal_convolution(u, F.pad(self.kernel[:, :L], (0, max(0, L - self.width))))
        else:
            initial, reset = context.initial_state, context.reset
            y = causal_depthwise_convolution(u, self.kernel.flip(1), initial=initial, reset=reset)
        if not context.return_last_state:
            return y.transpose(1, 2), None
        lengths = None if context.valid is None else context.valid.sum((1, 2))
        state = conv_state(u, self.width, lengths, initial=context.initial_state, reset=context.reset)
        return y.transpose(1, 2), state.to(torch.promote_types(state.dtype, torch.float32))

    def roles(self) -> dict[str, Role]:
        return {}

    def width_roles(self) -> dict[str, WidthRole]:
        """Every channel has its own kernel."""
        return {"kernel": "vector"}
