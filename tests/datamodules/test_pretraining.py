"""Self-pretraining: what is hidden, what the targets are, and what batches depend on."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lra_ssm.datamodules import Image, StateTracking
from lra_ssm.datamodules.batches import NOT_SCORED, Batch, BatchDataset
from lra_ssm.datamodules.pretraining import Pretraining, PretrainingDataset
from lra_ssm.errors import InputError
from lra_ssm.runs.checks import check_data
from tests.datamodules.helpers import Tiny


class Given(BatchDataset):
    """Fixed inputs: tokens (n, L), pairs (n, 2, L), or pixels (n, L, C) of given classes."""

    def __init__(self, inputs, lengths=None, pixels=None):
        self.inputs, self.given_lengths, self.pixels = inputs, lengths, pixels

    def __len__(self):
        return len(self.inputs)

    def batch(self, examples, epoch):
        lengths = None if self.given_lengths is None else self.given_lengths[examples]
        return Batch(self.inputs[examples], lengths, torch.zeros(len(examples), dtype=torch.int64))

    def pixel_values(self, examples):
        return None if self.pixels is None else self.pixels[examples]


TOKENS = torch.randint(1, 50, (6, 40), generator=torch.Generator().manual_seed(0))


def wrapped(dataset, **settings):
    return PretrainingDataset(dataset, Pretraining(**settings), 0)


def test_hidden_tokens_are_zero_and_only_they_are_targets():
    lengths = torch.tensor([40, 40, 20, 20, 5, 1])
    inputs = TOKENS * (torch.arange(40) < lengths[:, None])
    batch = wrapped(Given(inputs, lengths), share=0.5).batch(np.arange(6), 0)
    hidden = batch.targets != NOT_SCORED
    assert torch.equal(batch.targets[hidden], inputs[hidden]) and (batch.inputs[hidden] == 0).all()
    assert torch.equal(batch.inputs[~hidden], inputs[~hidden])
    assert not hidden[torch.arange(40) >= lengths[:, None]].any()
    assert torch.equal(batch.lengths, lengths) and 0.3 < hidden[:2].float().mean() < 0.7


@pytest.mark.parametrize("span", [1, 3, 8])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_expected_share_is_hidden_in_spans(share, span):
    hidden = Pretraining(share=share, span=span).hidden(0, np.arange(400), 0, 200)
    spread = 4 * math.sqrt(share * (1 - share) * span / hidden.size)
    assert hidden.mean() == pytest.approx(share, abs=spread)
    assert hidden[:, 0].mean() == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 400))
    if span > 1:  # runs end at the edges, or have at least the span's length
        for row in hidden[:50]:
            edges = np.flatnonzero(np.diff(np.pad(row, 1).astype(int)))
            starts, ends = edges[::2], edges[1::2]
            inner = (starts > 0) & (ends < len(row))
            assert ((ends - starts)[inner] >= span).all()


def test_what_is_hidden_depends_on_seed_split_example_and_epoch_only():
    data, settings = Given(TOKENS), {"share": 0.4}
    dataset = wrapped(data, **settings)
    whole = dataset.batch(np.arange(6), 3)
    alone = dataset.batch(np.array([4]), 3)
    assert torch.equal(alone.inputs[0], whole.inputs[4]) and torch.equal(alone.targets[0], whole.targets[4])
    shorter = wrapped(Given(TOKENS[:, :25]), **settings).batch(np.arange(6), 3)
    assert torch.equal(shorter.targets, whole.targets[:, :25])
    others = [dataset.batch(np.arange(6), 4), wrapped(data, **settings, seed=1).batch(np.arange(6), 3)]
    others.append(PretrainingDataset(data, Pretraining(**settings), 1).batch(np.arange(6), 3))
    assert not any(torch.equal(each.targets, whole.targets) for each in others)
    assert not torch.equal(whole.targets[0] == NOT_SCORED, whole.targets[1] == NOT_SCORED)


def test_pixels_have_a_mask_channel_and_classes_or_values_as_targets():
    values = torch.randint(0, 256, (6, 40))
    data = Given(values[..., None] / 255.0, pixels=values)
    classes = wrapped(data, share=0.5).batch(np.arange(6), 0)
    hidden = classes.inputs[..., 1] == 1
    assert torch.equal(classes.targets != NOT_SCORED, hidden) and torch.equal(classes.targets[hidden], values[hidden])
    assert (classes.inputs[hidden][:, 0] == 0).all()
    assert torch.equal(classes.inputs[~hidden][:, 0], data.inputs[~hidden][:, 0])
    numbers = wrapped(data, share=0.5, targets="values").batch(np.arange(6), 0)
    assert torch.equal(~numbers.targets[..., 0].isnan(), hidden)
    assert torch.equal(numbers.targets[hidden], data.inputs[hidden])


def test_the_causal_form_predicts_the_next_position_of_each_sequence():
    lengths = torch.tensor([40, 40, 20, 20, 5, 1])
    batch = wrapped(Given(TOKENS, lengths), objective="causal").batch(np.arange(6), 0)
    assert torch.equal(batch.inputs, TOKENS)
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(batch.targets[row, : length - 1], TOKENS[row, 1:length])
        assert (batch.targets[row, length - 1 :] == NOT_SCORED).all()


def test_each_sequence_of_a_pair_is_an_example():
    pairs = TOKENS.view(3, 2, 40)
    batch = wrapped(Given(pairs, torch.full((3, 2), 40)), share=0.3).batch(np.array([2, 0]), 1)
    single = wrapped(Given(TOKENS), share=0.3).batch(np.array([4, 5, 0, 1]), 1)
    assert torch.equal(batch.inputs, single.inputs) and batch.lengths.tolist() == [40] * 4


def test_any_data_module_pretrains_and_says_which_network_fits(tmp_path):
    data = Tiny(root=str(tmp_path), batch_size=8, pretrain=Pretraining(share=0.5))
    data.prepare_data()
    data.setup("fit")
    assert data.model_sizes() == {
        "vocab_size": 5, "d_input": None, "num_classes": None, "num_outputs": 5, "per_example": 1,
    }  # fmt: skip
    assert data.record()["batches"]["pretrain"]["share"] == 0.5 and "pretrain" not in data.record()["data"]
    assert data.describe().endswith("; pretraining: 50% of positions hidden; targets are classes")
    epochs = [[batch.targets for batch in data.train_dataloader()] for _ in range(2)]
    again = [batch.targets for batch in data.train_dataloader()]
    assert all(map(torch.equal, epochs[0], again)) and data.largest_batch().targets.shape[0] == data.batch_size
    # The Trainer sets the epoch of validation too.
    first, later = data.val_dataloader(), data.val_dataloader()
    later.set_epoch(3)
    validation = [[batch.targets for batch in loader] for loader in (first, later)]
    assert all(map(torch.equal, *validation))


def test_the_largest_batch_of_known_lengths_needs_no_data(tmp_path):
    data = Image(root=str(tmp_path), batch_size=2, pretrain=Pretraining(share=0.5, targets="values"))
    batch = data.largest_batch()
    assert batch.inputs.shape == (2, 1024, 2) and batch.targets.shape == (2, 1024, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 0.0}, "share is 0.0; it must be between 0 and 1"),
        ({"share": 1.0}, "share is 1.0; it must be between 0 and 1"),
        ({"span": 0}, "span is 0; it must be at least 1"),
    ],
)
def test_shares_and_spans_that_cannot_be(settings, message):
    with pytest.raises(InputError, match=message):
        Pretraining(**settings)


def test_targets_that_the_inputs_do_not_have():
    with pytest.raises(InputError, match="inputs are tokens: use 'classes'"):
        wrapped(Given(TOKENS), targets="values").batch(np.arange(2), 0)
    with pytest.raises(InputError, match="not pixels of one channel: use 'values'"):
        wrapped(Given(torch.randn(2, 5, 3))).batch(np.arange(2), 0)


def test_a_classifier_on_a_pretraining_is_told_the_task():
    task = SimpleNamespace(hparams={"network": {"init_args": {"num_classes": 6, "vocab_size": 6}}})
    with pytest.raises(InputError, match="has data.pretrain: use the task MaskedModelling and the network Regressor"):
        check_data(task, StateTracking(group="S3", pretrain=Pretraining()))
