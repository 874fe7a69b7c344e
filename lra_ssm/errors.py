"""Errors that the command line shows to its user."""


class InputError(ValueError):
    """The user's input is wrong: one line that says what, where, and what would be right.

    The CLI prints it without a traceback and exits non-zero.
    """


def squeeze(text: str) -> str:
    """One line of many."""
    return " ".join(text.split())
