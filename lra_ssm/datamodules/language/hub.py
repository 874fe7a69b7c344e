"""Files of the Hub's datasets, fetched below the data root by huggingface_hub, file by file.

<folder>/<the files as the repository has them>
<folder>/files.json         once all are there: repository, revision, bytes and sha256 of each
"""

import fnmatch
import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

from lra_ssm.datamodules.fetch.sources import download_folder
from lra_ssm.datamodules.storage.disk import check_disk_space
from lra_ssm.errors import InputError
from lra_ssm.files import locked, one_reason, sha256, write_json

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
    repository: str, revision: str, patterns: tuple[str, ...], root: Path, below: str, *, note: str = NOTE
) -> Path:
    """Makes sure that files of a public dataset are in a folder below the data root.

    Several processes may call this at the same time: one downloads, the others wait. Files that are whole stay,
    whatever ends the download.

    Args:
        repository: "owner/name" of the dataset.
        revision: its commit.
        patterns: of the files wanted, with * for anything.
        root: the data root; created if only it is missing.
        below: the folder, as a path below it.
        note: the name of the note.

    Returns:
        The folder.

    Raises:
        InputError: offline, no such repository or revision, no access, no such files, no room, a wrong digest, or the
            root cannot be used.
    """
    from huggingface_hub import hf_hub_download

    if fetched(root / below, note):
        return root / below
    with download_folder(root, below) as folder, locked(folder / ".huggingface.lock", "downloads this dataset"):
        if fetched(folder, note):
            return folder
        files = listed(repository, revision, patterns)
        needed = sum(file.size or 0 for file in files if not (folder / file.name).is_file())
        check_disk_space(folder, needed, f"{repository}@{revision[:12]}")
        entries = []
        for number, file in enumerate(files, 1):
            log.info("%s: file %d of %d, %s", repository, number, len(files), file.name)
            try:
                got = hf_hub_download(repository, file.name, repo_type="dataset", revision=revision, local_dir=folder)
            except Exception as error:  # whatever the libraries below raise: connections, the Hub, the disk
                raise InputError(f"{repository}: {file.name} cannot be downloaded ({one_reason(error)})") from error
            digest = sha256(Path(got))
            if file.sha256 not in (None, digest):
                Path(got).unlink()
                raise InputError(
                    f"{repository}: {file.name} has the sha256 {digest} instead of the published {file.sha256}; it is"
                    " removed, start again"
                )
            published = "unknown" if file.sha256 is None else "published"
            size = Path(got).stat().st_size
            entries.append({"name": file.name, "bytes": size, "sha256": digest, "digest": published})
        write_json(folder / note, {"repository": repository, "revision": revision, "files": entries})
        return folder


def listed(repository: str, revision: str, patterns: tuple[str, ...]) -> list[HubFile]:
    """The files of a dataset's revision that match a pattern, sorted by name.

    Raises:
        InputError: offline, no such repository or revision, no access, no answer, or no file matches.
    """
    from huggingface_hub import HfApi, errors

    name = f"{repository}@{revision[:12]}"
    try:
        info = HfApi().dataset_info(repository, revision=revision, files_metadata=True)
    except errors.OfflineModeIsEnabled as error:
        raise InputError(f"{name}: cannot be downloaded in offline mode; unset HF_HUB_OFFLINE") from error
    except errors.GatedRepoError as error:
        raise InputError(f"{name}: no access without its owner's consent and a token; see its page") from error
    except Exception as error:  # no such dataset or revision, or whatever the libraries below raise
        raise InputError(f"{name}: its files cannot be listed ({one_reason(error)})") from error
    files = [
        HubFile(file.rfilename, file.size, getattr(file.lfs, "sha256", None))
        for file in info.siblings or ()
        if any(fnmatch.fnmatchcase(file.rfilename, pattern) for pattern in patterns)
    ]
    if not files:
        raise InputError(f"{name}: has no files {', '.join(patterns)}")
    return sorted(files)
