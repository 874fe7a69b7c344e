"""Datasets as generators of examples: what is stored, batches, settings and their record, errors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from lra_ssm.datamodules import SequenceData, setting
from lra_ssm.datamodules.batches import Batch, TokenBatch
from lra_ssm.errors import InputError
from tests.datamodules.helpers import Tiny, prepared

NO = -100
# Documents of lengths 2 to 6; the first token says which one it is.
DOCUMENTS = [[100 + i, *range(1, 2 + i % 5)] for i in range(14)]


class Given(SequenceData):
    sources = ("given",)
    source: str = "given"
    given: ClassVar[Sequence[tuple[str, Any, Any]]] = ()

    def examples(self):
        yield from self.given


class Documents(Given):
    """The next token is the target."""

    vocab_size = 70_000
    given = [("train", document, None) for document in DOCUMENTS]


class Marked(Given):
    """The last token is classified: is it odd?"""

    vocab_size, num_classes = 70_000, 2
    given = [("train", document, [NO] * (len(document) - 1) + [document[-1] % 2]) for document in DOCUMENTS]


class Pairs(Given):
    vocabulary, num_classes, per_example = tuple("abc"), 2, 2
    given = [("train", ([1, 1, 1], [2, 2]), 0), ("train", ([1], [2, 2, 2, 2]), 1)]


class Series(Given):
    d_input, num_classes = 2, 2
    given = [("train", np.arange(2.0 * n).reshape(-1, 2) / 4, (n - 1) % 2) for n in range(1, 7)]


class Values(Given):
    num_outputs, d_input = 3, 1
    given = [("train", [0.5] * n, [n - 1, 0.5, -1]) for n in range(1, 7)]


def batch(data: Any, *examples: int) -> Any:
    return prepared(data).open_split("train").batch(np.array(examples), 0)


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
    found = batch(Documents(root=str(tmp_path)), 0, 1, 2)
    assert isinstance(found, TokenBatch) and found.reset is None and found.lengths.tolist() == [1, 2, 3]
    assert found.inputs.tolist() == [[100, 0, 0], [101, 1, 0], [102, 1, 2]]
    assert found.targets.tolist() == [[1, NO, NO], [1, 2, NO], [1, 2, 3]]
    marked = batch(Marked(root=str(tmp_path)), 0, 1, 2)
    assert marked.inputs.tolist() == [[100, 1, 0, 0], [101, 1, 2, 0], [102, 1, 2, 3]]
    assert marked.targets.tolist() == [[NO, 1, NO, NO], [NO, NO, 0, NO], [NO, NO, NO, 1]]
    assert marked.lengths.tolist() == [2, 3, 4]


# -- settings ----------------------------------------------------------------------------------------------------------


class Settings(Tiny):
    letters: int = 3
    scale: float = setting(default=1.0, affects="batches")
    threads: int = setting(default=1, affects="nothing")
    batch_size: int = 8  # declared again: it affects what it affected


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


# -- errors ------------------------------------------------------------------------------------------------------------


class Letters(Given):
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
        given = (example,)

    with pytest.raises(InputError, match=f"^Wrong: {message}") as error:
        Wrong(root=str(tmp_path / "root")).prepare_data()
    assert "\n" not in str(error.value) and not (tmp_path / "root").exists()
