"""The classification task: losses, metrics, hyperparameters, and forms of batches."""

import pytest
import torch
from torch.nn import functional as F
from torchmetrics.classification import MulticlassCohenKappa, MulticlassF1Score

from lra_ssm.errors import InputError
from lra_ssm.layers import NetworkSpec
from lra_ssm.tasks import Classification, OptimizerSettings
from lra_ssm.tasks.metrics import MetricSpec
from tests.tasks.fits import Table, fitted, scores_of

NETWORK = NetworkSpec(Table, classes=3, tokens=4, first=True)


def task(**settings):
    torch.manual_seed(0)
    return Classification(NETWORK, OptimizerSettings(warmup_steps=0, **settings))


def batches(sizes=(3, 3, 1)):
    generator = torch.Generator().manual_seed(1)
    draw = lambda high, n: torch.randint(0, high, (n,), generator=generator)  # noqa: E731
    return [(draw(4, n)[:, None], torch.ones(n, dtype=torch.long), draw(3, n)) for n in sizes]


@pytest.mark.parametrize(("shape", "lengths"), [((2, 3), [3, 4]), ((2, 3, 5), [0, 1]), ((1, 2, 3), [[3, 4]])])
def test_lengths_are_checked_before_a_batch_goes_to_its_device(shape, lengths):
    batch = (torch.ones(shape), torch.tensor(lengths), torch.zeros(shape[0], dtype=torch.long))
    with pytest.raises(InputError, match="a batch of the data has lengths: . among them; expected 1 to L = 3"):
        fitted(task(), [batch])


def test_a_batch_may_only_leave_out_lengths():
    module, (batch, *_) = task(), batches()
    assert torch.equal(module.predict_step(batch, 0), module.predict_step((batch[0], batch[2]), 0))
    assert torch.allclose(module.predict_step(batch, 0).sum(-1), torch.ones(3))
    with pytest.raises(TypeError, match=r"a batch is \(inputs, lengths, labels\) or \(inputs, labels\), not Tensor"):
        module.predict_step(torch.zeros(2), 0)


def test_training_follows_adamw_and_the_cosine_by_hand():
    module, data = task(lr=0.1, weight_decay=0.2), batches((4, 4))
    other = task(lr=0.1, weight_decay=0.2).network
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.1, weight_decay=0.2)
    for step, (inputs, _, labels) in enumerate(data):
        optimizer.param_groups[0]["lr"] = 0.1 * (1.0, 0.5)[step]
        optimizer.zero_grad()
        F.cross_entropy(other(inputs), labels).backward()
        optimizer.step()
    fitted(module, data)
    torch.testing.assert_close(module.network.table.weight, other.table.weight)


def test_label_smoothing_and_class_weights_only_change_the_training_loss():
    weights, (batch,) = torch.tensor([1.0, 2.0, 0.5]), batches((5,))
    plain = task()
    module = Classification(NETWORK, plain.optimizer_settings, label_smoothing=0.1, class_weights=weights.tolist())
    module.load_state_dict(plain.state_dict())  # a checkpoint has no class weights
    module.log = lambda *_, **__: None
    logits, labels = module.network(batch[0]), batch[2]
    # By the definition: a label is 0.9 and a third of 0.1 everywhere; the mean is by the weights of the labels.
    smooth = 0.9 * F.one_hot(labels, 3) + 0.1 / 3
    losses = -(smooth * weights * logits.log_softmax(-1)).sum(-1)
    expected = losses.sum() / weights[labels].sum()
    assert module.training_step(batch, 0).item() == pytest.approx(expected.item(), rel=1e-6)
    del module.log
    found = scores_of(plain, [batch])
    assert scores_of(module, [batch]) == found
    assert found["loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-6)


def test_losses_and_metrics_count_every_example_once_and_hyperparameters_build_the_same_task():
    f1 = MetricSpec(MulticlassF1Score, num_classes=3, average="macro")
    kappa = {"class_path": "torchmetrics.classification.MulticlassCohenKappa", "init_args": {"num_classes": 3}}
    module, data = Classification(NETWORK, metrics={"f1": f1, "kappa": kappa}), batches()
    found = scores_of(module, data)
    inputs, labels = (torch.cat([batch[at] for batch in data]) for at in (0, 2))
    logits = module.network(inputs)
    assert found["loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-6)
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == labels).float().mean().item())
    assert found["f1"] == pytest.approx(f1()(logits, labels).item())
    assert found["kappa"] == pytest.approx(MulticlassCohenKappa(3)(logits, labels).item(), abs=1e-7)
    assert found.keys() == {"loss", "accuracy", "f1", "kappa"}
    assert not [name for name in module.state_dict() if "metrics" in name]
    again = Classification(**module.hparams)
    assert module.hparams["network"]["init_args"] == {"classes": 3, "tokens": 4, "first": True}
    assert again.hparams == module.hparams and again.network.table.weight.shape == (4, 3)
    assert type(again.metrics["val"]["f1"]) is MulticlassF1Score
    assert Classification(NETWORK).hparams["metrics"] is None


def test_a_run_within_its_warmup_is_a_warning():
    module = Classification(NETWORK, {"warmup_steps": 9, "lr": 0.5})
    with pytest.warns(UserWarning, match="the run has 2 steps, all within warmup_steps 9: lr stays below 0.5"):
        fitted(module, batches((2, 2)))
