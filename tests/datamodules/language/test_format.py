"""Sharded tokens: written, opened, checked; what is missing, cut off or no token is one line."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from lra_ssm.datamodules.language.format import TokenSplit, TokenWriter

from lra_ssm.datamodules.storage import intact
from lra_ssm.datamodules.storage.format import MANIFEST, PreparedDataset, open_prepared
from lra_ssm.errors import InputError
from tests.datamodules.language.helpers import END, VOCAB, documents, text_split, write_split, write_text
from tests.datamodules.test_damaged_data import changed, flip, open_all_splits, paths, refused
from tests.runner import run, succeed

TEXTS = documents([5, 1, 1, 40, 3, 17, 2])
TOKENS = [token for text in TEXTS for token in text]
STARTS = [0, 5, 6, 7, 47, 50, 67]


@pytest.mark.parametrize("shard_bytes", [2, 3, 14, 62, 138, 1 << 30])
def test_tokens_and_starts_across_shards(tmp_path: Path, shard_bytes: int) -> None:
    split = text_split(tmp_path / "data", TEXTS, shard_bytes)
    assert (split.num_tokens, split.num_documents) == (69, 7) and len(TOKENS) == 69
    assert len(split.entry["shards"]) == -(-69 // (shard_bytes // 2))
    for begin in range(69):
        for end in range(begin + 1, 70):
            assert split.tokens(begin, end).tolist() == TOKENS[begin:end]
            assert split.starts(begin, end).tolist() == [s for s in STARTS if begin <= s < end]
    assert split.tokens(0, 69).dtype == np.uint16 and split.starts(0, 69).dtype == np.int64


def test_how_it_was_appended_does_not_show(tmp_path: Path) -> None:
    for name in ("parts", "whole"):
        (tmp_path / name).mkdir()
    parts = write_split(tmp_path / "parts", "train", TEXTS, shard_bytes=30)
    writer = TokenWriter(tmp_path / "whole", "train", VOCAB, 30)
    writer.append(TOKENS, STARTS)
    writer.append([], [])
    assert writer.close() == {key: parts[key] for key in ("documents", "tokens", "shards")}
    files = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert files[0] == "train_starts_00000.npy" and len(files) == 10
    assert all((tmp_path / "whole" / f).read_bytes() == (tmp_path / "parts" / f).read_bytes() for f in files)


@pytest.mark.parametrize(("vocab", "dtype"), [(256, "uint8"), (257, "uint16"), (1 << 16, "uint16"), (65537, "uint32")])
def test_the_smallest_dtype_that_holds_the_vocabulary(tmp_path: Path, vocab: int, dtype: str) -> None:
    split = write_text(tmp_path / "data", {"train": [[0, vocab - 1]]}, vocab=vocab).split("train")
    assert isinstance(split, TokenSplit) and split.tokens(0, 2).dtype == dtype
    assert split.tokens(0, 2).tolist() == [0, vocab - 1] and split.end_of_text == vocab - 1


@pytest.mark.parametrize("token", [VOCAB, -1, 1 << 40])
def test_a_token_out_of_range_is_refused_before_it_is_written(tmp_path: Path, token: int) -> None:
    writer = TokenWriter(tmp_path / "data", "train", VOCAB) if (tmp_path / "data").mkdir() is None else None
    assert writer is not None
    writer.append([1, END], [0])
    with pytest.raises(
        InputError, match=rf": split train, token number 4: {token} is no token: there are 300, 0 to 299"
    ):
        writer.append([3, 4, token], [0])
    assert writer.close()["tokens"] == 2


def test_a_split_without_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="split val has no documents"):
        TokenWriter(tmp_path, "val", VOCAB).close()


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
    return write_text(folder, {"train": TEXTS, "val": TEXTS[:3]}, shard_bytes=30)


def test_summary(tmp_path: Path) -> None:
    assert two_splits(tmp_path / "data").summary() == (
        "made-up (test): 7 train, 3 val documents; 69 train, 7 val tokens; vocabulary of 300, 4.00 bytes a token"
    )


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
        file.write_bytes(whole + b"x")
        assert refused(folder).startswith(f"{file}: has {len(whole) + 1} bytes instead of {len(whole)};")
        file.write_bytes(whole[:-1])
        assert refused(folder).startswith(f"{file}: has {len(whole) - 1} bytes instead of {len(whole)};")
        file.write_bytes(whole)
        values = np.load(file, mmap_mode="r").size  # a shard within a document starts none
        flip(file, -1, 3)
        wrong = "does not have its recorded sha256" if values else "its header is not what was written"
        assert refused(folder).startswith(f"{file}: {wrong}")
        file.write_bytes(whole)
        flip(file, 10, 3)
        assert refused(folder).startswith(f"{file}: its header is not what was written")
        file.write_bytes(whole)
    open_all_splits(folder)


def test_what_cannot_be_is_caught_when_it_is_read(tmp_path: Path) -> None:
    """Whatever became of the file after it was opened."""
    split = text_split(tmp_path / "data", TEXTS, 30)
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


# -- manifests -----------------------------------------------------------------------------------------------------


def test_a_manifest_that_lacks_anything(tmp_path: Path) -> None:
    """It is refused in one line, or what is missing is of no consequence; never anything else."""
    folder = tmp_path / "data"
    manifest = two_splits(folder).manifest
    kept = []
    for path in paths(manifest)[1:]:
        if isinstance(path[-1], int) or path in (("splits", "train"), ("splits", "val")):
            continue
        (folder / MANIFEST).write_text(json.dumps(changed(manifest, path)))
        try:
            opened = open_prepared(folder, verify=True)
            opened.summary()
            split = opened.split("train")
            assert isinstance(split, TokenSplit) and split.tokens(0, 69).tolist() == TOKENS
            assert split.starts(0, 69).tolist() == STARTS
            kept.append(path)
        except InputError as error:
            assert "\n" not in str(error)
            missing = "arrays" if path[-1] == "shards" else path[-1]
            assert f"has no {missing}; delete" in str(error)
    used = {"format", "dataset", "kind", "vocab_size", "end_of_text", "shards", "file", "dtype", "sha256"}
    assert not used & {path[-1] for path in kept}


# -- the commands --------------------------------------------------------------------------------------------------


def test_the_commands_show_and_verify_it(tmp_path: Path) -> None:
    folder = tmp_path / "made-up" / "test-1"
    two_splits(folder)
    out = succeed(["doctor", f"--root={tmp_path}", "--verify"], tmp_path).out
    assert "made-up/test-1" in out and "all digests of 1 prepared folders are as recorded" in out
    table = succeed(["prepare", "--summary", f"--root={tmp_path}"], tmp_path).out.splitlines()
    assert table[0].split() == [
        "dataset", "source", "tokenizer", "split", "part", "documents", "tokens", "share", "vocabulary", "bytes/token"
    ]  # fmt: skip
    assert [line.split() for line in table[1:]] == [
        ["made-up", "test", "made-up", "train", "all", "7", "69", "100.0%", "300", "4.00"],
        ["made-up", "test", "made-up", "val", "all", "3", "7", "100.0%", "300", "4.00"],
    ]
    manifest = open_prepared(folder).manifest
    parts = {"web": {"documents": 3, "tokens": 9, "bytes": 36}, "books": {"documents": 4, "tokens": 60, "bytes": 240}}
    (folder / MANIFEST).write_text(json.dumps(changed(manifest, ("splits", "train", "sources"), parts)))
    table = succeed(["prepare", "--summary", f"--root={tmp_path}"], tmp_path).out.splitlines()
    assert [line.split()[4:8] for line in table[1:4]] == [
        ["all", "7", "69", "100.0%"], ["books", "4", "60", "87.0%"], ["web", "3", "9", "13.0%"]
    ]  # fmt: skip
    for file in ("val_tokens_00000.npy", "tokenizer.json"):
        whole = (folder / file).read_bytes()
        flip(folder / file, -1, 0)
        doctor = run(["doctor", f"--root={tmp_path}", "--verify"], tmp_path)
        assert doctor.code == 1 and f"DAMAGED: {folder / file}: does not have its recorded sha256" in doctor.out
        (folder / file).write_bytes(whole)
