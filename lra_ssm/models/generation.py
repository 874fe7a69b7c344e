"""Text from a language model: the prompt in parallel, then one token per step.

Memory does not grow with the text, except for attention without a window.

Shapes: B batch, L length of the prompts, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lra_ssm.layers.masking import check_lengths

MAX_SEED = 2**32 - 1  # the range of Lightning's seed_everything
_MIN_TEMPERATURE = 1e-30  # lower ones draw the same tokens
_CANDIDATES = 1024  # top-p seldom keeps more; sorting only so many takes a tenth of the time of a whole vocabulary


class Generation(Iterator[Tensor]):
    """An iterator over steps: each yields (B,) int64, the next token of each row, or −1 for a row that has ended.

    A step is only computed when it is requested. Rows do not depend on each other, except for the rounding of products
    of another shape: each row also has its own random numbers.

    The transformations of the probabilities and their order are those of Hugging Face's generate: repetition penalty
    (Keskar et al. 2019, CTRL), temperature, top-k (Fan et al. 2018), top-p (Holtzman et al. 2020).

    Args:
        model: a `LanguageModel` (whose file imports this one), in evaluation mode if it has dropout.
        ids: prompts (B, L) int64 of at least one token; the end-of-text token starts a new text.
        max_new_tokens: the maximum number of steps.
        lengths: (B,), the lengths of left-aligned prompts; ids beyond them are ignored.
        temperature: divides the logits; 0 takes the most probable token, whatever top_k and top_p are.
        top_k: keep only the k most probable tokens, and those as probable as the last of them.
        top_p: keep the smallest set of most probable tokens whose probabilities sum to at least top_p.
        repetition_penalty: for tokens of the row's prompt and new tokens, positive logits are divided by it and
            negative ones multiplied.
        seed: 0 to 2³² − 1; row i's random numbers only depend on (seed, i). Or one seed per row, as from `row_seeds`.
            None draws it from torch's global generator.
        stop: tokens that end a row, such as the end of text.

    Attributes:
        ended: (B,) bool, the rows that have ended. A caller may set it too: such a row gets no further tokens.

    Raises:
        ValueError: an invalid argument, or a model without states; when iterating, logits that are not finite.
    """

    def __init__(
        self,
        model: Any,
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
    ) -> None:
        _require(ids.dim() == 2 and ids.shape[1] > 0, f"ids: shape {tuple(ids.shape)}; expected (B, L) with L >= 1")
        _require(ids.dtype in (torch.int32, torch.int64), f"ids: dtype {ids.dtype}; expected int64")
        _require(max_new_tokens >= 0, f"max_new_tokens is {max_new_tokens}; it must be at least 0")
        check_settings(temperature, top_k, top_p, repetition_penalty)
        check_lengths(lengths, ids, minimum=1)
        (B, L), V = ids.shape, model.vocab_size
        full = torch.full((B,), L, device=ids.device)
        self._prompt_lengths = full if lengths is None else lengths.to(ids.device, torch.int64)
        self._padded = lengths is not None and bool((self._prompt_lengths < L).any())
        self._real = torch.arange(L, device=ids.device) < self._prompt_lengths[:, None]
        self._prompt = ids.long().masked_fill(~self._real, 0)
        invalid = (self._prompt < 0) | (self._prompt >= V)
        _require(
            not invalid.any(), f"ids: {self._prompt[invalid][:1].tolist()} among them; the model knows 0 to {V - 1}"
        )
        self._model, self._state, self._count = model, None, 0
        self._temperature, self._top_k, self._top_p = temperature, top_k, top_p
        self._penalty = repetition_penalty
        valid_stop = isinstance(stop, Sequence) and all(isinstance(token, int) and 0 <= token < V for token in stop)
        _require(valid_stop, f"stop is {stop}; expected tokens, 0 to {V - 1}, such as (3,)")
        self._stop = torch.tensor(stop, dtype=torch.int64, device=ids.device)
        self._generators = (
            [torch.Generator().manual_seed(row_seed) for row_seed in _seeds(seed, B)] if temperature else []
        )
        self._new = torch.full((B, max_new_tokens), -1, device=ids.device)
        self._seen: Tensor | None = None
        if repetition_penalty != 1:  # (B, V) for any length; padding marks the row's first token, which it has anyway
            seen = torch.zeros(B, V, dtype=torch.bool, device=ids.device)
            self._seen = seen.scatter_(1, torch.where(self._real, self._prompt, self._prompt[:, :1]), True)
        self.ended = torch.zeros(B, dtype=torch.bool, device=ids.device)

    @property
    def ids(self) -> Tensor:
        """Return (B, L + max_new_tokens) int64: each row's prompt, directly followed by its new tokens, then 0."""
        B, L = self._prompt.shape
        new = self._new.shape[1]
        places = self._prompt_lengths[:, None] + torch.arange(new, device=self._new.device)
        whole = torch.cat([self._prompt, self._prompt.new_zeros(B, new)], dim=1)
        return whole.scatter_(1, places, self._new.clamp(min=0))

    @property
    def lengths(self) -> Tensor:
        """Return the lengths of the rows of `ids`, (B,) int64, including the stops that ended them."""
        return self._prompt_lengths + (self._new >= 0).sum(1)

    def __next__(self) -> Tensor:
        t = self._count
        if t == self._new.shape[1] or bool(self.ended.all()):
            raise StopIteration
        with torch.inference_mode():  # a tenth faster than no_grad in a small model; outputs are made outside it
            tokens = self._choose(self._next_logits()[:, : self._model.vocab_size])
            self._new[:, t] = tokens.masked_fill_(self.ended, -1)
            self._count = t + 1
            self.ended |= torch.isin(self._new[:, t], self._stop)
        return self._new[:, t].clone()

    def _next_logits(self) -> Tensor:
        """Return the logits of the next token (B, padded V)."""
        if self._count:
            logits, self._state = self._model.step(self._new[:, self._count - 1].clamp(min=0), self._state)
            return logits
        # Only the last logits of the prompt are needed, so the head reads one position of each row.
        lengths = self._prompt_lengths if self._padded else None
        x, self._state = self._model.hidden(self._prompt, lengths, return_last_state=True)
        return self._model.logits(x[torch.arange(len(x), device=x.device), self._prompt_lengths - 1])

    def _choose(self, logits: Tensor) -> Tensor:
        """Choose tokens (B,) from logits (B, V)."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self._seen is not None:
            logits = penalize(logits, self._seen, self._penalty)
        best, tokens = logits.max(-1)
        if not best.isfinite().all():
            raise ValueError(f"the logits of new token {self._count + 1} are not finite: the model has diverged")
        if self._temperature:
            # The best logit becomes 0, so that nothing overflows; no temperature is 0 in float32.
            logits = (logits - best[:, None]) / max(self._temperature, _MIN_TEMPERATURE)
            if self._top_k is not None:
                logits = keep_top_k(logits, self._top_k)
            if self._top_p is not None:
                logits = keep_top_p(logits, self._top_p)
            tokens = draw(logits, self._uniform())
        if self._seen is not None:
            self._seen.scatter_(1, tokens[:, None], True)
        return tokens

    def _uniform(self) -> Tensor:
        """Return the next uniform number in [0, 1) of each row's own generator, (B,) float64."""
        numbers = [torch.rand((), dtype=torch.float64, generator=generator) for generator in self._generators]
        return torch.stack(numbers).to(self._new.device)


def check_settings(temperature: float, top_k: int | None, top_p: float | None, repetition_penalty: float) -> None:
    """Check the sampling settings. Raises ValueError for an invalid one."""
    _require(0 <= temperature < math.inf, f"temperature is {temperature}; it must be at least 0, which is greedy")
    _require(top_k is None or top_k >= 1, f"top_k is {top_k}; it must be at least 1, or None for all tokens")
    _require(top_p is None or 0 < top_p <= 1, f"top_p is {top_p}; it must be above 0 and at most 1, or None")
    positive = 0 < repetition_penalty < math.inf
    _require(positive, f"repetition_penalty is {repetition_penalty}; it must be above 0; 1 has no effect")


def penalize(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Apply the repetition penalty to logits (B, V) of the tokens seen (B, V) bool."""
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Set logits (B, V) below the k-th largest of their row to −∞."""
    least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < least, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Set logits (B, V) to −∞ for tokens that follow, by falling probability, a set that already sums to p."""
    probabilities, V = logits.softmax(-1), logits.shape[-1]
    for count in (min(_CANDIDATES, V), V):
        largest, order = probabilities.topk(count)
        included = largest.cumsum(-1) - largest < p
        included[:, 0] = True  # whatever p is in float32
        if not included[:, -1].any():
            break
    return logits.masked_fill(~torch.zeros_like(logits, dtype=torch.bool).scatter_(1, order, included), -torch.inf)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """Draw one token per row by inverting its distribution function: logits (B, V), uniform (B,) in [0, 1)."""
    cumulative = logits.softmax(-1, dtype=torch.float64).cumsum(-1)
    target = uniform[:, None].clamp(max=1 - 2**-52) * cumulative[:, -1:]  # below the sum, which rounding may reach
    return torch.searchsorted(cumulative, target, right=True).squeeze(1)


def row_seeds(seed: int, rows: int) -> list[int]:
    """Return the seeds of so many rows; a row's seed does not depend on the number of rows."""
    _require(0 <= seed <= MAX_SEED, f"seed is {seed}; it must be 0 to {MAX_SEED}")
    generator = torch.Generator().manual_seed(seed)
    return [int(torch.randint(MAX_SEED + 1, (), generator=generator)) for _ in range(rows)]


def _seeds(seed: int | Sequence[int] | None, rows: int) -> list[int]:
    if seed is None:
        seed = int(torch.randint(MAX_SEED + 1, ()))
    if not isinstance(seed, Sequence):
        return row_seeds(seed, rows)
    _require(len(seed) == rows, f"seed: {len(seed)} of them; expected one number, or one for each of {rows} rows")
    for row_seed in seed:
        _require(0 <= row_seed <= MAX_SEED, f"seed: {row_seed} among them; each must be 0 to {MAX_SEED}")
    return list(seed)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
