"""The Hub's files: fetched, gone on with file by file, and every way to fail in one line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lra_ssm.datamodules.language.hub import fetch_files, fetched, listed
from lra_ssm.errors import InputError
from tests.datamodules.language.hub_server import Hub, serving_hub

REVISION = "1" * 40
TRAIN = [f"data/train-{n}.parquet" for n in range(3)]
FILES = {name: bytes([n]) * 50_000 for n, name in enumerate(TRAIN)} | {"README.md": b"hello", "data/x.bin": b"x"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving_hub(dict(FILES), REVISION, monkeypatch) as hub:
        yield hub


def fetch(root: Path) -> Path:
    return fetch_files("owner/name", REVISION, ("data/train-*.parquet",), root, "set/download")


def visible(folder: Path) -> set[str]:
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(file) for file in files if not file.parts[0].startswith(".")}


def test_files_are_fetched_once(hub: Hub, tmp_path: Path) -> None:
    assert fetched(tmp_path / "set/download") is None
    folder = fetch(tmp_path)
    assert folder == tmp_path / "set/download" and visible(folder) == {*TRAIN, "files.json"}
    assert all((folder / name).read_bytes() == FILES[name] for name in TRAIN)
    note = fetched(folder)
    assert note is not None and note["revision"] == REVISION and [file["name"] for file in note["files"]] == TRAIN
    assert {file["digest"] for file in note["files"]} == {"published"}
    asked = len(hub.asked)
    fetch(tmp_path)
    assert len(hub.asked) == asked  # without the network
    (folder / TRAIN[1]).unlink()
    assert fetched(folder) is None
    fetch(tmp_path)
    assert hub.asked[asked:] == ["listing", TRAIN[1]]


def test_files_that_are_whole_stay(hub: Hub, tmp_path: Path) -> None:
    hub.gone = {TRAIN[1]}
    with pytest.raises(InputError, match=r"^owner/name: data/train-1\.parquet cannot be downloaded \(.*404") as error:
        fetch(tmp_path)
    assert "\n" not in str(error.value) and visible(tmp_path / "set/download") == {TRAIN[0]}
    hub.gone, asked = set(), len(hub.asked)
    fetch(tmp_path)
    assert hub.asked[asked:] == ["listing", *TRAIN[1:]]


def test_a_wrong_digest(hub: Hub, tmp_path: Path) -> None:
    hub.wrong = {TRAIN[0]}
    with pytest.raises(InputError, match=r"train-0\.parquet has the sha256 .* instead of the published .* start again"):
        fetch(tmp_path)
    assert not visible(tmp_path / "set/download")
    hub.wrong = set()
    assert (fetch(tmp_path) / TRAIN[0]).read_bytes() == FILES[TRAIN[0]]


@pytest.mark.parametrize(
    ("status", "code", "match"),
    [
        (404, "RepoNotFound", r"its files cannot be listed \(.*Repository Not Found"),
        (404, "RevisionNotFound", r"its files cannot be listed \(.*Revision Not Found"),
        (403, "GatedRepo", "no access without its owner's consent and a token"),
        (500, "", r"its files cannot be listed \(.*500"),
    ],
)
def test_refusals(hub: Hub, tmp_path: Path, status: int, code: str, match: str) -> None:
    hub.status, hub.code = status, code
    with pytest.raises(InputError, match=f"^owner/name@111111111111: {match}") as error:
        fetch(tmp_path / "root")
    assert "\n" not in str(error.value) and not (tmp_path / "root").exists()


def test_offline_and_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"its files cannot be listed \("):
        fetch(tmp_path / "root")
    if hasattr(constants, "is_offline_mode"):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(InputError, match="cannot be downloaded in offline mode; unset HF_HUB_OFFLINE"):
            fetch(tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_files_that_match(hub: Hub) -> None:
    with pytest.raises(InputError, match=r"has no files nothing\*"):
        listed("owner/name", REVISION, ("nothing*",))
    assert [file.name for file in listed("owner/name", REVISION, ("data/*",))] == [*TRAIN, "data/x.bin"]
