"""Errors that the command line shows to its user, and outside text made fit to be shown."""

import difflib
import re
from collections.abc import Collection

LONGEST = 2000  # characters of a message; of longer ones the beginning and the end


class InputError(ValueError):
    """The user's input is wrong: one line that says what, where, and what would be right.

    The CLI prints it without a traceback and exits non-zero. Whatever the message quotes (file names, what a server
    says, a library's many lines), it is one line of printable text from here on: see `squeeze`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(squeeze(message))


def squeeze(text: str) -> str:
    """One printable line of many, at most LONGEST characters: fit for a terminal, whoever wrote the text.

    Where lines break is a blank. Done twice, it changes nothing more.
    """
    return _shortened(printable(re.sub(r"[^\S\r\n]{0,200}[\r\n]\s*", " ", _shortened(text)))).strip()


def printable(text: str) -> str:
    """The text with what is no character to be seen as its escape: control characters (a terminal would obey them),
    marks that turn the direction of writing, and halves of surrogate pairs (which cannot be encoded)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _shortened(text: str) -> str:
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]}…{text[half + 1 - LONGEST :]}"


def hint(name: str, valid: Collection[str], takes: str = "there are") -> str:
    """What an error says behind an unknown name: the nearest one that is known, else all."""
    near = difflib.get_close_matches(name, valid, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{takes} {', '.join(valid) or 'none'}"
