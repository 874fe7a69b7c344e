"""CIFAR-10 as single PNG or JPEG files: class folders `{train,test}/<class>/…`, or Kaggle's `train/ID.png` and a list.

Images may come in any order; the result's is that of the sorted names.
"""

import csv
import hashlib
import io
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lra_ssm.datamodules.images.decoding import decode_image
from lra_ssm.datamodules.images.files import ImageFiles, LabelledImages
from lra_ssm.errors import InputError

SUFFIXES = (".png", ".jpg", ".jpeg")
LABEL_FILE = "trainLabels.csv"
Layout = Literal["class-folders", "kaggle"]
# Python takes no number of thousands of digits, which a path in an archive may have, and \d is more than these ten.
_NUMBER = r"[0-9]{1,18}"


def layout_of(name: str) -> Layout | None:
    """The layout that a path within the dataset belongs to; None for a file that is not read."""
    parts = name.split("/")  # pathlib would take seconds for 60,000 names
    if parts[-1] == LABEL_FILE:
        return "kaggle"
    if not parts[-1].lower().endswith(SUFFIXES):
        return None
    if len(parts) >= 3 and parts[-3] in ("train", "test"):
        return "class-folders"
    if len(parts) >= 2 and parts[-2] == "train" and re.fullmatch(_NUMBER, _stem(name)):
        return "kaggle"
    return None


def _stem(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[0]


class SingleFiles:
    """Collects single image files of one layout.

    Args:
        layout: which.
        class_names: in the order of the labels.
        size: height and width of all images.
        where: what errors begin with: the folder or archive.
    """

    def __init__(self, layout: Layout, class_names: tuple[str, ...], size: tuple[int, int], where: Path) -> None:
        self.layout, self.class_names, self.size, self.where = layout, class_names, size, where
        self._images: list[np.ndarray] = []
        self._digests: list[bytes] = []
        self._keys: list[tuple[Any, ...]] = []  # sorts the images; the first entry is the split
        self._labels: list[int] = []
        self._listed: dict[int, int] | None = None  # Kaggle's list: label by ID
        self._lossy = False

    def add(self, name: str, data: bytes) -> None:
        """Takes a file, given its path within the dataset.

        Raises:
            InputError: it is not as it should be.
        """
        parts = name.split("/")
        if parts[-1] == LABEL_FILE:
            self._listed = self._read_list(name, data)
            return
        if self.layout == "class-folders":
            split, label = parts[-3], self._label(parts[-2], name)
            key: tuple[Any, ...] = (split, label, natural(parts[-1]), name)
        else:
            label, key = -1, ("train", int(_stem(name)))
        decoded = decode_image(data, "RGB", self.size, f"{self.where}: {name}")
        self._lossy |= decoded.lossy
        self._images.append(decoded.pixels)
        self._digests.append(hashlib.sha256(data).digest())
        self._keys.append(key)
        self._labels.append(label)

    def finish(self) -> ImageFiles:
        """All images in the order of their names.

        Raises:
            InputError: images, labels, or training images are missing.
        """
        if self.layout == "kaggle":
            self._label_by_list()
        order = sorted(range(len(self._keys)), key=self._keys.__getitem__)
        parts: dict[str, LabelledImages] = {}
        for split in ("train", "test"):
            members = [number for number in order if self._keys[number][0] == split]
            if members:
                images = np.stack([self._images[number] for number in members])
                parts[split] = LabelledImages(images, np.array([self._labels[n] for n in members], dtype=np.int64))
        if "train" not in parts:
            raise InputError(f"{self.where}: holds no training images; expected train/<class>/NAME.png or .jpg")
        digest = hashlib.sha256(b"".join(self._digests[number] for number in order)).hexdigest()
        files = {"images": {"count": len(order), "sha256_of_sha256s": digest, "digest": "unknown"}}
        entry = {"layout": self.layout, "files": files} | ({"lossy": True} if self._lossy else {})
        return ImageFiles(parts["train"], parts.get("test"), entry)

    def _label(self, name: str, where: str) -> int:
        if name not in self.class_names:
            raise InputError(
                f"{self.where}: {where}: {name!r} is no class of this dataset; there are {', '.join(self.class_names)}"
            )
        return self.class_names.index(name)

    def _read_list(self, name: str, data: bytes) -> dict[int, int]:
        """Rows `ID,class`, below a header or not, the ID with its .png or without."""
        labels = {}
        try:
            rows = list(csv.reader(io.StringIO(data.decode("utf-8"))))
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{self.where}: {name}: is no list of the form ID,class ({error})") from error
        for number, row in enumerate(rows, 1):
            match = re.fullmatch(rf"({_NUMBER})(\.png)?", row[0].strip()) if len(row) == 2 else None
            if match is None:
                if number == 1 or not row:
                    continue  # the header, an empty line
                raise InputError(f"{self.where}: {name} line {number}: {','.join(row)!r} is not of the form ID,class")
            labels[int(match[1])] = self._label(row[1].strip(), f"{name} line {number}")
        return labels

    def _label_by_list(self) -> None:
        if self._listed is None:
            raise InputError(f"{self.where}: {LABEL_FILE} is missing, which names the classes of train/ID.png")
        numbers = [key[1] for key in self._keys]
        for present, wanted, problem in (
            (numbers, self._listed.keys(), "is not listed in " + LABEL_FILE),
            (self._listed, set(numbers), "is missing, though listed in " + LABEL_FILE),
        ):
            lost = [number for number in present if number not in wanted]
            if lost:
                raise InputError(f"{self.where}: train/{min(lost)}.png {problem} ({len(lost)} in all)")
        self._labels = [self._listed[number] for number in numbers]


def natural(name: str) -> list[tuple[int, int | str]]:
    """A key that sorts names with numbers in them by the numbers: img2 before img10."""
    parts = re.split(f"({_NUMBER})", name)  # text and numbers in turn
    return [(0, int(part)) if index % 2 else (1, part) for index, part in enumerate(parts) if part]
