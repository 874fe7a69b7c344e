"""Errors that the command line shows to its user."""

import difflib
from collections.abc import Collection


class InputError(ValueError):
    """The user's input is wrong: one line that says what, where, and what would be right.

    The CLI prints it without a traceback and exits non-zero.
    """


def squeeze(text: str) -> str:
    """One line of many."""
    return " ".join(text.split())


def hint(name: str, valid: Collection[str], takes: str = "there are") -> str:
    """What an error says behind an unknown name: the nearest one that is known, else all."""
    near = difflib.get_close_matches(name, valid, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{takes} {', '.join(valid) or 'none'}"
