"""The Long Range Arena's own archive, of which each dataset takes its folder.

    <root>/lra_release.gz                           as downloaded: a compressed tar of more than 7 GB, kept
    <root>/lra_release/lra_release/<folder>/…       as it unpacks: listops-1000, tsv_data, pathfinder32, …
    …/<folder>/download.json                        of which archive that was: address, bytes, sha256, digest

Needs neither torch nor lightning.
"""

from functools import partial
from pathlib import Path

from lra_ssm.datamodules.fetch.archives import extract
from lra_ssm.datamodules.fetch.download import RemoteFile, download
from lra_ssm.datamodules.fetch.download_note import NOTE
from lra_ssm.datamodules.fetch.sources import download_folder
from lra_ssm.errors import InputError
from lra_ssm.files import locked

# No digest or size of it is published.
LRA_RELEASE = RemoteFile(("https://storage.googleapis.com/long-range-arena/lra_release.gz",), "lra_release.gz")
UNPACKED = Path("lra_release/lra_release")
LOCK = ".lra_release.lock"


def fetch_lra_release(root: Path, folder: str, *, file: RemoteFile = LRA_RELEASE) -> Path:
    """Makes sure that one folder of LRA's archive is unpacked below the root.

    The folder is there whole or not at all. Of several processes one works, the others wait.

    Args:
        root: the data root; created if only it is missing.
        folder: inside the archive, without what it is wrapped in: "tsv_data", "pathfinder32/curv_contour_length_14".
        file: the archive.

    Returns:
        <root>/lra_release/lra_release/<folder>.

    Raises:
        InputError: the root cannot be used, other files are where the folder belongs, or the archive
            cannot be had, is damaged or has no such folder.
    """
    target = root / UNPACKED / folder
    if _unpacked(target):
        return target
    with download_folder(root, str((UNPACKED / folder).parent)), locked(root / LOCK, "unpacks LRA's archive"):
        if not _unpacked(target):
            note = download(file, root)
            extract(root / file.name, target, partial(_below, folder), note)
    return target


def _below(folder: str, name: str) -> str | None:
    """A member's path below the folder, wherever that is in the archive; None if it is not in it."""
    return f"/{name}".partition(f"/{folder}/")[2] or None


def _unpacked(target: Path) -> bool:
    """Whether `fetch_lra_release` has unpacked the folder. An empty one is what somebody's broken attempt leaves.

    Raises:
        InputError: somebody else's files are there.
    """
    if (target / NOTE).is_file():
        return True
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: is there, but not as LRA's archive has it; move it away, and it is unpacked anew")
    return False
