"""Generates ListOps data with LRA's distribution, reproducibly on any number of workers.

LRA's own generator has no seed and takes its splits from the iteration order of a set. Here expressions come in
numbered blocks, each a pure function of (seed, number); blocks are consumed in order and duplicates of anything
before are dropped, so that the result does not depend on who computed which block.
"""

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from hashlib import blake2b
from itertools import count as count_from
from itertools import pairwise
from pathlib import Path
from zipfile import BadZipFile

from lra_ssm.datamodules.listops.trees import ATTEMPTS_PER_BLOCK, Block, TreeSettings, sample_block
from lra_ssm.datamodules.processes import ordered_map
from lra_ssm.errors import InputError
from lra_ssm.files import replacing
from lra_ssm.machine import available_cores

# The consuming process keeps up with about this many; more would wait for it.
MAX_WORKERS = 16
# Yield is judged over this many blocks (50,000 attempts), and generation is given up when at that rate the rest would
# need more than MAX_FURTHER_WINDOWS times as long: hours for LRA's bounds, whose own yield is 1 kept in 3 attempts.
WINDOW_BLOCKS = 100
MAX_FURTHER_WINDOWS = 1000


def check_settings(settings: TreeSettings) -> None:
    """Raises InputError where no expression can satisfy the settings."""
    low, high, depth, args = settings
    if low < 1 or high - low < 2:
        raise InputError(
            f"ListOps length_bounds ({low}, {high}): lengths lie strictly between them, so the lower one must be at"
            " least 1 and the upper one at least 2 more (LRA: 500, 2000)"
        )
    if not 2 <= depth <= 100:
        raise InputError(f"ListOps max_depth {depth}: must lie between 2 and 100 (LRA: 10)")
    if args < 2:
        raise InputError(f"ListOps max_args {args}: an operator takes at least 2 arguments (LRA: 10)")


def seconds_of(settings: TreeSettings, seed: int, count: int, workers: int | None = None) -> float:
    """How long `generate` takes, by the time of its first block; 0 where nothing turns up in it."""
    check_settings(settings)
    start = time.perf_counter()
    found = len(sample_block(settings, seed, 0).labels)
    took = time.perf_counter() - start
    return took * count / found / (workers or min(available_cores(), MAX_WORKERS)) if found else 0.0


def generate(
    settings: TreeSettings, seed: int, count: int, *, workers: int | None = None, kept: Path | None = None
) -> Iterator[Block]:
    """Yields `count` distinct expressions in all, in blocks, in an order that depends on (settings, seed) alone.

    Args:
        settings: what to draw from.
        seed: any integer.
        count: how many expressions; a larger count begins with those of a smaller one.
        workers: number of processes, 1 for none but this one; None for one per core.
        kept: a folder that takes every block as it is drawn, and gives those that are there.

    Raises:
        InputError: impossible settings, or ones under which too few (new) expressions turn up.
    """
    check_settings(settings)
    seen: set[bytes] = set()
    found_before_window = 0
    sample = partial(sample_block, settings, seed)
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        sample = partial(_keep, kept, settings, seed)
    with closing(ordered_map(sample, count_from(), workers or min(available_cores(), MAX_WORKERS))) as blocks:
        for number, block in enumerate(blocks, start=1):
            expressions, labels = [], bytearray()
            for expression, label in zip(block.expressions, block.labels, strict=True):
                key = blake2b(expression, digest_size=16).digest()
                if key not in seen and len(seen) < count:
                    seen.add(key)
                    expressions.append(expression)
                    labels.append(label)
            if expressions:
                yield Block(expressions, bytes(labels))
            if len(seen) == count:
                return
            if number % WINDOW_BLOCKS == 0:
                found = len(seen) - found_before_window
                if found * MAX_FURTHER_WINDOWS < count - len(seen):
                    raise InputError(
                        f"ListOps length_bounds ({settings.min_length}, {settings.max_length}), max_depth"
                        f" {settings.max_depth}, max_args {settings.max_args}: {count} different expressions are asked"
                        f" for, but only {len(seen)} turned up in {number * ATTEMPTS_PER_BLOCK} attempts; widen the"
                        " bounds or ask for fewer"
                    )
                found_before_window = len(seen)


def _keep(folder: Path, settings: TreeSettings, seed: int, number: int) -> Block:
    """`sample_block`, read where it was drawn before."""
    import numpy as np  # here, as a worker of a small dataset does without it

    file = folder / f"{number}.npz"
    with suppress(OSError, ValueError, KeyError, BadZipFile), np.load(file) as found:  # it is not there, or damaged
        tokens, ends = found["tokens"].tobytes(), [0, *found["ends"].tolist()]
        expressions = [tokens[start:end] for start, end in pairwise(ends)]
        return Block(expressions, found["labels"].tobytes())
    block = sample_block(settings, seed, number)
    lengths = [len(expression) for expression in block.expressions]
    tokens = np.frombuffer(b"".join(block.expressions), np.uint8)
    with replacing(file, "wb") as out:
        np.savez(out, tokens=tokens, ends=np.cumsum(lengths, dtype=np.int64), labels=np.frombuffer(block.labels, "u1"))
    return block
