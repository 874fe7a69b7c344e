"""The Long Range Arena's archive: downloaded once, unpacked folder by folder."""

import io
import tarfile
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lra_ssm.datamodules import ListOps
from lra_ssm.datamodules.fetch import lra_release
from lra_ssm.datamodules.fetch.download import RemoteFile
from lra_ssm.datamodules.fetch.download_note import DownloadNote, read_note
from lra_ssm.datamodules.fetch.lra_release import ReleasedFiles, fetch_lra_release
from lra_ssm.datamodules.listops.reader import FILES as LISTOPS
from lra_ssm.datamodules.retrieval.module import Retrieval
from lra_ssm.datamodules.retrieval.reader import FILES as AAN
from lra_ssm.datamodules.retrieval.reader import NAMES
from lra_ssm.errors import InputError
from lra_ssm.files import sha256
from tests.datamodules.helpers import write_tsv
from tests.datamodules.test_retrieval import ROWS, write_files


def write_release(path: Path, wrapping: str) -> Path:
    members = {f"{wrapping}tsv_data/{NAMES[split]}": "\n".join([*rows, ""]) for split, rows in ROWS.items()}
    members |= {f"{wrapping}listops-1000/basic_train.tsv": "Source\tTarget\n", f"{wrapping}README": "about"}
    members |= {f"{wrapping}pathfinder32/hard/imgs/0.png": "hard", f"{wrapping}pathfinder32/easy/imgs/0.png": "easy"}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize(("module", "files"), [(ListOps, LISTOPS), (Retrieval, AAN)])
def test_where_files_may_be(tmp_path: Path, module: Any, files: ReleasedFiles) -> None:
    root = tmp_path / "root"
    command = f"lra-ssm prepare {module.dataset} --source=lra --root={root}"
    with pytest.raises(
        InputError, match=f"no {module.__name__} files .*lra_release/lra_release/.*`{command}`"
    ) as error:
        module(root=str(root), source="lra").prepare_data()
    assert "\n" not in str(error.value) and not root.exists()
    for layout in files.layouts:
        folder = tmp_path / "found" / layout
        folder.mkdir(parents=True, exist_ok=True)
        for name in files.names.values():
            (folder / name).touch()
        found = files.find(tmp_path / "found")
        assert found == {split: folder / name for split, name in files.names.items()}
        for path in found.values():
            path.unlink()
    for name in (files.names["train"], files.names["test"]):
        (tmp_path / "found" / name).touch()
    for attempt in ("prepare_data", "fetch"):
        with pytest.raises(InputError, match=f"{files.names['val']}: missing, though {files.names['train']} is there"):
            getattr(module(root=str(tmp_path / "found"), source="lra"), attempt)()


@pytest.mark.parametrize("wrapping", ["lra_release/lra_release/", "lra_release/", ""])
def test_unpacks_what_it_needs_of_the_release(tmp_path: Path, wrapping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    record = DownloadNote("https://x.org/lra_release.gz", 1, "0" * 64, "unknown")

    def download(file: RemoteFile, folder: Path) -> DownloadNote:
        write_release(folder / file.name, wrapping)
        return record

    monkeypatch.setattr(lra_release, "download", download)
    data = Retrieval(root=str(root))
    data.fetch()
    unpacked = root / "lra_release/lra_release"
    names = [str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()]
    assert sorted(names) == [f"tsv_data/{name}" for name in sorted(["download.json", *NAMES.values()])]
    data.prepare_data()
    source = data.manifest()["source"]
    assert source["kind"] == "lra" and source["archive"] == asdict(record)
    hard = fetch_lra_release(root, "pathfinder32/hard")
    assert hard == unpacked / "pathfinder32/hard" and (hard / "imgs/0.png").read_text() == "hard"
    assert not (unpacked / "pathfinder32/easy").exists()
    monkeypatch.setattr(lra_release, "extract", None)  # nothing more to do
    data.fetch()
    assert fetch_lra_release(root, "pathfinder32/hard") == hard
    assert sorted(path.name for path in root.iterdir()) == ["lra_release", "lra_release.gz", "retrieval"]


def test_a_release_that_is_there_needs_no_network(tmp_path: Path) -> None:
    write_release(tmp_path / "lra_release.gz", "lra_release/")
    folder = fetch_lra_release(tmp_path, "tsv_data")
    assert sorted(path.name for path in folder.iterdir()) == sorted(["download.json", *NAMES.values()])
    note = read_note(folder)
    assert note["url"] is None and note["sha256"] == sha256(tmp_path / "lra_release.gz")
    with pytest.raises(InputError, match="none of the wanted files"):
        fetch_lra_release(tmp_path, "absent")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lra_release", "lra_release.gz"]


def test_a_failed_download_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(file: RemoteFile, folder: Path) -> DownloadNote:
        raise InputError("no network")

    monkeypatch.setattr(lra_release, "download", fails)
    for module in (Retrieval, ListOps):
        with pytest.raises(InputError, match="no network"):
            module(root=str(tmp_path / "root"), source="lra").fetch()
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "root").mkdir()  # the user's own stays
    with pytest.raises(InputError, match="no network"):
        Retrieval(root=str(tmp_path / "root")).fetch()
    assert list(tmp_path.rglob("*")) == [tmp_path / "root"]


def test_what_stands_where_a_folder_belongs(tmp_path: Path) -> None:
    write_release(tmp_path / "lra_release.gz", "")
    target = tmp_path / "lra_release/lra_release/tsv_data"
    target.mkdir(parents=True)  # of somebody's broken attempt
    assert len(list(fetch_lra_release(tmp_path, "tsv_data").iterdir())) == 4
    (target / "download.json").unlink()
    with pytest.raises(InputError, match="tsv_data: is there, but not as LRA's archive has it; move it away") as error:
        fetch_lra_release(tmp_path, "tsv_data")
    assert "\n" not in str(error.value) and len(list(target.iterdir())) == 3


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    write_release(root / "lra_release.gz", "")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", full)
        with pytest.raises(InputError, match=r"lra_release\.gz: cannot be unpacked .No space left on device"):
            Retrieval(root=str(root)).fetch()
    assert [path.name for path in root.iterdir()] == ["lra_release.gz"]
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100))
    files = str(write_files(tmp_path / "files"))
    tsv = str(write_tsv(tmp_path / "listops"))
    for data in (
        Retrieval(root=str(root), source=files),
        ListOps(root=str(root), source=tsv, max_length=500),
        ListOps(root=str(root)),
    ):
        data_name = type(data).__name__
        if data.kind() == "files":
            monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
        with pytest.raises(InputError, match=f"{data_name} needs .* make room"):
            data.prepare_data()
    assert [path.name for path in root.iterdir()] == ["lra_release.gz"]
