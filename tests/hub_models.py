"""A server that speaks enough of the Hub's protocol for huggingface_hub to fetch models from it."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Repositories: folders by name, each with one commit (main, v1 or COMMIT).

    Attributes:
        private: repositories that ask for a token.
        asked: (method, file) of every request for a file.
        damaged: files whose bytes are not those of their digest.
    """

    daemon_threads, block_on_close = True, False

    def __init__(self, repositories: dict[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = repositories
        self.private = dict[str, str]()
        self.asked: list[tuple[str, str]] = []
        self.damaged: set[str] = set()

    def got(self, file: str) -> int:
        """How often a file was downloaded."""
        return self.asked.count(("GET", file))


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"{}", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path, hub = unquote(urlsplit(self.path).path), self.server
        asked = re.fullmatch(r"(?:/api/models)?/([^/]+/[^/]+)(?:/(revision|tree|resolve)/([^/]+)(?:/(.+))?)?", path)
        if asked is None:  # the library asks for its own things now and then
            return self.answer(404)
        repository, what, revision, file = asked.groups()
        folder, token = hub.repositories.get(repository), str(self.headers.get("Authorization"))
        if folder is None or hub.private.get(repository, "") not in token:
            return self.answer(401, X_Error_Code="RepoNotFound")
        if revision not in (None, "main", "v1", COMMIT):
            return self.answer(404, X_Error_Code="RevisionNotFound")
        if what == "resolve":
            return self.resolve(folder / file)
        files = sorted(path.name for path in folder.iterdir())
        tree = [{"type": "file", "path": name, "size": 1, "oid": "0"} for name in files]
        about = {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
        content = json.dumps(tree if what == "tree" else about)
        self.answer(200, content.encode(), Content_Type="application/json")

    do_HEAD = do_GET

    def resolve(self, path: Path) -> None:
        self.server.asked.append((self.command, path.name))
        if not path.is_file():
            return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        data = path.read_bytes()
        large = path.suffix in (".safetensors", ".bin")  # the others are named as git names them
        digest = hashlib.sha256(data) if large else hashlib.sha1(b"blob %d\0" % len(data) + data)
        if path.name in self.server.damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.answer(200, data, ETag=f'"{digest.hexdigest()}"', X_Repo_Commit=COMMIT)


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT does to huggingface_hub before it is imported."""
    from huggingface_hub import constants

    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template.replace(constants.ENDPOINT, url))
    monkeypatch.setattr(constants, "ENDPOINT", url)


@contextmanager
def serving(repositories: dict[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that huggingface_hub of this process asks, with an empty cache of its own."""
    from huggingface_hub import constants

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(cache / "assets"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # another protocol, which this one does not speak
    with Hub(repositories) as hub:
        threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        point_at(f"http://127.0.0.1:{hub.server_address[1]}", monkeypatch)
        yield hub
        hub.shutdown()
