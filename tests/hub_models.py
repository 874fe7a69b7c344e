"""A server that speaks enough of the Hub's protocol for huggingface_hub to fetch files of models from it."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import local_server

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Repositories: folders by name, each with one commit that is called main, v1 and COMMIT.

    `private`: of those, which ask for a token; `asked`: (method, repository, file, revision, token) of every request.
    """

    def __init__(self, repositories: dict[str, Path]) -> None:
        self.repositories, self.private, self.url = repositories, dict[str, str](), ""
        self.asked: list[tuple[str, str, str, str, str | None]] = []


class _Handler(local_server.Handler):
    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        if "/resolve/" not in self.path:  # the library asks for its own things now and then
            return self.send(404, b"{}", {})
        repository, _, rest = self.path.lstrip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        token = self.headers.get("Authorization")
        hub.asked.append((self.command, repository, file, revision, token))
        folder = hub.repositories.get(repository)
        secret = hub.private.get(repository)
        if folder is None or (secret is not None and token != f"Bearer {secret}"):
            return self.send(401, b"", {"X-Error-Code": "RepoNotFound"})
        if revision not in ("main", "v1", COMMIT):
            return self.send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if not (folder / file).is_file():
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        data = (folder / file).read_bytes()
        self.send(200, data, {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT})


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
    hub = Hub(repositories)
    with local_server.serving(_Handler, hub) as hub.url:
        point_at(hub.url, monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
        yield hub
