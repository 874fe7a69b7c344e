"""The Long Range Arena's own archive, of which each dataset takes its folder.

    <root>/lra_release.gz                           as downloaded: a compressed tar of more than 7 GB, kept
    <root>/lra_release/lra_release/<folder>/…       as it unpacks: listops-1000, tsv_data, pathfinder32, …
    …/<folder>/download.json                        of which archive that was: address, bytes, sha256, digest

Needs neither torch nor lightning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lra_ssm.datamodules.fetch.archives import extract
from lra_ssm.datamodules.fetch.download import RemoteFile, download
from lra_ssm.datamodules.fetch.download_note import NOTE
from lra_ssm.datamodules.fetch.sources import download_folder, named_source
from lra_ssm.errors import InputError
from lra_ssm.files import locked

# No digest or size of it is published.
LRA_RELEASE = RemoteFile(("https://storage.googleapis.com/long-range-arena/lra_release.gz",), "lra_release.gz")
UNPACKED = Path("lra_release/lra_release")


@dataclass(frozen=True)
class ReleasedFiles:
    """A dataset's files in LRA's archive, one a split.

    Args:
        dataset: as messages call it; in small letters as `lra-ssm prepare` does.
        folder: in the archive.
        names: of the files, by split.
        others: folders below the data root, or a user's folder, in which they also may be.
    """

    dataset: str
    folder: str
    names: Mapping[str, str]
    others: tuple[str, ...]

    @property
    def layouts(self) -> tuple[str, ...]:
        """Where files may be: as the archive unpacks, should unpack, and as users move them."""
        return (f"{UNPACKED}/{self.folder}", f"lra_release/{self.folder}", self.folder, *self.others, "")

    def find(self, folder: Path) -> dict[str, Path] | None:
        """The files by split, in the first of the layouts that has any of them; None if none has.

        Raises:
            InputError: some are there and others not; names a missing one.
        """
        for layout in self.layouts:
            files = {split: folder / layout / name for split, name in self.names.items()}
            missing = [path for path in files.values() if not path.is_file()]
            if not missing:
                return files
            if len(missing) < len(files):
                there = next(path.name for path in files.values() if path.is_file())
                raise InputError(f"{missing[0]}: missing, though {there} is there; all {len(files)} files are needed")
        return None

    def of(self, root: Path, source: str, words: str) -> dict[str, Path]:
        """The files of a source by split: of "lra" below the root, else in the user's folder.

        words: what else a source may be, for messages.

        Raises:
            InputError: they are not there.
        """
        folder = root if source == "lra" else named_source(self.dataset, source, words, folder=True)
        if (files := self.find(folder)) is not None:
            return files
        command = f"lra-ssm prepare {self.dataset.lower()} --source=lra --root={root}"
        raise InputError(
            f"{folder}: no {self.dataset} files ({', '.join(self.names.values())}) here or in"
            f" {', '.join(self.layouts[:-1])} below it; `{command}` downloads LRA's (more than 7 GB)"
        )

    def fetch(self, root: Path) -> None:
        """Downloads LRA's archive to the root, where it stays, and unpacks the files there, if they are not there.

        Raises:
            InputError: it cannot be downloaded or unpacked.
        """
        if self.find(root) is None:
            fetch_lra_release(root, self.folder)


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
    with (
        download_folder(root, str((UNPACKED / folder).parent)),
        locked(root / ".lra_release.lock", "unpacks LRA's archive"),
    ):
        if not _unpacked(target):
            note = download(file, root)
            extract(root / file.name, target, lambda name: f"/{name}".partition(f"/{folder}/")[2] or None, note)
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
