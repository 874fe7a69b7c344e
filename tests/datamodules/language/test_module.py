"""Data modules of text: every token once, what a task asks for, what decides a result, the tokenizer that travels."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lra_ssm.datamodules.language.prepare import TextCounts
from lra_ssm.datamodules.loader import ResumableLoader
from lra_ssm.errors import InputError
from lra_ssm.runs.checks import check_tokenizer
from tests.datamodules import helpers
from tests.datamodules.helpers import fit
from tests.datamodules.language.helpers import END, MadeUp

MODES: list[dict[str, Any]] = [
    {"order": "shuffled"},
    {"order": "streams"},
    {"order": "streams", "isolate": False, "evaluation": "streams", "eval_batch_size": 3},
    {"order": "shuffled", "isolate": False, "evaluation": "sliding", "eval_stride": 3},
]


def prepared(root: Path, **settings: Any) -> MadeUp:
    return helpers.prepared(MadeUp(root=str(root), **settings), None)


def targets(loader: ResumableLoader) -> list[int]:
    return sorted(t for batch in loader for t in batch.targets.flatten().tolist() if t != -100)


@pytest.mark.parametrize("settings", MODES, ids=str)
def test_every_token_is_a_target_once(tmp_path: Path, settings: dict[str, Any]) -> None:
    data = prepared(tmp_path, **settings)  # 101 tokens; val 50, test 69
    tokens = data.prepared.split("train")["tokens"].tolist()
    train = data.train_dataloader()
    assert targets(train) == targets(train) == sorted(tokens)
    assert targets(data.val_dataloader()) == sorted(tokens[:50])
    assert targets(data.test_dataloader()) == sorted(tokens[:69])
    for split, count in (("val", 50), ("train", 101)):
        data.predict_split = split
        data.setup("predict")
        assert targets(data.predict_dataloader()) == sorted(tokens[:count])


def test_what_a_task_asks_for(tmp_path: Path) -> None:
    data = prepared(tmp_path, order="streams", evaluation="sliding", eval_stride=2)
    assert data.end_of_text_id == END and data.manifest()["vocab_size"] == END + 1 and data.vocab_size is None
    assert data.carries_state and not data.eval_carries_state
    assert data.text_counts("train") == TextCounts(documents=10, tokens=101, bytes=404, words=101)
    assert data.tokenizer_file.read_text() == "{}"
    assert data.tokenizer_digest == data.manifest()["tokenizer"]["sha256"]
    other = prepared(tmp_path, evaluation="streams")
    assert not other.carries_state and other.eval_carries_state
    first = next(iter(data.train_dataloader()))
    assert torch.equal(data.sample(3).inputs, first.inputs[:3]) and torch.equal(data.sample(3).reset, first.reset[:3])
    assert other.sample(2).lengths is None and other.sample(100).inputs.shape == (4, 8)
    assert "101 train, 50 val, 69 test tokens; vocabulary of 300, 4.00 bytes a token; streams" in data.describe()
    assert data.train_batches(2) == len(data.train_dataloader()) == 4


def test_what_decides_a_result_is_recorded(tmp_path: Path) -> None:
    data = prepared(tmp_path, evaluation="sliding", eval_stride=2)
    record, provenance = data.record(), data.provenance()
    assert provenance["tokens"] == {"train": 101, "val": 50, "test": 69} and provenance["examples"]["train"] == 10
    batches = {"length": 8, "isolate": True, "evaluation": "sliding", "eval_stride": 2, "eval_batch_size": None}
    assert provenance["batches"] == record["batches"] == batches
    assert record["order"] == {"batch_size": 4, "shuffle_seed": 7, "order": "shuffled"}
    assert {"lengths", "text_seed", "tokenizer", "end_of_text"} <= record["data"].keys()
    assert {*data.neutral_settings} == {"num_workers", "pin_memory", "root"}


# -- in a Trainer (test_same_batches.py resumes in the middle of an epoch) -----------------------------------------


STEPS = {"max_steps": 2, "limit_val_batches": 0}


def test_a_checkpoint_has_its_tokenizer_and_refuses_another(tmp_path: Path) -> None:
    data, path = MadeUp(root=str(tmp_path)), tmp_path / "a.ckpt"
    fit(data, **STEPS).trainer.save_checkpoint(path)
    stored = torch.load(path, weights_only=True)["MadeUp"]["tokenizer"]
    assert stored == {
        "file": "tokenizer.json", "sha256": data.tokenizer_digest, "text": "{}", "end_of_text": data.end_of_text_id,
    }  # fmt: skip
    check_tokenizer(path, data)
    other = prepared(tmp_path, tokenizer_text='{"other": 1}')
    ours = data.tokenizer_digest[:12]
    message = rf"the checkpoint's tokenizer \(sha256 {ours}…, end of text 299\) is not the data's \({other.root}"
    with pytest.raises(InputError, match=message):
        fit(other, path, **STEPS)
    with pytest.raises(InputError, match=f"^{path}: {message}"):
        check_tokenizer(path, other)
