"""Stanford's IMDb reviews, which Text and Corpus read.

    aclImdb/{train,test}/{pos,neg}/<id>_<rating>.txt    the archive or its folder, one review per file; train/unsup/ has
                                                        no labels and is not read

Source: Maas et al., "Learning Word Vectors for Sentiment Analysis" (2011).
"""

import re
from collections.abc import Iterator
from pathlib import Path

from lra_ssm.bars import with_bar
from lra_ssm.datamodules.download import Remote, download, read_archive
from lra_ssm.errors import InputError

# Stanford's page names no digest; this is the one that other libraries check (paddlepaddle, torchtext, …).
ARCHIVE = Remote(
    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz", "md5:7c2ac02c03563afcf9b574c7e56c153a"
)
PLACES = ("", "imdb", "text", "text/download")  # below the data root
REVIEWS = "IMDb reviews (aclImdb/ or aclImdb*.tar.gz)"  # what is missing, for messages
CLASSES = ("neg", "pos")

_MEMBER = re.compile(r"(?:^|/)(train|test)/(neg|pos)/([^/.][^/]*\.txt)$")
Reviews = list[tuple[str, int]]  # (text, 0 negative or 1 positive)


def find_reviews(root: Path) -> Path | None:
    """Return Stanford's folder or archive below the data root, else None."""
    for place in PLACES:
        if (root / place / "aclImdb" / "train").is_dir():
            return root / place / "aclImdb"
        for archive in sorted((root / place).glob("aclImdb*.tar.gz")):
            return archive
    return None


def fetch_reviews(root: Path) -> None:
    """Download Stanford's archive below the data root if there is neither folder nor archive."""
    if find_reviews(root) is None:
        download(ARCHIVE, root, PLACES[-1])


def is_reviews(path: Path) -> bool:
    """Return whether a path is the archive, or a folder with its content."""
    if path.is_file():
        return re.fullmatch(r"aclImdb.*\.tar\.gz", path.name) is not None
    return all((path / split / label).is_dir() for split in ("train", "test") for label in CLASSES)


def read_published(path: Path) -> dict[str, Reviews]:
    """Return the labelled reviews of the archive or its folder by split (train, test), sorted by class and file name.

    Raises:
        InputError: a class has no reviews, or a text is not UTF-8; names the file.
    """
    texts_by_split: dict[str, dict[tuple[int, str], str]] = {"train": {}, "test": {}}
    members = read_archive(path, lambda name: bool(_MEMBER.search(name))) if path.is_file() else _read_folder(path)
    for name, data in members:
        matched = _MEMBER.search(name)
        assert matched is not None
        try:
            texts_by_split[matched[1]][CLASSES.index(matched[2]), matched[3]] = data.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: {name}: is not UTF-8 (byte {data[error.start]:#04x})") from None
    reviews = {split: [(texts[key], key[0]) for key in sorted(texts)] for split, texts in texts_by_split.items()}
    check_classes(reviews, path)
    return reviews


def check_classes(reviews: dict[str, Reviews], path: Path) -> None:
    """Raise InputError unless both splits have reviews of both classes."""
    for split, split_reviews in reviews.items():
        if {label for _, label in split_reviews} != {0, 1}:
            raise InputError(
                f"{path}: no reviews of both classes in {split}; expected aclImdb or the Hub's parquet files"
            )


def _read_folder(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the reviews of an unpacked archive."""
    files = sorted(path.glob("t*/*/[!.]*.txt"))
    for file in with_bar(files, f"reading {path}", len(files)):
        if _MEMBER.search(str(file)):
            yield str(file.relative_to(path)), file.read_bytes()
