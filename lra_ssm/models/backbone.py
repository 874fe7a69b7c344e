"""The part that all networks share: it maps a sequence to a vector at each of its positions.

Shapes: B batch, L length, D channels, V vocabulary.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lra_ssm.layers import BlockSpec, EmbeddingSpec, LayerSpec, Role, check_lengths, mask_padding
from lra_ssm.layers.arguments import KeepsArguments
from lra_ssm.layers.blocks import S4Block, require_method, run_with_state
from lra_ssm.layers.contract import check_output
from lra_ssm.layers.norms import freeze_running_stats
from lra_ssm.layers.roles import WidthRole
from lra_ssm.layers.spec import Blocks, EmbeddingFactory, Layers

Padding = Literal["masked", "seen"]
State = tuple[Any, ...]  # a backbone's: its blocks' states


class Backbone(KeepsArguments):
    """An embedding of tokens or a linear map of features, blocks, and the norm that such blocks end with.

    Args:
        layer: a specification, which each block builds at the width it needs; or a list of them, repeated over the
            depth: 6 blocks of [S6, S6, Attention] have it twice.
        vocab_size: V: inputs are token ids (B, L). Give either vocab_size or d_input.
        d_input: inputs are features (B, L, d_input).
        d_model: D.
        n_layers: the number of blocks.
        block: a specification, built as `block(D, layer)`, or a list as for layers.
        residual_in_float32: in a model of lower precision, what goes from one pre-norm block to the next is float32.
        activation_checkpointing: in training, backward runs the blocks again instead of keeping their activations.
        padding: "masked": padding has no effect, unless a block's norm counts it ("batch_padded", as in
            state-spaces/s4). "seen", as in S5's public code: layers and norms get no lengths and read padding as
            further positions, also in the reversed direction, where it comes first. In both cases the output is 0 at
            padding, so that pooling leaves it out.
        embedding_std: the embedding of tokens starts as N(0, embedding_std²); None is 1, torch's own. A linear map of
            one-hot vectors, as in S5's public code, starts near 1/√V.
        embedding: a specification, built as `embedding(vocab_size or d_input, D)`; see models/embeddings.py. None is
            nn.Embedding for tokens and nn.Linear for features.

    Raises:
        ValueError: not exactly one of vocab_size and d_input is given, there is no such padding, or embedding_std is
            not above 0 or is given without the default embedding of tokens.
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
        embedding: EmbeddingFactory | None = None,
    ) -> None:
        super().__init__()
        if (vocab_size is None) == (d_input is None):
            raise ValueError("give vocab_size for token inputs or d_input for feature inputs, and not both")
        if embedding_std is not None and (vocab_size is None or not 0 < embedding_std < math.inf):
            raise ValueError(f"embedding_std is {embedding_std}; it must be above 0, and needs vocab_size")
        if embedding_std is not None and embedding is not None:
            raise ValueError("embedding_std is for the default embedding of tokens: give it or embedding, not both")
        for name, value in {"d_model": d_model, "n_layers": n_layers}.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        self.activation_checkpointing, self.d_input, self.padding = activation_checkpointing, d_input, padding
        pairs = zip(BlockSpec.each(block, n_layers), LayerSpec.each(layer, n_layers), strict=True)
        default = nn.Embedding if d_input is None else nn.Linear
        size = vocab_size if d_input is None else d_input
        self.embedding = EmbeddingSpec.of(embedding or default)(size, d_model)
        if embedding_std is not None:
            nn.init.normal_(self.embedding.get_parameter("weight"), std=embedding_std)
        self.blocks = nn.ModuleList(block(d_model, layer) for block, layer in pairs)
        # After a post-norm block there is no residual: its norm returns the network's own precision.
        prenorm = all(getattr(each, "prenorm", False) for each in self.blocks)
        self.residual_in_float32 = residual_in_float32 and prenorm
        # The block decides, so that pre- or post-norm is set in one place; a user's block need not have a final norm.
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
        """Map inputs (B, L) int64 or (B, L, d_input) float to (B, L, D), 0 at padding.

        With return_last_state also return the states of all blocks after the last real position, or after the padding
        if that is seen. lengths: (B,). reset: (B, L) bool. An embedding with extra positions, such as a class token,
        makes the output that much longer: see `output_lengths`.

        Raises ValueError for inputs of another shape or kind, and for what a block or layer does not take, naming it.
        """
        check_inputs(inputs, self.d_input)
        if reset is not None or initial_state is not None or return_last_state:
            self._refuse_whole_sequences()
        x, lengths = self._embed(inputs), self.output_lengths(lengths)
        shape = (len(inputs), inputs.shape[1] + self._extra_positions, x.shape[-1])
        check_output(self.embedding, x, shape, inputs, f"an embedding gives (batch, length, d_model) {shape}")
        real = lengths
        if self.padding == "seen":
            check_lengths(lengths, x)
            lengths = None
        if not getattr(self.blocks[0], "counts_padding", False):
            x = mask_padding(x, lengths)
        recompute = self.activation_checkpointing and self.training and torch.is_grad_enabled()
        after: list[Any] = []
        for i, block in enumerate(self.blocks):
            before = None if initial_state is None else initial_state[i]
            call = (block, x, lengths, reset, before, return_last_state)
            if recompute:
                x, state = checkpoint(run_with_state, *call, use_reentrant=False, context_fn=_recompute_contexts)
            else:
                x, state = run_with_state(*call)
            after.append(state)
        if self.norm is not None:
            x = self.norm(x, lengths)
        if self.norm is not None or self.padding == "seen" or getattr(self.blocks[-1], "counts_padding", False):
            x = mask_padding(x, real)  # otherwise the last block has done it
        return (x, tuple(after)) if return_last_state else x

    @property
    def _extra_positions(self) -> int:
        return getattr(self.embedding, "extra_positions", 0)

    def output_lengths(self, lengths: Tensor | None) -> Tensor | None:
        """Return the number of real positions of the output: lengths, and the embedding's extra positions."""
        return lengths + self._extra_positions if lengths is not None and self._extra_positions else lengths

    def initial_state(self, batch_size: int) -> State:
        """Return the states of all blocks before the first position."""
        self._refuse_whole_sequences()
        return tuple(require_method(block, "initial_state")(batch_size) for block in self.blocks)

    def step(self, inputs_t: Tensor, state: State) -> tuple[Tensor, State]:
        """Advance by one position: inputs_t (B,) int64 or (B, d_input) float -> (x_t (B, D), states)."""
        self._refuse_whole_sequences()
        x, after = self._embed(inputs_t), []
        for block, before in zip(self.blocks, state, strict=True):
            x, block_state = require_method(block, "step")(x, before)
            after.append(block_state)
        if self.norm is not None:
            x = self.norm(x[:, None])[:, 0]
        return x, tuple(after)

    def _embed(self, inputs: Tensor) -> Tensor:
        x = self.embedding(inputs)
        return x.to(torch.promote_types(x.dtype, torch.float32)) if self.residual_in_float32 else x

    def _refuse_whole_sequences(self) -> None:
        if getattr(self.embedding, "needs_whole_sequences", False):
            raise ValueError(
                f"{type(self.embedding).__name__} needs whole sequences: with it there are no packed documents, states"
                " or steps"
            )

    def optim_roles(self) -> dict[str, Role]:
        return {"embedding.weight": "embedding"} if isinstance(self.embedding, nn.Embedding) else {}

    def width_roles(self) -> dict[str, WidthRole]:
        """Return the embedding's roles; a linear map of features starts the same at every width, bias included."""
        if isinstance(self.embedding, nn.Linear):
            return {"embedding.weight": "embedding", "embedding.bias": "vector"}
        return {"embedding.weight": "embedding"} if isinstance(self.embedding, nn.Embedding) else {}


def _recompute_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of a block's first run and of its second."""
    return nullcontext(), freeze_running_stats()


def check_inputs(inputs: Tensor, d_input: int | None) -> None:
    """Check that inputs are ids (B, L), or features (B, L, d_input) if d_input is given. Raises ValueError."""
    if d_input is None:
        fits = inputs.dim() == 2 and inputs.dtype in (torch.int64, torch.int32)
        expected = "(batch, length) ids, int64"
    else:
        fits = inputs.dim() == 3 and inputs.shape[2] == d_input and inputs.is_floating_point()
        expected = f"(batch, length, {d_input}) features, floating"
    if not fits or inputs.shape[1] < 1:
        shape = tuple(inputs.shape)
        raise ValueError(f"inputs: expected {expected}, length at least 1; got shape {shape}, {inputs.dtype}")
