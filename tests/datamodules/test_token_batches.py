"""Data modules without labels and with a target per position: their batches, in any order."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from lra_ssm.datamodules.base import SequenceDataModule
from lra_ssm.datamodules.loading.batches import TokenBatch, TokenDataset
from lra_ssm.datamodules.loading.loader import ResumableLoader
from lra_ssm.datamodules.storage.writer import DatasetWriter
from lra_ssm.errors import InputError
from tests.runner import succeed

NO = -100
# Documents of lengths 2 to 6; the first token says which one it is.
DOCUMENTS = [[100 + i, *range(1, 2 + i % 5)] for i in range(14)]


@dataclass(kw_only=True, eq=False, repr=False)
class Documents(SequenceDataModule):
    """Documents alone: the next token is to be told."""

    dataset = "documents"
    sources = ("made-up",)
    vocab_size = 70_000
    answers: ClassVar[dict[str, Any]] = {}

    source: str = "made-up"
    batch_size: int = 4
    shuffle_seed: int | None = 7

    def build(self, folder: Path) -> None:
        writer = DatasetWriter(folder, dataset=self.dataset, vocab_size=self.vocab_size, max_length=6, **self.answers)
        for name, documents in (("train", DOCUMENTS), ("val", DOCUMENTS[:3]), ("test", DOCUMENTS[3:5])):
            split = writer.split(name)
            for document in documents:
                split.extend(document, [len(document)], targets=self.targets(document))
        writer.finish({"kind": "made-up"})

    def targets(self, document: list[int]) -> list[int] | None:
        return None


class Marked(Documents):
    """Documents whose last token is to be classified: is it odd?"""

    dataset = "marked"
    num_classes = 2
    answers = {"num_classes": 2, "targets": True}

    def targets(self, document: list[int]) -> list[int]:
        return [NO] * (len(document) - 1) + [document[-1] % 2]


def prepared(data: Documents, stage: str = "fit") -> Documents:
    data.prepare_data()
    data.setup(stage)
    return data


def read(loader: ResumableLoader) -> list[TokenBatch]:
    batches = list(loader)
    assert all(isinstance(batch, TokenBatch) for batch in batches)
    return batches


def which(batches: list[TokenBatch]) -> list[list[int]]:
    return [(batch.inputs[:, 0] - 100).tolist() for batch in batches]


def test_the_next_token_is_to_be_told(tmp_path: Path) -> None:
    data = prepared(Documents(root=tmp_path))
    assert data.num_classes is None
    (batch,) = read(data.val_dataloader())
    assert batch._fields == ("inputs", "targets", "reset", "lengths")
    assert batch.inputs.tolist() == [[100, 0, 0], [101, 1, 0], [102, 1, 2]]
    assert batch.targets.tolist() == [[1, NO, NO], [1, 2, NO], [1, 2, 3]]
    assert batch.lengths.tolist() == [1, 2, 3] and batch.reset is None
    assert {part.dtype for part in (batch.inputs, batch.targets, batch.lengths)} == {torch.int64}


def test_targets_are_aligned_with_the_tokens(tmp_path: Path) -> None:
    data = prepared(Marked(root=tmp_path))
    (batch,) = read(data.val_dataloader())
    assert batch.inputs.tolist() == [[100, 1, 0, 0], [101, 1, 2, 0], [102, 1, 2, 3]]
    assert batch.targets.tolist() == [[NO, 1, NO, NO], [NO, NO, 0, NO], [NO, NO, NO, 1]]
    assert batch.lengths.tolist() == [2, 3, 4] and batch.reset is None and data.num_classes == 2


@pytest.mark.parametrize("cls", [Documents, Marked])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_every_document_once_in_an_order_of_the_seed(tmp_path: Path, cls: type[Documents], num_workers: int) -> None:
    first = read(prepared(cls(root=tmp_path)).train_dataloader())
    loader = prepared(cls(root=tmp_path, num_workers=num_workers)).train_dataloader()
    again = read(loader)
    loader.close()
    assert which(again) == which(first) and sorted(sum(which(first), [])) == list(range(len(DOCUMENTS)))
    assert all(torch.equal(a.targets, b.targets) for a, b in zip(first, again, strict=True))
    lengths = [len(DOCUMENTS[i]) - (cls is Documents) for batch in which(first) for i in batch]
    assert torch.cat([batch.lengths for batch in first]).tolist() == lengths


@pytest.mark.parametrize("cls", [Documents, Marked])
def test_buckets_hold_documents_of_similar_length(tmp_path: Path, cls: type[Documents]) -> None:
    def padding(data: Documents) -> int:
        return sum(batch.inputs.numel() - int(batch.lengths.sum()) for batch in read(data.train_dataloader()))

    data = prepared(cls(root=tmp_path, bucket_batches=100))
    assert padding(data) < padding(prepared(cls(root=tmp_path)))
    assert sorted(sum(which(read(data.train_dataloader())), [])) == list(range(len(DOCUMENTS)))
    assert which(read(data.val_dataloader())) == [[2, 1, 0]]  # the longest first
    state = data.train_dataloader().state_dict()
    assert state["bucket_batches"] == 100 and state["num_examples"] == len(DOCUMENTS)
    with pytest.raises(InputError, match="cannot resume in the middle of the data: .*bucket_batches 100"):
        prepared(cls(root=tmp_path)).train_dataloader().load_state_dict(state)


def test_a_document_without_a_next_token_is_refused(tmp_path: Path) -> None:
    class Short(Documents):
        dataset = "short"

        def build(self, folder: Path) -> None:
            writer = DatasetWriter(folder, dataset="short", vocab_size=10)
            for name in ("train", "val", "test"):
                writer.split(name).extend([1, 2, 3], [2, 1])
            writer.finish({"kind": "made-up"})

    data = Short(root=tmp_path)
    data.prepare_data()
    with pytest.raises(InputError, match=r"short/made-up-\w+: its shortest sequence has length 1; a next token needs"):
        data.setup("fit")


def test_a_dataset_of_its_own_can_fill_reset(tmp_path: Path) -> None:
    class Packed(TokenDataset):
        def batch(self, examples: np.ndarray, epoch: int) -> TokenBatch:
            batch = super().batch(examples, epoch)
            return batch._replace(reset=batch.inputs >= 100, lengths=None)

    class PackedDocuments(Documents):
        def make_dataset(self, split: Any, name: str) -> Packed:
            return Packed(split)

    (batch,) = read(prepared(PackedDocuments(root=tmp_path)).val_dataloader())
    assert batch.reset is not None and batch.reset.tolist() == [[True, False, False]] * 3 and batch.lengths is None


@pytest.mark.usefixtures("of_data")
def test_the_commands_show_what_has_no_labels(tmp_path: Path) -> None:
    for cls in (Documents, Marked):
        data = prepared(cls(root=tmp_path))
        assert data.provenance()["examples"] == {"train": 14, "val": 3, "test": 2}
    assert data.describe().endswith("2 classes at 14 scored positions; inputs as tokens")
    table = succeed(["prepare", "--summary", f"--root={tmp_path}"], tmp_path).out.splitlines()
    assert [line.split() for line in table[1::3]] == [
        ["documents", "made-up", "tokens", "train", "14", "70000", "3.9", "6"],
        ["marked", "made-up", "tokens", "train", "14", "2", "70000", "3.9", "6"],
    ]
    out = succeed(["doctor", f"--root={tmp_path}", "--verify"], tmp_path).out
    assert "documents/made-up-" in out and "all digests of 2 prepared folders are as recorded" in out
