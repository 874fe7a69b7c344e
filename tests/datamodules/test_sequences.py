"""Datasets as generators of examples: what is stored, batches, settings and their record, errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lra_ssm.datamodules import SequenceData, setting
from lra_ssm.datamodules.batches import Batch, TokenBatch
from lra_ssm.errors import InputError
from tests.datamodules.helpers import Tiny
from tests.runner import succeed

NO = -100
# Documents of lengths 2 to 6; the first token says which one it is.
DOCUMENTS = [[100 + i, *range(1, 2 + i % 5)] for i in range(14)]


class Made(SequenceData):
    sources = ("made",)
    source: str = "made"


class Documents(Made):
    """Documents without labels: the next token is the target."""

    vocab_size = 70_000

    def examples(self):
        for split, documents in (("train", DOCUMENTS), ("val", DOCUMENTS[:3]), ("test", DOCUMENTS[3:5])):
            for document in documents:
                yield split, document, self.answer(document)

    def answer(self, document: list[int]) -> Any:
        return None


class Marked(Documents):
    """Documents whose last token is classified: is it odd?"""

    num_classes = 2

    def answer(self, document: list[int]) -> Any:
        return [NO] * (len(document) - 1) + [document[-1] % 2]


class Pairs(Made):
    vocabulary, num_classes, per_example = tuple("abc"), 2, 2

    def examples(self):
        yield "train", ([1, 1, 1], [2, 2]), 0
        yield "train", ([1], [2, 2, 2, 2]), 1


class Series(Made):
    """Time series of different lengths with a class each."""

    d_input, num_classes = 2, 2

    def examples(self):
        for number in range(6):
            yield "train", np.arange(2.0 * (number + 1)).reshape(-1, 2) / 4, number % 2


class Values(Series):
    """The same with real targets."""

    num_classes, num_outputs, d_input = None, 3, 1

    def examples(self):
        for number in range(6):
            yield "train", [0.5] * (number + 1), [number, 0.5, -1]


def prepared(data: Any) -> Any:
    data.prepare_data()
    return data


def batch(data: Any, *examples: int, split: str = "train") -> Any:
    return prepared(data).open_split(split).batch(np.array(examples), 0)


# -- batches -----------------------------------------------------------------------------------------------------------


def test_tokens_and_pairs_are_padded_on_the_right(tmp_path: Path) -> None:
    found = batch(Tiny(root=str(tmp_path)), 2, 6, 0)
    assert isinstance(found, Batch) and all(part.dtype == torch.int64 for part in found)
    assert found.inputs.tolist() == [[3, 3, 3, 0, 0, 0, 0], [3] * 7, [1, 0, 0, 0, 0, 0, 0]]
    assert found.lengths.tolist() == [3, 7, 1] and found.labels.tolist() == [2, 6, 0]
    pairs = batch(Pairs(root=str(tmp_path)), 1, 0)
    assert pairs.inputs.tolist() == [[[1, 0, 0, 0], [2, 2, 2, 2]], [[1, 1, 1, 0], [2, 2, 0, 0]]]
    assert pairs.lengths.tolist() == [[1, 4], [3, 2]] and pairs.labels.tolist() == [1, 0]
    assert Pairs(root=str(tmp_path)).open_split("train").lengths.tolist() == [3, 4]


def test_features_and_real_targets(tmp_path: Path) -> None:
    found = batch(Series(root=str(tmp_path)), 0, 2)
    assert found.inputs.dtype == torch.float32 and found.lengths.tolist() == [1, 3] and found.labels.tolist() == [0, 0]
    assert found.inputs.tolist() == [[[0, 0.25], [0, 0], [0, 0]], [[0, 0.25], [0.5, 0.75], [1, 1.25]]]
    values = batch(Values(root=str(tmp_path)), 4, 1)
    assert values.inputs.shape == (2, 5, 1) and values.labels.dtype == torch.float32
    assert values.labels.tolist() == [[4, 0.5, -1], [1, 0.5, -1]]


def test_the_next_token_or_one_at_each_position_as_target(tmp_path: Path) -> None:
    found = batch(Documents(root=str(tmp_path)), 0, 1, 2, split="val")
    assert isinstance(found, TokenBatch) and found.reset is None and found.lengths.tolist() == [1, 2, 3]
    assert found.inputs.tolist() == [[100, 0, 0], [101, 1, 0], [102, 1, 2]]
    assert found.targets.tolist() == [[1, NO, NO], [1, 2, NO], [1, 2, 3]]
    marked = batch(Marked(root=str(tmp_path)), 0, 1, 2, split="val")
    assert marked.inputs.tolist() == [[100, 1, 0, 0], [101, 1, 2, 0], [102, 1, 2, 3]]
    assert marked.targets.tolist() == [[NO, 1, NO, NO], [NO, NO, 0, NO], [NO, NO, NO, 1]]
    assert marked.lengths.tolist() == [2, 3, 4]


# -- settings ----------------------------------------------------------------------------------------------------------


class Settings(Tiny):
    letters: int = 3
    scale: float = setting(default=1.0, affects="batches")
    threads: int = setting(default=1, affects="nothing")
    unused: int = 5
    batch_size: int = 8  # declared again: it affects what it affected

    def unused_settings(self) -> set[str]:
        return {"unused"}


def test_a_record_has_each_setting_by_what_it_affects(tmp_path: Path) -> None:
    data = prepared(Settings(root=str(tmp_path), limit=4))
    assert data.record() == {
        "dataset": "settings",
        "data": {"source": "made", "limit": 4, "num_train": 26, "num_val": 6, "letters": 3},
        "batches": {"scale": 1.0},
        "order": {"batch_size": 8, "shuffle_seed": None, "bucket_batches": 1},
    }
    neutral = {"eval_batch_size", "num_workers", "pin_memory", "root", "threads"}
    assert set(Settings.neutral_settings) == neutral and set(Tiny.neutral_settings) == neutral - {"threads"}
    manifest = data.manifest()
    assert manifest["dataset"] == "settings" and manifest["batches"] == {"scale": 1.0}
    assert manifest["source"] == {"kind": "made", **data.record()["data"]}
    assert data.provenance()["examples"] == {"train": 4, "val": 4}
    line = "settings (made): 4 train, 4 val; lengths 1 to 4, mean 2; 26 classes, most frequent 25.0%; inputs as tokens"
    assert data.describe() == f"{line}; limit 4"
    with pytest.raises(InputError, match="affects='batch'.: did you mean 'batches'?"):
        setting(affects="batch")  # type: ignore[arg-type]


def test_only_settings_of_the_data_name_the_folder(tmp_path: Path) -> None:
    def folder(**settings: Any) -> Path:
        return Settings(root=str(tmp_path), **settings).prepared_folder

    assert folder() == folder(scale=2.0, threads=4, unused=6, batch_size=2, shuffle_seed=3, num_workers=1)
    assert len({folder(), folder(letters=4), folder(num_val=7), folder(limit=3)}) == 4
    assert folder().parent == tmp_path / "settings" and folder().name.startswith("made-")


class Csv(SequenceData):
    """Rows of a file: label, then values."""

    num_classes, d_input = 2, 1

    def examples(self):
        for line in self.source_path().read_text().splitlines():
            label, *values = line.split(",")
            yield "train", [float(value) for value in values], int(label)


def test_a_users_file_identifies_the_data(tmp_path: Path) -> None:
    file = tmp_path / "my.csv"
    file.write_text("0,1,2\n1,2,3\n1,4\n")
    data = prepared(Csv(root=str(tmp_path / "root"), source=str(file)))
    assert data.manifest()["splits"]["train"]["examples"] == 3 and data.kind == "files"
    folder, digests = data.prepared_folder, data.source_digests()
    file.write_text("0,1,2\n")
    changed = Csv(root=str(tmp_path / "root"), source=str(file))
    assert changed.source_digests() != digests and changed.prepared_folder != folder and not changed.is_prepared()
    of_folder = Csv(root=str(tmp_path / "root"), source=str(tmp_path))
    digests = of_folder.source_digests()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").touch()
    assert of_folder.source_digests() == digests
    file.unlink()
    assert not changed.is_prepared()
    with pytest.raises(InputError, match="Csv source '.*my.csv': must be an existing file or folder"):
        changed.prepare_data()


# -- errors ------------------------------------------------------------------------------------------------------------


class Letters(Made):
    vocabulary, num_classes = tuple("abcd"), 3
    max_length: int = 4


@pytest.mark.parametrize(
    ("cls", "example", "message"),
    [
        (Letters, ("train", [1, 4], 0), "split train, example 0: token 4 is not one of 0 to 3"),
        (Letters, ("train", [-1], 0), "split train, example 0: token -1 is not one of 0 to 3"),
        (Letters, ("train", np.array([300]), 0), "split train, example 0: token 300"),
        (Letters, ("train", [0.5], 0), "split train, example 0: tokens are float64; they must be integers"),
        (Letters, ("train", [1], 0.7), "split train, example 0: labels are float64; they must be integers"),
        (Letters, ("val", [], 0), "split val, example 0: an empty sequence"),
        (Letters, ("val", [1] * 5, 0), "split val, example 0: 5 positions; max_length is 4"),
        (Letters, ("train", [1], 3), "split train, example 0: label 3 is not one of 0 to 2"),
        (Letters, ("train", [1], -1), "split train, example 0: label -1 is not one of 0 to 2"),
        (Letters, ("dev", [1], 0), "'dev' is not a split"),
        (Letters, ("val", [1], 0), "there are no training examples"),
        (Documents, ("train", [1], None), "split train, example 0: one position; it has no next token"),
        (Marked, ("train", [1, 1], [0, 2]), "split train, example 0: target 2 is not one of 0 to 1"),
        (Marked, ("train", [1, 1], [0] * 3), "split train, example 0: 3 targets for 2 positions"),
        (Series, ("train", [[1.0, 2, 3]], 0), "split train, example 0: 3 features per position; d_input is 2"),
    ],
)
def test_a_wrong_example_is_named_and_nothing_is_left(tmp_path: Path, cls: type, example: Any, message: str) -> None:
    class Wrong(cls):  # type: ignore[valid-type, misc]
        def examples(self):
            yield example

    with pytest.raises(InputError, match=f"^Wrong: {message}") as error:
        Wrong(root=str(tmp_path / "root")).prepare_data()
    assert "\n" not in str(error.value) and not (tmp_path / "root").exists()


def test_the_commands_show_every_kind(tmp_path: Path) -> None:
    for cls in (Documents, Marked, Pairs, Series):
        prepared(cls(root=str(tmp_path)))
    table = succeed(["prepare", "--summary", f"--root={tmp_path}"], tmp_path).out
    assert all(name in table for name in ("documents", "marked", "pairs", "series"))
    out = succeed(["doctor", f"--root={tmp_path}", "--verify"], tmp_path).out
    assert "documents/made-" in out and "nothing is wrong" in out
