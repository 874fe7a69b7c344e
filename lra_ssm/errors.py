"""Errors that the command line shows to its user, and text of others made fit to be shown."""

import difflib
import inspect
import os
import re
import sysconfig
from collections.abc import Collection
from pathlib import Path
from typing import Any

LONGEST = 2000  # characters of a message; of longer ones the beginning and the end


class InputError(ValueError):
    """The user's input is wrong: one line that says what, where, and what would be right.

    The CLI prints it without a traceback and exits non-zero. Whatever the message quotes (file names, what a server
    says, a library's many lines), it is one line of printable text from here on: see `to_one_line`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(to_one_line(message))


def to_one_line(text: str) -> str:
    """Return the text as one printable line of at most LONGEST characters, fit for a terminal whoever wrote it.

    A line break becomes a blank. Done twice, it changes nothing more.
    """
    return _shortened(printable(re.sub(r"[^\S\r\n]{0,200}[\r\n]\s*", " ", _shortened(text)))).strip()


def describe_error(error: BaseException) -> str:
    """Return what an error says, and which file or folder the system refused."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: cannot be read or written ({error.strerror})"
    return str(error) or type(error).__name__


def printable(text: str) -> str:
    """Return the text with characters that are not printable as escapes.

    These are control characters (a terminal would obey them), marks that turn the direction of writing, and halves of
    surrogate pairs (which cannot be encoded).
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _shortened(text: str) -> str:
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]}…{text[half + 1 - LONGEST :]}"


def hint(name: str, valid: Collection[str], takes: str = "there are") -> str:
    """Return what an error says after an unknown name: the nearest known one, or all of them."""
    near = difflib.get_close_matches(name, valid, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{takes} {', '.join(valid) or 'none'}"


def chain(error: BaseException | None) -> list[BaseException]:
    """Return the error, what caused it, what caused that, …, each once: they may form a circle."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def is_installed(file: Path) -> bool:
    """Whether a file belongs to Python or to an installed library."""
    if {"site-packages", "dist-packages"} & set(file.parts):
        return True
    return any(file.is_relative_to(folder) for folder in _INSTALLED)


_OURS = Path(__file__).parent
_INSTALLED = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def defined_at(thing: Any) -> str:
    """Return where a user's function, or a class's `forward`, is defined, as " (my_layer.py:14)"; else nothing."""
    for name in ("forward", "__init__", "__call__"):
        code = getattr(inspect.unwrap(getattr(thing, name, thing)), "__code__", None)
        if code is None:
            continue
        path = Path(code.co_filename)
        generated = str(path).startswith("<") and not str(path).startswith("<ipython")
        if not (generated or is_installed(path) or path.is_relative_to(_OURS)):
            here = Path(os.getcwd())
            return f" ({path.relative_to(here) if path.is_relative_to(here) else path}:{code.co_firstlineno})"
    return ""
