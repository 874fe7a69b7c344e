"""The task with a target per position: what is scored and logged, and what is refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from lra_ssm.errors import InputError
from lra_ssm.layers import S4D, LayerSpec, NetworkSpec
from lra_ssm.models import Regressor
from lra_ssm.tasks import MaskedModelling
from tests.tasks.fits import trainer


class Table(nn.Module):
    """Logits (B, L, V) of a token: a row of a table."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, classes, generator=torch.Generator().manual_seed(2)))

    def forward(self, inputs, lengths=None):
        return self.table[inputs]


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, inputs, lengths=None):
        return self.factor * inputs[..., :1]


class Pooled(Table):
    def forward(self, inputs, lengths=None):
        return super().forward(inputs).mean(1)


def classes(sizes=(3, 4, 1), L=6):
    generator = torch.Generator().manual_seed(1)
    made = [(torch.randint(0, 5, (n, L), generator=generator), torch.rand(n, L, generator=generator)) for n in sizes]
    return [(inputs, torch.where(chance < 0.5, inputs.flip(1), -100), None, None) for inputs, chance in made]


def values():
    return [
        (inputs, torch.where(torch.rand(3, 4, 1) < 0.5, inputs[..., :1], torch.nan), None, None)
        for inputs in (torch.randn(3, 4, 2), torch.randn(3, 4, 2))
    ]


def scored(network, data, **settings):
    (found,) = trainer().test(MaskedModelling(network, **settings), DataLoader(data, batch_size=None), verbose=False)
    return found


def test_every_scored_position_counts_once_and_by_its_place():
    data = classes()
    inputs, targets = (torch.cat([batch[i] for batch in data]) for i in (0, 1))
    found = scored(Table, data, accuracy_up_to=[2, 6])
    logits, places = Table()(inputs).detach(), targets != -100
    right = (logits.argmax(-1) == targets).float()
    expected = F.cross_entropy(logits[places], targets[places])
    assert found["test/loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert found["test/accuracy"] == pytest.approx(right[places].mean().item(), rel=1e-5)
    for name, part in {"accuracy_2": slice(0, 2), "accuracy_6": slice(2, 6)}.items():
        own = right[:, part][places[:, part]].mean().item()
        assert found[f"test/{name}"] == pytest.approx(own, rel=1e-5)


def test_values_are_scored_by_their_absolute_error():
    data = values()
    found = scored(Scale, data)
    inputs, targets = (torch.cat([batch[i] for batch in data]) for i in (0, 1))
    places = ~targets.isnan()
    assert found == {"test/loss": pytest.approx((2 * inputs[..., :1] - targets)[places].abs().mean().item(), rel=1e-5)}


@pytest.mark.parametrize(("network", "data"), [(Table, classes()), (Scale, values())])
def test_the_loss_of_a_step_is_the_mean_over_scored_positions_with_its_gradient(network, data):
    task = MaskedModelling(network)
    task.log = lambda *args, **kwargs: None
    inputs, targets, *_ = data[0]
    (gradient,) = torch.autograd.grad(task.training_step(data[0], 0), list(task.parameters()))
    outputs = task(inputs)
    if targets.is_floating_point():
        loss = F.l1_loss(outputs[~targets.isnan()], targets[~targets.isnan()])
    else:
        loss = F.cross_entropy(outputs[targets != -100], targets[targets != -100])
    torch.testing.assert_close(gradient, *torch.autograd.grad(loss, list(task.parameters())))


def test_features_have_classes_as_targets_too():
    """A pixel as one of its values, from features (B, L, 2)."""
    features = torch.randn(2, 3, 2)
    task = MaskedModelling(
        NetworkSpec(Regressor, num_outputs=4, d_input=2, pooling=None, layer=LayerSpec(S4D), d_model=4)
    )
    task.dry_run((features, torch.tensor([[0, -100, 3], [-100, 2, 1]]), None, None))


def test_a_batch_without_scored_positions_trains_nothing():
    task = MaskedModelling(Table)
    task.log = lambda *args, **kwargs: None
    loss = task.training_step((torch.ones(2, 3, dtype=torch.int64), torch.full((2, 3), -100)), 0)
    (gradient,) = torch.autograd.grad(loss, list(task.parameters()))
    assert loss == 0 and not gradient.any()


def test_predictions_are_log_likelihoods_where_something_is_scored():
    (inputs, targets, *_) = batch = classes()[0]
    out = MaskedModelling(Table).predict_step(batch, 0)
    logs, places = Table()(inputs).log_softmax(-1), targets != -100
    expected = torch.where(places, logs.gather(2, targets.clamp(min=0)[..., None])[..., 0], 0)
    torch.testing.assert_close(out[..., 0], expected)


@pytest.mark.parametrize(
    ("network", "batch", "message"),
    [
        (Pooled, classes()[0], r"needs a prediction per position, \(batch, length, classes\)"),
        (
            NetworkSpec(Table, classes=3),
            (torch.zeros(1, 4, dtype=torch.int64), torch.full((1, 4), 4)),
            "class 4 is among",
        ),
        (Table, values()[0], r"prediction per position, \(3, 4, 1\)"),
        (Table, (torch.zeros(1, 4, dtype=torch.int64), None, torch.zeros(1)), "set data.pretrain"),
    ],
)
def test_what_does_not_fit_is_one_line(network, batch, message):
    if network is Table and batch[0].is_floating_point():
        batch = (batch[0][..., 0].abs().long().clamp(max=4), *batch[1:])
    with pytest.raises(InputError, match=message) as error:
        MaskedModelling(network).dry_run(batch)
    assert "\n" not in str(error.value)


def test_places_must_rise():
    with pytest.raises(InputError, match="must be rising"):
        MaskedModelling(Table, accuracy_up_to=[8, 4])
