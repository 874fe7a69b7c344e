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
from lra_ssm.ops import bidirectional_convolution, causal_convolution, causal_depthwise_convolution, conv_state


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
        u = x.transpose(1, 2)
        if context.reset is None and context.initial_state is None and self._uses_transform(x):
            y = causal_convolution(u, self._kernel(x.shape[1]))
        else:
            initial, reset = context.initial_state, context.reset
            y = causal_depthwise_convolution(u, self.kernel.flip(1), initial=initial, reset=reset)
        if not context.return_last_state:
            return y.transpose(1, 2), None
        lengths = None if context.valid is None else context.valid.sum((1, 2))
        state = conv_state(u, self.width, lengths, initial=context.initial_state, reset=context.reset)
        return y.transpose(1, 2), state.to(torch.promote_types(state.dtype, torch.float32))

    def bidirectional_scan(self, x: Tensor, lengths: Tensor | None = None, reset: Tensor | None = None) -> Tensor:
        """See `RecurrentLayer.bidirectional_scan`; both directions take one transform."""
        if reset is not None or not self._uses_transform(x):
            return super().bidirectional_scan(x, lengths, reset)
        assert isinstance(self.reverse, LocalConvolution)
        L = x.shape[1]
        forward, backward = self._kernel(L), self.reverse._kernel(L)
        # `bidirectional_convolution` leaves the present position to the first kernel.
        forward, backward = forward + F.pad(backward[:, :1], (0, L - 1)), F.pad(backward[:, 1:], (0, 1))
        return bidirectional_convolution(x.transpose(1, 2), forward, backward).transpose(1, 2)

    def _uses_transform(self, x: Tensor) -> bool:
        """Return whether a Fourier transform takes less time than W shifted products, as measured on a CPU.

        There the shifted products of up to four taps are one pass in C++; on a GPU they are one kernel for any W.
        """
        return min(self.width, x.shape[1]) >= (5 if x.device.type == "cpu" else 32)

    def _kernel(self, L: int) -> Tensor:
        """Return the kernel, cut or padded to L positions: (D, L)."""
        return F.pad(self.kernel[:, :L], (0, max(0, L - self.width)))

    def roles(self) -> dict[str, Role]:
        return {}

    def width_roles(self) -> dict[str, WidthRole]:
        """Every channel has its own kernel."""
        return {"kernel": "vector"}
