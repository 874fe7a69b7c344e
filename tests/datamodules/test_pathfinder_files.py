"""Pathfinder as a dataset: drawn in parts that survive a kill, read from LRA's files, split, scaled."""

import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lra_ssm.datamodules import Pathfinder, parts
from lra_ssm.datamodules.download import LRA
from lra_ssm.datamodules.pathfinder import generator, module
from lra_ssm.datamodules.pathfinder.generator import generate_block
from lra_ssm.datamodules.pathfinder.module import read_images, read_listing
from lra_ssm.datamodules.pathfinder.settings import HARD, settings_for
from tests.datamodules.helpers import contents, prepared
from tests.runner import Command
from tests.small_data import pictures, write_pathfinder, write_tar

IMAGES = pictures(120, channels=1)  # 12 metadata files of 10 images: 10.npy comes after 9.npy, not after 1.npy
LABELS = [(i % 10 + i // 10) % 2 for i in range(120)]


def stored(data: Pathfinder, split: str) -> np.ndarray:
    return data.prepared.split(split)["images"]


# -- generated ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 8 images, drawn in this process."""
    monkeypatch.setattr(Pathfinder, "block_size", 8)
    monkeypatch.setattr(module, "available_cores", lambda: 1)


def generated(root: Path, **settings: Any) -> Pathfinder:
    return Pathfinder(root=str(root), **({"difficulty": "curv_baseline", "num_images": 20} | settings))


def test_the_generators_images_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None) -> None:
    settings: dict[str, Any] = {"difficulty": "curv_contour_length_9", "generator_seed": 3}
    data = prepared(generated(tmp_path, split="file_order", **settings))
    drawn = [generate_block(settings_for(32, "curv_contour_length_9"), 3, *block) for block in ((0, 8), (1, 8), (2, 4))]
    images, labels = np.concatenate([b.images for b in drawn]), np.concatenate([b.labels for b in drawn])
    for split, part in {"train": slice(16), "val": slice(16, 18), "test": slice(18, 20)}.items():
        assert np.array_equal(stored(data, split)[..., 0], images[part])
        assert np.array_equal(data.prepared.split(split)["labels"], labels[part])
    assert data.manifest()["source"]["generator_seed"] == 3 and not list(tmp_path.rglob(".parts-*"))
    folders = {generated(tmp_path, **settings | other).prepared_folder for other in ({}, {"generator_seed": 4})}
    assert len(folders | {data.prepared_folder}) == 3
    monkeypatch.setattr(module, "available_cores", lambda: 2)
    prepared(generated(tmp_path / "two", split="file_order", **settings))  # workers do not change the files
    assert contents(tmp_path / "two/pathfinder" / data.prepared_folder.name) == contents(data.prepared_folder)


def test_a_limit_draws_no_more_than_it_takes(tmp_path: Path, small_blocks: None) -> None:
    data = generated(tmp_path, num_images=200_000, limit=12)
    assert (data.num_images, data.num_drawn) == (200_000, 15)
    assert prepared(data).provenance()["examples"] == {"train": 12, "val": 1, "test": 1}


def draw_until_killed(arguments: list[str]) -> int:
    """Run in a process of its own, which is killed when the second of three parts has its arrays and no record yet."""
    Pathfinder.block_size, module.available_cores = 8, lambda: 1
    write, written = parts.write_json, count()
    parts.write_json = lambda *given: os.kill(os.getpid(), signal.SIGKILL) if next(written) else write(*given)
    generated(Path(arguments[0])).prepare_data()
    return 0


def test_a_killed_preparation_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None) -> None:
    prepared(generated(tmp_path / "whole"))
    assert Command([str(tmp_path / "killed")], tmp_path, call=draw_until_killed).wait().code == -signal.SIGKILL
    (left,) = tmp_path.glob("killed/pathfinder/.parts-*")
    assert sorted(path.name[:12] for path in left.iterdir()) == [".unfinished-", "000000"]
    drawn = list[int]()
    monkeypatch.setattr(generator, "generate_block", lambda *block: drawn.append(block[2]) or generate_block(*block))
    prepared(generated(tmp_path / "killed"))
    assert drawn == [1, 2] and contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_the_page_exports_what_can_be_read(here: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/pathfinder.md").read_text()
    (script,) = [block for block in page.split("```python\n")[1:] if "metadata" in block]
    script = script.split("```")[0].replace("200_000, 1000", "20, 8")
    exec(compile(script, "docs/pathfinder.md", "exec"), {})
    paths, labels = read_listing(here / "exported/pathfinder32" / HARD)
    drawn = [generate_block(settings_for(32), 0, *block) for block in ((0, 8), (1, 8), (2, 4))]
    assert np.array_equal(read_images(paths, 32)[..., 0], np.concatenate([block.images for block in drawn]))
    assert labels.tolist() == np.concatenate([block.labels for block in drawn]).tolist()
    data = prepared(Pathfinder(root=str(here / "root"), source=str(here / "exported")))
    assert data.provenance()["examples"] == {"train": 16, "val": 2, "test": 2}


# -- LRA's files -------------------------------------------------------------------------------------------------------


def test_metadata_splits_and_scalings(tmp_path: Path) -> None:
    folder = write_pathfinder(tmp_path / HARD, IMAGES)
    paths, labels = read_listing(folder)
    assert paths[9:11] == [folder / "imgs/0/sample_9.png", folder / "imgs/1/sample_0.png"] and len(paths) == 120
    assert labels.tolist() == LABELS
    data = prepared(Pathfinder(root=str(tmp_path), source=str(folder)))
    generator = torch.Generator().manual_seed(42)
    parts = torch.utils.data.random_split(range(120), [96, 12, 12], generator=generator)  # type: ignore[arg-type]
    for name, part in zip(("train", "val", "test"), parts, strict=True):
        assert np.array_equal(stored(data, name), IMAGES[list(part)])
        assert data.prepared.split(name)["labels"].tolist() == [LABELS[index] for index in part]
    before, found = len(list((tmp_path / "pathfinder").glob("files-*"))), {}
    for kind in ("integers", "unit", "symmetric"):
        data = prepared(Pathfinder(root=str(tmp_path), source=str(folder), inputs=kind, split="file_order"))  # type: ignore
        found[kind] = torch.cat([batch.inputs for batch in data.val_dataloader()])
        assert (data.d_input, data.vocab_size) == ((None, 256) if kind == "integers" else (1, None))
    assert len(list((tmp_path / "pathfinder").glob("files-*"))) == before + 1  # scalings share the prepared data
    integers = found["integers"]
    assert integers.dtype == torch.int64 and integers.tolist() == IMAGES[96:108].reshape(12, -1).tolist()
    assert torch.allclose(found["unit"], integers.float()[..., None] / 255, atol=1e-6)
    assert torch.allclose(found["symmetric"], integers.float()[..., None] / 127.5 - 1, atol=1e-6)


def test_empty_images_are_left_out(tmp_path: Path) -> None:
    folder = write_pathfinder(tmp_path / "images", IMAGES)
    for name in ("imgs/0/sample_3.png", "imgs/11/sample_9.png"):
        (folder / name).write_bytes(b"")
    data = prepared(Pathfinder(root=str(tmp_path / "root"), source=str(folder), split="file_order"))
    assert data.provenance()["examples"] == {"train": 96, "val": 11, "test": 11}
    assert data.prepared.split("train")["labels"][:4].tolist() == [LABELS[i] for i in (0, 1, 2, 4)]
    assert np.array_equal(stored(data, "train")[3], IMAGES[4])


def archive_files(task: str, images: np.ndarray, folder: Path) -> dict[str, bytes]:
    return {f"{task}/{name}": data for name, data in contents(write_pathfinder(folder, images)).items()}


def test_lras_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has pathfinder128 twice; the inner folder is complete."""
    images = {size: pictures(10, size=size, channels=1) for size in (32, 128)}
    files = archive_files(f"lra_release/pathfinder128/{HARD}", 255 - images[128][:5], tmp_path / "outer")
    for size in (32, 128):
        inner = f"lra_release/lra_release/pathfinder{size}"
        files |= archive_files(f"{inner}/{HARD}", images[size], tmp_path / str(size))
        files |= archive_files(f"{inner}/curv_baseline", 255 - images[size], tmp_path / f"easy {size}")
    archive, asked = write_tar(tmp_path / "archive", files), list[Any]()
    monkeypatch.setattr("lra_ssm.datamodules.download.download", lambda *given: asked.append(given) or archive)
    for resolution in (32, 128):
        root = tmp_path / f"root {resolution}"
        data = Pathfinder(root=str(root), source="lra", resolution=resolution, split="file_order")
        for _ in range(2):
            data.fetch()
        assert asked == [(LRA, root)]
        asked.clear()
        assert np.array_equal(stored(prepared(data), "train"), images[resolution][:8])
        unpacked = root / f"lra_release/lra_release/pathfinder{resolution}"
        assert [path.name for path in unpacked.parent.iterdir()] == [unpacked.name]
        assert [path.name for path in unpacked.iterdir()] == [HARD]
