"""The classification task by itself: loss, accuracy, schedule, hyperparameters."""

import pytest
import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

from lra_ssm.errors import InputError
from lra_ssm.tasks import Classification, OptimizerSettings


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


def trainer(**settings):
    return Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, num_sanity_val_steps=0, **settings,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "lengths", "limit"), [((2, 3), [3, 4], 3), ((2, 3, 5), [0, 1], 3), ((1, 2, 3), [[3, 4]], 3)]
)
def test_lengths_are_looked_at_before_a_batch_goes_to_its_device(shape, lengths, limit):
    batch = (torch.ones(shape), torch.tensor(lengths), torch.zeros(shape[0], dtype=torch.long))
    with pytest.raises(InputError, match=f"a batch of the data has lengths: . among them; expected 1 to L = {limit}"):
        trainer(max_epochs=1).fit(task(), DataLoader([batch], batch_size=None))


class Shifted(LightningDataModule):
    """Its batches are made whole by its own hook."""

    def train_dataloader(self):
        return DataLoader([(inputs + 100, *rest) for inputs, *rest in batches()], batch_size=None)

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch[0] - 100, *batch[1:]


def test_the_data_modules_own_hook_is_asked_too():
    module = task()  # its table has no row 100
    trainer(max_epochs=1).fit(module, datamodule=Shifted())
    assert module.trainer.global_step == 3


def whole(batches, at):
    return torch.cat([batch[at] for batch in batches])


def test_every_example_counts_once_whatever_the_batches():
    module, data = task(), batches()
    (found,) = trainer().test(module, DataLoader(data, batch_size=None), verbose=False)
    logits, labels = module.network(whole(data, 0)), whole(data, 2)
    assert found["test/loss"] == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-6)
    assert found["test/accuracy"] == pytest.approx((logits.argmax(-1) == labels).float().mean().item())


def test_a_batch_may_leave_lengths_out_and_nothing_else():
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


def test_a_run_within_its_warmup_is_said():
    module = Classification(Table, {"warmup_steps": 9, "lr": 0.5})
    with pytest.warns(UserWarning, match="the run has 2 steps, all within warmup_steps 9: lr stays below 0.5"):
        trainer(max_epochs=1).fit(module, DataLoader(batches((2, 2)), batch_size=None))


def test_hyperparameters_are_plain_and_build_the_same():
    module = task(lr=0.3)
    stored = dict(module.hparams)
    assert stored["network"]["init_args"] == {"num_classes": 3, "vocab_size": 4} and stored["optimizer"]["lr"] == 0.3
    again = Classification(**stored)
    assert dict(again.hparams) == stored and again.network.table.weight.shape == (4, 3)
