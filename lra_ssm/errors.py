"""Errors that the command line shows to its user, and outside text made fit to be shown."""

import difflib
import inspect
import os
import re
import sysconfig
import traceback
from collections.abc import Collection
from pathlib import Path
from types import FrameType
from typing import Any

LONGEST = 2000  # characters of a message; of longer ones the beginning and the end


class InputError(ValueError):
    """The user's input is wrong: one line that says what, where, and what would be right.

    The CLI prints it without a traceback and exits non-zero. Whatever the message quotes (file names, what a server
    says, a library's many lines), it is one line of printable text from here on: see `to_one_line`.
    """

    more = ""  # what a command says behind it

    def __init__(self, message: str) -> None:
        super().__init__(to_one_line(message))


class UserCodeError(InputError):
    """A class of the user's own failed."""

    more = "; --debug shows the traceback"


def to_one_line(text: str) -> str:
    """Return the text as one printable line of at most LONGEST characters, fit for a terminal whoever wrote it.

    A line break becomes a blank. Done twice, it changes nothing more.
    """
    return _shortened(printable(re.sub(r"[^\S\r\n]{0,200}[\r\n]\s*", " ", _shortened(text)))).strip()


squeeze = to_one_line


def describe_error(error: BaseException) -> str:
    """Return what an error says, and which file or folder the system refused."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: cannot be read or written ({error.strerror})"
    return str(error) or type(error).__name__


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


def place(file: str, line: int) -> str:
    """my_layer.py:14, seen from the working folder where it lies below; nothing where the code is not the user's: an
    installed library's, Python's, generated, or ours."""
    path = Path(file)
    # .pyx: Cython names its source, which an installed library seldom brings.
    generated = file.startswith("<") and not file.startswith("<ipython") or "torchinductor" in file
    generated = generated or path.suffix == ".pyx"
    if generated or is_installed(path) or path.is_relative_to(_OURS):
        return ""
    here = Path(os.getcwd())
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line}"


def is_installed(file: Path) -> bool:
    """Whether a file belongs to Python or to an installed library."""
    if {"site-packages", "dist-packages"} & set(file.parts):
        return True
    return any(file.is_relative_to(folder) for folder in _INSTALLED)


_OURS = Path(__file__).parent
_INSTALLED = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def chain(error: BaseException | None) -> list[BaseException]:
    """The error, what caused it, what caused that, and so on: each once, for they may stand in a circle."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def in_user_code(raised: BaseException | None) -> UserCodeError | None:
    """The error as one line, where code of the user's raised it or called what did: the function, the kind of error and
    what it says, the shapes of the function's tensors, file and line. None where no file of the user's took part."""
    for error in chain(raised):
        said = f"{type(error).__name__}: {error}".removesuffix(": ").rstrip(".")
        if isinstance(error, SyntaxError) and (where := place(error.filename or "<", error.lineno or 0)):
            return UserCodeError(f"SyntaxError: {error.msg} ({where})")
        for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
            if where := place(frame.f_code.co_filename, line):
                name = frame.f_globals.get("__name__", "")
                function = "" if frame.f_code.co_name == "<module>" else f".{frame.f_code.co_qualname}"
                return UserCodeError(f"{name}{function} raised {said}{_tensors(frame)} ({where})")
        if "in DataLoader worker process" in str(error):  # whose traceback comes as text
            for file, line_, function in reversed(re.findall(r'File "(.+?)", line (\d+), in (\S+)', str(error))):
                if where := place(file, int(line_)):
                    return UserCodeError(f"{function} raised {str(error).strip().splitlines()[-1]} ({where})")
    return None


def raised_here(error: BaseException) -> bool:
    """Whether a function of this package raised it, none that it called."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals.get("__name__", "").startswith("lra_ssm.")


def _tensors(frame: FrameType) -> str:
    """The shapes of a function's arguments, as they are when it fails."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    shapes = {name: getattr(frame.f_locals.get(name), "shape", None) for name in names}
    text = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items() if isinstance(shape, tuple))
    return f", with {text}" if text else ""


def defined_at(thing: Any) -> str:
    """Where a user's function, or a class's `forward`, stands, as " (my_layer.py:14)"; else nothing."""
    for name in ("forward", "__init__", "__call__"):
        code = getattr(inspect.unwrap(getattr(thing, name, thing)), "__code__", None)
        if code and (where := place(code.co_filename, code.co_firstlineno)):
            return f" ({where})"
    return ""
