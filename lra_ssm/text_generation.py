"""Continue prompts as text, token by token, in whole characters, up to a stop."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch
from torch.nn.utils.rnn import pad_sequence

from lra_ssm.models.generation import Generation
from lra_ssm.models.language_model import LanguageModel


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, ids: Any) -> str: ...


class GeneratedText:
    """The text of the new tokens of one prompt.

    A character whose bytes are divided between tokens (decoded as U+FFFD) is held back until it is whole. The cost of
    a token does not grow with the text.

    Attributes:
        text: the text that later tokens cannot change, with the stop that ended it.
        count: the number of new tokens.
        ended: whether an end token or a stop was found, or `end` was called.

    Args:
        tokenizer: the tokenizer that decodes the tokens.
        prompt: tokens before the text; their text is not repeated.
        end_tokens: tokens that end the text and are not shown.
        stops: texts that end the generated text.
    """

    def __init__(
        self, tokenizer: Decoder, prompt: Sequence[int], end_tokens: Collection[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self.text, self.count, self.ended = "", 0, False
        self._tokenizer, self._end_tokens, self._stops = tokenizer, end_tokens, stops
        # A token at the beginning of a text may decode differently (without its space): decode those before it, too.
        self._before, self._held = list(prompt), list[int]()

    def add(self, token: int) -> str:
        """Add the next token and return the text that is now certain; empty if it depends on the token after."""
        if self.ended:
            return ""
        self.count += 1
        if token in self._end_tokens:
            return self.end()
        self._held.append(token)
        text = self._decode_held()
        return "" if text.endswith("\ufffd") else self._release(text)

    def end(self) -> str:
        """End the text, and return what was held back."""
        text = "" if self.ended else self._release(self._decode_held())
        self.ended = True
        return text

    def _decode_held(self) -> str:
        return self._tokenizer.decode(self._before + self._held)[len(self._tokenizer.decode(self._before)) :]

    def _release(self, new: str) -> str:
        if self._held:
            self._before, self._held = self._held, []
        shown = len(self.text)
        searched = max(0, shown - max(map(len, self._stops), default=0) + 1)  # a stop may lie across tokens
        self.text += new
        ends = [at + len(stop) for stop in self._stops if (at := self.text.find(stop, searched)) >= 0]
        if ends:
            self.text, self.ended = self.text[: min(ends)], True
        return self.text[shown:]


def continue_prompts(
    model: LanguageModel,
    tokenizer: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    end_tokens: Collection[int] = (),
    stops: Sequence[str] = (),
    show: Callable[[str], None] | None = None,
    **settings: Any,
) -> list[GeneratedText]:
    """Continue a batch of prompts, each at least one token.

    Args:
        end_tokens, stops: see `GeneratedText`.
        show: called with each new part of the first text.
        settings: further arguments of `Generation`.
    """
    texts = [GeneratedText(tokenizer, prompt, end_tokens, stops) for prompt in prompts]
    device = model.head_weight.device
    ids = pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True).to(device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    generation = Generation(model, ids, max_new_tokens, lengths=lengths, stop=tuple(end_tokens), **settings)
    for tokens in generation:
        parts = [text.add(token) for text, token in zip(texts, tokens.tolist(), strict=True)]
        generation.ended |= torch.tensor([text.ended for text in texts], device=device)
        if show is not None:
            show(parts[0])
    rest = [text.end() for text in texts]
    if show is not None:
        show(rest[0])
    return texts
