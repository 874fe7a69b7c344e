"""Self-pretraining: what is hidden, what the targets are, and what batches depend on."""

import math

import numpy as np
import pytest
import torch

from lra_ssm.datamodules.batches import NOT_SCORED, Batch
from lra_ssm.datamodules.pretraining import Pretraining
from lra_ssm.errors import InputError
from tests.datamodules.helpers import Tiny

TOKENS = torch.randint(1, 50, (6, 40), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([40, 40, 20, 20, 5, 1])


def hide(inputs, lengths=None, examples=None, split=0, epoch=0, pixels=None, **settings):
    """The batch of tokens (B, L), pairs (B, 2, L) or features (B, L, C), with what is predicted as its targets."""
    batch = Batch(inputs, lengths, torch.zeros(len(inputs), dtype=torch.int64))
    examples = np.arange(len(inputs)) if examples is None else np.array(examples)
    return Pretraining(**settings).with_targets(batch, split, examples, epoch, pixels)


def test_hidden_tokens_are_zero_and_only_they_are_targets():
    inputs = TOKENS * (torch.arange(40) < LENGTHS[:, None])
    batch = hide(inputs, LENGTHS, share=0.5)
    hidden = batch.targets != NOT_SCORED
    assert torch.equal(batch.targets[hidden], inputs[hidden]) and (batch.inputs[hidden] == 0).all()
    assert torch.equal(batch.inputs[~hidden], inputs[~hidden])
    assert not hidden[torch.arange(40) >= LENGTHS[:, None]].any()
    assert torch.equal(batch.lengths, LENGTHS) and 0.3 < hidden[:2].float().mean() < 0.7


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
    whole = hide(TOKENS, epoch=3, share=0.4)
    alone = hide(TOKENS[4:5], examples=[4], epoch=3, share=0.4)
    assert torch.equal(alone.inputs[0], whole.inputs[4]) and torch.equal(alone.targets[0], whole.targets[4])
    assert torch.equal(hide(TOKENS[:, :25], epoch=3, share=0.4).targets, whole.targets[:, :25])
    for other in ({"epoch": 4}, {"epoch": 3, "seed": 1}, {"epoch": 3, "split": 1}):
        assert not torch.equal(hide(TOKENS, share=0.4, **other).targets, whole.targets)
    assert not torch.equal(whole.targets[0] == NOT_SCORED, whole.targets[1] == NOT_SCORED)


def test_pixels_have_a_mask_channel_and_classes_or_values_as_targets():
    pixels = torch.randint(0, 256, (6, 40))
    inputs = pixels[..., None] / 255.0
    classes = hide(inputs, pixels=pixels, share=0.5)
    hidden = classes.inputs[..., 1] == 1
    assert torch.equal(classes.targets != NOT_SCORED, hidden) and torch.equal(classes.targets[hidden], pixels[hidden])
    assert (classes.inputs[hidden][:, 0] == 0).all()
    assert torch.equal(classes.inputs[~hidden][:, :1], inputs[~hidden])
    numbers = hide(inputs, share=0.5, targets="values")
    assert torch.equal(~numbers.targets[..., 0].isnan(), hidden)
    assert torch.equal(numbers.targets[hidden], inputs[hidden])


def test_the_causal_form_predicts_the_next_position_of_each_sequence():
    batch = hide(TOKENS, LENGTHS, objective="causal")
    assert torch.equal(batch.inputs, TOKENS)
    assert Pretraining(objective="causal").describe().startswith("pretraining: each position predicts the next")
    for row, length in enumerate(LENGTHS.tolist()):
        assert torch.equal(batch.targets[row, : length - 1], TOKENS[row, 1:length])
        assert (batch.targets[row, length - 1 :] == NOT_SCORED).all()


def test_each_sequence_of_a_pair_is_an_example():
    batch = hide(TOKENS.view(3, 2, 40)[[2, 0]], torch.full((2, 2), 40), [2, 0], epoch=1, share=0.3)
    single = hide(TOKENS[[4, 5, 0, 1]], examples=[4, 5, 0, 1], epoch=1, share=0.3)
    assert torch.equal(batch.inputs, single.inputs) and batch.lengths.tolist() == [40] * 4


def test_any_data_module_pretrains_and_says_which_network_fits(tmp_path):
    data = Tiny(root=str(tmp_path), batch_size=8, pretrain={"share": 0.5})
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
    validation = [[batch.targets for batch in loader] for loader in (first, later, data.predict_dataloader())]
    assert all(map(torch.equal, *validation[:2])) and all(map(torch.equal, *validation[1:]))


def test_targets_that_the_inputs_do_not_have():
    with pytest.raises(InputError, match="inputs are tokens: use 'classes'"):
        hide(TOKENS, targets="values")
    with pytest.raises(InputError, match="not pixels of one channel: use 'values'"):
        hide(torch.randn(2, 5, 3))
