"""Metrics over a whole split: what is summed does not depend on the precision of the network beside it."""

import pytest
import torch
from torch import nn

from lra_ssm.tasks.metrics import Mean, RelativeError, TokenLoss


def updated(metric, dtype, *more):
    """What the metric gives of a thousand values of 0.58 after others, in a task that Lightning has cast."""
    holder = nn.ModuleList([metric, nn.Linear(2, 2)]).to(dtype=dtype)
    assert holder[1].weight.dtype == dtype
    value = torch.full((3,), 0.58)
    metric.update(2 * value, *more)
    metric.reset()
    for _ in range(1000):
        metric.update(value, *more)
    return metric.compute()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_cast_network_leaves_sums_exact(dtype):
    assert updated(Mean(), dtype).item() == pytest.approx(0.58, rel=1e-4)
    nll, tokens = updated(TokenLoss(), dtype, torch.ones(3, dtype=torch.bool))
    assert nll.dtype == torch.float64 and tokens.item() == 3000 and (nll / tokens).item() == pytest.approx(0.58)
    assert updated(RelativeError(), dtype, torch.full((3,), 1.16)).item() == pytest.approx(0.5, rel=1e-4)
