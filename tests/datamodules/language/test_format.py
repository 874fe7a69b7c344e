"""Sharded tokens: written, opened, shown by commands; what is no token is one line."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from lra_ssm.datamodules.language.shards import TokenWriter
from lra_ssm.datamodules.old_storage.format import MANIFEST, TokenSplit
from lra_ssm.errors import InputError
from tests.datamodules.language.helpers import (
    END,
    VOCAB,
    WHOLE,
    changed,
    documents,
    flip,
    text_split,
    write_split,
    write_text,
)
from tests.runner import in_process

TEXTS = documents([5, 1, 1, 40, 3, 17, 2])
TOKENS = [token for text in TEXTS for token in text]
STARTS = [0, 5, 6, 7, 47, 50, 67]


@pytest.mark.parametrize("shard", [1, 7, 31, 69, WHOLE])
def test_tokens_and_starts_across_shards(tmp_path: Path, shard: int) -> None:
    split = text_split(tmp_path / "data", TEXTS, shard)
    assert (split.num_tokens, split.num_documents) == (69, 7) and len(TOKENS) == 69
    assert len(split.entry["shards"]) == -(-69 // shard)
    for begin in range(69):
        for end in {begin + 1, *range(begin + 2, 69, 3), 69}:
            assert split.tokens(begin, end).tolist() == TOKENS[begin:end]
            assert split.starts(begin, end).tolist() == [s for s in STARTS if begin <= s < end]
    assert split.tokens(0, 69).dtype == np.uint16 and split.starts(0, 69).dtype == np.int64


def test_how_it_was_appended_does_not_show(tmp_path: Path) -> None:
    for name in ("parts", "whole"):
        (tmp_path / name).mkdir()
    parts = write_split(tmp_path / "parts", "train", TEXTS)
    writer = TokenWriter(tmp_path / "whole", "train", 0, VOCAB)
    writer.append(TOKENS, STARTS)
    writer.append([], [])
    assert writer.close()["shards"] == parts["shards"]
    files = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert files == ["train_starts_00000.npy", "train_tokens_00000.npy"]
    assert all((tmp_path / "whole" / f).read_bytes() == (tmp_path / "parts" / f).read_bytes() for f in files)


@pytest.mark.parametrize(("vocab", "dtype"), [(256, "uint8"), (257, "uint16"), (1 << 16, "uint16"), (65537, "uint32")])
def test_the_smallest_dtype_that_holds_the_vocabulary(tmp_path: Path, vocab: int, dtype: str) -> None:
    split = write_text(tmp_path / "data", {"train": [[0, vocab - 1]]}, vocab=vocab).split("train")
    assert isinstance(split, TokenSplit) and split.tokens(0, 2).dtype == dtype
    assert split.tokens(0, 2).tolist() == [0, vocab - 1] and split.end_of_text == vocab - 1


@pytest.mark.parametrize("token", [VOCAB, -1, 1 << 40])
def test_a_token_out_of_range_is_refused_before_it_is_written(tmp_path: Path, token: int) -> None:
    writer = TokenWriter(tmp_path, "train", 0, VOCAB)
    writer.append([1, END], [0])
    refusal = rf": split train, token number 4: {token} is no token: there are 300, 0 to 299"
    with pytest.raises(InputError, match=refusal):
        writer.append([3, 4, token], [0])
    assert writer.close()["shards"][0]["tokens"]["shape"] == [2]


def test_a_split_is_sent_to_other_processes_without_its_data(tmp_path: Path) -> None:
    split = text_split(tmp_path / "data", documents([5000]))
    assert split.tokens(0, 5000).size and split._mapped
    copy = pickle.loads(pickle.dumps(split))
    assert copy._mapped == {} and len(pickle.dumps(split)) < 2000
    assert copy.tokens(0, 5000).tolist() == split.tokens(0, 5000).tolist()
    with pytest.raises(ValueError, match="read-only"):
        split.tokens(0, 3)[0] = 1


def test_what_cannot_be_is_caught_when_it_is_read(tmp_path: Path) -> None:
    """Whatever became of the file after it was opened."""
    split = text_split(tmp_path / "data", TEXTS, 15)
    tokens, starts = (split.folder / split.entry["shards"][0][key]["file"] for key in ("tokens", "starts"))
    np.load(tokens, mmap_mode="r+")[9] = VOCAB
    with pytest.raises(InputError, match=f"^{tokens}: its tokens hold {VOCAB}; they must be 0 to {VOCAB - 1}; delete"):
        split.tokens(0, 40)
    assert split.tokens(15, 40).tolist() == TOKENS[15:40]
    np.load(starts, mmap_mode="r+")[1] = 100
    with pytest.raises(InputError, match=f"^{starts}: its positions of documents do not rise; delete"):
        split.starts(0, 69)


@pytest.mark.usefixtures("of_data")
def test_the_commands_show_and_verify_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*arguments: str) -> tuple[int, str]:
        return in_process([*arguments, f"--root={tmp_path}"], capsys)[:2]

    folder = tmp_path / "made-up" / "test-1"
    prepared = write_text(folder, {"train": TEXTS, "val": TEXTS[:3]}, shard=15)
    counts = "7 train, 3 val documents; 69 train, 7 val tokens; vocabulary of 300, 4.00 bytes a token"
    assert prepared.summary() == f"made-up (test): {counts}"
    code, out = command("doctor", "--verify")
    assert code == 0 and "made-up/test-1" in out and "all digests of 1 prepared folders are as recorded" in out
    parts = {"web": {"documents": 3, "tokens": 9, "bytes": 36}, "books": {"documents": 4, "tokens": 60, "bytes": 240}}
    (folder / MANIFEST).write_text(json.dumps(changed(prepared.manifest, ("splits", "train", "sources"), parts)))
    assert [line.split() for line in command("prepare", "--summary")[1].splitlines()] == [
        [
            "dataset",
            "source",
            "tokenizer",
            "split",
            "part",
            "documents",
            "tokens",
            "share",
            "vocabulary",
            "bytes/token",
        ],
        ["made-up", "test", "made-up", "train", "all", "7", "69", "100.0%", "300", "4.00"],
        ["made-up", "test", "made-up", "train", "books", "4", "60", "87.0%", "300", "4.00"],
        ["made-up", "test", "made-up", "train", "web", "3", "9", "13.0%", "300", "4.00"],
        ["made-up", "test", "made-up", "val", "all", "3", "7", "100.0%", "300", "4.00"],
    ]
    for file in ("val_tokens_00000.npy", "tokenizer.json"):
        whole = (folder / file).read_bytes()
        flip(folder / file, -1, 0)
        code, out = command("doctor", "--verify")
        assert code == 1 and f"DAMAGED: {folder / file}: does not have its recorded sha256" in out
        (folder / file).write_bytes(whole)
