"""Choosing some of many examples: random, the same every time, and each class as often as the others.

Needs numpy alone.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.old_storage.arrays import IntArray

LIMIT_SEED = 42  # of the choice that `limit` makes


def choose(labels: IntArray, count: int, keys: IntArray) -> npt.NDArray[np.int64]:
    """Chooses examples, each class as often as the others as far as it has enough of them.

    Of each class those with the smallest keys are taken, so that a smaller choice is a part of a larger one (but for
    one example of a class where the count does not divide evenly).

    Args:
        labels: classes (n,).
        count: how many; all if there are no more.
        keys: (n,), random.

    Returns:
        The examples' numbers, rising (min(count, n),).
    """
    remaining, chosen = min(count, len(labels)), []
    classes, sizes = np.unique(labels, return_counts=True)
    by_size = np.argsort(sizes, kind="stable")  # what the small classes lack the larger ones give
    for done, index in enumerate(by_size):
        quota = min(int(sizes[index]), remaining // (len(classes) - done))
        members = np.flatnonzero(labels == classes[index])
        chosen.append(members[np.argsort(keys[members], kind="stable")[:quota]])
        remaining -= quota
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)


def random_keys(count: int, seed: int) -> npt.NDArray[np.int64]:
    """Keys for `choose` that depend on the examples' order (count,): a permutation."""
    # RandomState, for its stream is frozen for ever (NEP 19).
    return np.random.RandomState(seed).permutation(count).astype(np.int64)


def text_keys(texts: Iterable[str], seed: int) -> npt.NDArray[np.uint64]:
    """Keys for `choose` that depend on the texts and the seed alone."""
    salt = seed.to_bytes(hashlib.blake2b.SALT_SIZE, "little")
    digests = [hashlib.blake2b(text.encode(), digest_size=8, salt=salt).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype="<u8")


def texts_digest(texts: Iterable[str], labels: Iterable[int]) -> str:
    """The hexadecimal sha256 of a set of labelled texts, whatever their order."""
    parts = [hashlib.sha256(bytes([label]) + text.encode()).digest() for text, label in zip(texts, labels, strict=True)]
    return hashlib.sha256(b"".join(sorted(parts))).hexdigest()
