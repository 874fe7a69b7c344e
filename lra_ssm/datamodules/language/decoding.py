"""The text of tokens that come one by one."""

from collections.abc import Sequence

from lra_ssm.datamodules.language.tokenizers import TextTokenizer

_REPLACEMENT = "\ufffd"  # what `decode` gives for bytes that are no whole character


class TextStream:
    """Adds up to the text that all tokens together have behind those before them, whatever is between two tokens.

    A character whose bytes are divided between tokens is held back until it is whole. What a token costs does not grow
    with the text.

    Args:
        before: tokens that the text goes on from; what they say is not repeated.
    """

    def __init__(self, tokenizer: TextTokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        # A token may read otherwise at the beginning of a text (without its space): the ones before are decoded again.
        self._before, self._held = list(before), list[int]()

    def add(self, token: int) -> str:
        """The text that is certain with this token; empty where the next one decides."""
        self._held.append(token)
        text = self._text()
        return "" if text.endswith(_REPLACEMENT) else self._given(text)

    def rest(self) -> str:
        """What was held back, where no further token comes."""
        return self._given(self._text()) if self._held else ""

    def _text(self) -> str:
        return self._tokenizer.decode(self._before + self._held)[len(self._tokenizer.decode(self._before)) :]

    def _given(self, text: str) -> str:
        self._before, self._held = self._held, []
        return text
