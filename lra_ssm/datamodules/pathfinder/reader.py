"""Read Pathfinder in the layout of LRA's archive.

    <folder>/metadata/<number>.npy               columns: folder, file, number, label, …
    <folder>/imgs/<number>/sample_<number>.png   8-bit gray, square

The metadata files are plain text, one image per line, in spite of their name. Images are in the order of the metadata
files' numbers and of their lines.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.images import Pixels, decode_image
from lra_ssm.errors import InputError

LABELS = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}


def metadata_files(folder: Path) -> list[Path]:
    """Return the metadata files in numeric order. Raises InputError if there are none."""
    files = [*folder.glob("metadata/[0-9]*.npy")]
    if not files:
        raise InputError(f"{folder / 'metadata'}: has no Pathfinder metadata files (0.npy, 1.npy, …)")
    return sorted(files, key=lambda path: int(path.stem))


def read_listing(folder: Path) -> tuple[list[Path], npt.NDArray[np.int64]]:
    """Return the paths of the images in order, and their labels (n,).

    Images that are empty files, of which LRA's archive has some, are left out.

    Raises:
        InputError: metadata is not as published; names file and line.
        OSError: an image is missing.
    """
    paths, labels = list[Path](), list[int]()
    for file in metadata_files(folder):
        for number, row in enumerate(_rows(file), 1):
            if len(row) < 4 or row[3] not in LABELS:
                what = " ".join(row)[:100]
                raise InputError(f"{file}:{number}: {what!r} is not folder, file, number and label (0 or 1)")
            path = folder / row[0] / row[1]
            if path.stat().st_size:
                paths.append(path)
                labels.append(LABELS[row[3]])
    return paths, np.array(labels, dtype=np.int64)


def read_images(paths: Sequence[Path], resolution: int) -> Pixels:
    """Decode images: (n, resolution, resolution, 1) uint8. Raises InputError if one is damaged or of another size."""
    size = resolution, resolution
    return np.stack([decode_image(path.read_bytes(), "L", size, str(path)) for path in paths])


def _rows(file: Path) -> list[list[str]]:
    """Return the columns of each image."""
    try:
        return [line.split() for line in file.read_text("utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is not text; LRA's metadata has a line for each image") from error
