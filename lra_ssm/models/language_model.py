"""The language model: a backbone of causal blocks and a head that tells the next token.

Shapes: B batch, L length, D channels, V vocabulary, padded to a multiple where the head's product is faster so.
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
from lra_ssm.models.generation import Generation, Stop
from lra_ssm.models.pretrained import Pretrained
from lra_ssm.ops import linear_cross_entropy, step_linear

NOT_SCORED = -100  # the target of a position that is not scored, as torch's cross-entropy has it


class LanguageModel(Pretrained):
    """A `Backbone` and a head: logits of each next token. The head is linear, on every position.

    Initialized as Mamba's public code does (models/mixer_seq_simple.py): the embedding N(0, 0.02²), and of a block that
    has `scale_residual` the last projection divided by √n_layers.

    Args:
        layer: a specification, built by each block at the width it needs, or a list of them, repeated over the depth;
            causal.
        vocab_size: V, the tokens there are.
        d_model: D.
        n_layers: number of blocks.
        block: a specification, built as `block(D, layer)`, or a list as of layers.
        tie_embeddings: the head's weight is the embedding's.
        pad_vocab_size_multiple: embedding and head have V rows, rounded up to a multiple of it. The rows beyond V are
            in the softmax, as in Mamba's code, and learn to be improbable; none of them is ever generated.
        residual_in_float32: what goes from one pre-norm block to the next is float32 in a model of lower precision.
        activation_checkpointing: blocks are run again in backward instead of keeping what they computed.

    Raises:
        ValueError: sizes that cannot be, or a layer that reads what it is to tell.
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
        for name, value in {"vocab_size": vocab_size, "pad_vocab_size_multiple": pad_vocab_size_multiple}.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
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
                raise ValueError(f"{name} is bidirectional: a language model's layers read from the left alone")
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
        """(padded V, D)."""
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
        """ids (B, L) int64 -> logits (B, L, padded V) of the tokens that follow, 0 at padding; or with the states.

        lengths (B,); reset (B, L) bool, true where a new document starts; initial_state as `initial_state` gives it.
        Raises ValueError, naming it, for what a block or layer does not take.
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
        """What the head reads, (B, L, D), and the states, () where they are not asked for; arguments as `forward`."""
        out = self.backbone(ids, lengths, reset=reset, initial_state=initial_state, return_last_state=return_last_state)
        return out if return_last_state else (out, ())

    def logits(self, x: Tensor) -> Tensor:
        """The head: (…, D) -> (…, padded V)."""
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
        """−log p of targets (B, L) int64 in nats, and the states: (B, L), 0 where a target is NOT_SCORED; or the sum.

        The other arguments as in `forward`. Never holds the logits of all positions: ops/cross_entropy.py.
        """
        x, state = self.hidden(ids, lengths, reset, initial_state, return_last_state)
        x = x.to(self.head_weight.dtype)
        nll = linear_cross_entropy(x, self.head_weight, targets, ignore_index=NOT_SCORED, reduction=reduction)
        return nll, state

    @torch.no_grad()
    def score(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """ids (B, L) int64, lengths (B,) -> (B, L − 1): log p(ids[:, t + 1] | ids[:, : t + 1]), nats; 0 at padding."""
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
        """The states of all blocks before the first token."""
        return self.backbone.initial_state(batch_size)

    def step(self, ids_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One token: ids_t (B,) int64, states -> (logits (B, padded V), states)."""
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
        stop: Stop = (),
    ) -> Tensor:
        """Continues prompts: ids (B, L) int64 -> (B, L + max_new_tokens) int64, the prompts included.

        A row's new tokens stand right behind its own prompt; behind its end, what stopped it included, is 0.
        Arguments and errors as of `Generation`, which gives token by token and tells how long each row is.
        """
        generation = Generation(
            self, ids, max_new_tokens, lengths=lengths, temperature=temperature, top_k=top_k, top_p=top_p,
            repetition_penalty=repetition_penalty, seed=seed, stop=stop,
        )  # fmt: skip
        for _ in generation:
            pass
        return generation.ids

    def width_roles(self) -> dict[str, WidthRole]:
        return {} if self.head is None else {"head.weight": "readout"}

    def scales_of_a_tied_readout(self) -> list[str]:
        """The parameters that scale what the head reads, where its weight is the embedding's and cannot have a scale of
        its own: the last norm's. Raises ValueError where blocks end without a norm."""
        if self.head is not None:
            return []
        if self.backbone.norm is None:
            raise ValueError("the head is tied to the embedding, and no norm in front of it could scale it: untie them")
        return [f"backbone.norm.{name}" for name, _ in self.backbone.norm.named_parameters()]

    def extra_repr(self) -> str:
        return f"vocab_size={self.vocab_size}, tie_embeddings={self.head is None}"
