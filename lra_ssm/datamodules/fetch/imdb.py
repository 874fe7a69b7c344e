"""Stanford's archive of IMDb reviews, which text classification and language models read.

    aclImdb/{train,test}/{pos,neg}/<id>_<rating>.txt    one review per file; train/unsup/ has no labels and is not read

Source: Maas et al., "Learning Word Vectors for Sentiment Analysis" (2011).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lra_ssm.datamodules.fetch.archives import iterate
from lra_ssm.datamodules.fetch.download import RemoteFile, download
from lra_ssm.datamodules.fetch.sources import download_folder
from lra_ssm.errors import InputError

# Stanford's page names no digest; this is the one that other libraries check (paddlepaddle, torchtext, …).
ARCHIVE = RemoteFile(
    ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
    "aclImdb_v1.tar.gz",
    "md5:7c2ac02c03563afcf9b574c7e56c153a",
    84_125_825,
)
DOWNLOADS = "text/download"
PLACES = ("", "imdb", "text", DOWNLOADS)  # below the data root
CLASSES = ("neg", "pos")
SPLITS = ("train", "test")
LAYOUT = "aclImdb/{train,test}/{neg,pos}/<id>_<rating>.txt"

_MEMBER = re.compile(r"(?:^|/)(train|test)/(neg|pos)/([^/.][^/]*\.txt)$")


class Member(NamedTuple):
    """A review in the archive: its split, class, file name, and path there."""

    split: str
    label: str
    name: str
    path: str


def find_original(root: Path) -> Path | None:
    """Stanford's folder or archive below the data root; None if there is none."""
    for place in PLACES:
        if is_layout(root / place / "aclImdb"):
            return root / place / "aclImdb"
        for archive in sorted((root / place).glob("aclImdb*.tar.gz")):
            if archive.is_file():
                return archive
    return None


def required(root: Path, command: str) -> Path:
    """As `find_original`; `command`: what downloads them. Raises InputError: there is none."""
    if (found := find_original(root)) is not None:
        return found
    places = ", ".join(place for place in PLACES if place)
    raise InputError(
        f"{root}: no IMDb reviews (aclImdb/ or aclImdb*.tar.gz) here or in {places} below it; `lra-ssm prepare"
        f" {command} --root={root}` downloads them"
    )


def is_layout(folder: Path) -> bool:
    """Whether a folder is the unpacked archive."""
    return all((folder / split / name).is_dir() for split in SPLITS for name in CLASSES)


def fetch_original(root: Path) -> None:
    """Downloads Stanford's archive to <root>/text/download/, compared with its published digest.

    Raises:
        InputError: the root cannot be used, or as `download`.
    """
    with download_folder(root, DOWNLOADS) as folder:
        download(ARCHIVE, folder)


def members(archive: Path, progress: bool = True) -> Iterator[tuple[Member, bytes]]:
    """The labelled reviews of an archive with their bytes, in its order; `progress`: with a bar.

    Raises:
        InputError: as `iterate`.
    """
    for path, data in iterate(archive, lambda path: bool(_MEMBER.search(path)), progress=progress):
        matched = _MEMBER.search(path)
        assert matched is not None
        yield Member(matched[1], matched[2], matched[3], path), data
