"""A server that speaks enough of the Hub's protocol for huggingface_hub to fetch a dataset's files from it."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lra_ssm.datamodules.fetch.hub import HubDataset
from tests import local_server
from tests.hub_models import point_at


class Hub:
    """A dataset's files, how the server behaves, and what was asked of it.

    `status` and `code`: of listings, with the Hub's X-Error-Code. `gone`: files that are listed, and not there.
    `wrong`: files whose listed digest is another's. `asked`: files as they are sent, "listing" for that.
    """

    def __init__(self, files: dict[str, bytes], revision: str, repository: str) -> None:
        self.files, self.revision, self.repository = files, revision, repository
        self.status, self.code = 200, ""
        self.gone, self.wrong = set[str](), set[str]()
        self.asked: list[str] = []

    def listing(self) -> dict[str, Any]:
        siblings = []
        for name, data in self.files.items():
            digest = hashlib.sha256(b"another" if name in self.wrong else data).hexdigest()
            lfs = {"sha256": digest, "size": len(data), "pointerSize": 130}
            siblings.append({"rfilename": name, "size": len(data), "blobId": "0" * 40, "lfs": lfs})
        return {"id": self.repository, "sha": self.revision, "siblings": siblings, "tags": [], "private": False}


class _Handler(local_server.Handler):
    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        if self.path.startswith("/api/datasets/"):
            hub.asked.append("listing")
            if hub.status != 200:
                return self.send(hub.status, b"{}", {"X-Error-Code": hub.code} if hub.code else {})
            assert self.path.split("?")[0] == f"/api/datasets/{hub.repository}/revision/{hub.revision}", self.path
            return self.send(200, json.dumps(hub.listing()).encode(), {"Content-Type": "application/json"})
        name = self.path.removeprefix(f"/datasets/{hub.repository}/resolve/{hub.revision}/")
        if name not in hub.files or name in hub.gone:  # the library asks for its own things now and then
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
        if self.command == "GET":
            hub.asked.append(name)
        digest = hashlib.sha256(hub.files[name]).hexdigest()
        self.send(200, hub.files[name], {"ETag": f'"{digest}"', "X-Repo-Commit": hub.revision})


@contextmanager
def serving_hub(files: dict[str, bytes], patch: pytest.MonkeyPatch, dataset: HubDataset) -> Iterator[Hub]:
    """A hub that huggingface_hub of this process asks."""
    from huggingface_hub import constants

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        patch.delenv(name, raising=False)
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # another protocol, which this one does not speak
    hub = Hub(files, dataset.revision, dataset.repository)
    with local_server.serving(_Handler, hub) as url:
        point_at(url, patch)
        yield hub
