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
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests import local_server

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Commit(NamedTuple):
    """What was pushed: to which branch, or as a pull request; operations by kind, such as ("lfsFile", path)."""

    repository: str
    revision: str
    oid: str
    message: str
    operations: list[tuple[str, str]]


class Hub:
    """Repositories: folders by name, each with one commit that is called main, v1 and COMMIT; more as they are pushed.

    `private`: of those, which ask for a token; `asked`: (method, repository, file, revision, token) of every request
    for a file; `commits`: what was pushed; `damaged`: files whose bytes are not those of their digest; `writers`:
    tokens that may write.
    """

    def __init__(self, repositories: dict[str, Path], store: Path) -> None:
        self.repositories, self.private, self.url = repositories, dict[str, str](), ""
        self.asked: list[tuple[str, str, str, str, str | None]] = []
        self.commits: list[Commit] = []
        self.damaged: set[str] = set()
        self.writers = {"hf_write"}
        self.store = store
        self.branches: dict[tuple[str, str], str | None] = {}  # of pushed repositories: the newest commit
        self.large: dict[str, bytes] = {}  # uploaded by digest

    def folder(self, repository: str, revision: str) -> tuple[Path, str] | None:
        """The files of a revision, and its commit."""
        oid = self.branches.get((repository, revision), revision if (self.store / revision).is_dir() else None)
        if oid is not None and (self.store / oid).is_dir():
            return self.store / oid, oid
        first = self.repositories.get(repository)
        return (first, COMMIT) if first is not None and revision in ("main", "v1", COMMIT) else None

    def exists(self, repository: str) -> bool:
        return repository in self.repositories or any(name == repository for name, _ in self.branches)


class _Handler(local_server.Handler):
    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined]

    @property
    def token(self) -> str | None:
        return self.headers.get("Authorization")

    def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        self.send(status, json.dumps(content).encode(), {"Content-Type": "application/json", **headers})

    def refused(self, repository: str) -> bool:
        """Answers as for a repository that is not there, if this token may not see it."""
        secret = self.hub.private.get(repository)
        hidden = not self.hub.exists(repository) or (secret is not None and self.token != f"Bearer {secret}")
        if hidden:
            self.send(401, b"", {"X-Error-Code": "RepoNotFound"})
        return hidden

    # -- reading ---------------------------------------------------------------------------------------------------

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self.info(found[1], found[2] or "main")
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/(.+)", path):
            folder = self.hub.folder(found[1], found[2])
            files = [] if folder is None else sorted(folder[0].iterdir())
            return self.answer([{"type": "file", "path": p.name, "size": 1, "oid": "0"} for p in files])
        if "/resolve/" not in path:  # the library asks for its own things now and then
            return self.send(404, b"{}", {})
        repository, _, rest = path.lstrip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        self.hub.asked.append((self.command, repository, file, revision, self.token))
        if self.refused(repository):
            return
        found_ = self.hub.folder(repository, revision)
        if found_ is None:
            return self.send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        folder, oid = found_
        if not (folder / file).is_file():
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": oid})
        data = (folder / file).read_bytes()
        large = file.endswith((".safetensors", ".bin"))  # the others are named as git names them
        digest = hashlib.sha256(data) if large else hashlib.sha1(b"blob %d\0" % len(data) + data)
        tag = {"ETag": f'"{digest.hexdigest()}"', "X-Repo-Commit": oid}
        if file in self.hub.damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.send(200, data, tag)

    def info(self, repository: str, revision: str) -> None:
        if self.refused(repository):
            return
        found = self.hub.folder(repository, revision)
        if found is None:
            if revision != "main":
                return self.send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            files, oid = [], None
        else:
            files, oid = [{"rfilename": path.name} for path in sorted(found[0].iterdir())], found[1]
        known = {"id": repository, "private": repository in self.hub.private, "siblings": files, "tags": []}
        self.answer(known | {"sha": oid, "downloads": 0, "likes": 0})

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
            license = re.search(r"^license: (.*)$", json.loads(body)["content"], re.MULTILINE)
            if license and license[1] == "mine":
                return self.answer({"errors": [{"message": '"license" must be one of a list'}], "warnings": []}, 400)
            return self.answer({"errors": [], "warnings": []})
        if self.token not in {f"Bearer {writer}" for writer in self.hub.writers}:
            return self.answer({"error": "Invalid credentials in Authorization header"}, 401)
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if found := re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            return self.answer({"transfer": "basic", "objects": [self.upload(o) for o in json.loads(body)["objects"]]})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit|branch)/(.+)", path):
            return getattr(self, found[2])(found[1], found[3], body)
        self.send(404, b"{}", {})

    def create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if self.hub.exists(name):
            return self.answer({"error": "You already created this model repo", "url": name}, 409)
        self.hub.branches[name, "main"] = None
        if asked.get("visibility") == "private" or asked.get("private"):
            self.hub.private[name] = str(self.token).removeprefix("Bearer ")
        self.answer({"url": f"{self.hub.url}/{name}", "name": name, "id": name})

    def upload(self, asked: dict[str, Any]) -> dict[str, Any]:
        there = asked["oid"] in self.hub.large
        upload = {"upload": {"href": f"{self.hub.url}/upload/{asked['oid']}"}}
        return {"oid": asked["oid"], "size": asked["size"], **({} if there else {"actions": upload})}

    def branch(self, repository: str, name: str, body: bytes) -> None:
        main = self.hub.folder(repository, "main")
        self.hub.branches[repository, name] = main[1] if main else None
        self.answer({})

    def preupload(self, repository: str, revision: str, body: bytes) -> None:
        files = json.loads(body)["files"]
        modes = {file["path"]: "lfs" if file["path"].endswith(".safetensors") else "regular" for file in files}
        self.answer({"files": [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]})

    def commit(self, repository: str, revision: str, body: bytes) -> None:
        lines = [json.loads(line) for line in body.decode().splitlines()]
        oid = hashlib.sha1(body + str(len(self.hub.commits)).encode()).hexdigest()
        before, target = self.hub.folder(repository, revision), self.hub.store / oid
        shutil.copytree(before[0], target) if before else target.mkdir(parents=True)
        for line in lines[1:]:
            file = target / line["value"]["path"]
            if line["key"] == "file":
                file.write_bytes(base64.b64decode(line["value"]["content"]))
            elif line["key"] == "lfsFile":
                file.write_bytes(self.hub.large[line["value"]["oid"]])
            elif line["key"] == "deletedFile":
                file.unlink()
        number = len(self.hub.commits) + 1
        to = f"refs/pr/{number}" if "create_pr" in parse_qs(urlsplit(self.path).query) else revision
        self.hub.branches[repository, to] = oid
        operations = [(line["key"], line["value"]["path"]) for line in lines[1:]]
        self.hub.commits.append(Commit(repository, to, oid, lines[0]["value"]["summary"], operations))
        url = f"{self.hub.url}/{repository}"
        asked = {"pullRequestUrl": f"{url}/discussions/{number}"} if to != revision else {}
        self.answer({"commitUrl": f"{url}/commit/{oid}", "commitOid": oid, **asked})


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
