"""What every network stands on: from a sequence to a vector at each of its positions.

Shapes: B batch, L length, D channels, V vocabulary.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lra_ssm.layers import BlockSpec, LayerSpec, Role, check_lengths, mask_padding
from lra_ssm.layers.blocks import S4Block, need, run_with_state
from lra_ssm.layers.norms import statistics_kept
from lra_ssm.layers.roles import WidthRole
from lra_ssm.layers.spec import Blocks, Layers

Padding = Literal["masked", "seen"]
State = tuple[Any, ...]  # of a backbone: its blocks' states


class Backbone(nn.Module):
    """Embedding of tokens or linear map of features, blocks, and the norm that such blocks end with.

    Args:
        layer: a specification, built by each block at the width it needs; or a list of them, repeated over the depth:
            [S6, S6, Attention] of 6 blocks is that twice.
        vocab_size: V: inputs are token ids (B, L). One of it and d_input is given.
        d_input: inputs are features (B, L, d_input).
        d_model: D.
        n_layers: number of blocks.
        block: a specification, built as `block(D, layer)`, or a list as of layers.
        residual_in_float32: what goes from one pre-norm block to the next is float32 in a model of lower precision.
        activation_checkpointing: in training, blocks are run again in backward instead of keeping what they computed.
        padding: "masked": padding changes nothing, unless a block's norm counts it ("batch_padded", as in
            state-spaces/s4). "seen", as in S5's public code: layers and norms get no lengths and read padding as
            further positions, also in the reversed direction, where it comes first. The output is 0 at padding in
            either case, so that pooling leaves it out.
        embedding_std: the embedding of tokens starts as N(0, embedding_std²); None is 1, torch's own. A linear map of
            one-hot vectors, as in S5's public code, starts near 1/√V.

    Raises:
        ValueError: not exactly one of vocab_size and d_input is given, there is no such padding, or embedding_std is
            not above 0 or stands next to d_input.
    """

    def __init__(
        self,
        layer: Layers,
        vocab_size: int | None = None,
        d_input: int | None = None,
        d_model: int = 128,
        n_layers: int = 8,
        block: Blocks = S4Block,
        residual_in_float32: bool = False,
        activation_checkpointing: bool = False,
        padding: Padding = "masked",
        embedding_std: float | None = None,
    ) -> None:
        super().__init__()
        if padding not in ("masked", "seen"):
            raise ValueError(f"padding is {padding!r}; it must be masked or seen")
        if (vocab_size is None) == (d_input is None):
            raise ValueError("give vocab_size for token inputs or d_input for feature inputs, and not both")
        if embedding_std is not None and (vocab_size is None or not 0 < embedding_std < math.inf):
            raise ValueError(f"embedding_std is {embedding_std}; it must be above 0, and needs vocab_size")
        for name, value in {"d_model": d_model, "n_layers": n_layers}.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        self.activation_checkpointing, self.d_input, self.padding = activation_checkpointing, d_input, padding
        pairs = zip(BlockSpec.each(block, n_layers), LayerSpec.each(layer, n_layers), strict=True)
        self.embedding: nn.Module
        if vocab_size is not None:
            self.embedding = nn.Embedding(vocab_size, d_model)
            if embedding_std is not None:
                nn.init.normal_(self.embedding.weight, std=embedding_std)
        elif d_input is not None:
            self.embedding = nn.Linear(d_input, d_model)
        self.blocks = nn.ModuleList(block(d_model, layer) for block, layer in pairs)
        # Behind a post-norm block there is no residual: its norm gives the network's precision again.
        prenorm = all(getattr(each, "prenorm", False) for each in self.blocks)
        self.residual_in_float32 = residual_in_float32 and prenorm
        # The block says it, so that pre- or post-norm stands in one place; a block of a user's own need not.
        final_norm = getattr(self.blocks[-1], "final_norm", None)
        self.norm: nn.Module | None = final_norm(d_model) if final_norm else None

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        initial_state: State | None = None,
        return_last_state: bool = False,
    ) -> Tensor | tuple[Tensor, State]:
        """inputs (B, L) int64 or (B, L, d_input) float, lengths (B,), reset (B, L) bool -> (B, L, D), 0 at padding, or
        with the states of all blocks after the last real position, or after the padding where that is seen.

        Raises ValueError for inputs of another shape or kind, and, naming it, for what a block or layer does not take.
        """
        check_inputs(inputs, self.d_input)
        x = self._embed(inputs)
        real = lengths
        if self.padding == "seen":
            check_lengths(lengths, x)
            lengths = None
        if not getattr(self.blocks[0], "counts_padding", False):
            x = mask_padding(x, lengths)
        again = self.activation_checkpointing and self.training and torch.is_grad_enabled()
        after: list[Any] = []
        for i, block in enumerate(self.blocks):
            before = None if initial_state is None else initial_state[i]
            call = (block, x, lengths, reset, before, return_last_state)
            if again:
                x, state = checkpoint(run_with_state, *call, use_reentrant=False, context_fn=_first_and_again)
            else:
                x, state = run_with_state(*call)
            after.append(state)
        if self.norm is not None:
            x = self.norm(x, lengths)
        if self.norm is not None or self.padding == "seen" or getattr(self.blocks[-1], "counts_padding", False):
            x = mask_padding(x, real)  # elsewhere the last block has done it
        return (x, tuple(after)) if return_last_state else x

    def initial_state(self, batch_size: int) -> State:
        """The states of all blocks before the first position."""
        return tuple(need(block, "initial_state")(batch_size) for block in self.blocks)

    def step(self, inputs_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One position: inputs_t (B,) int64 or (B, d_input) float -> (x_t (B, D), states)."""
        x, after = self._embed(inputs_t), []
        for block, before in zip(self.blocks, state, strict=True):
            x, one = need(block, "step")(x, before)
            after.append(one)
        if self.norm is not None:
            x = self.norm(x[:, None])[:, 0]
        return x, tuple(after)

    def _embed(self, inputs: Tensor) -> Tensor:
        x = self.embedding(inputs)
        return x.to(torch.promote_types(x.dtype, torch.float32)) if self.residual_in_float32 else x

    def optim_roles(self) -> dict[str, Role]:
        return (
            {"embedding.bias": "no_decay"}
            if isinstance(self.embedding, nn.Linear)
            else {"embedding.weight": "embedding"}
        )

    def width_roles(self) -> dict[str, WidthRole]:
        """A linear map of features starts by their number, so its bias too is the same at every width."""
        bias: dict[str, WidthRole] = {"embedding.bias": "vector"} if isinstance(self.embedding, nn.Linear) else {}
        return {"embedding.weight": "embedding", **bias}


def _first_and_again() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """What a block is run in, and run again in."""
    return nullcontext(), statistics_kept()


def check_inputs(inputs: Tensor, d_input: int | None) -> None:
    """Whether inputs are ids (B, L), or features (B, L, d_input) where it is given. Raises ValueError."""
    if d_input is None:
        fits = inputs.dim() == 2 and inputs.dtype in (torch.int64, torch.int32)
        expected = "(batch, length) ids, int64"
    else:
        fits = inputs.dim() == 3 and inputs.shape[2] == d_input and inputs.is_floating_point()
        expected = f"(batch, length, {d_input}) features, floating"
    if not fits or inputs.shape[1] < 1:
        shape = tuple(inputs.shape)
        raise ValueError(f"inputs: expected {expected}, length at least 1; got shape {shape}, {inputs.dtype}")
