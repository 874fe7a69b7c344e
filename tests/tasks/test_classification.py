"""The classification task: losses, metrics, hyperparameters, wrong batches and settings."""

import pytest
import torch
from lightning.pytorch import LightningDataModule
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassCohenKappa, MulticlassF1Score

from lra_ssm.errors import InputError
from lra_ssm.tasks import Classification, OptimizerSettings
from lra_ssm.tasks.metrics import MetricSpec
from tests.tasks.fits import trainer


def macro(**settings):
    return MetricSpec(MulticlassF1Score, **{"num_classes": 3, "average": "macro", **settings})


F1 = macro()
KAPPA = {"class_path": "torchmetrics.classification.MulticlassCohenKappa", "init_args": {"num_classes": 3}}


class Table(nn.Module):
    """Logits by token, without lengths or any layer."""

    def __init__(self, num_classes: int = 3, vocab_size: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, num_classes)

    def forward(self, inputs, lengths=None):
        return self.table(inputs[:, 0])


def task(**settings):
    torch.manual_seed(0)
    return Classification(Table, OptimizerSettings(warmup_steps=0, **settings))


def batches(sizes=(3, 3, 1)):
    generator = torch.Generator().manual_seed(1)
    draw = lambda high, n: torch.randint(0, high, (n,), generator=generator)  # noqa: E731
    return [(draw(4, n)[:, None], torch.ones(n, dtype=torch.long), draw(3, n)) for n in sizes]


@pytest.mark.parametrize(("shape", "lengths"), [((2, 3), [3, 4]), ((2, 3, 5), [0, 1]), ((1, 2, 3), [[3, 4]])])
def test_lengths_are_checked_before_a_batch_goes_to_its_device(shape, lengths):
    batch = (torch.ones(shape), torch.tensor(lengths), torch.zeros(shape[0], dtype=torch.long))
    with pytest.raises(InputError, match="a batch of the data has lengths: . among them; expected 1 to L = 3"):
        trainer(max_epochs=1).fit(task(), DataLoader([batch], batch_size=None))


class Shifted(LightningDataModule):
    """A data module whose own hook completes its batches."""

    def train_dataloader(self):
        return DataLoader([(inputs + 100, *rest) for inputs, *rest in batches()], batch_size=None)

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch[0] - 100, *batch[1:]


def test_the_data_modules_own_hook_is_called_too():
    module = task()  # its table has no row 100
    trainer(max_epochs=1).fit(module, datamodule=Shifted())
    assert module.trainer.global_step == 3


def whole(batches, at):
    return torch.cat([batch[at] for batch in batches])


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
        nn.functional.cross_entropy(other(inputs), labels).backward()
        optimizer.step()
    trainer(max_epochs=1).fit(module, DataLoader(data, batch_size=None))
    torch.testing.assert_close(module.network.table.weight, other.table.weight)


def test_label_smoothing_and_class_weights_only_change_the_training_loss():
    weights, (batch,) = torch.tensor([1.0, 2.0, 0.5]), batches((5,))
    plain = task()
    module = Classification(Table, plain.optimizer_settings, label_smoothing=0.1, class_weights=weights.tolist())
    module.network.load_state_dict(plain.network.state_dict())
    module.log = lambda *_, **__: None
    logits, labels = module.network(batch[0]), batch[2]
    # By the definition: a label is 0.9 and a third of 0.1 everywhere; the mean is by the weights of the labels.
    smooth = 0.9 * nn.functional.one_hot(labels, 3) + 0.1 / 3
    losses = -(smooth * weights * logits.log_softmax(-1)).sum(-1)
    assert module.training_step(batch, 0).item() == pytest.approx(
        (losses.sum() / weights[labels].sum()).item(), rel=1e-6
    )
    del module.log
    found = [trainer().validate(one, DataLoader([batch], batch_size=None), verbose=False) for one in (module, plain)]
    plain_loss = nn.functional.cross_entropy(logits, labels).item()
    assert found[0] == found[1] and found[0][0]["val/loss"] == pytest.approx(plain_loss, rel=1e-6)


def test_class_weights_are_not_in_checkpoints_and_follow_the_precision():
    module = Classification(Table, class_weights=[1, 2, 3])
    assert module.class_weights.dtype == torch.float32 and "class_weights" not in module.state_dict()
    fitting = trainer(max_epochs=1, precision="64-true")
    fitting.fit(module, DataLoader(batches(), batch_size=None))
    assert module.class_weights.dtype == torch.float64


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label_smoothing": 1}, "model.label_smoothing is 1; it must be at least 0 and below 1"),
        ({"class_weights": [1, 0, 1]}, r"model.class_weights is \[1, 0, 1\]; each must be a number above 0"),
        ({"class_weights": [1, 2]}, "model.class_weights has 2 numbers, but the network has logits for 3 classes"),
        ({"metrics": {"loss": F1}}, "model.metrics has 'loss', which the task logs itself"),
        ({"metrics": {"f-1": F1}}, "model.metrics has 'f-1', which is not a name such as f1"),
        ({"metrics": {"items": F1}}, "model.metrics has 'items', which is not a name such as f1"),
        ({"metrics": {"f1": "torch.nn.ReLU"}}, "model.metrics.f1 is a ReLU, not a torchmetrics.Metric"),
        ({"metrics": {"f1": "torchmetrics.F2"}}, "metric class_path 'torchmetrics.F2' cannot be imported"),
        ({"metrics": {"f1": macro(num_classes=2)}}, "model.metrics.f1 does not take the predictions: "),
        (
            {"metrics": {"f1": macro(average=None)}},
            "model.metrics.f1 does not give a single number: average its classes",
        ),
    ],
)
def test_wrong_settings_are_one_line(settings, message):
    with pytest.raises(ValueError, match=message):
        Classification(Table, **settings).dry_run(batches((6,))[0])


def test_losses_and_metrics_count_every_example_once_and_hyperparameters_build_the_same_task():
    module, data = Classification(Table, metrics={"f1": F1, "kappa": KAPPA}), batches()
    (found,) = trainer().test(module, DataLoader(data, batch_size=None), verbose=False)
    logits, labels = module.network(whole(data, 0)), whole(data, 2)
    assert found["test/loss"] == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-6)
    assert found["test/accuracy"] == pytest.approx((logits.argmax(-1) == labels).float().mean().item())
    assert found["test/f1"] == pytest.approx(F1()(logits, labels).item())
    assert found["test/kappa"] == pytest.approx(MulticlassCohenKappa(3)(logits, labels).item(), abs=1e-7)
    assert found.keys() == {"test/loss", "test/accuracy", "test/f1", "test/kappa"}
    assert not [name for name in module.state_dict() if "metrics" in name]
    stored = module.hparams["network"]["init_args"]
    again = Classification(**module.hparams)
    assert stored == {"num_classes": 3, "vocab_size": 4} and again.network.table.weight.shape == (4, 3)
    assert again.hparams == module.hparams and type(again.val_metrics["f1"]) is MulticlassF1Score
    assert Classification(Table).hparams["metrics"] is None


def test_a_run_within_its_warmup_is_a_warning():
    module = Classification(Table, {"warmup_steps": 9, "lr": 0.5})
    with pytest.warns(UserWarning, match="the run has 2 steps, all within warmup_steps 9: lr stays below 0.5"):
        trainer(max_epochs=1).fit(module, DataLoader(batches((2, 2)), batch_size=None))
