"""The Hub's files: fetched, gone on with file by file, and every way to fail in one line."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lra_ssm.datamodules.fetch.hub import HubDataset
from lra_ssm.errors import InputError
from tests.datamodules.language.hub_server import Hub, serving_hub

TRAIN = [f"data/train-{n}.parquet" for n in range(3)]
FILES = {name: bytes([n]) * 50_000 for n, name in enumerate(TRAIN)} | {"README.md": b"hello", "data/x.bin": b"x"}
DATASET = HubDataset("owner/name", "1" * 40, ("data/train-*.parquet",), "set/download")
BELOW = DATASET.below


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving_hub(dict(FILES), monkeypatch, DATASET) as hub:
        yield hub


def visible(folder: Path) -> set[str]:
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(file) for file in files if not file.parts[0].startswith(".")}


def test_files_are_fetched_once(hub: Hub, tmp_path: Path) -> None:
    assert DATASET.found(tmp_path) is None
    folder = DATASET.fetch(tmp_path)
    assert folder == tmp_path / "set/download/owner-name-111111111111" == DATASET.found(tmp_path)
    assert visible(folder) == {*TRAIN, "files.json"}
    assert all((folder / name).read_bytes() == FILES[name] for name in TRAIN)
    note = json.loads((folder / "files.json").read_text())
    assert note["revision"] == DATASET.revision and [file["name"] for file in note["files"]] == TRAIN
    assert {file["digest"] for file in note["files"]} == {"published"}
    asked = len(hub.asked)
    DATASET.fetch(tmp_path)
    assert len(hub.asked) == asked  # without the network
    (folder / TRAIN[1]).unlink()
    assert DATASET.found(tmp_path) is None
    DATASET.fetch(tmp_path)
    assert hub.asked[asked:] == ["listing", TRAIN[1]]


def test_files_that_are_whole_stay(hub: Hub, tmp_path: Path) -> None:
    hub.gone = {TRAIN[1]}
    with pytest.raises(InputError, match=r"^owner/name@1{12}: data/train-1\.parquet cannot .*404") as error:
        DATASET.fetch(tmp_path)
    assert "\n" not in str(error.value) and visible(tmp_path / BELOW) == {TRAIN[0]}
    hub.gone, asked = set(), len(hub.asked)
    DATASET.fetch(tmp_path)
    assert hub.asked[asked:] == ["listing", *TRAIN[1:]]


def test_files_that_were_not_compared_are_not_there(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(path: Path) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("lra_ssm.datamodules.fetch.hub.sha256", stopped)
        DATASET.fetch(tmp_path)
    assert visible(tmp_path / BELOW) == {TRAIN[0]} and DATASET.there(tmp_path) is None
    assert DATASET.fetch(tmp_path) == DATASET.there(tmp_path)


def test_a_wrong_digest(hub: Hub, tmp_path: Path) -> None:
    hub.wrong = {TRAIN[0]}
    with pytest.raises(InputError, match=r"train-0\.parquet has the sha256 .* instead of the published .* start again"):
        DATASET.fetch(tmp_path)
    assert not visible(tmp_path / BELOW)
    hub.wrong = set()
    assert (DATASET.fetch(tmp_path) / TRAIN[0]).read_bytes() == FILES[TRAIN[0]]


@pytest.mark.parametrize(
    ("status", "code", "match"),
    [
        (404, "RepoNotFound", r"its files cannot be listed \(.*Repository Not Found"),
        (404, "RevisionNotFound", r"its files cannot be listed \(.*Revision Not Found"),
        (403, "GatedRepo", r"its files cannot be listed \(.*Cannot access gated repo"),
        (500, "", r"its files cannot be listed \(.*500"),
    ],
)
def test_refusals(hub: Hub, tmp_path: Path, status: int, code: str, match: str) -> None:
    hub.status, hub.code = status, code
    with pytest.raises(InputError, match=f"^owner/name@111111111111: {match}") as error:
        DATASET.fetch(tmp_path / "root")
    assert "\n" not in str(error.value) and not (tmp_path / "root").exists()


def test_offline_and_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"its files cannot be listed \("):
        DATASET.fetch(tmp_path / "root")
    if hasattr(constants, "is_offline_mode"):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(InputError, match="its files cannot be listed .*offline mode .* unset the `HF_HUB_OFFLINE`"):
            DATASET.fetch(tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_files_that_match(hub: Hub) -> None:
    with pytest.raises(InputError, match=r"has no files nothing\*"):
        replace(DATASET, patterns=("nothing*",)).listed()
    assert [file.rfilename for file in replace(DATASET, patterns=("data/*",)).listed()] == [*TRAIN, "data/x.bin"]


def test_no_room(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(InputError, match="owner/name@1{12} needs .* make room"):
        DATASET.fetch(tmp_path / "root")
    assert hub.asked == ["listing"] and not (tmp_path / "root").exists()
