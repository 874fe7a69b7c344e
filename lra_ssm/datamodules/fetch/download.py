"""Files from the web: resumed where they broke off, compared with their digests, whole or not there at all.

A file arrives as <name>.partial; <name>.partial.json says of which address and version it is a part. It is renamed
only when it is complete, has the published digest, and is on the disk. What a process killed at any moment has
received is used by the next one. (After a crash of the machine itself, blocks of the partial file may be missing: the
published digest shows that, and so do the checksums inside gz, xz, bz2 and zip archives.) <name>.download.json stays
beside the file and says where it came from.
"""

import hashlib
import json
import logging
import os
import re
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.fetch.download_record import DownloadRecord, note_of, read_note, write_note
from lra_ssm.datamodules.fetch.web import SCHEMES, Broken, PastTheEnd, Refused, open_url, reason
from lra_ssm.datamodules.storage.bars import ByteBar
from lra_ssm.datamodules.storage.disk import check_disk_space, sync_folder
from lra_ssm.datamodules.storage.locking import locked
from lra_ssm.errors import InputError

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 18
LONGEST_WAIT = 60.0  # seconds between two tries, whatever the server asks for
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
) -> DownloadRecord:
    """Makes sure that <folder>/<name> is there, whole and with its published digest.

    A file that is there is checked and used without the network; one with a wrong digest or size is removed and
    downloaded anew. Broken connections, 429 and 5xx are tried again, going on where they broke off; a mirror that does
    not have the file gives way to the next at once. Several processes may call this at the same time: one downloads,
    the others wait. Whatever else happens in the folder is for the caller to lock.

    Args:
        file: what to download.
        folder: where to; created if only it is missing.
        timeout: seconds that a server may take to answer or to send something more.
        tries: how often in a row a mirror may bring nothing new before it is given up.
        backoff: seconds before the first further try, doubled with each that brings nothing, up to 60.
        progress: show a bar on the standard error if the file is not small.

    Raises:
        InputError: no mirror gives the file (names each and why), its digest or size is wrong (it is removed), the disk
            has no room, or the folder cannot be written.
    """
    with _writing(folder):
        record = _already_there(file, folder, progress)
        if record is not None:
            return record
        folder.mkdir(exist_ok=True)
        with locked(folder / f"{file.name}.lock", "downloads this file"):
            record = _already_there(file, folder, progress)
            if record is not None:
                return record
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
        self.partial, self.state_file = _partial_files(file, folder)
        self.resumed = False

    def run(self) -> DownloadRecord:
        if self.file.size is not None:
            check_disk_space(self.folder, self.file.size - self._received(), self.file.name)
        failures = []
        for url in self.file.urls:
            try:
                self._fetch(url)
                sha256, wrong = _check(self.file, self.partial, self.bar)
                if wrong and self.resumed:  # an older part may be to blame
                    log.warning("%s: %s %s; downloading it from its beginning", self.file.name, url, wrong)
                    self._discard()
                    self._fetch(url)
                    sha256, wrong = _check(self.file, self.partial, self.bar)
                if wrong:
                    self._discard()
                    raise Refused(f"{wrong}; what was downloaded is removed")
            except Refused as error:
                failures.append(f"{url}: {error}")
                if len(failures) < len(self.file.urls):
                    log.warning("%s; trying the next address", failures[-1])
            else:
                size, path = self.partial.stat().st_size, self.folder / self.file.name
                record = DownloadRecord(url, size, sha256, "published" if self.file.digest else "unknown")
                write_note(note_of(path), record)  # first, so that no downloaded file is without
                os.replace(self.partial, path)
                sync_folder(self.folder)
                self.state_file.unlink(missing_ok=True)
                return record
        raise InputError(f"{self.file.name} cannot be downloaded: {'; '.join(failures)}")

    def _fetch(self, url: str) -> None:
        """Completes the partial file, with as many requests as it takes."""
        furthest, failed = self._received(), 0  # a server without ranges makes progress beyond the furthest alone
        while True:
            try:
                return self._request(url)
            except Broken as error:
                received = self._received()
                failed = 0 if received > furthest else failed + 1
                furthest = max(furthest, received)
                if failed >= self.tries:
                    kept = f"; the first {received:,} bytes are kept, start again to go on" if received else ""
                    raise Refused(f"{error}, {failed} tries without progress{kept}") from error
                wait = min(max(self.backoff * 2 ** max(failed - 1, 0), error.wait), LONGEST_WAIT)
                log.warning("%s: %s at %d bytes; trying again in %.0f s", url, error, received, wait)
                time.sleep(wait)

    def _request(self, url: str) -> None:
        """One request for what is missing."""
        state = self._state()
        offset = self._received() if state else 0
        validator = None
        if state.get("url") == url:
            validator = state.get("etag") or state.get("last_modified")
        if validator is None and self.file.digest is None:
            offset = 0  # nothing would show that these are parts of two versions
        if offset:
            self.resumed = True
            if offset == state.get("size"):
                return  # killed after the last byte
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        if offset and validator:
            headers["If-Range"] = validator  # the whole file instead, if it is another version
        try:
            response = open_url(url, headers, self.timeout)
        except PastTheEnd as error:
            if error.size == offset:
                return
            self._discard()
            raise Broken("the server has fewer bytes than are here") from error
        with response:
            if response.status == 206:
                total = self._go_on(response, state, offset, validator)
            else:
                offset, total = 0, self._begin(response, url)
            check_disk_space(self.folder, (total or 0) - offset, self.file.name)
            self._receive(response, offset, total)

    def _begin(self, response: Any, url: str) -> int | None:
        """A whole file is coming: forgets what was received and notes what this is. Returns its size if known."""
        length = response.headers.get("Content-Length")
        size = int(length) if length and length.isdigit() else None
        if None not in (size, self.file.size) and size != self.file.size:
            raise Refused(f"has {size:,} bytes instead of the published {self.file.size:,}")
        self._discard()  # before the new state is written: the two must never disagree
        etag = response.headers.get("ETag")
        state = {
            "url": url,
            "etag": etag if etag and not etag.startswith("W/") else None,  # a weak one may stand for other bytes
            "last_modified": response.headers.get("Last-Modified"),
            "size": size,
        }
        self.state_file.write_text(json.dumps(state), encoding="utf-8")
        return size if size is not None else self.file.size

    def _go_on(self, response: Any, state: dict[str, Any], offset: int, validator: str | None) -> int | None:
        """The rest is coming: makes sure that it is the rest of this. Returns the size of the whole if known."""
        matched = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range") or "")
        size = int(matched[2]) if matched and matched[2] != "*" else state.get("size")
        known = state.get("size") or self.file.size
        now = response.headers.get("ETag" if state.get("etag") else "Last-Modified")
        changed = validator and now and now != validator  # a server that ignores If-Range
        if not matched or int(matched[1]) != offset or (known and size != known) or changed:
            self._discard()
            raise Broken("the server sent a part of another version")
        return size

    def _receive(self, response: Any, offset: int, total: int | None) -> None:
        """Appends what comes; everything received is with the kernel at once, so that a kill does not lose it."""
        with open(self.partial, "ab") as out:
            while total is None or offset < total:
                try:  # read1 returns what has come; read would drop it when the rest times out
                    data = response.read1(CHUNK_BYTES if total is None else min(CHUNK_BYTES, total - offset))
                except (OSError, HTTPException) as error:
                    raise Broken(reason(error)) from error
                if not data:
                    break
                out.write(data)
                out.flush()
                offset += len(data)
                self.bar.update(offset, total)
            if total is not None and offset < total:
                raise Broken(f"broken off before {total:,} bytes")
            os.fsync(out.fileno())

    def _received(self) -> int:
        return self.partial.stat().st_size if self.partial.exists() else 0

    def _state(self) -> dict[str, Any]:
        """What the partial file is a part of; {} if nobody knows."""
        try:
            state = json.loads(self.state_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _discard(self) -> None:
        self.partial.unlink(missing_ok=True)
        self.state_file.unlink(missing_ok=True)


def _partial_files(file: RemoteFile, folder: Path) -> tuple[Path, Path]:
    return folder / f"{file.name}.partial", folder / f"{file.name}.partial.json"


def _already_there(file: RemoteFile, folder: Path, progress: bool) -> DownloadRecord | None:
    """Describes the file if it is there and right. Writes nothing but the removal of what a killed process left."""
    path = folder / file.name
    if not path.is_file():
        return None
    with ByteBar(f"checking {file.name}", progress) as bar:
        sha256, wrong = _check(file, path, bar)
    if wrong:
        log.warning("%s: %s; downloading it anew", path, wrong)
        return None
    for leftover in _partial_files(file, folder):
        with suppress(OSError):
            leftover.unlink()
    url = read_note(path, sha256).get("url")
    return DownloadRecord(url, path.stat().st_size, sha256, "published" if file.digest else "unknown")


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
