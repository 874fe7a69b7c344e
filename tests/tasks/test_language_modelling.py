"""The language modelling task: what is scored, logged, and carried from batch to batch."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from lra_ssm.errors import InputError
from lra_ssm.layers import S6, Attention, LayerSpec, NetworkSpec, TransformerBlock
from lra_ssm.models import LanguageModel
from lra_ssm.tasks import LanguageModelling, OptimizerSettings
from tests.tasks.fits import Table, fitted, loader, scores_of, trainer

NETWORK = NetworkSpec(LanguageModel, layer=LayerSpec(S6, d_state=4), vocab_size=11, d_model=8, n_layers=2)


class Data(L.LightningDataModule):
    """A data module of text with given batches and attributes."""

    def __init__(self, batches, carries=False, counts=None, is_word_level=True):
        super().__init__()
        self.is_word_level = is_word_level
        self.batches, self.carries_state, self.eval_carries_state = batches, carries, carries
        if counts is not None:
            self.text_counts = lambda split: counts

    def train_dataloader(self):
        return loader(self.batches)

    val_dataloader = test_dataloader = train_dataloader


def draw(rows=2, length=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(11, (rows, length + 1), generator=generator)
    return found[:, :-1], found[:, 1:], None, None


def task(network=NETWORK):
    torch.manual_seed(0)
    return LanguageModelling(network, OptimizerSettings(lr=1e-2, warmup_steps=0))


def test_losses_are_over_all_scored_tokens_and_some_only_over_a_whole_split():
    lm, (inputs, targets, _, _) = task(), draw(2, 3, seed=1)
    lengths, masked = torch.tensor([3, 2]), targets.clone()
    masked[0, 0], masked[1, 2:] = -100, -100
    batches = [draw(2, 6), (inputs, masked, None, lengths)]
    nll = [lm.network.negative_log_likelihood(x, y, n)[0] for x, y, n in (draw(2, 6)[:3], (inputs, targets, lengths))]
    nll = torch.cat([nll[0].flatten(), nll[1][masked != -100]]).detach()
    found = scores_of(lm, Data(batches))
    assert len(nll) == 16 and found["loss"] == pytest.approx(nll.mean().item(), rel=1e-5)
    assert found["perplexity"] == pytest.approx(nll.mean().exp().item(), rel=1e-5)
    assert found.keys() == {"loss", "perplexity"}
    whole, part = SimpleNamespace(tokens=16, words=5, bytes=40), SimpleNamespace(tokens=17, words=5, bytes=40)
    found, total = scores_of(lm, Data(batches, counts=whole)), nll.sum().item()
    assert found["word_perplexity"] == pytest.approx(math.exp(total / 5), rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(total / (40 * math.log(2)), rel=1e-5)
    assert "bits_per_byte" not in scores_of(lm, Data(batches, counts=part))
    found = scores_of(lm, Data(batches, counts=whole, is_word_level=False))
    assert "word_perplexity" not in found and "bits_per_byte" in found


def cut(batch, at):
    """Return two batches, the second of which continues the first."""
    inputs, targets, _, _ = batch
    return [(inputs[:, :at], targets[:, :at], None, None), (inputs[:, at:], targets[:, at:], None, None)]


def test_carried_states_make_two_batches_one_unless_they_are_reset():
    lm, whole = task(), draw(2, 9)
    expected, apart = (scores_of(lm, Data(batches))["loss"] for batches in ([whole], cut(whole, 4)))
    carried = scores_of(lm, Data(cut(whole, 4), carries=True))["loss"]  # nothing goes from one evaluation to the next
    assert carried == pytest.approx(expected, rel=1e-5)
    assert carried != pytest.approx(apart, rel=1e-5)
    first, (inputs, targets, _, _) = cut(whole, 4)
    reset = torch.zeros_like(inputs, dtype=torch.bool)
    reset[:, 0] = True
    dropped = scores_of(lm, Data([first, (inputs, targets, reset, None)], carries=True))["loss"]
    assert dropped == pytest.approx(apart, rel=1e-5)


@pytest.mark.parametrize("window", [None, 4])
def test_attention_over_an_endless_stream_needs_a_window(window):
    layer = LayerSpec(Attention, n_heads=2, window=window)
    lm = task(NetworkSpec(LanguageModel, layer=layer, vocab_size=11, d_model=8, n_layers=1, block=TransformerBlock))
    batches = cut(draw(2, 9), 4)
    refused = pytest.raises(InputError, match="Attention has no window.*; set the layer's window, or data.isolate=true")
    with nullcontext() if window else refused:
        scores_of(lm, Data(batches, carries=True))
    documents = Data(batches, carries=True)
    documents.isolate = True  # they end
    assert scores_of(lm, documents) and scores_of(lm, Data(batches))


@pytest.mark.parametrize("carries", [False, True])
def test_a_fit_does_not_start_with_the_states_of_another(carries):
    """These are of two rows; three rows cannot continue them."""
    lm, run = task(), trainer(max_epochs=1, limit_val_batches=0)
    lm._carried["train"] = lm.network.initial_state(2)
    run.fit(lm, datamodule=Data([draw(3, 5), draw(3, 5)], carries=carries))
    assert run.global_step == 2 and [len(x) for x in tree_leaves(lm._carried)] == carries * [3, 3, 3, 3]


def test_training_states_outlive_a_validation_between_two_batches():
    lm = task()
    run = trainer()
    lm._trainer = run
    run.datamodule = Data([], carries=True)
    lm.log = lambda *_, **__: None
    first, second = cut(draw(2, 9), 4)
    lm.training_step(first, 0)
    lm._forget_evaluation()
    lm.validation_step(draw(2, 5, seed=3), 0)
    loss = lm.training_step(second, 1)
    _, state = lm.network.negative_log_likelihood(*first[:2], return_last_state=True)
    expected, _ = lm.network.negative_log_likelihood(*second[:2], initial_state=state)
    torch.testing.assert_close(loss, expected.mean())


def test_a_users_network_may_only_give_logits():
    lm, (inputs, targets, _, _) = task(NetworkSpec(Table, classes=11, tokens=11)), draw()
    lm.dry_run((inputs, targets))
    expected = nn.functional.cross_entropy(lm.network(inputs).flatten(0, 1), targets.flatten())
    assert scores_of(lm, Data([(inputs, targets)]))["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_accumulated_batches_count_the_same_whatever_their_tokens():
    """Lightning averages their losses, each the mean over its tokens."""
    parts, lm, expected = [draw(2, 6), draw(1, 3, seed=1)], task(), task().network
    (sum(expected.negative_log_likelihood(x, y)[0].mean() for x, y, _, _ in parts) / 2).backward()
    torch.optim.SGD(expected.parameters(), lr=0.1).step()
    lm.configure_optimizers = lambda: torch.optim.SGD(lm.parameters(), lr=0.1)
    assert fitted(lm, parts, accumulate_grad_batches=2).global_step == 1
    torch.testing.assert_close(lm.network.state_dict(), expected.state_dict())
