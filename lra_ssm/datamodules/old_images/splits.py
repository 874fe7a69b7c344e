"""Which examples belong to which split."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.old_storage.selection import LIMIT_SEED, choose, random_keys
from lra_ssm.errors import InputError

Indices = npt.NDArray[np.int64]


def part_sizes(num: int, *fractions: float) -> list[int]:
    """Sizes of a first part and of others of these fractions, rounded down: the first takes the rest."""
    others = [int(fraction * num) for fraction in fractions]
    return [num - sum(others), *others]


def ordered_split(sizes: Sequence[int]) -> list[Indices]:
    """Consecutive parts of 0 … sum of the sizes − 1.

    Raises:
        InputError: a part is empty.
    """
    return _cut(np.arange(sum(sizes)), sizes)


def random_split(sizes: Sequence[int], seed: int = 42) -> list[Indices]:
    """The same, in random order: as the public S4 code's.

    It uses torch.utils.data.random_split, which cuts torch.randperm(num) with a generator of that seed into consecutive
    parts. Source: state-spaces/s4, src/dataloaders/base.py and lra.py.
    """
    import torch

    return _cut(torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(seed)).numpy(), sizes)


def _cut(order: Indices, sizes: Sequence[int]) -> list[Indices]:
    if min(sizes) < 1:
        raise InputError(f"{len(order)} examples cannot be split into parts of {list(sizes)}; each needs at least 1")
    return np.split(order, np.cumsum(sizes)[:-1])


def limited(labels: npt.NDArray[np.integer[Any]], limit: int | None) -> Indices:
    """Positions of at most `limit` examples by their labels (n,), increasing; all for None."""
    if limit is None:
        return np.arange(len(labels))
    return choose(labels, limit, random_keys(len(labels), LIMIT_SEED))


def require_every_class(labels: npt.NDArray[np.integer[Any]], class_names: Sequence[str], where: Path) -> None:
    """Makes sure that the images for training, by their labels (n,), show every class.

    Raises:
        InputError: a class has none; names it and where the images are from.
    """
    lacking = np.flatnonzero(np.bincount(labels, minlength=len(class_names)) == 0).tolist()
    if lacking:
        names = ", ".join(repr(class_names[number]) for number in lacking)
        raise InputError(f"{where}: gives no image for training of the class {names}, so it cannot be learned")


def indices_sha256(indices: Indices) -> str:
    """What the manifest records of a split: the sha256 of its indices as little-endian int64."""
    return hashlib.sha256(np.ascontiguousarray(indices, dtype="<i8").data).hexdigest()
