"""Datasets of the Hub: fetched below the data root by huggingface_hub, file by file, and read from there.

<folder>/<the files as the repository has them>
<folder>/files.json         once all are there: repository, revision, bytes and sha256 of each

Read is also what `datasets` has saved (save_to_disk). Nothing is copied to the cache of `datasets`.
"""

import fnmatch
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_ssm.datamodules.fetch.sources import download_folder
from lra_ssm.datamodules.old_storage.disk import check_disk_space
from lra_ssm.errors import InputError
from lra_ssm.files import locked, one_reason, sha256, write_json

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

log = logging.getLogger(__name__)

NOTE = "files.json"
MARKERS = ("dataset_dict.json", "dataset_info.json")  # of save_to_disk
SPLITS = ("train", "test")


@dataclass(frozen=True)
class HubDataset:
    """Files of a public dataset, at one commit.

    Args:
        repository: "owner/name".
        revision: the commit.
        patterns: of the wanted files, with * for anything.
        downloads: the folder of the dataset's downloads, below the data root.
        note: the name of the note.
    """

    repository: str
    revision: str
    patterns: tuple[str, ...]
    downloads: str
    note: str = NOTE

    @property
    def name(self) -> str:
        """As messages call it."""
        return f"{self.repository}@{self.revision[:12]}"

    @property
    def below(self) -> str:
        """Its folder below the data root: a new revision is a new download."""
        return f"{self.downloads}/{self.name.replace('/', '-').replace('@', '-')}"

    @property
    def origin(self) -> dict[str, str]:
        """What a manifest says of it."""
        return {"repository": self.repository, "revision": self.revision}

    def found(self, root: Path) -> Path | None:
        """The folder that `fetch` has completed; None if it has not, or files have gone since."""
        folder = root / self.below
        try:
            files = json.loads((folder / self.note).read_text())["files"]
            complete = all((folder / file["name"]).stat().st_size == file["bytes"] for file in files)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return folder if complete else None

    def there(self, root: Path) -> Path | None:
        """As `found`; or where an earlier version saved it by `datasets`."""
        folder = root / self.below
        return folder if any((folder / marker).is_file() for marker in MARKERS) else self.found(root)

    def fetch(self, root: Path) -> Path:
        """Makes sure that the files are below the data root, which is created if only it is missing.

        Of several processes one downloads, the others wait. Files that are whole stay, whatever ends the download.

        Returns:
            The folder.

        Raises:
            InputError: offline, no such repository or revision, no access, no such files, no room, a wrong digest, or
                the root cannot be used.
        """
        if there := self.found(root):
            return there
        with download_folder(root, self.below) as folder, locked(folder / ".huggingface.lock", "downloads this"):
            if self.found(root) is None:
                files = self.listed()
                needed = sum(file.size or 0 for file in files if not (folder / file.rfilename).is_file())
                check_disk_space(folder, needed, self.name)
                entries = [self._fetch(file, folder) for file in files]
                write_json(folder / self.note, {**self.origin, "files": entries})
            return folder

    def listed(self) -> "list[RepoSibling]":
        """The wanted files, sorted by name, with sizes and what the Hub says of their content.

        Raises:
            InputError: offline, no such repository or revision, no access, no answer, or no file matches.
        """
        from huggingface_hub import HfApi

        try:
            info = HfApi().dataset_info(self.repository, revision=self.revision, files_metadata=True)
        except Exception as error:  # no such dataset or revision, or whatever the libraries below raise
            raise InputError(f"{self.name}: its files cannot be listed ({one_reason(error)})") from error
        every = sorted(info.siblings or (), key=lambda file: file.rfilename)
        files = [file for file in every if any(fnmatch.fnmatchcase(file.rfilename, own) for own in self.patterns)]
        if not files:
            raise InputError(f"{self.name}: has no files {', '.join(self.patterns)}")
        return files

    def _fetch(self, file: "RepoSibling", folder: Path) -> dict[str, Any]:
        """The note's entry of a file, which is there and has the listed digest."""
        from huggingface_hub import hf_hub_download

        name, published = file.rfilename, getattr(file.lfs, "sha256", None)
        log.info("%s: fetching %s", self.name, name)
        place: dict[str, Any] = {"repo_type": "dataset", "revision": self.revision, "local_dir": folder}
        try:
            path = Path(hf_hub_download(self.repository, name, **place))
        except Exception as error:  # whatever the libraries below raise: connections, the Hub, the disk
            raise InputError(f"{self.name}: {name} cannot be downloaded ({one_reason(error)})") from error
        digest = sha256(path)
        if published not in (None, digest):
            path.unlink()
            raise InputError(
                f"{self.name}: {name} has the sha256 {digest} instead of the published {published}; it is"
                " removed, start again"
            )
        known = "unknown" if published is None else "published"
        return {"name": name, "bytes": path.stat().st_size, "sha256": digest, "digest": known}


# -- reading -----------------------------------------------------------------------------------------------------------


def is_hub_dataset(folder: Path) -> bool:
    """Whether a folder is a dataset of the Hub: with parquet files of both splits, or written by save_to_disk."""
    return any((folder / marker).is_file() for marker in MARKERS) or all(_parquet(folder).values())


def watched_files(folder: Path) -> list[Path]:
    """Files whose sizes and times tell whether the content of such a folder may have changed."""
    found = [path for pattern in ("*.json", "*.arrow", "*/*.arrow") for path in folder.glob(pattern)]
    found += [path for paths in _parquet(folder).values() for path in paths]
    # What `datasets` computes of a folder, by whichever program, it keeps inside as cache-<fingerprint>.arrow.
    return sorted(path for path in found if not path.name.startswith("cache-"))


@contextmanager
def loaded_splits(folder: Path) -> Iterator[dict[str, Any]]:
    """A `datasets.Dataset` for each split of train and test that is there.

    Raises:
        InputError: the files are damaged, or the block finds in them what it does not expect.
    """
    import datasets
    from datasets.table import InMemoryTable
    from pyarrow.parquet import read_table

    try:
        parquet = _parquet(folder)
        if all(parquet.values()):
            yield {split: datasets.Dataset(InMemoryTable(read_table(paths))) for split, paths in parquet.items()}
            return
        saved = datasets.load_from_disk(str(folder))
        if not isinstance(saved, dict):
            saved = {"train": saved}
        yield {split: saved[split] for split in SPLITS if split in saved}
    except InputError:
        raise
    except Exception as error:  # damaged files, columns of other kinds; whatever the libraries say
        raise InputError(f"{folder}: cannot be read as a dataset of the Hub ({one_reason(error)})") from error


def _parquet(folder: Path) -> dict[str, list[Path]]:
    """By split, as in the Hub's repositories, or beside each other."""
    found = sorted([*folder.glob("*.parquet"), *folder.glob("*/*.parquet")])
    return {split: [path for path in found if re.match(rf"{split}\b", path.name)] for split in SPLITS}
