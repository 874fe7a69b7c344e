"""The short causal convolution of a block, one filter per channel, and its state.

Shapes: B batch, L length, D channels, W taps.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.masking import real_resets
from lra_ssm.layers.roles import WidthRole
from lra_ssm.ops import causal_depthwise_convolution, conv_state


class ShortConvolution(nn.Conv1d):
    """Causal depthwise convolution of x (B, L, D), with zeros before it. Parameters as nn.Conv1d's: (D, 1, W) and (D,).

    The state is the last W - 1 inputs (B, D, W - 1), in at least single precision.

    Args:
        d_model: D.
        width: W.
        bias: whether each channel has a bias.
        silu: apply SiLU to the convolution.

    Raises:
        ValueError: there is no tap.
    """

    def __init__(self, d_model: int, width: int, bias: bool = True, silu: bool = False) -> None:
        if width < 1:
            raise ValueError(f"d_conv is {width}; it must be at least 1")
        super().__init__(d_model, d_model, width, groups=d_model, bias=bias)
        self.silu = silu

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        initial_state: Tensor | None = None,
        return_last_state: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Map x (B, L, D) to y (B, L, D), or to that and the state after the last real position.

        lengths: (B,). reset: (B, L) bool; no tap reaches across a document's start. initial_state: (B, D, W - 1).
        """
        u, reset = x.transpose(1, 2), real_resets(reset, lengths)
        y = causal_depthwise_convolution(
            u, self.weight.squeeze(1), self.bias, initial=initial_state, reset=reset, silu=self.silu
        )
        if not return_last_state:
            return y.transpose(1, 2)
        state = conv_state(u, self.weight.shape[-1], lengths, initial=initial_state, reset=reset)
        return y.transpose(1, 2), state.to(torch.promote_types(state.dtype, torch.float32))

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Advance by one position: x_t (B, D), state (B, D, W - 1) -> (y_t (B, D), state)."""
        window = torch.cat([state, x_t.unsqueeze(-1).to(state.dtype)], dim=-1)
        if x_t.device.type != "cpu":  # on a GPU launches cost more than sums
            return self(x_t.unsqueeze(1), initial_state=state).squeeze(1), window[..., 1:]
        y = (window * self.weight.squeeze(1)).sum(-1)
        y = y if self.bias is None else y + self.bias
        return (F.silu(y) if self.silu else y).to(x_t.dtype), window[..., 1:]

    def initial_state(self, batch_size: int) -> Tensor:
        """Return the inputs before the first position: zeros (batch_size, D, W - 1)."""
        D, _, W = self.weight.shape
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        return self.weight.new_zeros(batch_size, D, W - 1, dtype=dtype)

    def width_roles(self) -> dict[str, WidthRole]:
        """Every channel has its own filter."""
        return {name: "vector" for name, _ in self.named_parameters()}
