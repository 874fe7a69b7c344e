"""What the pickles of numpy arrays name, with nothing of numpy's own: see `restricted_pickle`."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np


class Refused(Exception):
    """It holds what has no place in such a file."""


class Dtype:
    """What a pickled dtype says of itself. Bytes and objects have a place here, nothing else."""

    def __init__(self, name: Any = None, *_: Any) -> None:
        self.name = name.decode("latin1") if isinstance(name, bytes) else name
        if self.name not in ("u1", "|u1", "O8", "O4", "O", "|O"):
            raise Refused(f"it holds an array of dtype {self.name!r}")


class Array:
    """What a pickled array says of itself: numpy's own take any state, also one that lets bytes pass for pointers."""

    def __init__(self, *_: Any) -> None:
        self.array: np.ndarray | None = None

    def fill(self, shape: Any, dtype: Any, order: Any, data: Any) -> None:
        if self.array is not None:
            raise Refused("it fills an array twice")
        if not (isinstance(shape, tuple) and isinstance(dtype, Dtype) and isinstance(data, (bytes, list))):
            raise Refused("it holds an array of odd parts")
        sound = all(type(size) is int and 0 <= size <= len(data) for size in shape) and prod(shape) == len(data)
        if not sound or isinstance(data, list) != ("O" in dtype.name):
            raise Refused(f"it holds an array of shape {shape} with other data")
        if isinstance(data, bytes):
            flat = np.frombuffer(data, dtype=np.uint8)
        else:
            flat = np.empty(len(data), dtype=object)
            flat[:] = data
        self.array = flat.reshape(shape, order="F" if order in (True, "F", b"F") else "C")


def encode(text: Any = None, encoding: Any = "latin1", *_: Any) -> bytes:
    """Python 3 writes bytes into old protocols as text to be encoded; no other codec has a place here."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "ascii", b"latin1"):
        raise Refused(f"it names the codec {encoding!r}")
    return text.encode("latin1")


def no_bytes(*arguments: Any) -> bytes:
    """As Python 3 writes b"" into old protocols."""
    if arguments:
        raise Refused("it makes bytes of what is none")
    return b""


def from_buffer(data: Any = None, dtype: Any = None, shape: Any = None, order: Any = None, *_: Any) -> Array:
    array = Array()
    array.fill(shape, dtype, order, data)
    return array


# All that a pickle of dicts, lists, numbers, strings and numpy arrays names, written by Python 2 or 3 and any numpy.
PERMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): Dtype,
    ("_codecs", "encode"): encode,
    ("__builtin__", "bytes"): no_bytes,
}
for _core in ("core", "_core"):
    PERMITTED[f"numpy.{_core}.multiarray", "_reconstruct"] = Array
    PERMITTED[f"numpy.{_core}.numeric", "_frombuffer"] = from_buffer
