"""Files from the web: resumed, compared with their digests, whole or not there at all.

<name>.partial          what has come so far, to be gone on with
<name>.partial.json     of which address and version that is a part: two are never joined
<name>.download.json    beside the whole file: where it came from (`download_note`)

After a crash of the machine itself, blocks of a part may be missing: a digest shows that.
"""

import hashlib
import json
import logging
import os
import re
import socket
import time
from dataclasses import dataclass, replace
from http.client import HTTPException, InvalidURL
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from lra_ssm import __version__
from lra_ssm.bars import Bar
from lra_ssm.datamodules.fetch.download_note import DownloadNote, note_of, read_note, write_note
from lra_ssm.datamodules.old_storage.disk import check_disk_space
from lra_ssm.errors import InputError
from lra_ssm.files import locked, sha256, sync_folder

log = logging.getLogger(__name__)

LONGEST_WAIT = 60.0  # seconds between two tries, whatever the server asks for
_WORTH_ANOTHER_TRY = (408, 416, 425, 429)  # and every 5xx
_CHUNK_BYTES = 1 << 18


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
        ValueError: the name is no plain file name, or the digest is of neither kind.
    """

    urls: tuple[str, ...]
    name: str
    digest: str | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        for url in self.urls:
            if not url.lower().startswith(("https://", "http://")):
                raise InputError(f"{url}: is no address to download from; it must begin with https:// or http://")
        if self.name in ("", ".", "..") or set(self.name) & set("/\\\0\n"):
            raise ValueError(f"{self.name!r} is no plain file name")
        if self.digest is not None and not re.fullmatch("(?i)md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", self.digest):
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

    A file that is there is used without the network, if its digest and size are right. Broken connections, 429 and 5xx
    are tried again, going on where they broke off. Of several processes one downloads.

    Args:
        file: what to download.
        folder: where to; created if only it is missing.
        timeout: seconds that a server may be silent.
        tries: how often in a row an address may bring nothing new.
        backoff: seconds before the first further try, doubled with each, up to LONGEST_WAIT.
        progress: show a bar.

    Raises:
        InputError: no address gives the file, its digest or size is wrong (it is removed), the disk has no room, or the
            folder cannot be written.
    """
    path = folder / file.name
    try:
        if note := _there(file, path):
            return note
        folder.mkdir(exist_ok=True)
        with locked(folder / f"{file.name}.lock", "downloads this file"):
            if note := _there(file, path):
                return note
            note_of(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)  # its digest or size is wrong
            return _Transfer(file, path, timeout, progress).run(tries, backoff)
    except OSError as error:  # the disk's; the network's are caught where they occur
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from error


def compared(file: RemoteFile, path: Path) -> tuple[DownloadNote, str | None]:
    """What the file at `path` is, and what is wrong with its size or digest (None: nothing)."""
    size, digest, wrong = path.stat().st_size, sha256(path), None
    kind, _, published = (file.digest or "").lower().partition(":")
    own = digest
    if kind == "md5":
        with open(path, "rb") as source:
            own = hashlib.file_digest(source, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if file.size not in (None, size):
        wrong = f"has {size:,} bytes instead of the published {file.size:,}"
    elif not size:
        wrong = "is empty"
    elif published and own != published:
        wrong = f"has the {kind} {own} instead of the published {published}"
    url = read_note(path, digest).get("url")
    return DownloadNote(url, size, digest, "published" if published and not wrong else "unknown"), wrong


def _there(file: RemoteFile, path: Path) -> DownloadNote | None:
    """What the file is, if it is there and right."""
    if not path.is_file():
        return None
    note, wrong = compared(file, path)
    if wrong:
        log.warning("%s: %s; downloading it anew", path, wrong)
    return None if wrong else note


class _Refused(Exception):
    """This address will not give the file."""


class _Broken(Exception):
    """It may work when tried again, after `wait` seconds if the server asked for that."""

    def __init__(self, what: str, wait: float = 0.0) -> None:
        super().__init__(what)
        self.wait = wait


class _Transfer:
    """One file on its way. Its lock must be held."""

    def __init__(self, file: RemoteFile, path: Path, timeout: float, progress: bool) -> None:
        self.file, self.path, self.timeout, self.progress = file, path, timeout, progress
        self.part = path.with_name(f"{path.name}.partial")
        self.state = path.with_name(f"{path.name}.partial.json")

    def run(self, tries: int, backoff: float) -> DownloadNote:
        failures = []
        for url in self.file.urls:
            try:
                self._fetch(url, tries, backoff)
                note, wrong = compared(self.file, self.part)
                if wrong:
                    self._discard()
                    raise _Refused(f"{wrong}; what was downloaded is removed")
            except _Refused as error:
                failures.append(f"{url}: {error}")
                if len(failures) < len(self.file.urls):
                    log.warning("%s; trying the next address", failures[-1])
            else:
                note = replace(note, url=url)
                write_note(self.path, note)  # first, so that no downloaded file is without
                self.state.unlink()
                os.replace(self.part, self.path)
                sync_folder(self.path.parent)
                return note
        raise InputError(f"{self.file.name} cannot be downloaded: {'; '.join(failures)}")

    def _fetch(self, url: str, tries: int, backoff: float) -> None:
        """Completes the part, with as many requests as it takes."""
        furthest, failed = self._received(), 0  # a server without ranges makes progress beyond it alone
        while True:
            try:
                return self._request(url)
            except _Broken as error:
                received = self._received()
                failed = 0 if received > furthest else failed + 1
                furthest = max(furthest, received)
                if failed >= tries:
                    what = f"{error}, {failed} tries without progress"
                    if received:
                        what += f"; the first {received:,} bytes are kept, start again to go on"
                    raise _Refused(what) from error
                wait = min(max(backoff * 2 ** max(failed - 1, 0), error.wait), LONGEST_WAIT)
                log.warning("%s: %s at %d bytes; trying again in %.0f s", url, error, received, wait)
                time.sleep(wait)

    def _request(self, url: str) -> None:
        """One request for what is missing; returns once all is there."""
        known = self._known()
        version = (known.get("etag") or known.get("last_modified")) if known.get("url") == url else None
        # Without a version or a digest nothing would show that these are parts of two.
        start = self._received() if version or (known and self.file.digest) else 0
        if start and start == known.get("size"):
            return  # killed after the last byte
        request = Request(url, headers={"User-Agent": f"lra_ssm/{__version__}"})
        if start:
            request.add_header("Range", f"bytes={start}-")
        if start and version:
            request.add_header("If-Range", version)  # the whole file instead, if it is another version
        with self._answer(request) as response:
            if start and response.status == 206:
                self._receive(response, start, self._go_on(response, start, version, known.get("size")))
            else:
                self._receive(response, 0, self._begin(response, url))

    def _answer(self, request: Request) -> Any:
        """The answer; redirections are followed, and proxies used as the environment says."""
        try:
            return urlopen(request, timeout=self.timeout)
        except HTTPError as error:
            with error:
                what = f"HTTP status {error.code} ({error.reason})"
                wait = error.headers.get("Retry-After") or ""
            if error.code == 416:  # the file ends before what is asked for
                self._discard()
            if error.code >= 500 or error.code in _WORTH_ANOTHER_TRY:
                raise _Broken(what, float(wait) if wait.isdecimal() else 0.0) from error
            raise _Refused(what) from error
        except (ValueError, OverflowError, InvalidURL) as error:  # OverflowError: of a port beyond 65535
            raise _Refused(f"is no valid address, or redirects to none ({error})") from error
        except (OSError, HTTPException) as error:
            raise _Broken(_reason(error)) from error

    def _go_on(self, response: Any, start: int, version: str | None, size: int | None) -> int:
        """The rest of what is here is coming; returns the size of the whole file."""
        headers = response.headers
        told = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers.get("Content-Range", ""))
        # Not every server looks at If-Range.
        same = version in (None, headers.get("ETag"), headers.get("Last-Modified"))
        if not same or not told or int(told[1]) != start or size not in (None, int(told[2])):
            self._discard()
            raise _Broken("the server sent a part of another version")
        return int(told[2])

    def _begin(self, response: Any, url: str) -> int | None:
        """The whole file is coming: notes what it is; returns its size if that is known."""
        size, published = response.length, self.file.size
        if size is not None and published not in (None, size):
            raise _Refused(f"has {size:,} bytes instead of the published {published:,}")
        if size is None:
            if not response.chunked and published is None and self.file.digest is None:
                raise _Refused("does not say how many bytes it has, nor is a size or digest published")
            size = published
        etag = response.headers.get("ETag")
        if etag and etag.startswith("W/"):
            etag = None  # a weak one names several sequences of bytes
        changed = response.headers.get("Last-Modified")
        self._discard()  # before the new note is written
        state = {"url": url, "etag": etag, "last_modified": changed, "size": size}
        self.state.write_text(json.dumps(state), encoding="utf-8")
        return size

    def _receive(self, response: Any, start: int, total: int | None) -> None:
        """Appends what comes, at once, so that a kill does not lose it."""
        if total is not None:
            check_disk_space(self.path.parent, total - start, self.file.name)
        bar = Bar(self.file.name, total, in_bytes=True, done=start, show=self.progress)
        with open(self.part, "ab") as out, bar:
            while total is None or start < total:
                try:  # read1 returns what has come; read would drop it when the rest times out
                    data = response.read1(_CHUNK_BYTES)
                except (OSError, HTTPException) as error:
                    raise _Broken(_reason(error)) from error
                if not data:
                    break
                out.write(data)
                out.flush()
                start += len(data)
                bar.update(start, total)
            if total is not None and start < total:
                raise _Broken(f"broken off before {total:,} bytes")
            os.fsync(out.fileno())

    def _received(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _known(self) -> dict[str, Any]:
        """url, etag, last_modified and size of what the part is of; {} if nobody knows."""
        try:
            return json.loads(self.state.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}

    def _discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.state.unlink(missing_ok=True)


def _reason(error: object) -> str:
    """What went wrong with a connection, in words."""
    error = error.reason if isinstance(error, URLError) else error
    if isinstance(error, socket.gaierror):
        return f"cannot be found ({error.strerror}; is this machine online?)"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
