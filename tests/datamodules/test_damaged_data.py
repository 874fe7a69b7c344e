"""Prepared data that is no longer what was prepared: one line that names the file, and no training on it."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra_ssm.datamodules.loading.batches import ImageDataset, SequenceDataset, TokenDataset
from lra_ssm.datamodules.loading.loader import EpochBatches, ResumableLoader
from lra_ssm.datamodules.storage import intact
from lra_ssm.datamodules.storage.format import MANIFEST, PreparedDataset, num_examples, open_prepared
from lra_ssm.datamodules.storage.writer import DatasetWriter
from lra_ssm.errors import InputError
from tests.datamodules.helpers import tiny_dataset
from tests.datamodules.language.helpers import documents, write_text
from tests.runner import FIT, SHORT, fail, run_here, succeed


def open_all_splits(folder: Path) -> None:
    """As a data module does."""
    prepared = open_prepared(folder)
    for name in prepared.manifest["splits"]:
        intact.check_intact(prepared.split(name))


def refused(folder: Path) -> str:
    """The one line that opening a folder as a fit does gives."""
    with pytest.raises(InputError) as error:
        open_all_splits(folder)
    message = str(error.value)
    assert "\n" not in message and str(folder) in message and "prepared anew" in message, message
    assert "lra-ssm doctor --verify" in message
    return message


def flip(path: Path, position: int, bit: int) -> None:
    """Changes one bit, and leaves the time of change as it was."""
    stat, data = path.stat(), bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def text(folder: Path) -> PreparedDataset:
    """In shards, of which one begins no document."""
    return write_text(folder, {"train": documents([5, 1, 40, 3]), "val": documents([5, 1])}, shard=15)


# -- digests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [tiny_dataset, text])
@pytest.mark.parametrize("seen_before", [False, True])
def test_any_damage_is_found_at_the_next_start(tmp_path: Path, make: Any, seen_before: bool) -> None:
    folder = tmp_path / "data"
    make(folder)
    if seen_before:
        open_all_splits(folder)
    pick = random.Random(0)
    for path in sorted(folder.glob("*.npy")):
        whole = path.read_bytes()
        path.unlink()
        assert refused(folder).startswith(f"{path}: is missing")
        for other in (whole + b"x", whole[:-1]):
            path.write_bytes(other)
            assert refused(folder).startswith(f"{path}: has {len(other)} bytes instead of {len(whole)};")
        path.write_bytes(whole)
        for _ in range(3):
            flip(path, pick.randrange(len(whole)), pick.randrange(8))
            assert path.name in refused(folder)
            path.write_bytes(whole)
    open_all_splits(folder)


def test_digests_are_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, read = tmp_path / "data", []
    tiny_dataset(folder)
    check = intact.check_digest
    monkeypatch.setattr(intact, "check_digest", lambda *array: read.append(array[1]["file"]) or check(*array))

    def opened(folder: Path) -> list[str]:
        read.clear()
        open_all_splits(folder)
        return sorted(read)

    files = sorted(path.name for path in folder.glob("*.npy"))
    assert opened(folder) == files and opened(folder) == []
    (folder / files[0]).touch()
    assert opened(folder) == files[:1] and opened(folder) == []
    shutil.copytree(folder, tmp_path / "elsewhere" / "data")  # all times are new
    assert opened(tmp_path / "elsewhere" / "data") == files and opened(tmp_path / "elsewhere" / "data") == []
    for broken in ("", "[]", "{", '{"train_tokens.npy": 3}'):
        (tmp_path / ".data.intact").write_text(broken)
        assert len(opened(folder)) == len(files) and opened(folder) == []
    # Where nothing can be remembered, what is small is compared each time.
    monkeypatch.setattr(intact.os, "access", lambda path, mode: False)
    (tmp_path / ".data.intact").unlink()
    assert opened(folder) == opened(folder) == files
    monkeypatch.setattr(intact, "_AT_EVERY_START", 500)
    assert 0 < len(opened(folder)) < len(files)


# -- ranges, by batch --------------------------------------------------------------------------------------------


def with_targets(folder: Path) -> PreparedDataset:
    folder.mkdir()
    writer = DatasetWriter(folder, dataset="t", vocab_size=5, num_classes=3, targets=True, max_length=9)
    writer.split("train").extend([1, 2, 3, 4] * 13, [4] * 13, targets=[0, -100, 2, 1] * 13)
    writer.finish({"kind": "test"})
    return open_prepared(folder)


def without(folder: Path) -> PreparedDataset:
    folder.mkdir()
    writer = DatasetWriter(folder, dataset="t", vocab_size=5, max_length=9)
    writer.split("train").extend([1, 2, 3, 4] * 13, [4] * 13)
    writer.finish({"kind": "test"})
    return open_prepared(folder)


def images(folder: Path) -> PreparedDataset:
    folder.mkdir()
    writer = DatasetWriter(folder, dataset="t", num_classes=26)
    writer.images("train", (2, 2, 1)).extend(np.zeros((26, 2, 2, 1), np.uint8), np.arange(26))
    writer.finish({"kind": "test"})
    return open_prepared(folder)


def pixels(images: Any, examples: Any, epoch: int) -> Any:
    return images.reshape(len(images), 4).astype(np.int64)


IMPOSSIBLE: list[tuple[Any, ...]] = [
    (tiny_dataset, SequenceDataset, "tokens", [5, 255]),
    (tiny_dataset, SequenceDataset, "labels", [26, -1, 1 << 62, -(1 << 63)]),
    (tiny_dataset, SequenceDataset, "offsets", [-1, 10_000, 1 << 62, -(1 << 63)]),
    (with_targets, TokenDataset, "targets", [3, -1, -99, -101, 1 << 30]),
    (without, TokenDataset, "tokens", [5, 255]),
    (images, ImageDataset, "labels", [26, -1]),
]


@pytest.mark.parametrize(
    ("make", "dataset", "array", "values", "num_workers"),
    [
        *((*case, 0) for case in IMPOSSIBLE),
        (*IMPOSSIBLE[0], 1),
        *(pytest.param(*case, 1, marks=pytest.mark.slow) for case in IMPOSSIBLE[1:]),
    ],
)
def test_what_cannot_be_is_caught_by_batch(
    tmp_path: Path, make: Any, dataset: Any, array: str, values: list[int], num_workers: int
) -> None:
    """Whatever became of the file after it was opened."""
    folder = tmp_path / "data"
    split = make(folder).split("train")
    path = split.path(array)
    file = np.load(path, mmap_mode="r+")
    whole = file.copy()
    data = dataset(split, pixels) if dataset is ImageDataset else dataset(split)
    loader = ResumableLoader(data, EpochBatches(len(split), 4, 7), num_workers)
    for value in values if not num_workers else values[:1]:
        for position in (3, len(whole) - 1) if array != "offsets" else (3, len(whole) - 2):
            file[:] = whole
            file[position] = value
            with pytest.raises(InputError) as error:
                list(loader)
            message = str(error.value)
            assert message.startswith(f"{path}: its {array} hold ") and "\n" not in message
    file[:] = whole
    assert sum(len(batch.inputs) for batch in loader) == len(split)
    loader.close()


# -- manifests ---------------------------------------------------------------------------------------------------


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of everything in a manifest, itself included."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, part in below for path in paths(part, (*here, key)))]


def changed(manifest: Any, path: tuple[Any, ...], *value: Any) -> Any:
    """A copy with another value at a path, or without what is there."""
    copy = json.loads(json.dumps(manifest))
    if not path:
        return value[0] if value else {}
    inside = copy
    for key in path[:-1]:
        inside = inside[key]
    if value:
        inside[path[-1]] = value[0]
    else:
        del inside[path[-1]]
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("make", [tiny_dataset, with_targets, without, images, text])
def test_a_manifest_that_lacks_anything(tmp_path: Path, make: Any) -> None:
    """It is refused in one line, or what is missing is of no consequence; never anything else."""
    folder, kept = tmp_path / "data", set()
    manifest = make(folder).manifest
    for path in paths(manifest)[1:]:
        if path[-1] in ("vocabulary", "vocab_size", "labels", "train", "shards") or "val" in path:  # not all have these
            continue
        (folder / MANIFEST).write_text(json.dumps(changed(manifest, path)))
        try:
            opened = open_prepared(folder, verify=True)
            opened.summary()
            opened.split("train")
            assert num_examples(opened.manifest["splits"]["train"]) == num_examples(manifest["splits"]["train"])
            kept.add(path[-1])
        except InputError as error:
            assert "\n" not in str(error)
            assert f"has no {path[-1]}; delete" in str(error) or path[-2:-1] == ("shape",)
    needed = {"format", "dataset", "kind", "examples", "mean", "end_of_text", "file", "dtype", "shape", "sha256"}
    assert not kept & needed


def test_a_manifest_cut_off_anywhere(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    tiny_dataset(folder)
    text = (folder / MANIFEST).read_bytes()
    for length in [*range(0, len(text) - 2, 97), len(text) - 2]:
        (folder / MANIFEST).write_bytes(text[:length])
        assert MANIFEST in refused(folder)
    for text in (b"\xff\xfe", b"[" * 100_000, b"null", b"3", b'"x"', b"NaN", b'{"format": 1}'):
        (folder / MANIFEST).write_bytes(text)
        assert MANIFEST in refused(folder)
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).mkdir()
    assert MANIFEST in refused(folder)


def test_a_folder_that_is_a_link_is_as_good(tmp_path: Path) -> None:
    tiny_dataset(tmp_path / "far" / "data")
    (tmp_path / "data").symlink_to(tmp_path / "far" / "data")
    open_all_splits(tmp_path / "data")


# -- the commands ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("of_data")
def test_a_fit_does_not_train_on_changed_data(tmp_path: Path) -> None:
    succeed([*FIT, *SHORT], tmp_path)
    (labels,) = (tmp_path / "data/listops").glob("*/train_labels.npy")
    whole = labels.read_bytes()
    flip(labels, -8, 0)  # still a class
    line = fail([*FIT, *SHORT, "--fresh"], tmp_path)
    assert line.startswith(f"{labels}: does not have its recorded sha256") and "`lra-ssm doctor --verify`" in line
    doctor = run_here(["doctor", f"--root={tmp_path / 'data'}", "--verify"], tmp_path)
    assert doctor.code == 1 and f"DAMAGED: {labels}" in doctor.out and "Traceback" not in doctor.err
    labels.write_bytes(whole)
    succeed([*FIT, *SHORT, "--fresh"], tmp_path)
    (labels.parent / MANIFEST).write_text('{"format": 1')
    assert f"{labels.parent / MANIFEST}: cannot be read (" in fail([*FIT, *SHORT, "--fresh"], tmp_path)
