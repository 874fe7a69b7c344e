"""The language model: a backbone of causal blocks and a head that predicts the next token.

Shapes: B batch, L length, D channels, V vocabulary, which may be padded to a multiple to make the head faster.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from lra_ssm.layers import MambaBlock, mask_padding
from lra_ssm.layers.roles import WidthRole
from lra_ssm.layers.spec import Blocks, Layers
from lra_ssm.models.backbone import Backbone, State
from lra_ssm.models.generation import Generation
from lra_ssm.models.pretrained import Pretrained
from lra_ssm.ops import linear_cross_entropy, step_linear

NOT_SCORED = -100  # the target of positions that are not scored, as in torch's cross-entropy


class LanguageModel(Pretrained):
    """A `Backbone` and a linear head: the logits of the next token at every position.

    Initialized as by Mamba's public code (models/mixer_seq_simple.py): the embedding as N(0, 0.02²), and the last
    projection of a block with `scale_residual` divided by √n_layers.

    Args:
        layer: a specification, which each block builds at the width it needs, or a list of them, repeated over the
            depth; causal.
        vocab_size: V, the number of tokens.
        d_model: D.
        n_layers: the number of blocks.
        block: a specification, built as `block(D, layer)`, or a list as for layers.
        tie_embeddings: the head's weight is the embedding's.
        pad_vocab_size_multiple: embedding and head have V rows, rounded up to a multiple of it. The rows beyond V are
            part of the softmax, as in Mamba's code, and learn to be improbable; they are never generated.
        residual_in_float32: in a model of lower precision, what goes from one pre-norm block to the next is float32.
        activation_checkpointing: in training, backward runs the blocks again instead of keeping their activations.

    Raises:
        ValueError: as `Backbone`, or a bidirectional layer, which would see the targets.
    """

    def __init__(
        self,
        layer: Layers,
        vocab_size: int,
        d_model: int = 768,
        n_layers: int = 24,
        block: Blocks = MambaBlock,
        tie_embeddings: bool = True,
        pad_vocab_size_multiple: int = 8,
        residual_in_float32: bool = True,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.backbone = Backbone(
            layer=layer,
            vocab_size=math.ceil(vocab_size / pad_vocab_size_multiple) * pad_vocab_size_multiple,
            d_model=d_model,
            n_layers=n_layers,
            block=block,
            residual_in_float32=residual_in_float32,
            activation_checkpointing=activation_checkpointing,
        )
        for module in self.backbone.modules():
            if getattr(module, "bidirectional", False) is True:
                name = type(module).__name__
                raise ValueError(f"{name} is bidirectional: a language model's layers only read from the left")
        embedding = self.backbone.embedding.weight
        assert isinstance(embedding, Tensor)
        nn.init.normal_(embedding, std=0.02)
        self.head = None if tie_embeddings else nn.Linear(d_model, len(embedding), bias=False)
        for each in self.backbone.blocks:
            scale_residual = getattr(each, "scale_residual", None)
            if scale_residual is not None:
                scale_residual(n_layers**-0.5)

    @property
    def head_weight(self) -> Tensor:
        """Return the head's weight (padded V, D)."""
        weight = (self.backbone.embedding if self.head is None else self.head).weight
        assert isinstance(weight, Tensor)
        return weight

    def forward(
        self,
        ids: Tensor,
        lengths: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        initial_state: State | None = None,
        return_last_state: bool = False,
    ) -> Tensor | tuple[Tensor, State]:
        """Map ids (B, L) int64 to logits (B, L, padded V) of each next token, 0 at padding; or to (logits, states).

        lengths: (B,). reset: (B, L) bool, true where a new document starts. initial_state: as from `initial_state`.

        Raises ValueError for what a block or layer does not take, naming it.
        """
        x, state = self.hidden(ids, lengths, reset, initial_state, return_last_state)
        logits = mask_padding(self.logits(x), lengths)
        return (logits, state) if return_last_state else logits

    def hidden(
        self,
        ids: Tensor,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
        initial_state: State | None = None,
        return_last_state: bool = False,
    ) -> tuple[Tensor, State]:
        """Return the head's input (B, L, D) and the states, () without return_last_state; arguments as in `forward`."""
        out = self.backbone(ids, lengths, reset=reset, initial_state=initial_state, return_last_state=return_last_state)
        return out if return_last_state else (out, ())

    def logits(self, x: Tensor) -> Tensor:
        """Apply the head: (…, D) -> (…, padded V)."""
        return step_linear(x.to(self.head_weight.dtype), self.head_weight)

    def negative_log_likelihood(
        self,
        ids: Tensor,
        targets: Tensor,
        lengths: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        initial_state: State | None = None,
        return_last_state: bool = False,
        reduction: Literal["none", "sum"] = "none",
    ) -> tuple[Tensor, State]:
        """Return −log p of targets (B, L) int64 in nats and the states: (B, L), 0 where NOT_SCORED, or the sum.

        Other arguments as in `forward`. The logits of all positions are never in memory: ops/cross_entropy.py.
        """
        x, state = self.hidden(ids, lengths, reset, initial_state, return_last_state)
        x = x.to(self.head_weight.dtype)
        nll = linear_cross_entropy(x, self.head_weight, targets, ignore_index=NOT_SCORED, reduction=reduction)
        return nll, state

    @torch.no_grad()
    def score(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return log p(ids[:, t + 1] | ids[:, : t + 1]) in nats, (B, L − 1), 0 at padding; ids (B, L), lengths (B,)."""
        if ids.dim() != 2 or ids.shape[1] < 2:
            raise ValueError(
                f"ids: shape {tuple(ids.shape)}; expected (B, L) with L >= 2: the first has nothing before"
            )
        inputs, targets = ids[:, :-1], ids[:, 1:]
        if lengths is not None:
            padding = torch.arange(1, ids.shape[1], device=ids.device) >= lengths[:, None]
            inputs, targets = inputs.masked_fill(padding, 0), targets.masked_fill(padding, NOT_SCORED)
        return -self.negative_log_likelihood(inputs, targets)[0]

    def initial_state(self, batch_size: int) -> State:
        """Return the states of all blocks before the first token."""
        return self.backbone.initial_state(batch_size)

    def step(self, ids_t: Tensor, state: State) -> tuple[Tensor, State]:
        """Advance by one token: ids_t (B,) int64, states -> (logits (B, padded V), states)."""
        x, state = self.backbone.step(ids_t, state)
        return self.logits(x), state

    def generate(
        self,
        ids: Tensor,
        max_new_tokens: int,
        *,
        lengths: Tensor | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        seed: int | Sequence[int] | None = None,
        stop: Sequence[int] = (),
    ) -> Tensor:
        """Continue prompts: ids (B, L) int64 -> (B, L + max_new_tokens) int64, prompts included.

        A row's new tokens directly follow its own prompt, with the stop that ended it; the rest of the row is 0.
        Arguments and errors as in `Generation`, which yields token by token and knows how long each row is.
        """
        generation = Generation(
            self, ids, max_new_tokens, lengths=lengths, temperature=temperature, top_k=top_k, top_p=top_p,
            repetition_penalty=repetition_penalty, seed=seed, stop=stop,
        )  # fmt: skip
        for _ in generation:
            pass
        return generation.ids

    def width_roles(self) -> dict[str, WidthRole]:
        return {"head.weight": "readout"}

    def scales_of_a_tied_readout(self) -> list[str]:
        """Return the parameters that scale the input of a head tied to the embedding: the last norm's.

        Such a head cannot have a scale of its own. Raises ValueError if the blocks end without a norm.
        """
        if self.head is not None:
            return []
        if self.backbone.norm is None:
            raise ValueError("the head is tied to the embedding, and no norm in front of it could scale it: untie them")
        return [f"backbone.norm.{name}" for name, _ in self.backbone.norm.named_parameters()]
