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
import socket
import time
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from lra_ssm import __version__
from lra_ssm.bars import Bar
from lra_ssm.datamodules.fetch.download_note import DownloadNote, note_of, read_note, write_note
from lra_ssm.datamodules.storage.disk import check_disk_space
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
    """

    urls: tuple[str, ...]
    name: str
    digest: str | None = None
    size: int | None = None


def download(
    file: RemoteFile,
    folder: Path,
    *,
    timeout: float = 30.0,
    tries: int = 5,
    backoff: float = 1.0,
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
            return _Transfer(file, path, timeout).run(tries, backoff)
    except OSError as error:  # the disk's; the network's are caught where they occur
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from error


def compared(file: RemoteFile, path: Path) -> tuple[DownloadNote, str | None]:
    """What the file at `path` is, and what is wrong with its size or digest (None: nothing)."""
    size, digest, wrong = path.stat().st_size, sha256(path), None
    kind, _, published = (file.digest or "").partition(":")
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

    def __init__(self, file: RemoteFile, path: Path, timeout: float) -> None:
        self.file, self.path, self.timeout = file, path, timeout
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
                if len(failures) < len(self.file.urls):  # the last one is raised below
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
                    kept = f"; the first {received:,} bytes are kept, start again to go on" if received else ""
                    raise _Refused(f"{error}, {failed} tries without progress{kept}") from error
                wait = min(max(backoff * 2 ** max(failed - 1, 0), error.wait), LONGEST_WAIT)
                log.warning("%s: %s at %d bytes; trying again in %.0f s", url, error, received, wait)
                time.sleep(wait)

    def _request(self, url: str) -> None:
        """One request for what is missing; returns once all is there."""
        known = self._known()
        version = known.get("version") if known.get("url") == url else None
        start = self._received() if version else 0  # without a version nothing would show that these are parts of two
        if start and start == known.get("size"):
            return  # killed after the last byte
        headers: dict[str, Any] = {"User-Agent": f"lra_ssm/{__version__}"}
        if start:  # the whole file instead, if it is another version
            headers |= {"Range": f"bytes={start}-", "If-Range": version}
        with self._answer(Request(url, headers=headers)) as response:
            versions = [response.headers.get(name) for name in ("ETag", "Last-Modified")]
            if start and response.status == 206:
                # Not every server looks at If-Range.
                begins = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
                if version not in versions or not begins:
                    self._discard()
                    raise _Broken("the server sent a part of another version")
            else:
                self._discard()  # before the new note is written
                start = 0
            size = self.file.size if response.length is None else start + response.length
            if size is None and self.file.digest is None:
                raise _Refused("does not say how many bytes it has, nor is a size or digest published")
            if not start:
                state = {"url": url, "version": versions[0] or versions[1], "size": size}
                self.state.write_text(json.dumps(state), encoding="utf-8")
            self._receive(response, start, size)

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
        except (OSError, HTTPException) as error:
            raise _Broken(_reason(error)) from error

    def _receive(self, response: Any, start: int, total: int | None) -> None:
        """Appends what comes, at once, so that a kill does not lose it."""
        if total is not None:
            check_disk_space(self.path.parent, total - start, self.file.name)
        bar = Bar(self.file.name, total, in_bytes=True, done=start)
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
        """url, version and size of what the part is of; {} if nobody knows."""
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
