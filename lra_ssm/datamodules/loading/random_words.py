"""Randomness by counter: a number depends on its coordinates alone."""

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.storage.arrays import IntArray


def random_words(seed: int, *counters: int | IntArray) -> npt.NDArray[np.uint64]:
    """Random 64-bit words, in the shape that the counters have together, each by seed and its counters alone.

    So it is the same whichever process asks for it, in whatever batch, after whichever resumption. A word is
    splitmix64's output function (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014) over
    seed and counters in turn.
    """
    # At least one dimension: arrays wrap around in silence, numpy's scalars warn.
    words = np.array([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
    for values in counters:
        words = _mixed(_mixed(words) + np.asarray(values).astype(np.uint64))
    return words


def _mixed(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    word = state + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
