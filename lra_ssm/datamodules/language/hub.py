"""Files of the Hub's datasets, fetched below the data root: listed by huggingface_hub, received by `fetch.download`.

huggingface_hub 2 throws away what it has of a file when it fails; a part of 14 GB is worth keeping. Ours goes on where
it broke off, in another process too, and compares with the digests that the Hub lists.

    <folder>/<the files as the repository has them>
    <folder>/files.json         once all are there: repository, revision, bytes and sha256 of each
"""

import fnmatch
import json
import logging
import time
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote

from lra_ssm.datamodules.fetch.download import RemoteFile, download
from lra_ssm.datamodules.fetch.sources import download_folder
from lra_ssm.datamodules.storage.disk import check_disk_space
from lra_ssm.errors import InputError
from lra_ssm.files import locked, write_json

log = logging.getLogger(__name__)

NOTE = "files.json"


class HubFile(NamedTuple):
    """A file of a repository, `size` in bytes; `sha256` None where the Hub lists none."""

    name: str
    size: int | None
    sha256: str | None


def fetched(folder: Path, note: str = NOTE) -> dict[str, Any] | None:
    """The note of what `fetch_files` has completed; None if it has not, or files have gone since."""
    try:
        found = json.loads((folder / note).read_text())
        complete = all((folder / file["name"]).stat().st_size == file["bytes"] for file in found["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if complete else None


def fetch_files(
    repository: str,
    revision: str,
    patterns: tuple[str, ...],
    root: Path,
    below: str,
    *,
    note: str = NOTE,
    tries: int = 5,
    backoff: float = 1.0,
) -> Path:
    """Makes sure that files of a public dataset are in a folder below the data root.

    Several processes may call this at the same time: one downloads, the others wait. What was received of a file stays,
    whatever ends the download.

    Args:
        repository: "owner/name" of the dataset.
        revision: its commit.
        patterns: of the files wanted, with * for anything.
        root: the data root; created if only it is missing.
        below: the folder, as a path below it.
        note: the name of the note.
        tries: how often in a row the Hub may bring nothing new before it is given up.
        backoff: seconds before the first further try, doubled with each.

    Returns:
        The folder.

    Raises:
        InputError: offline, no such repository or revision, no access, no such files, no room, a wrong digest, or the
            root cannot be used.
    """
    if fetched(root / below, note):
        return root / below
    with download_folder(root, below) as folder, locked(folder / ".huggingface.lock", "downloads this dataset"):
        if fetched(folder, note):
            return folder
        files = listed(repository, revision, patterns, tries, backoff)
        needed = sum(file.size or 0 for file in files if not (folder / file.name).is_file())
        check_disk_space(folder, needed, f"{repository}@{revision[:12]}")
        entries = []
        for number, file in enumerate(files, 1):
            path = PurePosixPath(file.name)
            (folder / path.parent).mkdir(parents=True, exist_ok=True)
            log.info("%s: file %d of %d, %s", repository, number, len(files), file.name)
            remote = RemoteFile(
                (_address(repository, revision, file.name),),
                path.name,
                None if file.sha256 is None else f"sha256:{file.sha256}",
                file.size,
            )
            got = download(remote, folder / path.parent, tries=tries, backoff=backoff)
            entries.append({"name": file.name, "bytes": got.bytes, "sha256": got.sha256, "digest": got.digest})
        write_json(folder / note, {"repository": repository, "revision": revision, "files": entries})
        return folder


def listed(
    repository: str, revision: str, patterns: tuple[str, ...], tries: int = 5, backoff: float = 1.0
) -> list[HubFile]:
    """The files of a dataset's revision that match a pattern, sorted by name.

    Raises:
        InputError: offline, no such repository or revision, no access, no answer, or no file matches.
    """
    from huggingface_hub import HfApi, errors

    name = f"{repository}@{revision[:12]}"
    for failed in range(1, tries + 1):
        try:
            info = HfApi().dataset_info(repository, revision=revision, files_metadata=True)
            break
        except errors.OfflineModeIsEnabled as error:
            raise InputError(f"{name}: cannot be downloaded in offline mode; unset HF_HUB_OFFLINE") from error
        except errors.GatedRepoError as error:
            raise InputError(f"{name}: no access without its owner's consent and a token; see its page") from error
        except errors.RepositoryNotFoundError as error:
            raise InputError(f"{name}: the Hub has no such dataset, or it is private") from error
        except errors.RevisionNotFoundError as error:
            raise InputError(f"{name}: the dataset has no such revision") from error
        except Exception as error:  # whatever the libraries below raise: connections, the Hub
            status = getattr(getattr(error, "response", None), "status_code", None)
            reason = str(error).partition("\n")[0] or type(error).__name__
            if failed == tries or (status is not None and status < 500 and status not in (408, 429)):
                raise InputError(f"{name}: its files cannot be listed ({reason})") from error
            log.warning("%s: %s; trying again (%d of %d)", name, reason, failed + 1, tries)
            time.sleep(min(backoff * 2 ** (failed - 1), 60.0))
    files = [
        HubFile(file.rfilename, file.size, getattr(file.lfs, "sha256", None))
        for file in info.siblings or ()
        if any(fnmatch.fnmatchcase(file.rfilename, pattern) for pattern in patterns)
    ]
    for file in files:
        path = PurePosixPath(file.name)
        if path.is_absolute() or ".." in path.parts or "\\" in file.name or path.suffix == ".json":
            raise InputError(f"{name}: lists a file {file.name!r}, which has no usable name")
    if not files:
        raise InputError(f"{name}: has no files {', '.join(patterns)}")
    return sorted(files)


def _address(repository: str, revision: str, name: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/datasets/{repository}/resolve/{revision}/{quote(name)}"
