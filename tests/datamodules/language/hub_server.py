"""A server that speaks enough of the Hub's protocol: a dataset's listing, and its files, broken off as it is told."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests import local_server


class Hub:
    """A dataset's files, how the server behaves, and what was asked of it.

    `break_after`: bytes of each of a file's answers before the connection is cut, by file, then whole ones.
    `status` and `code`: of the first `times` listings, with the Hub's X-Error-Code. `wrong`: files whose listed digest
    is another's.
    """

    def __init__(self, files: dict[str, bytes], revision: str) -> None:
        self.files, self.revision = files, revision
        self.break_after: dict[str, list[int]] = {}
        self.status, self.code, self.times = 200, "", 10**9
        self.wrong: set[str] = set()
        self.asked: list[tuple[str, str | None]] = []  # file (or "listing"), Range
        self.url = ""

    def listing(self) -> dict[str, Any]:
        siblings = []
        for name, data in self.files.items():
            digest = hashlib.sha256(b"another" if name in self.wrong else data).hexdigest()
            lfs = {"sha256": digest, "size": len(data), "pointerSize": 130}
            siblings.append({"rfilename": name, "size": len(data), "blobId": "0" * 40, "lfs": lfs})
        return {"id": "owner/name", "sha": self.revision, "siblings": siblings, "tags": [], "private": False}


class _Handler(local_server.Handler):
    def do_GET(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        if self.path.startswith("/api/"):
            if not self.path.startswith("/api/datasets/"):  # the library asks for its own things now and then
                return self.send(404, b"{}", {})
            hub.asked.append(("listing", None))
            if hub.status != 200 and hub.times > 0:
                hub.times -= 1
                return self.send(hub.status, b"{}", {"X-Error-Code": hub.code} if hub.code else {})
            assert self.path.split("?")[0] == f"/api/datasets/owner/name/revision/{hub.revision}", self.path
            return self.send(200, json.dumps(hub.listing()).encode(), {"Content-Type": "application/json"})
        name = self.path.removeprefix(f"/datasets/owner/name/resolve/{hub.revision}/")
        asked = self.headers.get("Range")
        hub.asked.append((name, asked))
        data = hub.files[name]
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        cuts = hub.break_after.get(name, [])
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Content-Length": str(len(data) - start)}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.send(206 if asked else 200, data[start:][: cuts.pop(0) if cuts else None], headers)
        self.close_connection = True


@contextmanager
def serving_hub(files: dict[str, bytes], revision: str = "1" * 40) -> Iterator[Hub]:
    hub = Hub(files, revision)
    with local_server.serving(_Handler, hub) as hub.url:
        yield hub
