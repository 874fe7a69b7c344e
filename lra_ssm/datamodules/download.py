"""Files from the internet: downloads, archives, the Hub's files, the Long Range Arena's archive."""

import hashlib
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from lra_ssm.bars import Bar
from lra_ssm.datamodules.storage import ensure_root
from lra_ssm.errors import InputError, describe_error
from lra_ssm.files import locked, new_folder

_CHUNK = 1 << 20
_TRIES = 5


@dataclass(frozen=True)
class Remote:
    """A published file: its URL and its digest ("md5:…" or "sha256:…"; None if none is published)."""

    url: str
    digest: str | None = None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


def download(file: Remote, root: Path, below: str = "") -> Path:
    """Return <root>/<below>/<name>, downloaded if it is missing or differs from what was published.

    A broken download continues where it stopped (`<name>.part`). Only one process downloads; the others wait.

    Raises:
        InputError: the root cannot be used, the server does not give the file, or its digest is wrong (then what was
            downloaded is removed).
    """
    ensure_root(root)
    path = root / below / file.name
    part = path.with_name(f"{file.name}.part")
    with locked(path.with_name(f"{file.name}.lock"), "downloads this file"):
        if path.is_file() and not _mismatch(file, path):
            return path
        for attempt in range(_TRIES):
            try:
                _receive(file, part)
                break
            except (OSError, HTTPException) as error:
                if isinstance(error, HTTPError) and error.code == 416:  # the part is longer than the file
                    part.unlink(missing_ok=True)
                if attempt == _TRIES - 1:
                    raise InputError(f"{file.url}: cannot be downloaded to {path} ({error})") from error
                time.sleep(2**attempt)
        if mismatch := _mismatch(file, part):
            part.unlink()
            raise InputError(f"{file.url}: {mismatch}; the download was removed, start again")
        part.replace(path)
    return path


def _receive(file: Remote, part: Path) -> None:
    """Append the missing bytes of a file to its partial download."""
    start = part.stat().st_size if part.exists() else 0
    request = Request(file.url, headers={"Range": f"bytes={start}-"} if start else {})
    with urlopen(request, timeout=30) as response:
        start = start if response.status == 206 else 0  # a server without ranges sends all of it
        total = start + response.length if response.length else None
        with open(part, "ab" if start else "wb") as out, Bar(file.name, total, in_bytes=True, done=start) as bar:
            while data := response.read1(_CHUNK):
                out.write(data)
                bar.advance(len(data))
    if total is not None and part.stat().st_size < total:
        raise ConnectionError(f"cut off after {part.stat().st_size:,} of {total:,} bytes")


def _mismatch(file: Remote, path: Path) -> str:
    """Return how a downloaded file differs from the published one; empty if it does not."""
    if file.digest is not None:
        kind, _, published = file.digest.partition(":")
        with open(path, "rb") as data:
            digest = hashlib.file_digest(data, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
        if digest != published:
            return f"has the {kind} {digest} instead of the published {published}"
    return ""


# -- archives ----------------------------------------------------------------------------------------------------------


@contextmanager
def _open_archive(archive: Path) -> Iterator[tuple[tarfile.TarFile, Iterator[tarfile.TarInfo]]]:
    """Open a tar archive and its members in order, with a progress bar. Raises InputError if it is damaged."""

    def members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # else it keeps all, millions in LRA's archive
            bar.advance(file.tell() - bar.n)
            yield member

    try:
        size = archive.stat().st_size
        with open(archive, "rb") as file, Bar(f"reading {archive.name}", size, in_bytes=True) as bar:
            with tarfile.open(fileobj=file, mode="r:*") as tar:
                yield tar, members(tar)
    except InputError:
        raise
    except Exception as error:  # damaged bytes give any error of tarfile, gzip, bz2 or lzma
        raise InputError(
            f"{archive}: cannot be unpacked ({describe_error(error)}); delete it and get it again"
        ) from error


def read_archive(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each wanted file of a tar archive, in its order.

    Raises:
        InputError: the archive is missing or damaged.
    """
    with _open_archive(archive) as (tar, members):
        for member in members:
            if member.isfile() and wanted(member.name):
                file = tar.extractfile(member)
                assert file is not None
                yield member.name, file.read()


def unpack(archive: Path, below: str, target: Path) -> None:
    """Unpack the files below a folder of a tar archive into a new folder, which appears complete or not at all.

    Raises:
        InputError: the archive is missing, damaged, has a member that leads out of it, or has no such folder.
    """
    with _open_archive(archive) as (tar, members), new_folder(target) as folder:
        for member in members:
            if member.name.removeprefix("./").startswith(f"{below}/") and not member.isdir():
                inside = member.replace(name=member.name.partition(f"{below}/")[2])
                tar.extract(inside, folder, filter="data")
        if not any(folder.iterdir()):
            raise InputError(f"{archive}: has no folder {below}")


# -- the Hub -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hub:
    """Files of a public dataset of the Hub at one commit, stored in <root>/<folder>/<repository>-<revision>.

    Args:
        repository: "owner/name".
        revision: the commit.
        patterns: the wanted files, with * for anything.
        folder: below the data root.
    """

    repository: str
    revision: str
    patterns: tuple[str, ...]
    folder: str

    def path(self, root: Path) -> Path:
        """Return the folder of the files, existing or not."""
        return root / self.folder / f"{self.repository.replace('/', '-')}-{self.revision[:12]}"

    def is_complete(self, root: Path) -> bool:
        """Return whether `fetch` has completed."""
        return self.path(root).is_dir()

    def fetch(self, root: Path) -> Path:
        """Download the files if they are not complete. Raises InputError if that fails."""
        from huggingface_hub import snapshot_download

        ensure_root(root)
        folder = self.path(root)
        part = folder.with_name(f"{folder.name}.part")
        with locked(folder.with_name(f"{folder.name}.lock"), "downloads this dataset"):
            if not folder.is_dir():
                commit, patterns = self.revision, list(self.patterns)
                try:
                    snapshot_download(
                        self.repository, repo_type="dataset", revision=commit, allow_patterns=patterns, local_dir=part
                    )
                    part.rename(folder)
                except Exception as error:  # from huggingface_hub, or the libraries below it
                    name = f"{self.repository}@{self.revision[:12]}"
                    raise InputError(f"{name}: cannot be downloaded ({describe_error(error)})") from error
        return folder


def parquet_files(folder: Path, split: str) -> list[Path]:
    """Return the parquet files of a split, as the Hub names them: train-00000-of-00001.parquet."""
    return sorted(path for path in folder.rglob("*.parquet") if path.name.startswith((f"{split}-", f"{split}.")))


def read_parquet(path: Path, *columns: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("FILE: row N", the values by column) for each row; for a column "a.b" the value of a has only b.

    Raises:
        InputError: the file is missing or damaged, or has no such column.
    """
    from pyarrow.parquet import ParquetFile

    begin = 0
    try:
        # Column chunks come through a buffer, not whole: a row group may be larger than memory.
        file = ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
        names = file.schema_arrow.names
        for name in columns:
            if name.partition(".")[0] not in names:
                raise InputError(f"{path}: has no column {name!r}; it has {', '.join(names)}")
        for batch in file.iter_batches(1024, columns=list(columns), use_threads=False):
            for row, record in enumerate(batch.to_pylist(), start=begin):
                yield f"{path}: row {row}", record
            begin += len(batch)
    except InputError:
        raise
    except Exception as error:  # pyarrow raises errors of many kinds
        raise InputError(f"{path}: cannot be read, or is cut off or damaged ({describe_error(error)})") from error


# -- the Long Range Arena's archive ------------------------------------------------------------------------------------

# No digest is published.
LRA = Remote("https://storage.googleapis.com/long-range-arena/lra_release.gz")
LRA_DOWNLOAD = "downloads LRA's archive (more than 7 GB)"  # what `lra-ssm prepare` does, for messages
# The archive has some folders twice, below lra_release/ and lra_release/lra_release/; the inner ones are complete.
LRA_INNER = "lra_release/lra_release"


class LRAFolder(NamedTuple):
    """A folder of LRA's archive."""

    folder: str
    names: tuple[str, ...]  # files or folders in it
    others: tuple[str, ...] = ()  # further places where users have them, below the data root

    def find(self, root: Path) -> Path | None:
        """Return the first folder below `root` that has one of the names: as unpacked, as users move it, or the root.

        Raises:
            InputError: a folder has only some of the names; the message says which is missing.
        """
        for place in (f"{LRA_INNER}/{self.folder}", f"lra_release/{self.folder}", self.folder, *self.others, ""):
            missing = [name for name in self.names if not (root / place / name).exists()]
            if not missing:
                return root / place
            if len(missing) < len(self.names):
                raise InputError(f"{root / place / missing[0]}: is missing; all of {', '.join(self.names)} are needed")
        return None

    def fetch(self, root: Path) -> None:
        """Download the archive to the root, keep it there, and unpack the folder, unless it is found.

        Raises:
            InputError: it cannot be downloaded or unpacked.
        """
        if self.find(root) is not None:
            return
        archive, target = download(LRA, root), root / LRA_INNER / self.folder
        with locked(root / ".lra_release.lock", "unpacks LRA's archive"):
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                unpack(archive, f"{LRA_INNER}/{self.folder}", target)
