"""Unpacking what others have packed: tar (plain, gz, bz2, xz) and zip, in one pass, and nothing that could do harm.

The kind is told by the content, not the name (LRA's `lra_release.gz` is a compressed tar). Every member that is asked
for must be a plain file below the target: one with an absolute or parent path, a link, a device or a name that came
before ends the whole work with an error. Passed over are members that nobody asked for, whatever they are (nothing of
them gets to the disk or the caller, and a link somewhere in LRA's 7 GB is no reason to refuse its ListOps), folders,
the extended headers of tar, and the `__MACOSX` and `._` files in which macOS keeps its own data.

Bounds hold for the bytes that really come out, whatever the headers say: of the wanted files, and, wider ones, of all
members with those passed over, which a compressed tar must unpack as well, so that no archive keeps us busy for ever.
Windows' and macOS' ideas of equal names count as far as the disk has them.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath

from lra_ssm.datamodules.fetch.archive_readers import Damaged, Member, Source, tar_members, zip_members
from lra_ssm.datamodules.storage.bars import ByteBar
from lra_ssm.datamodules.storage.disk import check_disk_space, sync_filesystem
from lra_ssm.errors import InputError
from lra_ssm.files import UNFINISHED, sync_folder

CHUNK_BYTES = 1 << 20
CHECK_EVERY = 1 << 26  # announced bytes between two looks at the free disk space
# Of all members, wanted or not: some ten times LRA's archive, an hour or less of unpacking.
ALL_BYTES = 1 << 39
ALL_MEMBERS = 20_000_000
NAMES = 1 << 28  # characters of all wanted files' paths, which are kept
DEEPEST = 64  # folders of one path

Wanted = Callable[[str], bool]


@dataclass(frozen=True)
class Unpacked:
    """What was written: number of files, and their bytes together."""

    files: int
    bytes: int


@dataclass
class _Bounds:
    """What the wanted files, and all members, may be together; counts what came."""

    max_bytes: int
    max_files: int
    all_bytes: int
    all_members: int
    files: int = 0
    bytes: int = 0
    names: int = 0

    def come(self, member: Member) -> None:
        """Any member, wanted or passed over."""
        self.all_members -= 1
        self.all_bytes -= member.size
        if self.all_members < 0 or self.all_bytes < 0:
            which = "members" if self.all_members < 0 else "bytes"
            raise Damaged(f"holds too many {which} with those that nobody asked for, at {member.name!r}; refused")

    def member(self, member: Member) -> None:
        """A wanted file."""
        self.files += 1
        if self.files > self.max_files:
            raise Damaged(f"holds more than {self.max_files:,} files; refused")
        self.names += len(member.name)
        if self.names > NAMES:
            raise Damaged(f"has names of more than {NAMES:,} characters; refused")
        self.take(0, member, member.size)

    def take(self, count: int, member: Member, announced: int = 0) -> None:
        self.bytes += count
        if self.bytes + announced > self.max_bytes:
            raise Damaged(f"unpacks to more than {self.max_bytes:,} bytes at member {member.name!r}; refused")


def extract(
    archive: Path,
    target: Path,
    *,
    members: Wanted | None = None,
    max_bytes: int,
    max_files: int,
    all_bytes: int = ALL_BYTES,
    all_members: int = ALL_MEMBERS,
    progress: bool = True,
) -> Unpacked:
    """Unpacks an archive into a new folder, which is there whole or not at all.

    The files are written to `.unfinished-<target>-<pid>` beside the target, flushed to the disk (all with one call per
    archive: one per file takes minutes for 100,000) and then renamed. What killed processes left is removed first: the
    caller holds a lock, so that none of them is alive.

    Args:
        archive: the file.
        target: the folder to be; its parent exists.
        members: which files are wanted, by their path in the archive; None: all. The others are not looked at.
        max_bytes: how much the wanted files may hold together.
        max_files: how many there may be.
        all_bytes: how much all members may hold together, those included that are passed over.
        all_members: how many there may be.
        progress: show a bar on the standard error if the archive is not small.

    Returns:
        What was written. Files are readable and writable for their owner and readable for others, less the umask.

    Raises:
        InputError: the archive is missing, damaged, of another kind, beyond the bounds, has a forbidden member or none
            that is wanted, or there is no room; names archive and member, and nothing new is left behind.
    """
    if os.path.lexists(target):
        raise InputError(f"{target}: is there already; delete it to unpack {archive} again")
    for leftover in target.parent.glob(f"{UNFINISHED}*"):
        if re.fullmatch(rf"{re.escape(UNFINISHED + target.name)}-\d+", leftover.name):
            shutil.rmtree(leftover, ignore_errors=True)
    temporary = target.parent / f"{UNFINISHED}{target.name}-{os.getpid()}"
    bounds = _Bounds(max_bytes, max_files, all_bytes, all_members)
    try:
        with _explained(archive), ByteBar(f"unpacking {archive.name}", progress) as bar:
            temporary.mkdir()
            unchecked = CHECK_EVERY
            for member in _checked(archive, members, bounds, bar):
                unchecked += member.size
                if unchecked >= CHECK_EVERY:
                    check_disk_space(temporary, member.size, f"{archive}: unpacking member {member.name!r}")
                    unchecked = 0
                _write(member, temporary, bounds)
            if not bounds.files:
                raise Damaged("holds none of the wanted files")
            sync_filesystem(temporary)
            temporary.rename(target)
            sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Unpacked(bounds.files, bounds.bytes)


def iterate(
    archive: Path,
    members: Wanted | None = None,
    *,
    max_bytes: int,
    max_files: int,
    max_member_bytes: int = 1 << 26,
    all_bytes: int = ALL_BYTES,
    all_members: int = ALL_MEMBERS,
    progress: bool = False,
) -> Iterator[tuple[str, BytesIO]]:
    """Reads the files of an archive in their order, without the disk: for many small ones, faster than unpacking.

    Only the end of the archive tells that all of it was sound, so what is made of it counts once the iterator is
    exhausted.

    Args:
        archive, members, max_bytes, max_files, all_bytes, all_members, progress: as for `extract`.
        max_member_bytes: how much one file may hold; it is in memory as a whole.

    Yields:
        Path in the archive, and the content as a file in memory, which stays valid.

    Raises:
        InputError: as `extract`, but for what concerns the disk; an archive without wanted files is an empty iterator.
    """
    bounds = _Bounds(max_bytes, max_files, all_bytes, all_members)
    with _explained(archive), ByteBar(f"reading {archive.name}", progress) as bar:
        for member in _checked(archive, members, bounds, bar):
            if member.size > max_member_bytes:
                raise Damaged(f"member {member.name!r} holds more than {max_member_bytes:,} bytes; refused")
            content = BytesIO()
            for data in member.chunks(CHUNK_BYTES):
                bounds.take(len(data), member)
                content.write(data)
            content.seek(0)
            yield member.name, content


def _checked(archive: Path, wanted: Wanted | None, bounds: _Bounds, bar: ByteBar) -> Iterator[Member]:
    """The wanted members, each found harmless, under their plain names."""
    seen: set[str] = set()
    with Source(archive) as source:
        for member in (zip_members if source.is_zip else tar_members)(source):
            bar.update(source.position(), source.size)
            parts = PurePosixPath(member.name).parts
            name = "/".join(parts)
            passed_over = member.kind == "folder" or "__MACOSX" in parts or bool(parts and parts[-1].startswith("._"))
            passed_over = passed_over or (wanted is not None and not wanted(name))
            problem = None if passed_over else _problem(member) or ("comes twice" if name in seen else None)
            if problem is not None:
                raise Damaged(f"member {member.name!r} {problem}; refused")
            bounds.come(member)
            if passed_over:
                continue
            seen.add(name)
            member.name = name
            bounds.member(member)
            yield member


def _problem(member: Member) -> str | None:
    """Why a member must not be unpacked; None if it may be."""
    if member.kind != "file":
        return f"is a {member.kind}"
    path = PurePosixPath(member.name)
    if path.is_absolute():
        return "has an absolute path"
    if ".." in path.parts:
        return "has a path through a parent folder"
    if "\\" in member.name or re.match(r"[A-Za-z]:", member.name):
        return "has a Windows path"
    if not path.parts or "\0" in member.name or "\n" in member.name or not _encodable(member.name):
        return "has no usable name"
    if len(path.parts) > DEEPEST:
        return "lies too many folders deep"
    return None


def _encodable(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def _write(member: Member, folder: Path, bounds: _Bounds) -> None:
    """Writes one file, which must be new: in our own fresh folder, without links, nothing can lie in its way."""
    path = folder / member.name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o644)) as out:
            for data in member.chunks(CHUNK_BYTES):
                bounds.take(len(data), member)
                out.write(data)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise Damaged(f"member {member.name!r} has the name of another on this disk; refused") from error
    except OSError as error:
        raise InputError(f"{folder}: member {member.name!r} cannot be written ({error.strerror or error})") from error


@contextmanager
def _explained(archive: Path) -> Iterator[None]:
    """Errors while working on an archive as one line that names it."""
    try:
        yield
    except Damaged as error:
        raise InputError(f"{archive}: {error}") from error
    except OSError as error:
        raise InputError(f"{archive}: cannot be unpacked ({error.strerror or error})") from error
