"""The task with a target per position: what is scored and logged."""

import pytest
import torch
from torch.nn import functional as F

from lra_ssm.layers import NetworkSpec
from lra_ssm.models import Regressor
from lra_ssm.tasks import MaskedModelling
from tests.tasks.fits import Scale, Table, scores_of


def classes(sizes=(3, 4, 1), L=6):
    generator = torch.Generator().manual_seed(1)
    made = [(torch.randint(0, 5, (n, L), generator=generator), torch.rand(n, L, generator=generator)) for n in sizes]
    return [(inputs, torch.where(chance < 0.5, inputs.flip(1), -100), None, None) for inputs, chance in made]


def values():
    drawn = [(torch.randn(3, 4, 2), torch.rand(3, 4, 1)) for _ in range(2)]
    return [(inputs, torch.where(chance < 0.5, inputs, torch.nan), None, None) for inputs, chance in drawn]


def test_every_scored_position_counts_once_and_by_its_place():
    data, task = classes(), MaskedModelling(Table, accuracy_up_to=[2, 6, 99])  # nothing is scored from 7 on
    inputs, targets = (torch.cat([batch[i] for batch in data]) for i in (0, 1))
    found = scores_of(task, data)
    logits, places = task(inputs).detach(), targets != -100
    right = (logits.argmax(-1) == targets).float()
    expected = {"loss": F.cross_entropy(logits[places], targets[places]), "accuracy": right[places].mean()}
    for name, part in {"accuracy_2": slice(0, 2), "accuracy_6": slice(2, 6)}.items():
        expected[name] = right[:, part][places[:, part]].mean()
    assert found == pytest.approx({f"{name}": value.item() for name, value in expected.items()}, rel=1e-5)


def test_values_are_scored_by_their_absolute_error():
    data = values()
    inputs, targets = (torch.cat([batch[i] for batch in data]) for i in (0, 1))
    expected = (2 * inputs - targets)[~targets.isnan()].abs().mean()
    assert scores_of(MaskedModelling(Scale), data) == {"loss": pytest.approx(expected.item(), rel=1e-5)}


# A pixel as one of its values, from features (B, L, 2).
PIXELS = torch.randn(2, 3, 2), torch.tensor([[0, -100, 3], [-100, 2, 1]]), None, None
REGRESSOR = NetworkSpec(Regressor, num_outputs=4, d_input=2, pooling=None, layer="lra_ssm.layers.S4D", d_model=4)


@pytest.mark.parametrize(("network", "batch"), [(Table, classes()[0]), (Scale, values()[0]), (REGRESSOR, PIXELS)])
def test_the_loss_of_a_step_is_the_mean_over_scored_positions_with_its_gradient(network, batch):
    task, (inputs, targets, *_) = MaskedModelling(network), batch
    logged = {}
    task.log = lambda name, value, **kwargs: logged.update({name: value})
    task.dry_run(batch)
    gradient = torch.autograd.grad(task.training_step(batch, 0), list(task.parameters()))
    outputs = task(inputs)
    if targets.is_floating_point():
        loss = F.l1_loss(outputs[~targets.isnan()], targets[~targets.isnan()])
    else:
        logits, classes = outputs[targets != -100], targets[targets != -100]
        loss = F.cross_entropy(logits, classes)
        assert logged["train/accuracy"] == (logits.argmax(-1) == classes).float().mean()
    torch.testing.assert_close(gradient, torch.autograd.grad(loss, list(task.parameters())))


def test_a_batch_without_scored_positions_trains_nothing():
    task = MaskedModelling(Table)
    task.log = lambda *args, **kwargs: None
    loss = task.training_step((torch.ones(2, 3, dtype=torch.int64), torch.full((2, 3), -100)), 0)
    (gradient,) = torch.autograd.grad(loss, list(task.parameters()))
    assert loss == 0 and not gradient.any()


def test_predictions_are_log_likelihoods_or_errors_where_something_is_scored():
    (inputs, targets, *_), task = classes()[0], MaskedModelling(Table)
    logs, places = task(inputs).log_softmax(-1), targets != -100
    expected = torch.where(places, logs.gather(2, targets.clamp(min=0)[..., None])[..., 0], 0)
    torch.testing.assert_close(task.predict_step((inputs, targets), 0)[..., 0], expected)
    inputs, targets, *_ = values()[0]
    errors = (2 * inputs - targets).abs().mean(-1).nan_to_num()
    torch.testing.assert_close(MaskedModelling(Scale).predict_step((inputs, targets), 0)[..., 0], -errors)
