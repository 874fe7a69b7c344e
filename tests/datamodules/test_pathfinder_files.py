import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lra_ssm.datamodules.fetch.download_note import DownloadNote, write_note
from lra_ssm.datamodules.old_storage.format import open_prepared
from lra_ssm.datamodules.pathfinder.archive import missing_blocks, write_archive
from lra_ssm.datamodules.pathfinder.module import Pathfinder
from lra_ssm.datamodules.pathfinder.reader import places, read_listing
from lra_ssm.datamodules.pathfinder.settings import DIFFICULTIES, settings_for
from lra_ssm.errors import InputError
from tests.datamodules.helpers import contents
from tests.datamodules.image_helpers import encoded, pictures, prepared, write_pathfinder

IMAGES = pictures(120, channels=1)  # 12 metadata files of 10 images: 10.npy comes after 9.npy, not after 1.npy
LABELS = [(i % 10 + i // 10) % 2 for i in range(120)]
HARD = "curv_contour_length_14"


def inputs(loader: Any) -> torch.Tensor:
    return torch.cat([batch.inputs for batch in loader])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pathfinder(tmp_path_factory.mktemp("images") / HARD, IMAGES)


@pytest.mark.parametrize("metadata", ["text", "strings", "bytes"])
def test_metadata(tmp_path: Path, metadata: str) -> None:
    write_pathfinder(tmp_path, IMAGES, metadata)
    listing = read_listing(tmp_path)
    assert listing.paths[9:11] == ["imgs/0/sample_9.png", "imgs/1/sample_0.png"] and len(listing.paths) == 120
    assert listing.labels.tolist() == LABELS and listing.manifest_entry["empty_images"] == []
    assert listing.manifest_entry["metadata_format"] == ("text" if metadata == "text" else "npy")


class Evil:
    def __reduce__(self) -> Any:
        return exec, ("raise RuntimeError('ran')",)


def test_metadata_that_runs_something_is_refused(tmp_path: Path) -> None:
    write_pathfinder(tmp_path, IMAGES[:10])
    np.save(tmp_path / "metadata" / "0.npy", np.array([[Evil()] * 4], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"0.npy: is no .npy file of strings .Object arrays cannot be loaded"):
        read_listing(tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["imgs/0", "sample_0.png", 0], "line 11: .* is not folder, file, number, label"),
        (["imgs/0", "sample_0.png", 0, 2], "line 11: .* is not folder, file, number, label"),
        (["imgs/0", "sample_0.png", 0, 1], "lists an image twice"),
        (["imgs/0", "sample_10.png", 0, 1], "sample_10.png: is listed in the metadata but missing"),
        (["../x", "sample_0.png", 0, 1], "is not a path below the folder"),
    ],
)
def test_damaged_metadata(tmp_path: Path, row: list[Any], message: str) -> None:
    write_pathfinder(tmp_path, IMAGES[:10])
    with open(tmp_path / "metadata" / "0.npy", "a") as file:
        file.write(" ".join(map(str, row)))
    with pytest.raises(InputError, match=message) as error:
        read_listing(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metadata/0.npy", b"\x93NUMPY\1\0", "0.npy: is no .npy file of strings"),
        ("metadata/0.npy", b"\xff\xfe", "0.npy: is neither text nor a .npy file"),
        ("metadata/x.npy", b"", "x.npy: is no Pathfinder metadata file"),
        ("imgs/0/sample_3.png", encoded(pictures(1, size=33, channels=1)[0]), "sample_3.png: is an image of 33 x 33"),
        ("imgs/0/sample_3.png", b"nothing", "sample_3.png: is neither a PNG"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    folder = write_pathfinder(tmp_path / "images", IMAGES[:20])
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        Pathfinder(root=str(tmp_path / "root"), source=str(folder)).prepare_data()
    assert "\n" not in str(error.value) and not (tmp_path / "root").exists()


def test_fewer_images_than_published_are_said(tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = prepared(Pathfinder(root=str(tmp_path), source=str(folder)))
    assert f"{folder} lists 120 images; the published ones are 200,000" in caplog.text
    assert data.manifest()["source"]["published_counts"] is False
    record = data.manifest()["source"]["files"]
    assert (record["folder"], record["digest"]) == (str(folder), "unknown")
    caplog.clear()
    prepared(Pathfinder(root=str(tmp_path), num_images=10))  # ours are as many as were asked for
    assert "published" not in caplog.text


def test_empty_images_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = write_pathfinder(tmp_path / "images", IMAGES)
    for name in ("imgs/0/sample_3.png", "imgs/11/sample_9.png"):
        (folder / name).write_bytes(b"")
    data = prepared(Pathfinder(root=str(tmp_path / "root"), source=str(folder), split="file_order"))
    assert [split["examples"] for split in data.manifest()["splits"].values()] == [96, 11, 11]
    record = data.manifest()["source"]["files"]
    assert record["empty_images"] == ["imgs/0/sample_3.png", "imgs/11/sample_9.png"] and record["listed_images"] == 120
    assert data._datasets["train"].split.labels[:4].tolist() == [LABELS[i] for i in (0, 1, 2, 4)]
    assert np.array_equal(data._datasets["train"].split.images[3], IMAGES[4])


def test_an_empty_image_of_the_generator_is_an_error(tmp_path: Path) -> None:
    data = Pathfinder(root=str(tmp_path), num_images=10)
    folder = write_archive(data.archive_folder, settings_for(32, HARD), 0, 10, workers=1)
    (folder / "imgs" / "0" / "sample_3.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"sample_3.png: is an empty file; delete .*metadata/0.npy and") as error:
        data.prepare_data()
    assert "\n" not in str(error.value)
    (folder / "metadata" / "0.npy").unlink()
    assert sum(split["examples"] for split in prepared(data).manifest()["splits"].values()) == 10


def test_deleted_images_of_the_generator_are_drawn_again(tmp_path: Path) -> None:
    data = Pathfinder(root=str(tmp_path), num_images=20)
    prepared(data)
    images = data.archive_folder / "pathfinder32" / HARD / "imgs"
    shutil.rmtree(images)
    assert sum(missing_blocks(data.archive_folder, 32, HARD, 20).values()) == 20
    other = prepared(Pathfinder(root=str(tmp_path), num_images=20, split_seed=1))
    assert len(list((images / "0").iterdir())) == 20 and other.prepared_folder != data.prepared_folder
    (images / "0" / "sample_3.png").unlink()
    with pytest.raises(InputError, match=r"sample_3.png: is listed .* but missing; delete .*metadata/0.npy and its"):
        Pathfinder(root=str(tmp_path), num_images=20, split_seed=2).prepare_data()


def test_our_own_images_do_not_pass_for_others(tmp_path: Path) -> None:
    easy = write_archive(
        tmp_path / "pathfinder", settings_for(32, "curv_baseline"), 5, 20, difficulty="curv_baseline", workers=1
    )
    with pytest.raises(InputError, match="holds none of .*downloads LRA's release"):
        Pathfinder(root=str(tmp_path), source="lra", difficulty="curv_baseline").prepare_data()
    with pytest.raises(InputError, match=f"is named after another difficulty than {HARD}; give .*curv_baseline"):
        Pathfinder(root=str(tmp_path), source=str(easy)).prepare_data()
    data = prepared(Pathfinder(root=str(tmp_path), source=str(easy), difficulty="curv_baseline"))
    source = data.manifest()["source"]
    assert (source["kind"], source["difficulty"]) == ("files", "curv_baseline")
    assert (source["generator"]["seed"], source["generator"]["num_images"]) == (5, 20)
    (easy / "generator.json").write_text("{")
    with pytest.raises(InputError, match=r"generator\.json: is no record of a generator") as error:
        Pathfinder(root=str(tmp_path), source="lra", difficulty="curv_baseline").prepare_data()
    assert "\n" not in str(error.value)


def test_splits(tmp_path: Path, folder: Path) -> None:
    data = prepared(Pathfinder(root=str(tmp_path), source=str(folder)))
    generator = torch.Generator().manual_seed(42)
    parts = torch.utils.data.random_split(range(120), [96, 12, 12], generator=generator)  # type: ignore[arg-type]
    for name, part in zip(("train", "val", "test"), parts, strict=True):
        split = data._datasets[name].split
        assert np.array_equal(split.images, IMAGES[list(part)])
        assert split.labels.tolist() == [LABELS[index] for index in part]
    ordered = prepared(Pathfinder(root=str(tmp_path), source=str(folder), split="file_order"))
    assert (
        ordered.manifest()["source"]["split"]["kind"] == "file_order"
        and ordered.prepared_folder != data.prepared_folder
    )
    assert np.array_equal(ordered._datasets["test"].split.images, IMAGES[108:])
    limited = prepared(Pathfinder(root=str(tmp_path), source=str(folder), limit=10))
    assert limited.manifest()["splits"]["train"]["class_counts"] == [5, 5]
    open_prepared(data.prepared_folder, verify=True)


def test_scalings_share_the_prepared_data(tmp_path: Path, folder: Path) -> None:
    pixels = None
    folders = set()
    for kind, scale in (("integers", lambda x: x), ("unit", lambda x: x / 255), ("symmetric", lambda x: x / 127.5 - 1)):
        data = prepared(Pathfinder(root=str(tmp_path), source=str(folder), inputs=kind, split="file_order"))  # type: ignore
        got = inputs(data.val_dataloader())
        folders.add(data.prepared_folder)
        if pixels is None:
            pixels = got
            assert (
                got.dtype == torch.int64 and got.shape == (12, 1024) and (data.d_input, data.vocab_size) == (None, 256)
            )
            assert got.tolist() == IMAGES[96:108].reshape(12, 1024).tolist()
        else:
            assert got.shape == (12, 1024, 1) and (data.d_input, data.vocab_size) == (1, None)
            assert torch.allclose(got[..., 0], scale(pixels.float()), atol=1e-6)
    assert len(folders) == 1


@pytest.mark.parametrize("place", places(32, HARD))
def test_lra_layouts(tmp_path: Path, place: str) -> None:
    write_pathfinder(tmp_path / place, IMAGES[:20])
    archive = DownloadNote("https://x.org/lra_release.gz", 1, "0" * 64, "unknown")
    write_note(tmp_path / place, archive)
    data = prepared(Pathfinder(root=str(tmp_path), source="lra"))
    assert data.manifest()["source"]["archive"] == asdict(archive)
    assert data.manifest()["source"]["kind"] == "lra" and data.prepared_folder.name.startswith("lra-")
    assert Pathfinder(root="x", source=str(tmp_path))._folder() == tmp_path / place


def test_missing_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr("lra_ssm.datamodules.pathfinder.module.fetch_lra_release", lambda *a: called.append(a))
    data = Pathfinder(root=str(tmp_path), source="lra", resolution=128)
    with pytest.raises(InputError, match="`lra-ssm prepare pathfinder --source=lra --resolution=128") as error:
        data.prepare_data()
    assert "\n" not in str(error.value) and not called and not list(tmp_path.iterdir())
    data.fetch()
    assert called == [(tmp_path, f"pathfinder128/{HARD}")]
    for source, message in ((tmp_path, "holds no Pathfinder images"), (tmp_path / "x", "is neither generated")):
        with pytest.raises(InputError, match=message):
            Pathfinder(root=str(tmp_path), source=str(source)).prepare_data()


NOT_THE_USUAL = "curv_contour_length_9"


@pytest.mark.parametrize(
    "difficulty", [pytest.param(d, marks=[pytest.mark.slow] if d != NOT_THE_USUAL else []) for d in DIFFICULTIES]
)
def test_generated(tmp_path: Path, difficulty: Any) -> None:
    settings: dict[str, Any] = {"difficulty": difficulty, "num_images": 40, "generator_seed": 3}
    data = prepared(Pathfinder(root=str(tmp_path), **settings))
    source = data.manifest()["source"]
    assert (source["difficulty"], source["seed"], source["resolution"]) == (difficulty, 3, 32)
    assert source["generator"]["contour_length"] == DIFFICULTIES[difficulty]
    counts = [split["examples"] for split in data.manifest()["splits"].values()]
    assert counts == [32, 4, 4] and json.dumps(source)
    got = inputs(data.train_dataloader())
    assert got.shape == (32, 1024, 1) and got.min() == 0 and got.max() == 1
    # What is left of the archive is taken again, and gives the same.
    archive = data.archive_folder / "pathfinder32" / difficulty
    before = contents(data.prepared_folder)
    for path in data.prepared_folder.iterdir():
        path.unlink()
    data.prepared_folder.rmdir()
    (archive / "metadata" / "0.npy").unlink()
    (archive / "imgs" / "0" / "sample_0.png").unlink()
    data = prepared(Pathfinder(root=str(tmp_path), **settings))
    assert contents(data.prepared_folder) == before
    assert read_listing(archive).manifest_entry["listed_images"] == 40
    other = Pathfinder(root=str(tmp_path), **(settings | {"generator_seed": 4}))
    assert other.prepared_folder != data.prepared_folder and other.archive_folder != data.archive_folder


def test_no_room(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(InputError, match="preparing 120 images of .* needs"):
        Pathfinder(root=str(tmp_path / "root"), source=str(folder)).prepare_data()
    with pytest.raises(InputError, match="generating 10 Pathfinder images needs"):
        Pathfinder(root=str(tmp_path / "root"), num_images=10).prepare_data()
    assert not (tmp_path / "root").exists()
    # Begun elsewhere, with nothing or one block of two drawn: the rest is counted.
    data, needed = Pathfinder(root=str(tmp_path), num_images=1500), []
    monkeypatch.setattr(
        "lra_ssm.datamodules.pathfinder.module.check_disk_space", lambda _, count, what: needed.append(count)
    )
    target = data.archive_folder / "pathfinder32" / HARD / "metadata"
    target.mkdir(parents=True)
    data._check_room(tmp_path)
    (target / "0.npy").touch()
    (target.parent / "imgs" / "0").mkdir(parents=True)
    data._check_room(tmp_path)
    assert needed == [count * 4096 + 1500 * (1024 + 8) for count in (1500, 500)]
