"""The regression task: what is scored and logged, and exact sums of all tasks' metrics."""

import pytest
import torch
from torch import nn

from lra_ssm.layers import NetworkSpec
from lra_ssm.tasks import Regression
from lra_ssm.tasks.metrics import Mean, RelativeError, TokenLoss
from tests.tasks.fits import Scale, scores_of


def batches(sizes=(3, 3, 1), targets=(5, 2)):
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return [(draw(n, 5, 2), None, draw(n, *targets)) for n in sizes]


@pytest.mark.parametrize(("first", "targets"), [(False, (5, 2)), (True, (2,))])
def test_every_scored_row_counts_once_whatever_the_batches(first, targets):
    data = batches(targets=targets)
    found = scores_of(Regression(NetworkSpec(Scale, first=first)), data)
    inputs, labels = (torch.cat([batch[at] for batch in data]) for at in (0, 2))
    errors = 2 * (inputs[:, 0] if first else inputs) - labels
    norms, sizes = errors.norm(dim=-1), labels.norm(dim=-1)
    assert found["loss"] == pytest.approx(errors.square().mean().item(), rel=1e-5)
    assert found["l2_error"] == pytest.approx(norms.mean().item(), rel=1e-5)
    assert found["relative_error"] == pytest.approx((norms.mean() / sizes.square().mean().sqrt()).item(), rel=1e-5)


def test_padding_is_not_scored_in_the_losses_and_in_further_metrics():
    ((inputs, _, labels),) = batches((3,))
    lengths = torch.tensor([5, 2, 1])
    real = torch.arange(5) < lengths[:, None]
    task = Regression(Scale, metrics={"mae": "torchmetrics.MeanAbsoluteError"})
    task.dry_run((inputs, lengths, labels))
    found = scores_of(task, [(inputs, lengths, labels)] * 2)
    errors = (2 * inputs - labels)[real]
    assert found["loss"] == pytest.approx((errors**2).mean().item(), rel=1e-5)
    assert found["mae"] == pytest.approx(errors.abs().mean().item(), rel=1e-5)
    task.log = lambda *_, **__: None
    loss = task.training_step((inputs, lengths, torch.where(real[..., None], labels, 1e6)), 0)
    (gradient,) = torch.autograd.grad(loss, [task.network.factor])
    assert loss.item() == pytest.approx(found["loss"], rel=1e-5)
    assert gradient.item() == pytest.approx((2 * errors * inputs[real]).mean().item(), rel=1e-5)


def updated(metric, dtype, *more):
    """Return what the metric gives of a thousand values of 0.58 after others, in a task that Lightning has cast."""
    holder = nn.ModuleList([metric, nn.Linear(2, 2)]).to(dtype=dtype)
    assert holder[1].weight.dtype == dtype
    value = torch.full((3,), 0.58)
    metric.update(2 * value, *more)
    metric.reset()
    for _ in range(1000):
        metric.update(value, *more)
    return metric.compute()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_cast_network_leaves_sums_of_metrics_exact(dtype):
    assert updated(Mean(), dtype).item() == pytest.approx(0.58, rel=1e-4)
    nll, tokens = updated(TokenLoss(), dtype, torch.ones(3, dtype=torch.bool))
    assert nll.dtype == torch.float64 and tokens.item() == 3000 and (nll / tokens).item() == pytest.approx(0.58)
    assert updated(RelativeError(), dtype, torch.full((3,), 1.16)).item() == pytest.approx(0.5, rel=1e-4)
