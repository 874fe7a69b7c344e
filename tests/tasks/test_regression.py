"""The regression task: what is scored, logged and refused."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lra_ssm.errors import InputError
from lra_ssm.tasks import Classification, OptimizerSettings, Regression
from tests.tasks.fits import trainer


class Scale(nn.Module):
    """Outputs (B, L, K) for features (B, L, K), or with `first` (B, K) for the first position."""

    def __init__(self, first: bool = False) -> None:
        super().__init__()
        self.factor, self.first = nn.Parameter(torch.tensor(2.0)), first

    def forward(self, inputs, lengths=None):
        return self.factor * (inputs[:, 0] if self.first else inputs)


class First(Scale):
    def __init__(self) -> None:
        super().__init__(first=True)


def batches(sizes=(3, 3, 1), targets=(5, 2)):
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return [(draw(n, 5, 2), None, draw(n, *targets)) for n in sizes]


def scored(network, data):
    task = network if isinstance(network, Regression) else Regression(network)
    (found,) = trainer().test(task, DataLoader(data, batch_size=None), verbose=False)
    return found


@pytest.mark.parametrize(("network", "targets"), [(Scale, (5, 2)), (First, (2,))])
def test_every_scored_row_counts_once_whatever_the_batches(network, targets):
    data = batches(targets=targets)
    found, whole = scored(network, data), [torch.cat([batch[at] for batch in data]) for at in (0, 2)]
    assert found == pytest.approx(scored(network, [(whole[0], whole[1])]), rel=1e-5)
    errors = (network()(whole[0]) - whole[1]).detach()
    norms, sizes = errors.norm(dim=-1), whole[1].norm(dim=-1)
    assert found["test/loss"] == pytest.approx(errors.square().mean().item(), rel=1e-5)
    assert found["test/l2_error"] == pytest.approx(norms.mean().item(), rel=1e-5)
    assert found["test/relative_error"] == pytest.approx((norms.mean() / sizes.square().mean().sqrt()).item(), rel=1e-5)


def test_padding_is_not_scored_in_the_losses_and_in_further_metrics():
    ((inputs, _, labels),) = batches((3,))
    lengths = torch.tensor([5, 2, 1])
    real = torch.arange(5) < lengths[:, None]
    task = Regression(Scale, metrics={"mae": "torchmetrics.MeanAbsoluteError"})
    task.dry_run((inputs, lengths, labels))
    found = scored(task, [(inputs, lengths, labels)] * 2)
    errors = (2 * inputs - labels)[real]
    assert found["test/loss"] == pytest.approx((errors**2).mean().item(), rel=1e-5)
    assert found["test/mae"] == pytest.approx(errors.abs().mean().item(), rel=1e-5)
    task.log = lambda *_, **__: None
    other = torch.where(real[..., None], labels, 1e6)
    losses = [task.training_step((inputs, lengths, x), 0) for x in (labels, other)]
    assert losses[0].item() == losses[1].item() == pytest.approx(found["test/loss"], rel=1e-5)


def test_training_finds_the_factor_and_hyperparameters_build_the_same_task():
    inputs = torch.randn(64, 5, 2, generator=torch.Generator().manual_seed(0))
    task = Regression(Scale, OptimizerSettings(lr=0.3, weight_decay=0.0, warmup_steps=0))
    trainer(max_epochs=100).fit(task, DataLoader([(inputs, -0.5 * inputs)], batch_size=None))
    assert task.network.factor.item() == pytest.approx(-0.5, abs=0.02)
    again = Regression(**task.hparams)
    assert again.hparams == task.hparams and again.hparams["optimizer"]["lr"] == 0.3


def test_wrong_targets_and_metrics_are_one_line():
    ((inputs, _, labels),) = batches((3,))
    for call, message in [
        (lambda: scored(Scale, [(inputs, labels[:, 0])]), r"Scale returned \(3, 5, 2\) .*targets are \(3, 2\); .*null"),
        (lambda: scored(Scale, [(inputs, torch.zeros(3, dtype=torch.long))]), "the task for them is Classification"),
        (lambda: Classification(First).training_step((inputs, labels[:, 0]), 0), "the task for them is Regression"),
        (lambda: Regression(Scale, metrics={"l2_error": "torchmetrics.MeanAbsoluteError"}), "the task logs itself"),
    ]:
        with pytest.raises(InputError, match=message):
            call()
