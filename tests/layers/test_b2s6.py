"""What B2S6 alone does; every layer's tests are in test_layers.py."""

import torch

from lra_ssm.layers import B2S6, b2s6
from tests.each import each


@each("complex_C", [False, True])
def test_sequences_projected_apart_as_on_a_gpu(complex_C, monkeypatch):
    """A product for each sequence gives what one for all positions gives, and the same gradients."""
    torch.manual_seed(0)
    layer = B2S6(6, num_blocks=3, d_state=4, complex_C=complex_C, bidirectional=True).double()
    found = []
    for apart in (False, True):
        monkeypatch.setattr(b2s6, "_sequences_apart", lambda device, apart=apart: apart)
        x = torch.randn(3, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = layer(x)
        found.append((y, *torch.autograd.grad((y * torch.cos(y.detach())).sum(), [x, *layer.parameters()])))
    for together, one_by_one in zip(*found, strict=True):
        torch.testing.assert_close(one_by_one, together)
