"""Tokens that come one by one, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lra_ssm.datamodules.language.tokenizer import TextTokenizer


class TextStream:
    """The text of tokens that come one by one.

    A character whose bytes are divided between tokens (decoded as U+FFFD) is held back until it is whole. What a token
    costs does not grow with the text.

    Args:
        before: tokens that the text goes on from; their text is not repeated.
    """

    def __init__(self, tokenizer: TextTokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        # A token may read otherwise at the beginning of a text (without its space): the ones before are decoded again.
        self._before, self._held = list(before), list[int]()

    def add(self, token: int) -> str:
        """Return the text that is certain with this token; empty where the next one decides."""
        self._held.append(token)
        text = self._text()
        return "" if text.endswith("\ufffd") else self._release(text)

    def rest(self) -> str:
        """Return what was held back, where no further token comes."""
        return self._release(self._text()) if self._held else ""

    def _text(self) -> str:
        return self._tokenizer.decode(self._before + self._held)[len(self._tokenizer.decode(self._before)) :]

    def _release(self, text: str) -> str:
        self._before, self._held = self._held, []
        return text
