"""Counter-based randomness: a number depends only on its coordinates."""

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.storage import IntArray


def counter_random(seed: int, *counters: int | IntArray) -> npt.NDArray[np.uint64]:
    """Return random 64-bit words, one for each place of the counters broadcast together, from seed and counters.

    The words are the same in any process, in any batch, after any resumption. A word is splitmix64's output function
    (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014) of seed and counters in turn.
    """
    # At least one dimension: arrays wrap around silently, numpy's scalars warn.
    words = np.array([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
    for values in counters:
        words = _splitmix64(_splitmix64(words) + np.asarray(values).astype(np.uint64))
    return words


def _splitmix64(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    word = state + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
