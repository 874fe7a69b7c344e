"""A server that speaks enough of the Hub's protocol for huggingface_hub to fetch models from it and push them there."""

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

from tests import local_server

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Commit(NamedTuple):
    """What was pushed; operations by kind, such as ("lfsFile", path)."""

    repository: str
    oid: str
    message: str
    operations: list[tuple[str, str]]


class Hub:
    """Repositories: folders by name, each with one commit (main, v1 or COMMIT), and more as they are pushed.

    Attributes:
        private: repositories that ask for a token.
        asked: (method, file) of every request for a file.
        commits: what was pushed.
        damaged: files whose bytes are not those of their digest.
    """

    def __init__(self, repositories: dict[str, Path], store: Path) -> None:
        self.repositories, self.store, self.url = repositories, store, ""
        self.private = dict[str, str]()
        self.asked: list[tuple[str, str]] = []
        self.commits: list[Commit] = []
        self.damaged: set[str] = set()
        self.pushed: dict[str, str | None] = {}  # repository -> its newest commit
        self.large: dict[str, bytes] = {}  # uploaded by digest

    def folder(self, repository: str, revision: str) -> tuple[Path, str] | None:
        """The files of a revision, and its commit."""
        if oid := self.pushed.get(repository):
            return (self.store / oid, oid) if revision in ("main", oid) else None
        first = self.repositories.get(repository)
        return (first, COMMIT) if first is not None and revision in ("main", "v1", COMMIT) else None

    def got(self, file: str) -> int:
        """How often a file was downloaded."""
        return self.asked.count(("GET", file))


class _Handler(local_server.Handler):
    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined]

    @property
    def token(self) -> str:
        return str(self.headers.get("Authorization")).removeprefix("Bearer ")

    def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        self.send(status, json.dumps(content).encode(), {"Content-Type": "application/json", **headers})

    # -- reading ---------------------------------------------------------------------------------------------------

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        asked = re.fullmatch(r"(?:/api/models)?/([^/]+/[^/]+)(?:/(revision|tree|resolve)/([^/]+)(?:/(.+))?)?", path)
        if asked is None:  # the library asks for its own things now and then
            return self.send(404, b"{}", {})
        repository, what, revision, file = asked.groups()
        exists = repository in self.hub.repositories or repository in self.hub.pushed
        if not exists or self.hub.private.get(repository, self.token) != self.token:
            return self.send(401, b"", {"X-Error-Code": "RepoNotFound"})
        found = self.hub.folder(repository, revision or "main")
        if found is None and revision not in (None, "main"):
            return self.send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        folder, oid = found or (None, None)
        paths = sorted(folder.iterdir()) if folder else []
        if what == "resolve":
            return self.resolve(folder / file, oid)
        if what == "tree":
            return self.answer([{"type": "file", "path": p.name, "size": 1, "oid": "0"} for p in paths])
        files = [{"rfilename": p.name} for p in paths]
        self.answer({"id": repository, "sha": oid, "siblings": files, "tags": [], "downloads": 0, "likes": 0})

    def resolve(self, path: Path, oid: str) -> None:
        self.hub.asked.append((self.command, path.name))
        if not path.is_file():
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": oid})
        data = path.read_bytes()
        large = path.suffix in (".safetensors", ".bin")  # the others are named as git names them
        digest = hashlib.sha256(data) if large else hashlib.sha1(b"blob %d\0" % len(data) + data)
        if path.name in self.hub.damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.send(200, data, {"ETag": f'"{digest.hexdigest()}"', "X-Repo-Commit": oid})

    # -- writing ---------------------------------------------------------------------------------------------------

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_PUT(self) -> None:
        data = self.body()
        self.hub.large[hashlib.sha256(data).hexdigest()] = data
        self.send(200, b"", {})

    def do_POST(self) -> None:
        path, body = unquote(urlsplit(self.path).path), self.body()
        if path == "/api/validate-yaml":
            if "license: mine" in json.loads(body)["content"]:
                return self.answer({"errors": [{"message": '"license" must be one of a list'}], "warnings": []}, 400)
            return self.answer({"errors": [], "warnings": []})
        if self.token != "hf_write":
            return self.answer({"error": "Invalid credentials in Authorization header"}, 401)
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path.endswith("/info/lfs/objects/batch"):
            return self.answer({"transfer": "basic", "objects": [self.upload(o) for o in json.loads(body)["objects"]]})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
            files = [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]
            return self.answer({"files": files})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            return self.commit(found[1], body)
        self.send(404, b"{}", {})

    def create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.hub.pushed:
            return self.answer({"error": "You already created this model repo", "url": name}, 409)
        self.hub.pushed[name] = None
        if asked.get("visibility") == "private" or asked.get("private"):
            self.hub.private[name] = self.token
        self.answer({"url": f"{self.hub.url}/{name}", "name": name, "id": name})

    def upload(self, asked: dict[str, Any]) -> dict[str, Any]:
        known = asked["oid"] in self.hub.large
        upload = {"upload": {"href": f"{self.hub.url}/upload/{asked['oid']}"}}
        return {"oid": asked["oid"], "size": asked["size"], **({} if known else {"actions": upload})}

    def commit(self, repository: str, body: bytes) -> None:
        lines = [json.loads(line) for line in body.decode().splitlines()]
        oid = hashlib.sha1(body + str(len(self.hub.commits)).encode()).hexdigest()
        before, target = self.hub.folder(repository, "main"), self.hub.store / oid
        shutil.copytree(before[0], target) if before else target.mkdir(parents=True)
        for line in lines[1:]:
            file = target / line["value"]["path"]
            if line["key"] == "file":
                file.write_bytes(base64.b64decode(line["value"]["content"]))
            elif line["key"] == "lfsFile":
                file.write_bytes(self.hub.large[line["value"]["oid"]])
            elif line["key"] == "deletedFile":
                file.unlink()
        self.hub.pushed[repository] = oid
        operations = [(line["key"], line["value"]["path"]) for line in lines[1:]]
        self.hub.commits.append(Commit(repository, oid, lines[0]["value"]["summary"], operations))
        self.answer({"commitUrl": f"{self.hub.url}/{repository}/commit/{oid}", "commitOid": oid})


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
    hub = Hub(repositories, cache.with_name(f"{cache.name}-pushed"))
    with local_server.serving(_Handler, hub) as hub.url:
        point_at(hub.url, monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(cache / "assets"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # another protocol, which this one does not speak
        yield hub
