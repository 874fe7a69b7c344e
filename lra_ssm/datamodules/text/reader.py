"""Finds, downloads and reads IMDb reviews: Stanford's archive or folder, or what Hugging Face's `datasets` writes.

    aclImdb/{train,test}/{pos,neg}/<id>_<rating>.txt    one review per file; train/unsup/ has no labels and is not read

Reviews are read by class (neg 0, pos 1) and file name, whatever the order of an archive or folder; those of the Hub
have no names and keep their order. `text_build` writes all of them in the same, mixed order.

Source: Maas et al., "Learning Word Vectors for Sentiment Analysis" (2011). Needs neither torch nor lightning.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lra_ssm.bars import with_bar
from lra_ssm.datamodules.fetch.download import compared
from lra_ssm.datamodules.fetch.imdb import ARCHIVE, CLASSES, DOWNLOADS, LAYOUT, SPLITS, is_layout, members
from lra_ssm.datamodules.fetch.imdb import find_original as find_archive
from lra_ssm.datamodules.fetch.sources import download_folder
from lra_ssm.datamodules.storage.disk import check_disk_space
from lra_ssm.errors import InputError
from lra_ssm.files import locked

HUB_NAME = "stanfordnlp/imdb"
HUB_REVISION = "e6281661ce1c48d982bc483cf8a173c1bbeb5d31"  # as several public repositories pin it
HUB_FOLDER = f"{DOWNLOADS}/stanfordnlp-imdb-{HUB_REVISION[:12]}"

# What the Hub's copy takes here, roughly: the texts of both splits, before and after their conversion.
_HUB_BYTES = 150_000_000

_PARQUET = re.compile(r"(train|test)\b.*\.parquet$")
_ROWS = 1000  # read at a time


@dataclass(frozen=True)
class Reviews:
    """One split: texts and labels (n each; 0 negative, 1 positive)."""

    texts: list[str]
    labels: list[int]


class Found(NamedTuple):
    """Where reviews are, and how they are kept."""

    path: Path
    form: Literal["folder", "archive", "saved", "parquet"]


def find_original(root: Path) -> Found | None:
    """Stanford's folder or archive below the data root; None if there is none."""
    path = find_archive(root)
    return None if path is None else Found(path, "folder" if path.is_dir() else "archive")


def find_huggingface(root: Path) -> Found | None:
    """What `fetch_huggingface` has written; None if it has not."""
    folder = root / HUB_FOLDER
    return Found(folder, "saved") if (folder / "dataset_dict.json").is_file() else None


def find_at(path: Path) -> Found:
    """Reviews at a path of the user's: an archive, an aclImdb folder or its parent, or a folder that `datasets` wrote.

    Raises:
        InputError: there is nothing of the kind.
    """
    if path.is_file():
        return Found(path, "archive")
    for folder in (path, path / "aclImdb"):
        if is_layout(folder):
            return Found(folder, "folder")
    if (path / "dataset_dict.json").is_file():
        return Found(path, "saved")
    for folder in (path, path / "plain_text", path / "data"):
        if _parquet_files(folder):
            return Found(folder, "parquet")
    raise InputError(
        f"{path}: holds no IMDb reviews; give an archive or a folder with {LAYOUT}, or a folder that `datasets` saved"
        " (dataset_dict.json, or train*.parquet and test*.parquet)"
    )


def stamped_files(found: Found) -> list[Path]:
    """The files or, of Stanford's layout, the four folders whose sizes and times of change stand for the content."""
    if found.form == "folder":
        return [found.path / split / name for split in SPLITS for name in CLASSES]
    if found.form == "archive":
        return [found.path]
    if found.form == "saved":
        return sorted(path for path in found.path.rglob("*") if path.is_file() and not path.name.startswith("cache-"))
    return [path for paths in _parquet_files(found.path).values() for path in paths]


def read(found: Found) -> dict[str, Reviews]:
    """Reads all labelled reviews, by split (train, test).

    Raises:
        InputError: a class is missing, a text is not UTF-8, a label is neither 0 nor 1; names the file and the review.
    """
    if found.form in ("saved", "parquet"):
        rows = _saved_rows if found.form == "saved" else _parquet_rows
        return {split: _checked_rows(found.path, split, rows(found.path, split)) for split in SPLITS}
    named: dict[str, dict[tuple[int, str], str]] = {split: {} for split in SPLITS}
    for split, label, name, where, data in _archive_texts(found) if found.form == "archive" else _folder_texts(found):
        if (label, name) in named[split]:
            raise InputError(f"{where}: is there twice, in different folders; an archive holds one aclImdb")
        try:
            named[split][label, name] = data.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{where}:1: is not UTF-8 (byte {data[error.start]:#04x} at {error.start})") from None
    for split in SPLITS:
        for label, folder in enumerate(CLASSES):
            if not any(key[0] == label for key in named[split]):
                raise InputError(f"{found.path}: no reviews in {split}/{folder}; expected {LAYOUT}")
    order = {split: sorted(named[split]) for split in SPLITS}
    return {
        split: Reviews([named[split][key] for key in keys], [label for label, _ in keys])
        for split, keys in order.items()
    }


def describe(found: Found) -> dict[str, Any]:
    """What a manifest says of where the reviews came from; reads an archive once more for its digests.

    Returns:
        path and form, of an archive also bytes, sha256, whether its digest is "published" or "unknown", and the url if
        we have downloaded it.
    """
    entry: dict[str, Any] = {"path": str(found.path), "form": found.form}
    if found.form != "archive":
        return entry
    return entry | asdict(compared(ARCHIVE, found.path)[0])


def fetch_huggingface(root: Path) -> None:
    """Downloads the Hub's dataset at a pinned revision with the `datasets` library to <root>/text/download/.

    Raises:
        InputError: the root cannot be used, or the dataset cannot be had.
    """
    from datasets import DatasetDict, load_dataset

    with download_folder(root, DOWNLOADS) as folder, locked(folder / ".huggingface.lock", "downloads the reviews"):
        if find_huggingface(root) is not None:
            return
        check_disk_space(folder, _HUB_BYTES, HUB_NAME)
        temporary = folder / ".unfinished-huggingface"  # a killed process's is replaced
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            loaded = {split: load_dataset(HUB_NAME, revision=HUB_REVISION, split=split) for split in SPLITS}
            DatasetDict(loaded).save_to_disk(str(temporary))
            temporary.rename(root / HUB_FOLDER)
        except Exception as error:  # whatever the libraries below raise: connections, the Hub, the disk
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(f"{HUB_NAME}@{HUB_REVISION[:12]}: cannot be downloaded ({reason})") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _parquet_files(folder: Path) -> dict[str, list[Path]]:
    """Files by split; {} unless both have some."""
    files: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for path in sorted(folder.glob("*.parquet")):
        if matched := _PARQUET.match(path.name):
            if not path.is_file():
                raise InputError(f"{path}: is a folder or a link to nothing instead of a file")
            files[matched[1]].append(path)
    return files if all(files.values()) else {}


_Text = tuple[str, int, str, str, bytes]  # split, label, file name, where it is, content


def _archive_texts(found: Found) -> Iterator[_Text]:
    for member, data in members(found.path):
        yield member.split, CLASSES.index(member.label), member.name, f"{found.path}: {member.path}", data


def _folder_texts(found: Found) -> Iterator[_Text]:
    for split in SPLITS:
        for label, folder in enumerate(CLASSES):
            paths = sorted((found.path / split / folder).glob("[!.]*.txt"))
            for path in with_bar(paths, f"reading {split}/{folder}", len(paths)):
                try:
                    data = path.read_bytes()
                except OSError as error:  # a link to nothing, a folder, no permission
                    raise InputError(f"{path}: cannot be read ({error.strerror})") from error
                yield split, label, path.name, str(path), data


_Row = tuple[Any, Any]  # text, label


def _checked_rows(path: Path, split: str, rows: Iterable[_Row]) -> Reviews:
    reviews = Reviews([], [])
    for number, (text, label) in enumerate(rows):
        if not isinstance(text, str):
            raise InputError(f"{path}: {split} row {number}: its text is {text!r} instead of a string")
        if label not in (0, 1):
            raise InputError(f"{path}: {split} row {number}: its label is {label!r} instead of 0 or 1")
        reviews.texts.append(text)
        reviews.labels.append(int(label))
    if len(set(reviews.labels)) < len(CLASSES):
        raise InputError(f"{path}: split {split} does not hold reviews of both classes")
    return reviews


def _saved_rows(path: Path, split: str) -> Iterator[_Row]:
    from datasets import load_from_disk

    try:  # of damaged files, the libraries below raise whatever they do
        rows = load_from_disk(str(path))[split].select_columns(["text", "label"])
        for batch in with_bar(rows.iter(_ROWS), f"reading {split}", -(-len(rows) // _ROWS)):
            yield from zip(batch["text"], batch["label"], strict=True)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path}: `datasets` finds no columns text and label of split {split} ({reason})") from error


def _parquet_rows(path: Path, split: str) -> Iterator[_Row]:
    import pyarrow.parquet  # comes with `datasets`

    for file in _parquet_files(path)[split]:
        try:
            rows = pyarrow.parquet.ParquetFile(file)
            batches = rows.iter_batches(_ROWS, columns=["text", "label"])
            for batch in with_bar(batches, f"reading {file.name}", -(-rows.metadata.num_rows // _ROWS)):
                columns = batch.to_pydict()
                yield from zip(columns["text"], columns["label"], strict=True)
        except Exception as error:  # of a damaged file, pyarrow raises whatever it does
            reason = str(error).partition("\n")[0]
            raise InputError(f"{file}: cannot be read as parquet with columns text and label ({reason})") from error
