"""Finds and reads IMDb reviews: Stanford's archive or folder, or a dataset of the Hub.

    aclImdb/{train,test}/{pos,neg}/<id>_<rating>.txt    one review per file; train/unsup/ has no labels and is not read

Reviews are read by class (neg 0, pos 1) and file name, whatever the order of an archive or folder; those of the Hub
have no names and keep their order. `build` writes all of them in the same, mixed order.

Source: Maas et al., "Learning Word Vectors for Sentiment Analysis" (2011).
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lra_ssm.bars import with_bar
from lra_ssm.datamodules.fetch import hub
from lra_ssm.datamodules.fetch.download import compared
from lra_ssm.datamodules.fetch.imdb import ARCHIVE, CLASSES, DOWNLOADS, LAYOUT, SPLITS, is_layout, members
from lra_ssm.datamodules.fetch.sources import opened
from lra_ssm.errors import InputError

HUB = hub.HubDataset(
    "stanfordnlp/imdb",
    "e6281661ce1c48d982bc483cf8a173c1bbeb5d31",  # as several public repositories pin it
    ("plain_text/train-*.parquet", "plain_text/test-*.parquet"),
    DOWNLOADS,
)


class Reviews(NamedTuple):
    """One split: texts and labels (n each; 0 negative, 1 positive)."""

    texts: list[str]
    labels: list[int]

    def take(self, numbers: npt.NDArray[np.int64]) -> "Reviews":
        """Those with these numbers, in this order."""
        return Reviews([self.texts[i] for i in numbers], [self.labels[i] for i in numbers])


def find_huggingface(root: Path) -> Path | None:
    """What has been fetched of the Hub, as parquet or as older versions saved it; None if nothing."""
    return HUB.there(root)


def find_at(path: Path) -> Path:
    """The archive or folder of an existing path that a user gives.

    Raises:
        InputError: there is nothing of the kind.
    """
    for place in (path, path / "aclImdb"):
        if place.is_file() or is_layout(place) or hub.is_hub_dataset(place):
            return place
    raise InputError(
        f"{path}: holds no IMDb reviews; give an archive or a folder with {LAYOUT}, the Hub's parquet files, or what"
        " `datasets` saved of them"
    )


def watched_files(path: Path) -> list[Path]:
    """The files, or of Stanford's layout the four folders, whose times stand for the content."""
    if path.is_file():
        return [path]
    if is_layout(path):
        return [path / split / name for split in SPLITS for name in CLASSES]
    return hub.watched_files(path)


def read(path: Path) -> dict[str, Reviews]:
    """Reads all labelled reviews of what was found, by split (train, test).

    Raises:
        InputError: a class is missing, a text is not UTF-8, a label is neither 0 nor 1; names the file and the review.
    """
    if path.is_dir() and not is_layout(path):
        with hub.loaded_splits(path) as splits:
            return {split: _from_hub(splits[split], f"{path}: {split}") for split in SPLITS}
    named: dict[str, dict[tuple[int, str], str]] = {split: {} for split in SPLITS}
    for split, label, name, where, data in _archive_texts(path) if path.is_file() else _folder_texts(path):
        key = CLASSES.index(label), name
        if key in named[split]:
            raise InputError(f"{where}: is there twice, in different folders; an archive holds one aclImdb")
        try:
            named[split][key] = data.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{where}:1: is not UTF-8 (byte {data[error.start]:#04x} at {error.start})") from None
    for split, texts in named.items():
        for number, folder in enumerate(CLASSES):
            if number not in {label for label, _ in texts}:
                raise InputError(f"{path}: no reviews in {split}/{folder}; expected {LAYOUT}")
    return {
        split: Reviews([texts[key] for key in sorted(texts)], [label for label, _ in sorted(texts)])
        for split, texts in named.items()
    }


def describe(path: Path) -> dict[str, Any]:
    """What a manifest says of where the reviews came from; reads an archive once more for its digests.

    Returns:
        path and form, and of an archive what `DownloadNote` has.
    """
    if path.is_file():
        return {"path": str(path), "form": "archive", **asdict(compared(ARCHIVE, path)[0])}
    return {"path": str(path), "form": "folder" if is_layout(path) else "huggingface"}


def _from_hub(dataset: Any, where: str) -> Reviews:
    rows = dataset.select_columns(["text", "label"])[:]
    reviews = Reviews(rows["text"], rows["label"])
    for number, (text, label) in enumerate(zip(reviews.texts, reviews.labels, strict=True)):
        if not isinstance(text, str) or label not in (0, 1):
            raise InputError(f"{where} row {number}: has text {text!r:.40} and label {label!r}; expected is 0 or 1")
    if len(set(reviews.labels)) < len(CLASSES):
        raise InputError(f"{where} does not hold reviews of both classes")
    return reviews


_Text = tuple[str, str, str, str, bytes]  # split, class, file name, where it is, content


def _archive_texts(path: Path) -> Iterator[_Text]:
    for member, data in members(path):
        yield member.split, member.label, member.name, f"{path}: {member.path}", data


def _folder_texts(path: Path) -> Iterator[_Text]:
    for split in SPLITS:
        for label in CLASSES:
            files = sorted((path / split / label).glob("[!.]*.txt"))
            for file in with_bar(files, f"reading {split}/{label}", len(files)):
                with opened(file) as content:
                    yield split, label, file.name, str(file), content.read()
