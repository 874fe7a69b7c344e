"""A web server in a thread that misbehaves as it is told."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Site:
    """One file at any path, how its server behaves, and what was asked of it.

    Args:
        data: the file.
        etag, last_modified: its version; None sends no such header.
        ranges: whether Range is understood; if_range: whether If-Range is.
        break_after: body bytes of each answer before the connection is cut, one entry per answer, then whole ones.
        stall_after: the same, but the server falls silent for `stall` seconds.
        status: instead of an answer, by path or for everything (""); counted down where a number of times is given.
        chunked: the length is not told, but the end is.
        pause: seconds between two chunks of `chunk` bytes.
        total_in_range: what Content-Range says of the size; shift: parts begin that many bytes late.
    """

    def __init__(self, data: bytes, **settings: Any) -> None:
        self.data = data
        self.etag: str | None = '"one"'
        self.last_modified: str | None = None
        self.ranges = self.if_range = self.length = True
        self.chunked = False
        self.break_after: list[int] = []
        self.stall_after: list[int] = []
        self.stall = 1.0
        self.status: dict[str, int] = {}
        self.times = 10**9
        self.headers: dict[str, str] = {}
        self.pause, self.chunk = 0.0, 1 << 16
        self.total_in_range: int | None = None
        self.shift = 0
        for key, value in settings.items():
            assert hasattr(self, key), key
            setattr(self, key, value)
        self.requests: list[dict[str, str]] = []  # headers of each, with "path"
        self.sent: list[int] = []  # body bytes of each answer
        self.url = ""

    def header(self, name: str) -> list[str | None]:
        return [request.get(name) for request in self.requests]


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        site: Site = self.server.site  # type: ignore[attr-defined]
        site.requests.append({"path": self.path, **self.headers})
        status = site.status.get(self.path, site.status.get(""))
        if status is not None and site.times > 0:
            site.times -= 1
            self.send_response(status)
            for name, value in site.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.answer(site)

    def answer(self, site: Site) -> None:
        size, start = len(site.data), 0
        asked = self.headers.get("Range") if site.ranges else None
        expected = self.headers.get("If-Range")
        if asked and site.if_range and expected and expected not in (site.etag, site.last_modified):
            asked = None
        if asked:
            start = int(asked.removeprefix("bytes=").rstrip("-")) + site.shift
        if start >= size:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        # All notes are made before what they are about is sent: then the other side may go away and the test go on.
        index = len(site.sent)
        site.sent.append(0)
        cut = site.break_after.pop(0) if site.break_after else None
        silent = site.stall_after.pop(0) if site.stall_after else None
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{site.total_in_range or size}")
        if site.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif site.length:
            self.send_header("Content-Length", str(size - start))
        if site.etag:
            self.send_header("ETag", site.etag)
        if site.last_modified:
            self.send_header("Last-Modified", site.last_modified)
        self.end_headers()
        end = min(n for n in (size, *(start + n for n in (cut, silent) if n is not None)))
        try:
            while start < end:
                chunk = site.data[start : min(start + site.chunk, end)]
                site.sent[index] += len(chunk)
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if site.chunked else chunk)
                start += len(chunk)
                time.sleep(site.pause)
            if site.chunked and end == size:
                self.wfile.write(b"0\r\n\r\n")
            if silent is not None:
                time.sleep(site.stall)
        except OSError:
            pass  # the other side is gone
        self.close_connection = True


@contextmanager
def serving(data: bytes, **settings: Any) -> Iterator[Site]:
    site = Site(data, **settings)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.block_on_close = False
    server.site = site  # type: ignore[attr-defined]
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
