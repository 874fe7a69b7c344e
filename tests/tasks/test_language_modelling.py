"""The language modelling task: what is scored, logged, carried from batch to batch, and refused."""

import math
from typing import NamedTuple

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lra_ssm.errors import InputError
from lra_ssm.layers import S6, Attention, LayerSpec, NetworkSpec, TransformerBlock
from lra_ssm.models import LanguageModel
from lra_ssm.tasks import LanguageModelling, OptimizerSettings
from tests.tasks.fits import trainer

NETWORK = NetworkSpec(LanguageModel, layer=LayerSpec(S6, d_state=4), vocab_size=11, d_model=8, n_layers=2)
CONSTANT = OptimizerSettings(lr=1e-2, warmup_steps=0)


class Counts(NamedTuple):
    tokens: int
    words: int
    bytes: int


class Data(L.LightningDataModule):
    """A data module of text with given batches and attributes."""

    def __init__(self, batches, carries=False, counts=None, is_word_level=True):
        super().__init__()
        self.is_word_level = is_word_level
        self.batches, self.carries_state, self.eval_carries_state = batches, carries, carries
        if counts is not None:
            self.text_counts = lambda split: counts

    def loader(self):
        return DataLoader(self.batches, batch_size=None)

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = loader


def draw(rows=2, length=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(11, (rows, length + 1), generator=generator)
    return found[:, :-1], found[:, 1:], None, None


def task(network=NETWORK, optimizer=CONSTANT):
    torch.manual_seed(0)
    return LanguageModelling(network, optimizer)


def evaluated(lm, data):
    (found,) = trainer().test(lm, data, verbose=False)
    return found


def test_losses_are_over_all_tokens_and_some_only_over_a_whole_split():
    lm, batches = task(), [draw(2, 6), draw(1, 3, seed=1)]
    found = evaluated(lm, Data(batches))
    nll = torch.cat([lm.network.negative_log_likelihood(x, y)[0].flatten() for x, y, _, _ in batches]).detach()
    assert found["test/loss"] == pytest.approx(nll.mean().item(), rel=1e-5)
    assert found["test/perplexity"] == pytest.approx(nll.mean().exp().item(), rel=1e-5)
    assert found.keys() == {"test/loss", "test/perplexity"}
    whole, part = Counts(tokens=15, words=5, bytes=40), Counts(tokens=16, words=5, bytes=40)
    found, total = evaluated(lm, Data(batches, counts=whole)), nll.sum().item()
    assert found["test/word_perplexity"] == pytest.approx(math.exp(total / 5), rel=1e-4)
    assert found["test/bits_per_byte"] == pytest.approx(total / (40 * math.log(2)), rel=1e-5)
    assert "test/bits_per_byte" not in evaluated(lm, Data(batches, counts=part))
    found = evaluated(lm, Data(batches, counts=whole, is_word_level=False))
    assert "test/word_perplexity" not in found and "test/bits_per_byte" in found


def test_padding_and_targets_that_are_not_scored_do_not_count():
    lm = task()
    inputs, targets, _, _ = draw(2, 6)
    lengths = torch.tensor([6, 2])
    masked = targets.clone()
    masked[1, 2:], masked[0, :3] = -100, -100
    found = evaluated(lm, Data([(inputs, masked, None, lengths)]))
    nll = lm.network.negative_log_likelihood(inputs, targets, lengths)[0].detach()
    assert found["test/loss"] == pytest.approx(torch.cat([nll[0, 3:], nll[1, :2]]).mean().item(), rel=1e-5)


def cut(batch, at):
    """Return two batches, the second of which continues the first."""
    inputs, targets, _, _ = batch
    return [(inputs[:, :at], targets[:, :at], None, None), (inputs[:, at:], targets[:, at:], None, None)]


def test_carried_states_make_two_batches_one_unless_they_are_reset():
    lm, whole = task(), draw(2, 9)
    expected, apart = (evaluated(lm, Data(batches))["test/loss"] for batches in ([whole], cut(whole, 4)))
    for _ in range(2):  # nothing is carried from one evaluation to the next
        carried = evaluated(lm, Data(cut(whole, 4), carries=True))["test/loss"]
        assert carried == pytest.approx(expected, rel=1e-5) != pytest.approx(apart, rel=1e-5)
    first, (inputs, targets, _, _) = cut(whole, 4)
    reset = torch.zeros_like(inputs, dtype=torch.bool)
    reset[:, 0] = True
    dropped = evaluated(lm, Data([first, (inputs, targets, reset, None)], carries=True))["test/loss"]
    assert dropped == pytest.approx(apart, rel=1e-5)


@pytest.mark.parametrize("window", [None, 4])
def test_attention_over_an_endless_stream_needs_a_window(window):
    lm = task(NetworkSpec(LanguageModel, layer=LayerSpec(Attention, n_heads=2, window=window), vocab_size=11, d_model=8,
                          n_layers=1, block=TransformerBlock))  # fmt: skip
    batches = cut(draw(2, 9), 4)
    if window is None:
        with pytest.raises(InputError, match="Attention has no window.*; set the layer's window, or data.isolate=true"):
            evaluated(lm, Data(batches, carries=True))
    else:
        evaluated(lm, Data(batches, carries=True))
    data = Data(batches, carries=True)
    data.isolate = True  # documents end
    evaluated(lm, data)
    evaluated(lm, Data(batches))


def fit(lm, batches, folder, carries=True, **more):
    run = trainer(max_epochs=1, limit_val_batches=0, default_root_dir=folder, **more)
    return run, Data(batches, carries=carries)


def test_a_run_stopped_within_an_epoch_of_streams_saves_its_states(tmp_path):
    batches = [part for seed in range(2) for part in cut(draw(2, 9, seed=seed), 4)]
    stopped = task()
    run, data = fit(stopped, batches, tmp_path, max_steps=3)
    stopped.configure_optimizers = lambda: torch.optim.SGD(stopped.parameters(), lr=0.1)
    run.fit(stopped, datamodule=data)
    run.save_checkpoint(tmp_path / "stopped.ckpt")
    saved = torch.load(tmp_path / "stopped.ckpt", weights_only=True)
    again = task()
    again.on_load_checkpoint(saved)
    leaves = torch.utils._pytree.tree_leaves
    states = list(zip(leaves(again._carried["train"]), leaves(stopped._carried["train"]), strict=True))
    assert len(states) == 4
    for ours, theirs in states:
        torch.testing.assert_close(ours, theirs)


class Watched(LanguageModelling):
    """Records for every batch whether it was given states."""

    given: tuple[bool, ...] = ()

    def _nll(self, tokens, state, *more):
        self.given += (state is not None,)
        return super()._nll(tokens, state, *more)


@pytest.mark.parametrize("carries", [False, True])
def test_a_fit_does_not_start_with_the_states_of_another(carries, tmp_path):
    lm = Watched(NETWORK, CONSTANT)
    lm._carried["train"] = lm.network.initial_state(2)
    run, data = fit(lm, [draw(3, 5), draw(3, 5)], tmp_path, carries=carries)
    run.fit(lm, datamodule=data)
    assert lm.given == (False, carries)


def test_training_states_outlive_a_validation_between_two_batches():
    lm = task()
    run = trainer()
    lm._trainer = run
    run.datamodule = Data([], carries=True)
    lm.log = lambda *_, **__: None
    first, second = cut(draw(2, 9), 4)
    lm.training_step(first, 0)
    lm._forget_evaluation()
    lm._evaluate(draw(2, 5, seed=3), lm.val_tokens)
    loss = lm.training_step(second, 1)
    _, state = lm.network.negative_log_likelihood(*first[:2], return_last_state=True)
    expected, _ = lm.network.negative_log_likelihood(*second[:2], initial_state=state)
    torch.testing.assert_close(loss, expected.mean())


class Logits(nn.Module):
    """A user's network, which only gives logits."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 11)

    def forward(self, inputs, lengths=None):
        return self.table(inputs)


def test_a_users_network_gives_logits_and_is_named_where_it_lacks_something():
    lm, (inputs, targets, _, _) = task(Logits), draw()
    found = evaluated(lm, Data([(inputs, targets)]))
    expected = nn.functional.cross_entropy(lm.network.table(inputs).flatten(0, 1), targets.flatten())
    assert found["test/loss"] == pytest.approx(expected.item(), rel=1e-5)
    lm.dry_run((inputs, targets))
    with pytest.raises(ValueError, match=r"Logits.forward takes no `reset`: documents cannot be .* `isolate: false`"):
        lm.dry_run((inputs, targets, targets == 1, None))
    with pytest.raises(InputError, match="token 11 is among the targets, and each needs a logit"):
        lm.dry_run((inputs, targets.masked_fill(targets == targets[0, 0], 11)))


def test_other_batches_are_refused():
    for batch in [(torch.zeros(2, 3), torch.zeros(2, 3)), (torch.zeros(2, 3).long(), None, torch.zeros(2).long())]:
        with pytest.raises(InputError, match=r"a batch of text is \(inputs, targets, reset, lengths\)"):
            task().inputs_of(batch)


def weights_after(batches, **more):
    """Return the weights after one step of gradient descent."""
    lm = task()
    lm.configure_optimizers = lambda: torch.optim.SGD(lm.parameters(), lr=0.1)
    run, data = fit(lm, batches, None, carries=False, **more)
    run.fit(lm, datamodule=data)
    assert run.global_step == 1
    return lm.state_dict()


def test_accumulated_batches_of_equal_counts_are_one_large_batch():
    parts = [draw(2, seed=0), draw(2, seed=1)]
    whole = [(*(torch.cat(pair) for pair in zip(*(part[:2] for part in parts), strict=True)), None, None)]
    for clip in (None, 0.01):
        ours = weights_after(parts, accumulate_grad_batches=2, gradient_clip_val=clip)
        theirs = weights_after(whole, gradient_clip_val=clip)
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], msg=name)


def test_accumulated_batches_count_the_same_whatever_their_tokens():
    """Lightning averages their losses, each the mean over its tokens."""
    parts, lm, start = [draw(2, 6), draw(1, 3, seed=1)], task(), task().state_dict()
    losses = [lm.network.negative_log_likelihood(x, y)[0].mean() for x, y, _, _ in parts]
    (sum(losses) / 2).backward()
    ours = weights_after(parts, accumulate_grad_batches=2)
    for name, weight in lm.named_parameters():
        torch.testing.assert_close(ours[name], start[name] - 0.1 * weight.grad, msg=name)
