"""Files from the web: resumed where they broke off, compared with their digests, whole or not there at all.

A file arrives as <name>.partial; <name>.partial.json says of which address and version it is a part. It is renamed
only when it is complete, has the published digest, and is on the disk. What a process killed at any moment has
received is used by the next one. (After a crash of the machine itself, blocks of the partial file may be missing: the
published digest shows that, and so do the checksums inside gz, xz, bz2 and zip archives.) <name>.download.json stays
beside the file and says where it came from.
"""

import hashlib
import logging
import os
import re
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.fetch.answers import Answer, Broken, PastTheEnd, Refused, date, read_answer, strong_etag
from lra_ssm.datamodules.fetch.download_note import DownloadNote, note_of, read_note, write_note
from lra_ssm.datamodules.fetch.partial import PartialFile, Version
from lra_ssm.datamodules.fetch.web import LEAST_BYTES, SCHEMES, open_url, reason
from lra_ssm.datamodules.storage.bars import ByteBar
from lra_ssm.datamodules.storage.disk import check_disk_space
from lra_ssm.errors import InputError
from lra_ssm.files import locked, sync_folder

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 18
LONGEST_WAIT = 60.0  # seconds between two tries, whatever the server asks for
MOST_REQUESTS = 1000  # for one file from one address, however little each brings
MOST_BYTES = 1 << 36  # of a file whose size is not published: some nine times LRA's archive
CHECK_EVERY = 1 << 26  # bytes between two looks at the free disk space
_HEX_DIGITS = {"md5": 32, "sha256": 64}


@dataclass(frozen=True)
class RemoteFile:
    """A file that is published.

    Args:
        urls: one or several http or https addresses of the same bytes, tried in this order.
        name: its file name here.
        digest: "md5:…" or "sha256:…" with hexadecimal digits; None where its publisher gives none.
        size: in bytes; None if unknown.

    Raises:
        InputError: an address is neither http nor https.
        ValueError: the name is no plain file name, or the digest is not of these two kinds.
    """

    urls: tuple[str, ...]
    name: str
    digest: str | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        if not self.urls or isinstance(self.urls, str):
            raise ValueError(f"{self.name}: urls is {self.urls!r}; give a tuple of at least one")
        for url in self.urls:
            if urllib.parse.urlsplit(url).scheme not in SCHEMES:
                raise InputError(f"{url}: is no address to download from; it must begin with https:// or http://")
        if self.name in ("", ".", "..") or set(self.name) & set("/\\\0\n"):
            raise ValueError(f"{self.name!r} is no plain file name")
        if self.digest is not None:
            kind, _, digits = self.digest.partition(":")
            if not re.fullmatch(f"[0-9a-fA-F]{{{_HEX_DIGITS.get(kind, 0)}}}", digits) or not digits:
                raise ValueError(f"{self.name}: digest {self.digest!r} is neither md5:… nor sha256:…")


def download(
    file: RemoteFile,
    folder: Path,
    *,
    timeout: float = 30.0,
    tries: int = 5,
    backoff: float = 1.0,
    progress: bool = True,
) -> DownloadNote:
    """Makes sure that <folder>/<name> is there, whole and with its published digest.

    A file that is there is checked and used without the network; one with a wrong digest or size is removed and
    downloaded anew. Broken connections, 429 and 5xx are tried again, going on where they broke off; a mirror that does
    not have the file, or sends something else, gives way to the next at once. Several processes may call this at the
    same time: one downloads, the others wait. Whatever else happens in the folder is for the caller to lock.

    Args:
        file: what to download.
        folder: where to; created if only it is missing.
        timeout: seconds that a server may take to answer, or to send another kilobyte.
        tries: how often in a row a mirror may bring nothing new (less than a kilobyte) before it is given up.
        backoff: seconds before the first further try, doubled with each that brings nothing, up to 60.
        progress: show a bar on the standard error if the file is not small.

    Raises:
        InputError: no mirror gives the file (names each and why), its digest or size is wrong (it is removed), the disk
            has no room, or the folder cannot be written.
    """
    with _writing(folder):
        note = _already_there(file, folder, progress)
        if note is not None:
            return note
        folder.mkdir(exist_ok=True)
        with locked(folder / f"{file.name}.lock", "downloads this file"):
            note = _already_there(file, folder, progress)
            if note is not None:
                return note
            note_of(folder / file.name).unlink(missing_ok=True)
            (folder / file.name).unlink(missing_ok=True)  # its digest or size is wrong
            with ByteBar(file.name, progress) as bar:
                return _Transfer(file, folder, timeout, tries, backoff, bar).run()


class _Transfer:
    """One file on its way. The lock must be held."""

    def __init__(
        self, file: RemoteFile, folder: Path, timeout: float, tries: int, backoff: float, bar: ByteBar
    ) -> None:
        self.file, self.folder = file, folder
        self.timeout, self.tries, self.backoff, self.bar = timeout, tries, backoff, bar
        self.partial = PartialFile(folder, file.name)
        self.most = MOST_BYTES if file.size is None else file.size
        self.resumed = False

    def run(self) -> DownloadNote:
        if self.file.size is not None:
            check_disk_space(self.folder, self.file.size - self.partial.received(), self.file.name)
        failures = []
        for url in self.file.urls:
            try:
                self._fetch(url)
                sha256, wrong = _check(self.file, self.partial.path, self.bar)
                if wrong and self.resumed:  # an older part may be to blame
                    log.warning("%s: %s %s; downloading it from its beginning", self.file.name, url, wrong)
                    self.partial.discard()
                    self._fetch(url)
                    sha256, wrong = _check(self.file, self.partial.path, self.bar)
                if wrong:
                    self.partial.discard()
                    raise Refused(f"{wrong}; what was downloaded is removed")
            except Refused as error:
                failures.append(f"{url}: {error}")
                if len(failures) < len(self.file.urls):
                    log.warning("%s; trying the next address", failures[-1])
            else:
                size, path = self.partial.received(), self.folder / self.file.name
                note = DownloadNote(url, size, sha256, "published" if self.file.digest else "unknown")
                write_note(note_of(path), note)  # first, so that no downloaded file is without
                os.replace(self.partial.path, path)
                sync_folder(self.folder)
                self.partial.finish()
                return note
        raise InputError(f"{self.file.name} cannot be downloaded: {'; '.join(failures)}")

    def _fetch(self, url: str) -> None:
        """Completes the partial file, with as many requests as it takes, of which there are not too many."""
        furthest, failed = self.partial.received(), 0  # a server without ranges makes progress beyond it alone
        for _ in range(MOST_REQUESTS):
            try:
                return self._request(url)
            except Broken as error:
                received = self.partial.received()
                if received >= furthest + LEAST_BYTES:
                    furthest, failed = received, 0
                else:
                    failed += 1
                kept = f"; the first {received:,} bytes are kept, start again to go on" if received else ""
                if failed >= self.tries:
                    raise Refused(f"{error}, {failed} tries without progress{kept}") from error
                wait = min(max(self.backoff * 2 ** max(failed - 1, 0), error.wait), LONGEST_WAIT)
                log.warning("%s: %s at %d bytes; trying again in %.0f s", url, error, received, wait)
                time.sleep(wait)
        raise Refused(f"not whole after {MOST_REQUESTS} requests{kept}")

    def _request(self, url: str) -> None:
        """One request for what is missing."""
        version = self.partial.version()
        offset = self.partial.received() if version else 0
        validator = version.validator if version and version.url == url else None
        if validator is None and self.file.digest is None:
            offset = 0  # nothing would show that these are parts of two versions
        if version and version.size is not None and offset > version.size:
            offset = 0  # nobody wrote that
        headers = {}
        if version and offset:
            self.resumed = True
            if offset == version.size:
                return  # killed after the last byte
            headers = {"Range": f"bytes={offset}-"}
            if validator:
                headers["If-Range"] = validator  # the whole file instead, if it is another version
        try:
            response = open_url(url, headers, self.timeout)
        except PastTheEnd as error:
            if version and error.size == offset and version.size is None:
                return
            self.partial.discard()
            raise Broken("the server has another number of bytes than before") from error
        with response:
            try:
                answer = read_answer(response, offset, self.file.name)
                if version and answer.start:
                    answer = self._rest(answer, version, bool(validator))
            except Broken:
                self.partial.discard()  # to ask for the whole file the next time
                raise
            if not answer.start:
                self._begin(answer, url)
            self._receive(response, answer)

    def _begin(self, answer: Answer, url: str) -> None:
        """A whole file is coming: forgets what was received and notes what this is."""
        if answer.total is not None and self.file.size not in (None, answer.total):
            raise Refused(f"has {answer.total:,} bytes instead of the published {self.file.size:,}")
        if answer.total is not None and answer.total > self.most:
            raise Refused(f"has {answer.total:,} bytes, more than {self.most:,}")
        if not answer.marked and self.file.size is None and self.file.digest is None:
            raise Refused("does not say how many bytes it has, and no size or digest is published to compare with")
        self.partial.begin(Version(url, strong_etag(answer.etag), date(answer.last_modified), answer.total))

    def _rest(self, answer: Answer, version: Version, same_url: bool) -> Answer:
        """The rest is coming: makes sure that it is the rest of this, and adds its size where that is known before."""
        known = version.size if version.size is not None else self.file.size
        total = answer.total if answer.total is not None else known
        # Without a digest, only what says so is the same version: a server may not look at If-Range.
        changed = same_url and not version.is_of(answer, lenient=self.file.digest is not None)
        fits = total is not None and known in (None, total) and (answer.stop or 0) <= total <= self.most
        if changed or not fits:
            raise Broken("the server sent a part of another version")
        return replace(answer, total=total)

    def _receive(self, response: Any, answer: Answer) -> None:
        """Appends what comes; everything received is with the kernel at once, so that a kill does not lose it."""
        offset, total = answer.start, answer.total if answer.total is not None else self.file.size
        check_disk_space(self.folder, (total or 0) - offset, self.file.name)
        unchecked = 0  # bytes since the last look at the disk, where nobody knows how many come
        limit = answer.stop if answer.stop is not None else self.most + 1  # one byte more shows that there are more
        with open(self.partial.path, "ab") as out:
            while offset < limit:
                try:  # read1 returns what has come; read would drop it when the rest times out
                    data = response.read1(min(CHUNK_BYTES, limit - offset))
                except (OSError, HTTPException, ValueError) as error:  # the last of http.client, for senseless chunks
                    raise Broken(reason(error)) from error
                if not data:
                    break
                out.write(data)
                out.flush()
                offset, unchecked = offset + len(data), unchecked + len(data)
                self.bar.update(offset, total)
                if total is None and unchecked >= CHECK_EVERY:
                    check_disk_space(self.folder, CHECK_EVERY, self.file.name)
                    unchecked = 0
            if offset > self.most:
                self.partial.discard()
                raise Refused(f"has more than {self.most:,} bytes")
            if total is not None and offset < total:
                raise Broken(f"broken off before {total:,} bytes")
            os.fsync(out.fileno())


def _already_there(file: RemoteFile, folder: Path, progress: bool) -> DownloadNote | None:
    """Describes the file if it is there and right. Writes nothing but the removal of what a killed process left."""
    path = folder / file.name
    if not path.is_file():
        return None
    with ByteBar(f"checking {file.name}", progress) as bar:
        sha256, wrong = _check(file, path, bar)
    if wrong:
        log.warning("%s: %s; downloading it anew", path, wrong)
        return None
    for leftover in PartialFile(folder, file.name).files:
        with suppress(OSError):
            leftover.unlink()
    url = read_note(path, sha256).get("url")
    return DownloadNote(url, path.stat().st_size, sha256, "published" if file.digest else "unknown")


def _check(file: RemoteFile, path: Path, bar: ByteBar) -> tuple[str, str | None]:
    """Reads a file from the disk; returns its sha256, and what is wrong with its digest or size (None: nothing)."""
    kind, _, expected = (file.digest or "sha256:").partition(":")
    hashes = {name: hashlib.new(name, usedforsecurity=False) for name in {"sha256", kind}}
    size, done = path.stat().st_size, 0
    with open(path, "rb") as source:
        while data := source.read(1 << 20):
            for digest in hashes.values():
                digest.update(data)
            done += len(data)
            bar.update(done, size)
    wrong = None
    if file.size is not None and size != file.size:
        wrong = f"has {size:,} bytes instead of the published {file.size:,}"
    elif not size:
        wrong = "is empty"
    elif expected and hashes[kind].hexdigest() != expected.lower():
        wrong = f"has the {kind} {hashes[kind].hexdigest()} instead of the published {expected.lower()}"
    return hashes["sha256"].hexdigest(), wrong


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Errors of the disk (those of the network are caught where they occur) as one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from error
