"""A local web server with one file."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Site:
    """What is served, and how.

    Args:
        data: the file's content.
        ranges: whether a part can be asked for.
        break_after: for each answer in turn the number of bytes after which it breaks off.
        statuses: for each answer in turn a status to give instead of the file.
    """

    data: bytes
    ranges: bool = True
    break_after: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    requests: list[str | None] = field(default_factory=list)  # the Range header of each
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        site: Site = self.server.site  # type: ignore[attr-defined]
        asked = self.headers.get("Range")
        site.requests.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and site.ranges else 0
        status = site.statuses.pop(0) if site.statuses else 416 if start > len(site.data) else 206 if start else 200
        self.send_response(status)
        part = site.data[start:] if status in (200, 206) else b""
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part[: site.break_after.pop(0)] if part and site.break_after else part)
        self.close_connection = True


@contextmanager
def serving(data: bytes, **settings: Any) -> Iterator[Site]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    site = server.site = Site(data, **settings)  # type: ignore[attr-defined]
    site.url = f"http://127.0.0.1:{server.server_address[1]}/file.bin"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
