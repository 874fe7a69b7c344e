"""Errors that the command line shows to its user, and functions that make text safe to show."""

import difflib
import sysconfig
from collections.abc import Collection
from pathlib import Path

LONGEST = 2000  # characters of a message


class InputError(ValueError):
    """The user's input is wrong. The message is one line: what is wrong, where, and what would be right.

    The CLI prints it without a traceback and exits non-zero. `to_one_line` makes the message one printable
    line, whatever it quotes: file names, a server's answer, or a library's long message.
    """

    def __init__(self, message: str) -> None:
        super().__init__(to_one_line(message))


def to_one_line(text: str) -> str:
    """Return the text as one printable line. If it is longer than LONGEST, keep only the beginning and the end."""
    line = printable(" ".join(filter(None, map(str.strip, text.splitlines()))))
    half = LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[:half]}…{line[half + 1 - LONGEST :]}"


def printable(text: str) -> str:
    """Return the text with escapes for characters that are not printable: a terminal would obey control characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def describe_error(error: BaseException) -> str:
    """Return an error's message, with the file or folder that could not be read or written."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: cannot be read or written ({error.strerror})"
    return str(error) or type(error).__name__


def hint(name: str, valid: Collection[str], takes: str = "there are") -> str:
    """Return the hint that follows an unknown name in a message: the nearest valid name, or all of them."""
    near = difflib.get_close_matches(name, valid, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{takes} {', '.join(valid) or 'none'}"


def chain(error: BaseException | None) -> list[BaseException]:
    """Return the error, its cause, that one's cause and so on. Causes may form a circle; each is returned once."""
    errors: list[BaseException] = []
    while error is not None and error not in errors:
        errors.append(error)
        error = error.__cause__ or error.__context__
    return errors


def is_installed(file: Path) -> bool:
    """Return whether a file belongs to Python or to an installed library."""
    if {"site-packages", "dist-packages"} & set(file.parts):
        return True
    return any(file.is_relative_to(folder) for folder in _INSTALLED)


_INSTALLED = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
