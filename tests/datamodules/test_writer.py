"""What the writer puts on the disk: vocabularies of every size; labels, targets or none; what it refuses."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra_ssm.cli.summary import summary_rows
from lra_ssm.datamodules.storage.format import NOT_SCORED, PreparedDataset, SequenceSplit, open_prepared
from lra_ssm.datamodules.storage.writer import DatasetWriter, SequenceSplitWriter
from lra_ssm.errors import InputError
from tests.datamodules.helpers import contents

NO = NOT_SCORED


def begin(folder: Path, **settings: Any) -> tuple[DatasetWriter, SequenceSplitWriter]:
    folder.mkdir(parents=True, exist_ok=True)
    writer = DatasetWriter(folder, **{"dataset": "made-up", "max_length": 9} | settings)
    return writer, writer.split("train")


def finished(writer: DatasetWriter, folder: Path) -> tuple[PreparedDataset, SequenceSplit]:
    writer.finish({"kind": "test"})
    opened = open_prepared(folder, verify=True)
    split = opened.split("train")
    assert isinstance(split, SequenceSplit)
    return opened, split


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(2, "uint8"), (256, "uint8"), (257, "uint16"), (1 << 16, "uint16"), ((1 << 16) + 1, "uint32")],
)
def test_the_smallest_dtype_holds_the_whole_vocabulary(tmp_path: Path, size: int, dtype: str) -> None:
    writer, split = begin(tmp_path, vocab_size=size)
    split.extend([0, size - 1], [2])
    opened, read = finished(writer, tmp_path)
    assert read.tokens.dtype == dtype and read.tokens.tolist() == [0, size - 1] and opened.vocab_size == size


@pytest.mark.parametrize("size", [5, 256, 300, 1 << 16, 70_000])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_a_token_outside_the_vocabulary_is_named_and_nothing_written(tmp_path: Path, size: int, dtype: type) -> None:
    for wrong in (size, size + 100_000, -1, -100):
        writer, split = begin(tmp_path, vocab_size=size, num_classes=2)
        split.extend([0, 1, 2], [1, 2], [0, 1])  # examples 0 and 1
        with pytest.raises(InputError) as error:
            split.extend(np.array([1, 0, wrong, wrong], dtype), [1, 3], [0, 1])  # the fourth of them is example 3
        assert str(error.value).endswith(
            f"split train, example 3: token {wrong} is no token: there are {size}, 0 to {size - 1}"
        )
        split.extend([size - 1], [1], [0])
        read = finished(writer, tmp_path)[1]
        assert read.tokens.tolist() == [0, 1, 2, size - 1] and read.labels.tolist() == [0, 1, 0]


def test_pairs_are_numbered_by_example(tmp_path: Path) -> None:
    _, split = begin(tmp_path, vocab_size=4, num_classes=2, per_example=2)
    with pytest.raises(InputError, match="example 1: token 4 is"):
        split.extend([0, 1, 2, 4], [1, 1, 1, 1], [0, 1])


@pytest.mark.parametrize("label", [-1, 2, 1 << 40])
def test_a_label_that_is_no_class_is_named(tmp_path: Path, label: int) -> None:
    writer, split = begin(tmp_path, vocab_size=4, num_classes=2)
    message = rf"split train, example 1: label {label} is no class: there are 2, 0 to 1$"
    with pytest.raises(InputError, match=message):
        split.extend([0, 0], [1, 1], [0, label])
    (tmp_path / "images").mkdir()
    images = DatasetWriter(tmp_path / "images", dataset="made-up", num_classes=2).images("train", (1, 1, 1))
    with pytest.raises(InputError, match=message):
        images.extend(np.zeros((2, 1, 1, 1), np.uint8), [0, label])
    assert images.num_examples == split.num_examples == 0


@pytest.mark.parametrize("target", [-1, -99, 3, 1 << 32])
def test_a_target_that_is_no_class_is_named(tmp_path: Path, target: int) -> None:
    _, split = begin(tmp_path, vocab_size=4, num_classes=3, targets=True)
    with pytest.raises(InputError, match=rf"example 1: target {target} is no class \(nor -100.*: there are 3, 0 to 2$"):
        split.extend([0, 0, 0], [1, 2], targets=[NO, 2, target])
    assert split.num_examples == 0


def test_targets_are_parallel_to_the_tokens(tmp_path: Path) -> None:
    writer, split = begin(tmp_path, vocab_size=4, num_classes=3, targets=True)
    split.extend([3, 2, 1], [2, 1], targets=[NO, 2, 0])
    split.extend([0, 1], [2], targets=[NO, 1])
    opened, read = finished(writer, tmp_path)
    assert read.targets.tolist() == [NO, 2, 0, NO, 1] and read.targets.dtype == np.dtype("<i4")
    assert read.has_targets and not read.has_labels
    entry = opened.manifest["splits"]["train"]
    assert entry["scored"] == 3 and entry["examples"] == 3 and "class_counts" not in entry
    assert opened.manifest["num_classes"] == 3
    assert opened.summary().endswith("lengths 1 to 2, mean 2; 3 classes at 3 scored positions")
    assert summary_rows(opened.manifest)[0] == {
        "dataset": "made-up", "source": "test", "inputs": "tokens", "split": "train", "examples": "3", "classes": "3",
        "class shares": "", "tokens": "4", "length mean": "1.7", "max": "2",
    }  # fmt: skip


def test_a_split_without_labels(tmp_path: Path) -> None:
    writer, split = begin(tmp_path, vocab_size=50_257)
    split.extend([50_256, 0, 7], [1, 2])
    split.extend([], [])
    opened, read = finished(writer, tmp_path)
    assert not read.has_labels and not read.has_targets and len(read) == 2 and read.sequence(1).tolist() == [0, 7]
    assert sorted(contents(tmp_path)) == ["manifest.json", "train_offsets.npy", "train_tokens.npy"]
    entry = opened.manifest["splits"]["train"]
    assert "class_counts" not in entry and "num_classes" not in opened.manifest
    assert opened.manifest["vocab_size"] == 50_257 and "vocabulary" not in opened.manifest
    assert opened.summary() == "made-up (test): 2 train; lengths 1 to 2, mean 2; 50,257 tokens, no labels"
    assert list(summary_rows(opened.manifest)[0].values())[5:8] == ["", "", "50257"]


def test_arrays_are_numpys_files_and_the_manifest_describes_them(tmp_path: Path) -> None:
    writer, split = begin(tmp_path, vocabulary=["a", "b"], num_classes=2)
    split.extend([1], [1], [1])
    split.extend([0, 1], [2], [0])
    found = finished(writer, tmp_path)[0].manifest
    values = {"labels": np.array([1, 0]), "tokens": np.array([1, 0, 1], np.uint8), "offsets": np.array([0, 1, 3])}
    entries = {}
    for name, array in values.items():
        file = tmp_path / f"train_{name}.npy"
        np.testing.assert_array_equal(np.load(file), array, strict=True)
        entries[name] = {
            "file": file.name,
            "dtype": array.dtype.str,
            "shape": [len(array)],
            "bytes": file.stat().st_size,
            "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
        }
    length = {"min": 1, "mean": 1.5, "max": 2}
    train = {"examples": 2, "class_counts": [1, 1], "length": length, "arrays": entries}
    assert found == {
        "format": 4,
        "dataset": "made-up",
        "num_classes": 2,
        "per_example": 1,
        "max_length": 9,
        "vocabulary": ["a", "b"],
        "source": {"kind": "test"},
        "splits": {"train": train},
    }


@pytest.mark.parametrize(
    ("version", "said"), [(1, "is of an older version"), (3, "is of an older"), (5, "has format 5")]
)
def test_what_another_version_prepared_is_said(tmp_path: Path, version: int, said: str) -> None:
    writer, split = begin(tmp_path, vocab_size=5)
    split.extend([1, 2], [2])
    manifest = finished(writer, tmp_path)[0].manifest
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"format": version}))
    with pytest.raises(InputError, match=rf"manifest.json: {said}.*; delete the folder .* to have it prepared anew"):
        open_prepared(tmp_path)


@pytest.mark.parametrize(
    ("settings", "values", "message"),
    [
        ({"num_classes": 2}, ([1, 2], [2], [1.7]), "labels are float64; they must be whole numbers"),
        ({"num_classes": 2}, ([1.5, 2], [2], [1]), "tokens are float64"),
        ({"num_classes": 2}, ([1, 2], [4, -2], [1, 0]), "a sequence of length -2"),
        ({"num_classes": 3, "targets": True}, ([1, 2], [2], None, [0.5, 1]), "targets are float64"),
    ],
)
def test_nothing_is_rounded_or_wrapped_silently(tmp_path: Path, settings: Any, values: Any, message: str) -> None:
    _, split = begin(tmp_path, vocab_size=5, **settings)
    with pytest.raises(InputError, match=message):
        split.extend(*values)
    assert split.num_examples == 0


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    writer, split = begin(tmp_path, vocab_size=5)
    split.extend([], [0, 0])
    with pytest.raises(InputError, match="split train has empty sequences alone"):
        writer.finish({"kind": "test"})


def test_a_split_that_is_not_there_is_named(tmp_path: Path) -> None:
    writer, split = begin(tmp_path, vocab_size=5)
    split.extend([1, 2], [2])
    opened, _ = finished(writer, tmp_path)
    with pytest.raises(InputError, match="has no split test; it has train"):
        opened.split("test")
