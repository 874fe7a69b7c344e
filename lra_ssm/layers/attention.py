"""Multi-head attention, causal or not; with documents, a window, and a cache for steps.

Shapes: B batch, L length, D channels, H heads, G heads of keys and values, K channels per head (D / H unless given), T
positions in the cache.
Sources: Vaswani et al. 2017, "Attention Is All You Need", section 3.2; Su et al. 2021, "RoFormer", eq. 34, for rotary
positions, with the halves arranged as in Llama's public code; Ainslie et al. 2023, "GQA", for shared keys and values.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.arguments import KeepsArguments
from lra_ssm.layers.masking import check_lengths, check_sequence, mask_padding
from lra_ssm.layers.roles import WidthRole, channel_maps
from lra_ssm.ops.tensors import is_clean, is_nonfinite

Cache = tuple[Tensor, Tensor, Tensor]  # keys, values (B, T, G, K), positions (B, T)


class Attention(KeepsArguments):
    """softmax(Q Kᵀ / √K) V of every head, by torch's scaled_dot_product_attention. x (B, L, D) -> (B, L, D).

    A position only sees its own document; with `causal`, only itself and earlier positions.

    The state is a cache of the keys and values that later positions may see, the latest last, and of their positions in
    their document; −1 marks an empty slot. It grows with the document, or up to the window.

    Args:
        d_model: D.
        n_heads: H, a divisor of D.
        n_kv_heads: G, a divisor of H: each head of keys and values serves H / G heads of queries; None is H.
        d_head: K, which may be any number; None is D / H.
        causal: if not, positions see both directions, and there is no state.
        positions: "rope", rotary; "learned", a vector per position added to the input of q, k and v; or "none".
        max_length: the longest document, for learned positions.
        rope_base: the longest rotary wave is about 2π times rope_base.
        window: a position sees itself and window − 1 positions before it (and after it, if not causal); None sees all.
        dropout: of the attention weights.
        bias: of both linear maps.

    Raises:
        ValueError: sizes that do not divide each other or are too small, or max_length without learned positions.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 8,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        causal: bool = True,
        positions: Literal["rope", "learned", "none"] = "rope",
        max_length: int | None = None,
        rope_base: float = 10_000.0,
        window: int | None = None,
        dropout: float = 0.0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        G = n_heads if n_kv_heads is None else n_kv_heads
        if n_heads < 1 or (d_head is None and d_model % n_heads):
            raise ValueError(f"Attention n_heads is {n_heads}; it must divide d_model {d_model}")
        if G < 1 or n_heads % G:
            raise ValueError(f"Attention n_kv_heads is {G}; it must divide n_heads {n_heads}")
        if d_head is not None and d_head < 1:
            raise ValueError(f"Attention d_head is {d_head}; it must be at least 1, or None for d_model / n_heads")
        self.n_heads, self.n_kv_heads, self.d_head = n_heads, G, d_model // n_heads if d_head is None else d_head
        if positions == "rope" and self.d_head % 2:
            raise ValueError(f"Attention has heads of {self.d_head} channels; rotary positions need an even number")
        if (positions == "learned") != (max_length is not None):
            raise ValueError("Attention max_length belongs to positions='learned': give both or neither")
        if window is not None and window < 1:
            raise ValueError(f"Attention window is {window}; it must be at least 1, or None")
        self.causal, self.positions, self.window, self.dropout, self.rope_base = (
            causal, positions, window, dropout, rope_base,
        )  # fmt: skip
        self.qkv_proj = nn.Linear(d_model, (n_heads + 2 * G) * self.d_head, bias=bias)
        self.out_proj = nn.Linear(n_heads * self.d_head, d_model, bias=bias)
        self.position_embedding = None if max_length is None else nn.Embedding(max_length, d_model)
        if self.position_embedding is not None:
            nn.init.normal_(self.position_embedding.weight, std=0.02)

    @property
    def bidirectional(self) -> bool:
        return not self.causal

    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        initial_state: Cache | None = None,
        return_last_state: bool = False,
    ) -> Tensor | tuple[Tensor, Cache]:
        """Map x (B, L, D) to y (B, L, D), or to (y, state) with `return_last_state`.

        Arguments as in `RecurrentLayer.forward`. Raises ValueError for a state if the layer is not causal, for an x of
        another shape, for a document longer than max_length, and for invalid lengths.
        """
        check_sequence(x, self)
        check_lengths(lengths, x)
        if not self.causal and (initial_state is not None or return_last_state):
            raise ValueError("Attention is not causal: it has no state to start from, to return or to step")
        B, L, _ = x.shape
        cache = initial_state if initial_state is not None and initial_state[0].shape[1] else None
        document = None if reset is None else reset.long().cumsum(1)
        at = self._positions(x, lengths, reset, cache)
        q, k, v = self._project(x, at)
        keys, values = (
            (k, v) if cache is None else (torch.cat([old, new], 1) for old, new in zip(cache[:2], (k, v), strict=True))
        )
        mask = self._mask(x, lengths, document, cache)
        y = self._attend(q, keys, values, mask, several_documents=document is not None or cache is not None)
        y = mask_padding(self.out_proj(y.flatten(2)), lengths)
        if not return_last_state:
            return y
        return y, self._cached(keys, values, at.expand(B, L), lengths, document, cache)

    def step(self, x_t: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        """Advance by one position: x_t (B, D), state -> (y_t (B, D), state).

        Raises ValueError for a position beyond max_length.
        """
        y, state = self(x_t.unsqueeze(1), initial_state=state, return_last_state=True)
        return y.squeeze(1), state

    def initial_state(self, batch_size: int) -> Cache:
        """Return the state before the first position: an empty cache."""
        weight = self.qkv_proj.weight
        empty = weight.new_zeros(batch_size, 0, self.n_kv_heads, self.d_head)
        return empty, empty.clone(), torch.zeros(batch_size, 0, dtype=torch.int64, device=weight.device)

    def _positions(self, x: Tensor, lengths: Tensor | None, reset: Tensor | None, cache: Cache | None) -> Tensor:
        """Return each position within its document, (1 or B, L) int64. Raises ValueError beyond max_length."""
        at = self._document_positions(x, reset, cache)
        if self.position_embedding is None:
            return at
        max_length, L = self.position_embedding.num_embeddings, x.shape[1]
        if self.window is None and L + (0 if cache is None else cache[0].shape[1]) <= max_length:
            return at  # decided by shapes: reading a tensor would wait for the GPU
        real = at if lengths is None else at.masked_fill(torch.arange(L, device=x.device) >= lengths[:, None], 0)
        if (longest := int(real.max()) + 1) > max_length:
            raise ValueError(
                f"a document has {longest} positions or more, and Attention learns max_length {max_length}"
            )
        return at.clamp(max=max_length - 1)  # only padding is clamped

    def _document_positions(self, x: Tensor, reset: Tensor | None, cache: Cache | None) -> Tensor:
        steps = torch.arange(x.shape[1], device=x.device)[None]
        at = steps if cache is None else steps + cache[2].amax(1, keepdim=True) + 1
        if reset is None:
            return at
        begin = torch.where(reset, steps, -1).cummax(1).values  # the document's start; −1 before the first reset
        return torch.where(begin < 0, at, steps - begin)

    def _project(self, x: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (B, L, H, K), k and v (B, L, G, K), positions included."""
        if self.position_embedding is not None:
            x = x + self.position_embedding(at)
        H, G = self.n_heads, self.n_kv_heads
        q, k, v = self.qkv_proj(x).unflatten(-1, (-1, self.d_head)).split([H, G, G], dim=2)
        if self.positions != "rope":
            return q, k, v
        # In float64: at position 100,000 an angle in float32 is off by a hundredth.
        frequencies = self.rope_base ** -torch.arange(0, 1, 2 / self.d_head, dtype=torch.float64, device=x.device)
        angles = (at[..., None, None] * frequencies).to(torch.promote_types(x.dtype, torch.float32))
        cosine, sine = angles.cos(), angles.sin()
        return _rotate(q, cosine, sine), _rotate(k, cosine, sine), v

    def _mask(self, x: Tensor, lengths: Tensor | None, document: Tensor | None, cache: Cache | None) -> Tensor | None:
        """Return which keys each query sees, (1 or B, 1, L, T + L) bool, or None if only causality limits them.

        Padding is on the right, where a causal query does not look. A query always sees itself, also at padding: a
        softmax over no keys would be NaN.
        """
        hides_padding = lengths is not None and not self.causal
        if cache is None and document is None and self.window is None and not hides_padding:
            return None
        (B, L), T = x.shape[:2], 0 if cache is None else cache[0].shape[1]
        distance = torch.arange(L, device=x.device)[:, None] - torch.arange(-T, L, device=x.device)  # (L, T + L)
        seen = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        if self.window is not None:
            seen = seen & (distance.abs() < self.window)
        seen = seen[None]
        if document is not None:
            key_documents = torch.cat([document.new_zeros(B, T), document], 1)
            seen = seen & (key_documents[:, None] == document[:, :, None])
        if cache is not None:
            filled = torch.cat([cache[2] >= 0, torch.ones(B, L, dtype=torch.bool, device=x.device)], 1)
            seen = seen & filled[:, None]
        if hides_padding:
            assert lengths is not None
            seen = seen & (torch.arange(L, device=x.device) < lengths[:, None])[:, None] | (distance == 0)
        return seen[:, None]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, several_documents: bool) -> Tensor:
        """Return the heads' outputs (B, L, H, K); inf and NaN of one document do not reach another."""
        sees_bad = None
        if several_documents and mask is not None and not is_clean(k, v):  # a weight of 0 times NaN is NaN
            dtype = torch.promote_types(k.dtype, torch.float32)
            bad = is_nonfinite(k.sum((2, 3), dtype=dtype) + v.sum((2, 3), dtype=dtype))  # (B, T + L)
            sees_bad = (mask & bad[:, None, None]).any(-1).transpose(1, 2).unsqueeze(-1)  # (B, L, 1, 1)
            k, v = (part.masked_fill(bad[:, :, None, None], 0) for part in (k, v))
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.to(q.dtype).transpose(1, 2), v.to(q.dtype).transpose(1, 2), attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0, is_causal=mask is None and self.causal,
            enable_gqa=self.n_kv_heads != self.n_heads,
        )  # fmt: skip
        y = y.transpose(1, 2)
        return y if sees_bad is None else y.masked_fill(sees_bad, torch.nan)

    def _cached(
        self, keys: Tensor, values: Tensor, at: Tensor, lengths: Tensor | None, document: Tensor | None,
        cache: Cache | None,
    ) -> Cache:  # fmt: skip
        """Return the cache for the positions that follow: what they may see, aligned at the end of each row."""
        B, L = at.shape
        if lengths is not None:
            at = at.masked_fill(torch.arange(L, device=at.device) >= lengths[:, None], -1)
        if cache is not None:
            at = torch.cat([cache[2], at], 1)
        if document is not None:  # only the last real position's document
            key_documents = F.pad(document, (at.shape[1] - L, 0))
            last = torch.where(at >= 0, key_documents, 0).amax(1, keepdim=True)
            at = torch.where(key_documents == last, at, -1)
        if lengths is not None:  # padding moves from the end of the row to its beginning
            slots = torch.arange(at.shape[1], device=at.device) - (L - lengths[:, None].long())
            index = slots.clamp(min=0)
            at = torch.where(slots < 0, -1, at.gather(1, index))
            rows = torch.arange(B, device=at.device)[:, None]
            keys, values = keys[rows, index], values[rows, index]
        cached_length = at.shape[1] if self.window is None else min(self.window, at.shape[1])
        if document is not None or lengths is not None:  # what is seen is at the end of every row
            cached_length = min(cached_length, int((at >= 0).sum(1).max()))
        first = at.shape[1] - cached_length
        return keys[:, first:], values[:, first:], at[:, first:]

    def width_roles(self) -> dict[str, WidthRole]:
        """A wider layer has more heads of the same size, so that q · k keeps its size too."""
        return {**channel_maps(self), "position_embedding.weight": "embedding"}

    def extra_repr(self) -> str:
        return f"n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}, causal={self.causal}, window={self.window}"


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate x (B, L, heads, K), its halves as real and imaginary parts, by cosine and sine (1 or B, L, 1, K/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1).to(x.dtype)
