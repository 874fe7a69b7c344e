"""Language modelling as a LightningModule: the next token at every position.

Shapes: B batch, L length, V vocabulary.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from lra_ssm.errors import InputError
from lra_ssm.layers.attention import Attention
from lra_ssm.layers.blocks import supported_kwargs
from lra_ssm.layers.contract import wrong_output
from lra_ssm.layers.norms import world_size
from lra_ssm.layers.spec import NetworkFactory
from lra_ssm.models.language_model import NOT_SCORED
from lra_ssm.tasks.base import NetworkTask
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
    """Trains a network on the next token; reports perplexity, exp of the mean cross-entropy.

    A batch is (inputs, targets, reset, lengths) or (inputs, targets): inputs and targets (B, L) int64, a target −100
    where nothing is scored, reset (B, L) bool or None, true where a document starts, lengths (B,) or None.

    Data whose `carries_state` is true gives batches whose rows continue those of the previous batch. The states are
    then carried from batch to batch, without gradient; they are dropped where reset says so, as at the start of an
    epoch, and saved in checkpoints. `eval_carries_state` says the same of evaluation, which starts without states.

    The loss of a batch, also as it is logged, is the mean over its tokens on all devices. Accumulated gradients are
    averaged over batches: one with fewer tokens, such as an epoch's last, counts as much as the others.

    Logged for validation and test, over all scored tokens: `loss`, in nats per token, and `perplexity`. Over a whole
    split of data with `text_counts` also `bits_per_byte` of its UTF-8, and for word-level data (`is_word_level`)
    `word_perplexity`, exp(nats / words separated by whitespace): these compare across tokenizers.

    Args:
        network: a specification: a `LanguageModel`, or any class whose instances map (inputs, lengths) to logits
            (B, L, at least V).
        optimizer: how its parameters are trained; an `OptimizerSettings` or its values by name.
        width: a width parameterization, `WidthSettings` or its values by name; None leaves the model as it is.
    """

    predicts_classes = False  # predictions.csv has values: a log-likelihood per position
    in_progress_bar = ("loss", "perplexity", "bits_per_byte", "word_perplexity")

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerSettings = DEFAULTS,
        width: WidthSettings | None = None,
    ) -> None:
        super().__init__(network, optimizer, width)
        self.keep_metrics(lambda: {"tokens": TokenLoss()})
        self._carried: dict[str, Any] = {}  # states by mode, "train" or "eval"

    def tokens_of(self, batch: Any) -> Tensor | int:
        """Return the number of tokens in this process's batch, without padding."""
        inputs, lengths = self.inputs_of(batch)
        return inputs.numel() if lengths is None else lengths.sum()

    def inputs_of(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        tokens = unpack_tokens(batch)
        return tokens.inputs, tokens.lengths

    def dry_run(self, batch: Any, num_classes: int | None = None) -> None:
        """Run the network on a batch, with states if the data carries them, and build the optimizer, without a loss or
        logs.

        Raises InputError, or ValueError for what the network lacks.
        """
        self.try_optimizer()
        tokens, carries = unpack_tokens(batch), self._carries("train") or self._carries("eval")
        if carries:
            self._check_bounded_states(tokens)
        if getattr(self.network, "negative_log_likelihood", None) is not None:
            self._nll(tokens, None, carries)
            return
        logits, _ = self._logits(tokens, None, carries)
        if logits.shape[-1] <= (largest := int(tokens.targets.max())):
            rule = f"token {largest} is among the targets, and each needs a logit"
            raise wrong_output(self.network, logits, tokens.inputs, rule, "inputs")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        tokens = unpack_tokens(batch)
        total = self._carry(tokens, "train", reduction="sum")
        return self.log_mean_loss(total, (tokens.targets != NOT_SCORED).sum(), len(tokens.inputs))

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return log p of the targets: (B, L, 1), 0 where nothing is scored."""
        return -self._carry(unpack_tokens(batch), "eval").unsqueeze(-1)

    # -- states carried from batch to batch ------------------------------------------------------------------------

    def _carries(self, mode: str) -> bool:
        data = getattr(self._trainer, "datamodule", None)
        return bool(getattr(data, "carries_state" if mode == "train" else "eval_carries_state", False))

    def _check_bounded_states(self, tokens: Tokens) -> None:
        """Raise InputError for attention over everything since the stream's start."""
        data = getattr(self._trainer, "datamodule", None)
        if getattr(data, "isolate", tokens.reset is not None):
            return
        if any(isinstance(layer, Attention) and layer.window is None for layer in self.network.modules()):
            raise InputError(
                "Attention has no window, and the data carries states over streams without resets between documents:"
                " every position would be kept, in memory and in checkpoints; set the layer's window, or"
                " data.isolate=true, or read windows (data.order=shuffled, data.evaluation=windows)"
            )

    def _carry(self, tokens: Tokens, mode: str, reduction: str = "none") -> Tensor:
        """Return −log p of a batch, which continues the last one of this mode if the data says so."""
        carries = self._carries(mode)
        if carries:
            self._check_bounded_states(tokens)
        nll, state = self._nll(tokens, self._carried.get(mode) if carries else None, carries, reduction)
        if carries:
            self._carried[mode] = tree_map(torch.Tensor.detach, state)
        return nll

    def setup(self, stage: str) -> None:
        if stage == "fit":  # drop the states of an earlier fit; a checkpoint's are loaded after this
            self._carried.clear()

    def _forget_evaluation(self) -> None:
        self._carried.pop("eval", None)

    on_validation_epoch_start = on_test_epoch_start = on_predict_epoch_start = _forget_evaluation

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        if "train" in self._carried:
            checkpoint["carried_state"] = tree_map(gather_rows, self._carried["train"])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if "carried_state" in checkpoint:
            self._carried["train"] = tree_map(local_rows, checkpoint["carried_state"])

    def on_train_start(self) -> None:
        self._carried = tree_map(lambda x: x.to(self.device), self._carried)

    # -- loss and logs ---------------------------------------------------------------------------------------------

    def _nll(self, tokens: Tokens, state: Any, carries: bool, reduction: str = "none") -> tuple[Tensor, Any]:
        """Return −log p of the targets in nats, 0 where not scored, (B, L) or their sum; and the states after them."""
        nll_method = getattr(self.network, "negative_log_likelihood", None)
        if nll_method is not None:
            kwargs = {"reset": tokens.reset, "initial_state": state, "return_last_state": carries}
            return nll_method(tokens.inputs, tokens.targets, tokens.lengths, **kwargs, reduction=reduction)
        logits, state = self._logits(tokens, state, carries)
        nll = F.cross_entropy(
            logits.flatten(0, 1).float(), tokens.targets.flatten(), ignore_index=NOT_SCORED, reduction=reduction
        )
        return (nll if reduction == "sum" else nll.view_as(tokens.targets)), state

    def _logits(self, tokens: Tokens, state: Any, carries: bool) -> tuple[Tensor, Any]:
        """Return the logits (B, L, at least V) of a user's network, and the states after them."""
        kwargs = supported_kwargs(self.network, tokens.reset, state, carries)
        out = self.network(tokens.inputs, tokens.lengths, **kwargs)
        logits, state = out if carries else (out, None)
        if not (isinstance(logits, Tensor) and logits.dim() == 3 and logits.shape[:2] == tokens.targets.shape):
            rule = "a network gives logits (batch, length, V)"
            raise wrong_output(self.network, logits, tokens.inputs, rule, "inputs")
        return logits, state

    def evaluate(self, batch: Any, metrics: Mapping[str, Any]) -> None:
        tokens = unpack_tokens(batch)
        metrics["tokens"].update(self._carry(tokens, "eval"), tokens.targets != NOT_SCORED)

    def results(self, split: str) -> dict[str, Tensor]:
        nll, tokens = super().results(split)["tokens"]
        values = {"loss": nll / tokens, "perplexity": (nll / tokens).exp()}
        data = getattr(self._trainer, "datamodule", None)
        counts = getattr(data, "text_counts", None)
        if counts is not None and (text := counts(split)).tokens == int(tokens):  # exactly the whole split was scored
            if getattr(data, "is_word_level", False):
                values["word_perplexity"] = (nll / text.words).exp()
            values["bits_per_byte"] = nll / (text.bytes * math.log(2))
        return values


def unpack_tokens(batch: Any) -> Tokens:
    """Return a batch by its parts. Raises InputError if it is not a batch of text."""
    parts = batch if isinstance(batch, (tuple, list)) else ()
    if len(parts) in (2, 4) and all(isinstance(part, Tensor) for part in parts[:2]):
        tokens = Tokens(*parts)
        if tokens.targets.shape == tokens.inputs.shape and not tokens.targets.is_floating_point():
            return tokens
    raise InputError(
        "a batch of text is (inputs, targets, reset, lengths), with a target for each token of the inputs; the data"
        " gives another form: the tasks for classes and real targets are Classification and Regression"
    )


# Carried states in checkpoints are those of all processes, so that any number of processes can continue with them. Row
# r of a global batch is row r // W of process r % W (W processes, B rows per process).


def gather_rows(state: Tensor) -> Tensor:
    """Gather one process's rows (B, …) into those of the global batch (B · W, …), on the CPU; every process calls it.

    Attention's caches (B, T, …) may have another T in each process; shorter ones get empty slots in front, position −1.
    """
    if world_size() > 1:
        local = torch.view_as_real(state) if state.is_complex() else state  # gloo does not send complex numbers
        local = local.contiguous()
        if local.dim() > 1:
            longest = torch.tensor(local.shape[1], device=local.device)
            dist.all_reduce(longest, dist.ReduceOp.MAX)
            padding_shape = (len(local), int(longest) - local.shape[1], *local.shape[2:])
            local = torch.cat([local.new_full(padding_shape, 0 if local.is_floating_point() else -1), local], dim=1)
        parts = [torch.empty_like(local) for _ in range(world_size())]
        dist.all_gather(parts, local)
        rows = torch.stack(parts, dim=1).flatten(0, 1)
        state = torch.view_as_complex(rows) if state.is_complex() else rows
    return state.cpu()


def local_rows(state: Tensor) -> Tensor:
    """Return this process's rows of the global batch."""
    return state.clone() if world_size() == 1 else state[dist.get_rank() :: world_size()].clone()
