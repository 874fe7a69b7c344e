"""CIFAR-10 as JPEG files in class folders (a tar archive) in Toronto's layout, which the data modules read.

    python -m tests.cifar_from_jpeg ARCHIVE FOLDER

Images come by class and file name. JPEG's pixels are not the published ones: no accuracy on them is a CIFAR-10 result.
"""

import io
import pickle
import re
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from lra_ssm.datamodules.cifar10 import BATCHES, CLASS_NAMES, FOLDER


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
                planes = np.asarray(image).transpose(2, 0, 1).reshape(-1)
                found[match[1]].append((CLASS_NAMES.index(match[2]), match[3], planes))
    images = [example for split in found.values() for example in sorted(split, key=lambda example: example[:2])]
    target.mkdir(parents=True, exist_ok=True)
    for name, part in zip(BATCHES, np.array_split(np.arange(len(images)), len(BATCHES)), strict=True):
        batch = {"data": np.stack([images[i][2] for i in part]), "labels": [images[i][0] for i in part]}
        (target / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


if __name__ == "__main__":
    print(convert(*map(Path, sys.argv[1:])))
