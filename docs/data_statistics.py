"""Print figures of docs/data.md and docs/pathfinder.md: `python docs/data_statistics.py [TEXT]`.

It covers the default training set of ListOps, and 20,000 (32 × 32) and 2,000 (Path-X) hard Pathfinder images. This
takes a few minutes on two cores. With TEXT, a folder that `lra-ssm prepare text` made, it prints only the padding of
batches.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np

from lra_ssm.datamodules.listops import CLOSE_ID, FIRST_OPERATOR_ID, VOCABULARY, TreeSettings, generate
from lra_ssm.datamodules.loader import EpochBatches
from lra_ssm.datamodules.pathfinder.generator import generate_block
from lra_ssm.datamodules.pathfinder.settings import SETTINGS


def listops(count: int) -> None:
    lengths, depths, labels = [], [], Counter[int]()
    operators, arguments = Counter[int](), Counter[int]()
    for expression, label in generate(TreeSettings(500, 2000, 10, 10), seed=0, count=count):
        labels[label] += 1
        lengths.append(len(expression))
        deepest, open_ones = 0, list[int]()
        for token in expression:
            if token == CLOSE_ID:
                arguments[open_ones.pop()] += 1
                continue
            if open_ones:
                open_ones[-1] += 1
            if token >= FIRST_OPERATOR_ID:
                operators[token] += 1
                open_ones.append(0)
                deepest = max(deepest, len(open_ones))
        depths.append(deepest)
    print(f"ListOps, {count:,} expressions")
    print(f"  length {min(lengths)} to {max(lengths)}, mean {np.mean(lengths):.1f}, median {np.median(lengths):.0f}")
    print(f"  depth {min(depths)} to {max(depths)}, of {shares(Counter(depths))}")
    print(f"  labels {shares(labels)}")
    print(f"  operators {shares(Counter({VOCABULARY[t]: n for t, n in operators.items()}))}")
    print(f"  arguments {shares(arguments)}")


def pathfinder(size: int, count: int) -> None:
    blocks = [generate_block(SETTINGS[size], 0, number, 1000) for number in range(count // 1000)]
    images, labels = np.concatenate([b.images for b in blocks]), np.concatenate([b.labels for b in blocks])
    print(f"Pathfinder {size} × {size}, {count:,} images: label 1 {labels.mean():.2%}")
    for name, part in (("all", images), ("label 0", images[labels == 0]), ("label 1", images[labels == 1])):
        lit = part > 0
        print(
            f"  {name}: mean {part.mean() / 255:.4f}, deviation {part.std() / 255:.4f}, pixels lit {lit.mean():.2%}, "
            f"brightest of an image {part.max((1, 2)).min()} to {part.max()}"
        )


def padding(text: Path) -> None:
    """Print the share of padding in batches of 16, by how many batches are sorted by length together."""
    lengths = np.diff(np.load(text / "train_offsets.npy"))
    for pool in (1, 10, 50, 100):
        batches = list(EpochBatches(len(lengths), 16, seed=0, lengths=lengths, pool=pool).batches(0))
        positions = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
        print(f"{pool}: {1 - lengths.sum() / positions:.1%} padding, {positions / lengths.sum():.2f} positions")


def shares(counts: Counter) -> str:
    return ", ".join(f"{key}: {n / counts.total():.1%}" for key, n in sorted(counts.items()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        padding(Path(sys.argv[1]))
    else:
        listops(96_000)
        pathfinder(32, 20_000)
        pathfinder(128, 2_000)
