"""Reads published files that are pickles of plain values and numpy arrays, and refuses what could run code."""

import io
import pickle
import pickletools
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lra_ssm.errors import InputError


class _Dtype:
    """What a pickled dtype says of itself. Bytes and objects have a place here, nothing else."""

    def __init__(self, name: str | bytes, *_: Any) -> None:
        self.name = name.decode("latin1") if isinstance(name, bytes) else str(name)
        if self.name not in ("u1", "O8", "O4", "O"):
            raise pickle.UnpicklingError(f"it holds an array of dtype {self.name!r}")

    def __setstate__(self, state: Any) -> None:
        pass  # byte order and flags: neither bytes nor objects have any


class _Array:
    """What a pickled array says of itself.

    numpy never sees it: its own dtypes and arrays take any state, also one that lets bytes pass for pointers.
    """

    def __init__(self, *_: Any) -> None:
        self.array = np.empty(0, dtype=np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        order: Any = "F" if fortran else "C"
        if not isinstance(dtype, _Dtype) or len(data) != prod(shape):
            raise pickle.UnpicklingError(f"it holds an array of shape {shape} with other data")
        if dtype.name == "u1":
            self.array = np.frombuffer(data, dtype=np.uint8).reshape(shape, order=order)
        else:
            values = np.empty(len(data), dtype=object)
            values[:] = data
            self.array = values.reshape(shape, order=order)


class _Callable:
    """What a name in a pickle becomes, made anew for each: it can be called, and nothing else.

    A pickle may also set attributes of whatever it has named (BUILD). Of a function or class of this module that would
    last and change how later files are read.
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it changes what it names")


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Python 3 writes bytes into old protocols as text to be encoded; no other codec has a place here."""
    if encoding not in ("latin1", "latin-1", "ascii"):
        raise pickle.UnpicklingError(f"it names the codec {encoding!r}")
    return text.encode(encoding)


# All that a pickle of dicts, lists, numbers, strings and numpy arrays names, written by Python 2 or 3 and any numpy.
_PERMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _Callable:
        if (module, name) not in _PERMITTED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which has no place in such a file")
        return _Callable(_PERMITTED[module, name])


def _check_memo(data: bytes) -> None:
    """Refuses places in the memo that the file is too short to fill: a table is made as long as the highest says."""
    for operation, argument, _ in pickletools.genops(data):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and isinstance(argument, int) and argument > len(data):
            raise pickle.UnpicklingError(f"it numbers a value {argument}, in {len(data)} bytes")


def load_restricted(file: BinaryIO | bytes, path: Path | str) -> Any:
    """Reads one pickle that is an array, or a dict of arrays, lists, numbers and strings.

    Args:
        file: from where, to its end, or the pickle itself. Strings of Python 2 come as bytes.
        path: what errors name.

    Returns:
        Arrays are of uint8 or of objects.

    Raises:
        InputError: it is no pickle, or names anything else (it is not loaded then and nothing of it is run).
    """
    try:
        data = file if isinstance(file, bytes) else file.read()
        _check_memo(data)
        loaded = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError) as error:
        raise InputError(f"{path}: refused as a pickle of arrays ({error})") from error
    except Exception as error:  # a damaged pickle raises whatever its operations do
        raise InputError(f"{path}: is no pickle of arrays, or damaged ({type(error).__name__}: {error})") from error
    if isinstance(loaded, dict):
        return {key: _plain(value) for key, value in loaded.items()}
    return _plain(loaded)


def _plain(value: Any) -> Any:
    return value.array if isinstance(value, _Array) else value
