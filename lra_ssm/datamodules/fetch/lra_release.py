"""The Long Range Arena's own archive, of which each dataset takes its folder.

    <root>/lra_release.gz                           as downloaded: a compressed tar of more than 7 GB, kept
    <root>/lra_release/lra_release/<folder>/…       as it unpacks: listops-1000, tsv_data, pathfinder32, …
    …/<folder>/download.json                        of which archive that was: address, bytes, sha256, digest

Needs neither torch nor lightning.
"""

import os
import shutil
from pathlib import Path

from lra_ssm.datamodules.fetch.archives import extract
from lra_ssm.datamodules.fetch.download import RemoteFile, download
from lra_ssm.datamodules.fetch.download_note import NOTE, note_of, write_note
from lra_ssm.datamodules.fetch.sources import download_folder
from lra_ssm.datamodules.storage.disk import check_disk_space
from lra_ssm.errors import InputError
from lra_ssm.files import locked

# No digest or size of it is published.
LRA_RELEASE = RemoteFile(("https://storage.googleapis.com/long-range-arena/lra_release.gz",), "lra_release.gz")
UNPACKED = Path("lra_release/lra_release")
LOCK = ".lra_release.lock"
# What its folders hold at least, so that a disk without room is named before the archive is read for an hour. From the
# published numbers of examples: 100,000 expressions of some 1,000 tokens, 182,613 pairs, 200,000 images in files that
# take a block of the disk each. (The archive's own size is no bound: it holds all of them.)
LEAST_BYTES = {"listops-1000": 300_000_000, "tsv_data": 1_000_000_000, "pathfinder": 200_000 * 4096}


def fetch_lra_release(
    root: Path,
    wanted_prefix: str,
    *,
    max_bytes: int = 64 << 30,
    max_files: int = 1_000_000,
    file: RemoteFile = LRA_RELEASE,
) -> Path:
    """Makes sure that one folder of LRA's archive is unpacked below the root, downloading the archive if needed.

    The folder is there whole or not at all; other folders of the archive may be unpacked before or later, and by other
    processes: one works, the others wait. An archive that is there already is used without the network. On failure,
    an empty root that was created here is removed again.

    Args:
        root: the data root; created if only it is missing.
        wanted_prefix: the folder inside the archive, without what it is wrapped in: "tsv_data", or
            "pathfinder32/curv_contour_length_14".
        max_bytes: how much the folder may hold.
        max_files: how many files.
        file: the archive.

    Returns:
        <root>/lra_release/lra_release/<wanted_prefix>.

    Raises:
        InputError: the root cannot be used, other files are where the folder belongs, the archive cannot be had or is
            damaged, or has no such folder.
    """
    wanted_prefix = wanted_prefix.strip("/")
    target = root / UNPACKED / wanted_prefix
    if _unpacked(target):
        return target
    # Unpacked beside and then moved: `extract` renames a whole tree, but lra_release/ may have other folders already.
    staging = root / f".lra_release-{wanted_prefix.replace('/', '-')}"
    marked = f"/{wanted_prefix}/"
    with download_folder(root), locked(root / LOCK, "unpacks LRA's archive"):
        if _unpacked(target):
            return target
        try:
            if not note_of(staging).is_file():  # it is not there, or a killed process has not finished it
                shutil.rmtree(staging, ignore_errors=True)
                note = download(file, root)
                least = next((size for start, size in LEAST_BYTES.items() if wanted_prefix.startswith(start)), 0)
                check_disk_space(root, least, f"unpacking {wanted_prefix} of {file.name}")
                extract(
                    root / file.name,
                    staging,
                    members=lambda name: marked in f"/{name}",
                    max_bytes=max_bytes,
                    max_files=max_files,
                )
                write_note(note_of(staging), note)
            found = [Path(path) for path, _, _ in os.walk(staging) if f"{path}/".endswith(marked)]
            shutil.copyfile(note_of(staging), found[0] / NOTE)
            target.parent.mkdir(parents=True, exist_ok=True)
            found[0].rename(target)
        except OSError as error:
            raise InputError(f"{target}: cannot be written ({error.strerror})") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return target


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
