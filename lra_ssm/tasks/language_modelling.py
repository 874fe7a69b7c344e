"""Language modelling as a LightningModule: the next token at every position.

Shapes: B batch, L length, V vocabulary.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from lra_ssm.errors import InputError
from lra_ssm.layers.attention import Attention
from lra_ssm.layers.blocks import supported_kwargs
from lra_ssm.layers.contract import wrong_output
from lra_ssm.layers.spec import NetworkFactory
from lra_ssm.models.language_model import NOT_SCORED
from lra_ssm.tasks.base import NetworkTask, summed
from lra_ssm.tasks.carried import all_rows, own_rows
from lra_ssm.tasks.metrics import TokenLoss
from lra_ssm.tasks.optim import DEFAULTS, OptimizerSettings
from lra_ssm.width.scaling import WidthSettings


class Tokens(NamedTuple):
    """A batch: see `LanguageModelling`."""

    inputs: Tensor
    targets: Tensor
    reset: Tensor | None = None
    lengths: Tensor | None = None


class LanguageModelling(NetworkTask):
    """Trains a network on the next token; reports perplexity. The loss is cross-entropy, perplexity exp(its mean).

    A batch is (inputs, targets, reset, lengths) or (inputs, targets): inputs and targets (B, L) int64, a target −100
    where nothing is scored, reset (B, L) bool or None, true where a document starts, lengths (B,) or None.

    Data whose `carries_state` is true gives batches whose rows go on where those of the batch before ended: the states
    are then kept from batch to batch, without gradient, dropped where reset says so, as it does where an epoch begins,
    and saved in checkpoints. `eval_carries_state` says the same of evaluation, which starts without states.

    The loss of a batch is the mean over its tokens, those of all devices; it is logged so. Gradients that accumulate
    are averaged over batches: one with fewer tokens, such as the last of an epoch, counts as much as the others.

    Logged of validation and test, over all tokens that are scored: `loss`, nats per token, and `perplexity`; and over a
    whole split of data that has `text_counts`, `bits_per_byte` of its UTF-8, and of word-level data (`is_word_level`)
    `word_perplexity`, exp(nats / words separated by whitespace): these compare across tokenizers.

    Args:
        network: a specification: a `LanguageModel`, or any class whose instances map (inputs, lengths) to logits
            (B, L, at least V).
        optimizer: how its parameters are trained; an `OptimizerSettings` or its values by name.
        width: a width parameterization, `WidthSettings` or its values by name; None: the model as it is.
    """

    predicts_classes = False  # so predictions.csv has values: a log-likelihood per position

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerSettings = DEFAULTS,
        width: WidthSettings | None = None,
    ) -> None:
        super().__init__(network, optimizer, width)
        self.val_tokens, self.test_tokens = TokenLoss(), TokenLoss()
        self._carried: dict[str, Any] = {}  # states by what is going on, "train" or "eval"

    def tokens_of(self, batch: Any) -> Tensor | int:
        """How many tokens this process's batch has, padding left out."""
        inputs, lengths = self.inputs_of(batch)
        return inputs.numel() if lengths is None else lengths.sum()

    def inputs_of(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        tokens = unpack_tokens(batch)
        return tokens.inputs, tokens.lengths

    def try_batch(self, batch: Any, num_classes: int | None = None) -> None:
        """The network on a batch, with states where the data carries them, and what its parameters are to the
        optimizer: no loss, no log. Raises InputError, or ValueError for what the network lacks."""
        self.try_optimizer()
        tokens, carries = unpack_tokens(batch), self._carries("train") or self._carries("eval")
        if carries:
            self._check_that_states_are_bounded(tokens)
        if getattr(self.network, "negative_log_likelihood", None) is not None:
            self._nll(tokens, None, carries)
            return
        logits, _ = self._logits(tokens, None, carries)
        if logits.shape[-1] <= (most := int(tokens.targets.max())):
            rule = f"token {most} is among the targets, and each has a logit"
            raise wrong_output(self.network, logits, tokens.inputs, rule, "inputs")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        tokens = unpack_tokens(batch)
        total = self._carry(tokens, "train", reduction="sum")
        scored = (tokens.targets != NOT_SCORED).sum()
        (nll, count), processes = summed(total.detach(), scored)
        count = count.clamp(min=1)
        self.log("train/loss", nll / count, batch_size=len(tokens.inputs))
        return total * (processes / count)  # where the gradients of all are averaged

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, self.val_tokens)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, self.test_tokens)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """log p of the targets: (B, L, 1), 0 where nothing is scored."""
        return -self._carry(unpack_tokens(batch), "eval").unsqueeze(-1)

    # -- states carried from batch to batch ------------------------------------------------------------------------

    def _carries(self, mode: str) -> bool:
        data = getattr(self._trainer, "datamodule", None)
        return bool(getattr(data, "carries_state" if mode == "train" else "eval_carries_state", False))

    def _check_that_states_are_bounded(self, tokens: Tokens) -> None:
        """Raises InputError for attention over everything since the stream's beginning."""
        data = getattr(self._trainer, "datamodule", None)
        if getattr(data, "isolate", tokens.reset is not None):
            return
        if any(isinstance(layer, Attention) and layer.window is None for layer in self.network.modules()):
            raise InputError(
                "Attention has no window, and the data carries states over streams that no document's end resets: every"
                " position would be kept, in memory and in checkpoints; set the layer's window, or data.isolate=true,"
                " or read windows (data.order=shuffled, data.evaluation=windows)"
            )

    def _carry(self, tokens: Tokens, mode: str, reduction: str = "none") -> Tensor:
        """−log p of a batch that goes on where the last one of this mode ended, if the data says so."""
        carries = self._carries(mode)
        if carries:
            self._check_that_states_are_bounded(tokens)
        nll, state = self._nll(tokens, self._carried.get(mode) if carries else None, carries, reduction)
        if carries:
            self._carried[mode] = tree_map(torch.Tensor.detach, state)
        return nll

    def setup(self, stage: str) -> None:
        if stage == "fit":  # states of another fit; those of a checkpoint to go on from are loaded after this
            self._carried.clear()

    def _forget_evaluation(self) -> None:
        self._carried.pop("eval", None)

    on_validation_epoch_start = on_test_epoch_start = on_predict_epoch_start = _forget_evaluation

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        if "train" in self._carried:
            checkpoint["carried_state"] = tree_map(all_rows, self._carried["train"])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if "carried_state" in checkpoint:
            self._carried["train"] = tree_map(own_rows, checkpoint["carried_state"])

    def on_train_start(self) -> None:
        self._carried = tree_map(lambda x: x.to(self.device), self._carried)

    # -- the loss and what is logged of it -------------------------------------------------------------------------

    def _nll(self, tokens: Tokens, state: Any, carries: bool, reduction: str = "none") -> tuple[Tensor, Any]:
        """−log p of every target in nats, 0 where it is not scored, (B, L), or their sum; and the states after them."""
        own = getattr(self.network, "negative_log_likelihood", None)
        if own is not None:
            asked = {"reset": tokens.reset, "initial_state": state, "return_last_state": carries}
            return own(tokens.inputs, tokens.targets, tokens.lengths, **asked, reduction=reduction)
        logits, state = self._logits(tokens, state, carries)
        nll = F.cross_entropy(
            logits.flatten(0, 1).float(), tokens.targets.flatten(), ignore_index=NOT_SCORED, reduction=reduction
        )
        return (nll if reduction == "sum" else nll.view_as(tokens.targets)), state

    def _logits(self, tokens: Tokens, state: Any, carries: bool) -> tuple[Tensor, Any]:
        """Of a network of a user's own: (B, L, at least V), and the states after them."""
        asked = supported_kwargs(self.network, tokens.reset, state, carries)
        out = self.network(tokens.inputs, tokens.lengths, **asked)
        logits, state = out if carries else (out, None)
        if not (isinstance(logits, Tensor) and logits.dim() == 3 and logits.shape[:2] == tokens.targets.shape):
            rule = "a network gives logits (batch, length, V)"
            raise wrong_output(self.network, logits, tokens.inputs, rule, "inputs")
        return logits, state

    def _evaluate(self, batch: Any, metric: TokenLoss) -> None:
        tokens = unpack_tokens(batch)
        nll = self._carry(tokens, "eval")
        metric.update(nll, tokens.targets != NOT_SCORED)

    def on_validation_epoch_end(self) -> None:
        self._log_split("val", self.val_tokens)

    def on_test_epoch_end(self) -> None:
        self._log_split("test", self.test_tokens)

    def _log_split(self, split: str, metric: TokenLoss) -> None:
        nll, tokens = metric.compute()
        metric.reset()
        loss = nll / tokens
        found = {"loss": loss, "perplexity": loss.exp()}
        data = getattr(self._trainer, "datamodule", None)
        counts = getattr(data, "text_counts", None)
        if counts is not None:
            text = counts(split)
            if text.tokens == int(tokens):  # the whole split, and nothing but it
                if getattr(data, "is_word_level", False):
                    found["word_perplexity"] = (nll / text.words).exp()
                found["bits_per_byte"] = nll / (text.bytes * math.log(2))
        # All processes have the same; told to make it so, Lightning has nothing to warn of.
        found = {f"{split}/{name}": value.float() for name, value in found.items()}
        self.log_dict(found, prog_bar=True, sync_dist=True)


def unpack_tokens(batch: Any) -> Tokens:
    """A batch by its parts. Raises InputError if it is not a batch of text."""
    given = batch if isinstance(batch, (tuple, list)) else ()
    if len(given) in (2, 4) and all(isinstance(part, Tensor) for part in given[:2]):
        tokens = Tokens(*given)
        if tokens.targets.shape == tokens.inputs.shape and not tokens.targets.is_floating_point():
            return tokens
    raise InputError(
        "a batch of text is (inputs, targets, reset, lengths), with a target for each token of the inputs; the data"
        " gives others: tasks for classes and real targets are Classification and Regression"
    )
