"""A file on a local server, and what a download of it should leave."""

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest

from lra_ssm.datamodules.fetch.download import DownloadNote, RemoteFile, download
from lra_ssm.datamodules.fetch.download_note import read_note
from tests.datamodules.server import Site

DATA = random.Random(0).randbytes(300_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
MD5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
NAME = "file.bin"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")


def remote(site: Site, *more: str, digest: str | None = f"sha256:{SHA256}", **settings: Any) -> RemoteFile:
    return RemoteFile((f"{site.url}/{NAME}", *more), NAME, digest, **settings)


def fetch(file: RemoteFile, folder: Path, **settings: Any) -> DownloadNote:
    return download(file, folder, **{"timeout": 5.0, "tries": 3, "backoff": 0.01, **settings})


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def check_whole(folder: Path, data: bytes = DATA) -> None:
    """The file is there, with the note of what it is beside it."""
    assert files(folder) == [NAME, f"{NAME}.download.json"]
    assert (folder / NAME).read_bytes() == data
    note = read_note(folder / NAME, hashlib.sha256(data).hexdigest())
    assert note["bytes"] == len(data) and note["url"].startswith("http://127.0.0.1:")
