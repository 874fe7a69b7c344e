"""Which examples belong to which split."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.storage.selection import LIMIT_SEED, choose, random_keys
from lra_ssm.errors import InputError

Indices = npt.NDArray[np.int64]


def part_sizes(num: int, parts: Sequence[int] | Sequence[float]) -> list[int]:
    """Counts that sum to num as they are; fractions rounded down, but the first part takes the rest.

    Raises:
        InputError: they sum to something else, or a part would be empty.
    """
    if all(isinstance(part, int) for part in parts):
        sizes = [int(part) for part in parts]
    else:
        if abs(sum(parts) - 1) > 1e-9:
            raise InputError(f"split fractions {list(parts)}: they sum to {sum(parts)} instead of 1")
        rest = [int(part * num) for part in parts[1:]]
        sizes = [num - sum(rest), *rest]
    if sum(sizes) != num or min(sizes) < 1:
        raise InputError(
            f"{num} examples cannot be split into parts of {sizes}; each needs at least 1 and all are used"
        )
    return sizes


def random_split(num: int, parts: Sequence[int] | Sequence[float], seed: int = 42) -> list[Indices]:
    """Disjoint random parts of 0 … num − 1, in random order: the same as the public S4 code's.

    It uses torch.utils.data.random_split, which cuts torch.randperm(num) with a generator of that seed into consecutive
    parts. Source: state-spaces/s4, src/dataloaders/base.py and lra.py.

    Args:
        num: examples in all.
        parts: counts or fractions, as `part_sizes` has them: train, val, test.
        seed: of the generator.

    Returns:
        One array (count,) int64 for each part.
    """
    import torch

    sizes = part_sizes(num, parts)
    order = torch.randperm(num, generator=torch.Generator().manual_seed(seed)).numpy()
    return np.split(order, np.cumsum(sizes)[:-1])


def ordered_split(num: int, parts: Sequence[int] | Sequence[float]) -> list[Indices]:
    """Consecutive parts of 0 … num − 1: as `random_split`, but unshuffled."""
    return np.split(np.arange(num), np.cumsum(part_sizes(num, parts))[:-1])


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
