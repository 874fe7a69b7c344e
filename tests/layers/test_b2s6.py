"""What B2S6 alone does; every layer's tests are in test_layers.py."""

import math

import torch

from lra_ssm.layers import B2S6, S4D, S6
from tests.each import each


@each(("name", "rank"), [("S4D", 8), ("S6", 1), ("B2S6 blocks", 2), ("B2S6 bias", 8)])
def test_how_many_different_numbers_the_channels_compute(name, rank):
    """Theorems 1 and 4: the rank of the last outputs over inputs, with Δ fixed, u_L = 1 and 8 channels.

    All channels of S6 end in the same quadratic form of the inputs; each block of B2S6, and each channel with its bias,
    has its own.
    """
    for seed in range(3):
        torch.manual_seed(seed)
        layer = {
            "S4D": lambda: S4D(8, d_state=32, tie_A=True),
            "S6": lambda: S6(8, d_state=32, form="paper"),
            "B2S6 blocks": lambda: B2S6(8, d_state=32, num_blocks=2, bias=False),
            "B2S6 bias": lambda: B2S6(8, d_state=32, num_blocks=1),
        }[name]().double()
        fixed = {"D": 0.0, "delta_weight": 0.0, "log_delta": math.log(0.1), "delta_bias": math.log(math.expm1(0.1))}
        for parameter, weight in layer.named_parameters():
            if parameter in fixed:
                torch.nn.init.constant_(weight, fixed[parameter])
            elif parameter in ("B", "C", "B_weight", "B_bias"):
                torch.nn.init.normal_(weight)
        u = torch.rand(64, 32, 1, dtype=torch.float64)
        u[:, -1] = 1
        with torch.no_grad():
            values = torch.linalg.svdvals(layer(u @ torch.randn(1, 8, dtype=torch.float64))[:, -1])
        assert int((values > 1e-9 * values[0]).sum()) == rank
