"""CIFAR-10 as JPEG files in class folders (a tar archive) in Toronto's layout, which the data modules read.

    python -m tests.cifar_from_jpeg ARCHIVE FOLDER

Images come by class and file name. JPEG's pixels are not the published ones: no accuracy on them is a CIFAR-10 result.
"""

import io
import re
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from lra_ssm.datamodules.cifar10 import BATCHES, CLASS_NAMES, FOLDER
from tests.small_data import cifar_batch, write_files


def convert(archive: Path, folder: Path) -> Path:
    """Write the six batches below `folder`; return it. Does nothing where they exist."""
    target = folder / FOLDER
    if (target / BATCHES[-1]).is_file():
        return folder
    found: dict[str, list[tuple[int, str, np.ndarray]]] = {"train": [], "test": []}
    with tarfile.open(archive) as tar:
        for member in tar:
            if match := re.search(r"(train|test)/(\w+)/(\d+)\.jpe?g$", member.name):
                image = Image.open(io.BytesIO(tar.extractfile(member).read())).convert("RGB")  # type: ignore[union-attr]
                found[match[1]].append((CLASS_NAMES.index(match[2]), match[3], np.asarray(image)))
    ordered = [example for split in found.values() for example in sorted(split, key=lambda example: example[:2])]
    for name, part in zip(BATCHES, np.array_split(np.arange(len(ordered)), len(BATCHES)), strict=True):
        labels, _, images = zip(*(ordered[i] for i in part), strict=True)
        write_files(target, {name: cifar_batch(np.stack(images), [*labels], python2=False)})
    return folder


if __name__ == "__main__":
    print(convert(*map(Path, sys.argv[1:])))
