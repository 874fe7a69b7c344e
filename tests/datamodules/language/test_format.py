"""Sharded tokens: written, opened, checked; what is missing, cut off or no token is one line."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from lra_ssm.datamodules.language.shards import TokenWriter
from lra_ssm.datamodules.storage import intact
from lra_ssm.datamodules.storage.format import MANIFEST, PreparedDataset, TokenSplit, open_prepared
from lra_ssm.errors import InputError
from tests.datamodules.language.helpers import END, VOCAB, WHOLE, documents, text_split, write_split, write_text
from tests.datamodules.test_damaged_data import changed, flip, open_all_splits, paths, refused
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
        for end in range(begin + 1, 70):
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


# -- opened --------------------------------------------------------------------------------------------------------


def two_splits(folder: Path) -> PreparedDataset:
    return write_text(folder, {"train": TEXTS, "val": TEXTS[:3]}, shard=15)


def test_damage_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    two_splits(folder)
    open_all_splits(folder)
    for file in (*folder.glob("*.npy"), folder / "tokenizer.json"):
        whole = file.read_bytes()
        file.rename(tmp_path / "away")
        assert refused(folder).startswith(f"{file}: is missing")
        (tmp_path / "away").rename(file)
        if file.suffix != ".npy":
            continue
        for other in (whole + b"x", whole[:-1]):
            file.write_bytes(other)
            assert refused(folder).startswith(f"{file}: has {len(other)} bytes instead of {len(whole)};")
        file.write_bytes(whole)
        values = np.load(file, mmap_mode="r").size  # a shard within a document starts none
        for position in (-1, 10):
            flip(file, position, 3)
            in_values = values and position == -1
            wrong = "does not have its recorded sha256" if in_values else "its header is not what was written"
            assert refused(folder).startswith(f"{file}: {wrong}")
            file.write_bytes(whole)
    open_all_splits(folder)


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


def test_what_was_written_is_remembered_without_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, read = tmp_path / "unfinished", []
    two_splits(folder)
    folder = folder.rename(tmp_path / "data")  # as preparation does
    check = intact.check_digest
    monkeypatch.setattr(intact, "check_digest", lambda *array: read.append(array[1]["file"]) or check(*array))
    intact.remember_intact(folder)
    open_all_splits(folder)
    assert read == []
    file = folder / "train_tokens_00002.npy"
    file.touch()
    open_all_splits(folder)
    assert read == [file.name]
    flip(file, -1, 0)
    assert refused(folder).startswith(f"{file}: does not have its recorded sha256")
    shutil.copytree(folder, tmp_path / "copy" / "data")
    read.clear()
    assert "train_tokens_00002.npy: does not" in refused(tmp_path / "copy" / "data") and len(read) > 1


def test_a_manifest_that_lacks_anything(tmp_path: Path) -> None:
    """It is refused in one line, or what is missing is of no consequence; never anything else."""
    folder = tmp_path / "data"
    manifest = two_splits(folder).manifest
    kept = set()
    for path in paths(manifest)[1:]:
        if isinstance(path[-1], int) or path == ("splits", "train") or "val" in path:
            continue
        (folder / MANIFEST).write_text(json.dumps(changed(manifest, path)))
        try:
            opened = open_prepared(folder, verify=True)
            opened.summary()
            split = opened.split("train")
            assert isinstance(split, TokenSplit) and split.tokens(0, 69).tolist() == TOKENS
            assert split.starts(0, 69).tolist() == STARTS
            kept.add(path[-1])
        except InputError as error:
            assert "\n" not in str(error)
            what = "arrays" if path[-1] == "shards" else path[-1]  # what has no shards may be sequences
            assert f"has no {what}; delete" in str(error)
    assert not kept & {"format", "dataset", "kind", "vocab_size", "end_of_text", "file", "dtype", "shape", "sha256"}


# -- the commands --------------------------------------------------------------------------------------------------


def test_the_commands_show_and_verify_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*arguments: str) -> tuple[int, str]:
        return in_process([*arguments, f"--root={tmp_path}"], capsys)[:2]

    folder = tmp_path / "made-up" / "test-1"
    summary = two_splits(folder).summary()
    counts = "7 train, 3 val documents; 69 train, 7 val tokens; vocabulary of 300, 4.00 bytes a token"
    assert summary == f"made-up (test): {counts}"
    code, out = command("doctor", "--verify")
    assert code == 0 and "made-up/test-1" in out and "all digests of 1 prepared folders are as recorded" in out
    manifest = open_prepared(folder).manifest
    parts = {"web": {"documents": 3, "tokens": 9, "bytes": 36}, "books": {"documents": 4, "tokens": 60, "bytes": 240}}
    (folder / MANIFEST).write_text(json.dumps(changed(manifest, ("splits", "train", "sources"), parts)))
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
