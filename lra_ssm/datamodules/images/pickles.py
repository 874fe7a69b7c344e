"""Pickles of numpy arrays, as any Python and numpy wrote them, which can name nothing else.

CIFAR-10's batches are such pickles, and so is Pathfinder's metadata where it is an array of objects.
"""

import io
import pickle
from typing import Any

import numpy as np

from lra_ssm.errors import InputError
from lra_ssm.files import one_reason

# What the pickle of an array names, by what this numpy calls it.
_NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),  # how Python 3 writes bytes into old protocols
}
for _core in ("core", "_core"):  # numpy 1, numpy 2
    _NAMES[f"numpy.{_core}.multiarray", "_reconstruct"] = np.empty(0).__reduce__()[0]
    _NAMES[f"numpy.{_core}.numeric", "_frombuffer"] = np.empty(0).__reduce_ex__(5)[0]


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which has no place in such a file")
        return _NAMES[module, name]


def load_arrays(data: bytes, name: str) -> Any:
    """The value of a pickle; strings of Python 2 come as bytes. `name` is what errors call it.

    Raises:
        InputError: it is no pickle, is damaged, or names anything else (nothing of it is run).
    """
    try:
        return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # of many kinds: whatever stands in the place of what should
        raise InputError(f"{name}: is no pickle of arrays, or damaged ({one_reason(error)})") from error
