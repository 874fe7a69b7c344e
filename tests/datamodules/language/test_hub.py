"""The Hub's files: fetched, resumed, and every way to fail in one line."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from lra_ssm.datamodules.language.hub import fetch_files, fetched, listed
from lra_ssm.errors import InputError
from tests.datamodules.language.hub_server import Hub, serving_hub

REVISION = "1" * 40
FILES = {f"data/train-{n}.parquet": bytes([n]) * 50_000 for n in range(3)} | {"README.md": b"hello", "data/x.bin": b"x"}
PATTERNS = ("data/train-*.parquet",)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving_hub(dict(FILES)) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        yield hub


def fetch(root: Path, **settings: object) -> Path:
    return fetch_files("owner/name", REVISION, PATTERNS, root, "set/download", backoff=0.01, **settings)


def test_files_are_fetched_once(hub: Hub, tmp_path: Path) -> None:
    assert fetched(tmp_path / "set/download") is None
    folder = fetch(tmp_path)
    assert folder == tmp_path / "set/download"
    for name in PATTERNS[0].replace("*", "0"), "data/train-1.parquet", "data/train-2.parquet":
        assert (folder / name).read_bytes() == FILES[name]
    assert not (folder / "README.md").exists() and not (folder / "data/x.bin").exists()
    note = fetched(folder)
    assert note is not None and note["revision"] == REVISION and len(note["files"]) == 3
    assert {file["digest"] for file in note["files"]} == {"published"}
    asked = len(hub.asked)
    fetch(tmp_path)
    assert len(hub.asked) == asked  # without the network
    (folder / "data/train-1.parquet").unlink()
    assert fetched(folder) is None
    fetch(tmp_path)
    assert [name for name, _ in hub.asked[asked:]] == ["listing", "data/train-1.parquet"]


def test_broken_connections_go_on_where_they_broke_off(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub.break_after = {"data/train-1.parquet": [20_000, 5_000]}
    hub.status, hub.times = 503, 1
    folder = fetch(tmp_path)
    assert (folder / "data/train-1.parquet").read_bytes() == FILES["data/train-1.parquet"]
    ranges = [asked for name, asked in hub.asked if name == "data/train-1.parquet"]
    assert ranges == [None, "bytes=20000-", "bytes=25000-"]
    said = " ".join(record.message for record in caplog.records if record.levelno == logging.WARNING)
    assert "trying again (2 of 5)" in said and "broken off" in said


def test_what_was_received_stays(hub: Hub, tmp_path: Path) -> None:
    """Where the Hub is given up, the next call goes on, though it is another process'."""
    hub.break_after = {"data/train-1.parquet": [30_000, 0, 0]}
    with pytest.raises(InputError, match=r"train-1\.parquet cannot be downloaded: .*the first 30,000 bytes are kept"):
        fetch(tmp_path, tries=2)
    assert fetched(tmp_path / "set/download") is None
    asked = len(hub.asked)
    fetch(tmp_path)
    assert hub.asked[asked + 1 :] == [("data/train-1.parquet", "bytes=30000-"), ("data/train-2.parquet", None)]


def test_a_wrong_digest(hub: Hub, tmp_path: Path) -> None:
    hub.wrong = {"data/train-0.parquet"}
    with pytest.raises(InputError, match=r"train-0\.parquet cannot be downloaded: .* instead of the published"):
        fetch(tmp_path)
    assert not list((tmp_path / "set/download").rglob("*.parquet"))


@pytest.mark.parametrize(
    ("status", "code", "match"),
    [
        (404, "RepoNotFound", "the Hub has no such dataset, or it is private"),
        (404, "RevisionNotFound", "the dataset has no such revision"),
        (403, "GatedRepo", "no access without its owner's consent and a token"),
        (401, "", r"its files cannot be listed \(.*401"),
        (500, "", r"its files cannot be listed \(.*500"),
    ],
)
def test_refusals(hub: Hub, tmp_path: Path, status: int, code: str, match: str) -> None:
    hub.status, hub.code = status, code
    root = tmp_path / "root"
    with pytest.raises(InputError, match=f"^owner/name@111111111111: {match}") as error:
        fetch(root, tries=2)
    assert "\n" not in str(error.value) and not root.exists()
    assert len(hub.asked) == (2 if status == 500 else 1)


def test_offline_and_unreachable(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"its files cannot be listed \("):
        fetch(tmp_path / "root", tries=2)
    if hasattr(constants, "is_offline_mode"):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(InputError, match="cannot be downloaded in offline mode; unset HF_HUB_OFFLINE"):
            fetch(tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_bad_listings(hub: Hub) -> None:
    with pytest.raises(InputError, match=r"has no files nothing\*"):
        listed("owner/name", REVISION, ("nothing*",))
    for name in ("../out", "/etc/x", "a\\b"):
        hub.files = {name: b"x"}
        with pytest.raises(InputError, match="which has no usable name"):
            listed("owner/name", REVISION, ("*",))
    hub.files = {"b": b"", "a": b"x"}
    assert [file.name for file in listed("owner/name", REVISION, ("*",))] == ["a", "b"]
    assert json.loads(json.dumps(hub.listing()))["sha"] == REVISION
