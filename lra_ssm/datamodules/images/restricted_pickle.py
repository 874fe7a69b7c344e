"""Reads published files that are pickles of plain values and numpy arrays, and refuses everything else.

Python's own unpickler is not used: of a hostile file of a few bytes it makes objects that take minutes, the memory or
the interpreter's stack. This reader knows the operations that such files consist of, in all protocols (0 to 5), as
Python 2 and 3 and numpy 1 and 2 write them. What it makes has a bounded shape (a dict of lists and arrays, lists and
tuples of plain values, tuples within a tuple at the end) and, counted as if nothing was shared, a bounded size; each
operation takes time in proportion to the bytes that it reads or to that size. Nothing is called, nothing is imported.
"""

import codecs
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from lra_ssm.datamodules.images.pickled_arrays import PERMITTED, Array, Dtype, Refused
from lra_ssm.errors import InputError

MOST_BYTES = 1 << 27  # of a file, and of what it holds: four times a CIFAR-10 batch
VALUE_BYTES = 16  # what a value counts, besides its length
MEMO_BYTES = 64  # what a place in the memo counts
HIGHEST_STACK = 1 << 16  # picklers put a thousand values on it, or two thousand with their keys
LONGEST_TUPLE = 16  # numpy's longest has nine values
LONGEST_DICT = 1000
LONGEST_NUMBER = 100  # bytes of a number's text

_MARK = object()
_PLAIN = (int, float, str, bytes, type(None))  # bool is an int


class _Name:
    """What a pickle names, one of PERMITTED; it stands for what is made of it, and cannot be changed."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make


class _Reader:
    """Runs the operations of a pickle."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.left = MOST_BYTES

    def load(self) -> Any:
        while (operation := self.take(1)) != b".":
            known = _OPERATIONS.get(operation)
            if known is None:
                raise Refused(f"it uses the operation {operation!r}")
            known(self)
        return self.pop()

    # -- parts of the file --

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise EOFError("it ends too early")
        self.at, taken = end, self.data[self.at : end]
        return taken

    def number(self, form: str) -> int:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(value)

    def counted(self, form: str) -> bytes:
        """Bytes with their number before them."""
        count = self.number(form)
        if count < 0:
            raise ValueError("a negative length")
        return self.take(count)

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise EOFError("it ends too early")
        return self.take(end + 1 - self.at)[:-1]

    def digits(self) -> bytes:
        text = self.line()
        if len(text) > LONGEST_NUMBER:
            raise Refused("it holds a number of more than 64 bits")
        return text

    # -- the stack --

    def push(self, value: Any) -> None:
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise Refused("it holds a number of more than 64 bits")
        if len(self.stack) >= HIGHEST_STACK:
            raise Refused(f"it piles up {HIGHEST_STACK:,} values")
        self.stack.append(value)

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("a mark where a value should be")
        return value

    def pop_to_mark(self) -> list[Any]:
        values = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def top(self) -> Any:
        if self.stack[-1] is _MARK:
            raise ValueError("a mark where a value should be")
        return self.stack[-1]

    def spend(self, values: list[Any] | tuple[Any, ...]) -> None:
        """Takes what the values would need, if nothing was shared, from what is left for all of them."""
        for value in values:
            self.left -= VALUE_BYTES
            if isinstance(value, (str, bytes, list)):
                self.left -= len(value) * (VALUE_BYTES if isinstance(value, list) else 1)
        self.check_left()

    def check_left(self) -> None:
        if self.left < 0:
            raise Refused(f"it holds more than {MOST_BYTES:,} bytes")

    # -- values --

    def put(self, index: int) -> None:
        if not 0 <= index <= len(self.data):
            raise Refused(f"it numbers a value {index}, in {len(self.data)} bytes")
        self.left -= MEMO_BYTES
        self.check_left()
        self.memo[index] = self.top()

    def make_tuple(self, values: list[Any]) -> None:
        for value in values:
            flat = isinstance(value, tuple) and all(isinstance(inner, _PLAIN) for inner in value)
            if not flat and not isinstance(value, (*_PLAIN, _Name, Dtype, list)):
                raise Refused(f"it has a {_kind(value)} within a tuple")
        if len(values) > LONGEST_TUPLE:
            raise Refused(f"it has a tuple of {len(values)} values")
        self.push(tuple(values))

    def extend(self, values: list[Any]) -> None:
        if not isinstance(self.top(), list):
            raise ValueError("values for a list that is none")
        for value in values:
            if not isinstance(value, _PLAIN):
                raise Refused(f"it has a {_kind(value)} within a list")
        self.spend(values)
        self.top().extend(values)

    def update(self, values: list[Any]) -> None:
        if not isinstance(self.top(), dict) or len(values) % 2:
            raise ValueError("values for a dict that is none")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, (str, bytes)) or not isinstance(value, (*_PLAIN, Array, list)):
                raise Refused(f"it has a {_kind(value)} under a {_kind(key)} within a dict")
            self.top()[key] = value
        if len(self.top()) > LONGEST_DICT:
            raise Refused(f"it has a dict of {len(self.top())} values")
        self.spend(values)

    def make_list(self) -> None:
        values = self.pop_to_mark()
        self.push([])
        self.extend(values)

    def make_dict(self) -> None:
        values = self.pop_to_mark()
        self.push({})
        self.update(values)

    def name(self, module: Any, name: Any) -> None:
        known = PERMITTED.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if known is None:
            raise Refused(f"it names {module}.{name}, which has no place in such a file")
        self.push(_Name(known))

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, _Name) or not isinstance(arguments, tuple):
            raise Refused("it calls what it has not named")
        self.spend(arguments)
        self.push(function.make(*arguments))

    def build(self) -> None:
        state, value = self.pop(), self.top()
        if isinstance(value, Array) and isinstance(state, tuple) and len(state) == 5:
            self.spend(state)
            value.fill(*state[1:3], state[3], state[4])
        elif not isinstance(value, Dtype):  # its byte order and flags: neither bytes nor objects have any
            raise Refused("it changes what it names")

    def integer(self) -> None:
        text = self.digits().removesuffix(b"L")
        self.push(text == b"01" if text in (b"00", b"01") else int(text))

    def quoted(self) -> None:
        """Text of Python 2 as it writes it in a program."""
        text = self.line().strip()
        if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in b"'\"":
            raise ValueError("a string without quotes")
        self.push(codecs.escape_decode(text[1:-1])[0])

    def negated(self) -> None:
        self.push(int.from_bytes(self.counted("<B"), "little", signed=True))


def _kind(value: Any) -> str:
    return type(value).__name__.strip("_").lower()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


_OPERATIONS: dict[bytes, Callable[[_Reader], Any]] = {
    b"\x80": lambda r: r.take(1),  # the protocol
    b"\x95": lambda r: r.take(8),  # how much may be read ahead
    # plain values
    b"N": lambda r: r.push(None),
    b"\x88": lambda r: r.push(True),
    b"\x89": lambda r: r.push(False),
    b"I": _Reader.integer,
    b"L": _Reader.integer,
    b"J": lambda r: r.push(r.number("<i")),
    b"K": lambda r: r.push(r.number("<B")),
    b"M": lambda r: r.push(r.number("<H")),
    b"\x8a": _Reader.negated,
    b"F": lambda r: r.push(float(r.digits())),
    b"G": lambda r: r.push(struct.unpack(">d", r.take(8))[0]),
    # texts: bytes of Python 2 or 3, and Unicode
    b"S": _Reader.quoted,
    b"T": lambda r: r.push(r.counted("<i")),
    b"U": lambda r: r.push(r.counted("<B")),
    b"B": lambda r: r.push(r.counted("<I")),
    b"C": lambda r: r.push(r.counted("<B")),
    b"\x8e": lambda r: r.push(r.counted("<Q")),
    b"\x96": lambda r: r.push(r.counted("<Q")),  # a bytearray
    b"V": lambda r: r.push(r.line().decode("raw-unicode-escape")),
    b"X": lambda r: r.push(_text(r.counted("<I"))),
    b"\x8c": lambda r: r.push(_text(r.counted("<B"))),
    b"\x8d": lambda r: r.push(_text(r.counted("<Q"))),
    # tuples, lists, dicts
    b"(": lambda r: r.push(_MARK),
    b")": lambda r: r.push(()),
    b"t": lambda r: r.make_tuple(r.pop_to_mark()),
    b"\x85": lambda r: r.make_tuple([r.pop()]),
    b"\x86": lambda r: r.make_tuple([r.pop(), r.pop()][::-1]),
    b"\x87": lambda r: r.make_tuple([r.pop(), r.pop(), r.pop()][::-1]),
    b"]": lambda r: r.push([]),
    b"l": _Reader.make_list,
    b"a": lambda r: r.extend([r.pop()]),
    b"e": lambda r: r.extend(r.pop_to_mark()),
    b"}": lambda r: r.push({}),
    b"d": _Reader.make_dict,
    b"s": lambda r: r.update([r.pop(), r.pop()][::-1]),
    b"u": lambda r: r.update(r.pop_to_mark()),
    # the memo
    b"p": lambda r: r.put(int(r.digits())),
    b"q": lambda r: r.put(r.number("<B")),
    b"r": lambda r: r.put(r.number("<I")),
    b"\x94": lambda r: r.put(len(r.memo)),
    b"g": lambda r: r.push(r.memo[int(r.digits())]),
    b"h": lambda r: r.push(r.memo[r.number("<B")]),
    b"j": lambda r: r.push(r.memo[r.number("<I")]),
    # arrays
    b"c": lambda r: r.name(r.line().decode("utf-8"), r.line().decode("utf-8")),
    b"\x93": lambda r: r.name(*[r.pop(), r.pop()][::-1]),
    b"R": _Reader.reduce,
    b"b": _Reader.build,
}


def load_restricted(file: BinaryIO | bytes, path: Path | str) -> Any:
    """Reads one pickle that is an array, or a dict of arrays, lists, numbers and strings.

    Args:
        file: from where, to its end, or the pickle itself. Strings of Python 2 come as bytes.
        path: what errors name.

    Returns:
        Arrays are of uint8 or of objects; numbers have at most 64 bits.

    Raises:
        InputError: it is no pickle, has another shape, or names anything else (nothing of it is run).
    """
    data = file if isinstance(file, bytes) else file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise InputError(f"{path}: has more than {MOST_BYTES:,} bytes; refused as a pickle of arrays")
    try:
        loaded = _Reader(data).load()
        if isinstance(loaded, dict):
            return {key: _plain(value) for key, value in loaded.items()}
        return _plain(loaded)
    except Refused as error:
        raise InputError(f"{path}: refused as a pickle of arrays ({error})") from error
    except Exception as error:  # a damaged one: an empty stack, no such number in the memo, text that is none
        raise InputError(f"{path}: is no pickle of arrays, or damaged ({type(error).__name__}: {error})") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Array):
        if value.array is None:
            raise Refused("it holds an array without data")
        return value.array
    if not isinstance(value, (*_PLAIN, list, dict, tuple)):
        raise Refused("it is what it names")
    return value
