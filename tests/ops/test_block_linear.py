"""Linear maps of blocks: each block sees its own channels, and a GPU's order of products gives the same."""

import pytest
import torch

from lra_ssm.ops import block_linear


@pytest.mark.parametrize("per_sequence", [False, True, None])
def test_every_block_has_its_own_matrix_with_every_gradient(per_sequence):
    generator = torch.Generator().manual_seed(0)
    x, *weights = (
        torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)
        for shape in ((3, 7, 4, 2), (4, 2, 5), (4, 2, 6))
    )
    outputs = block_linear(x, *weights, per_sequence=per_sequence)
    for out, weight in zip(outputs, weights, strict=True):
        expected = torch.stack([x[:, :, h] @ weight[h] for h in range(4)], 2)
        torch.testing.assert_close(out, expected)
        slopes = torch.cos(expected.detach())
        ours, theirs = (torch.autograd.grad((y * slopes).sum(), [x, weight]) for y in (out, expected))
        torch.testing.assert_close(ours, theirs)
