"""Files of every form give the same documents; which split a name means; bad input in one line."""

import gzip
import json
import random
from pathlib import Path

import pytest

from lra_ssm.datamodules.language.corpus import ReadOptions
from lra_ssm.datamodules.language.files import file_inputs, find_files, in_parts, split_of
from lra_ssm.errors import InputError
from tests.datamodules.language.helpers import Whole, read
from tests.small_data import words, write_files, write_jsonl, write_parquet, zstd


def whole(*paths: Path, split: str | None = None, **options) -> list[Whole]:
    return read(file_inputs([(path, split) for path in paths], ReadOptions(**options)))


def test_forms_give_the_same_documents(tmp_path: Path) -> None:
    texts = [f"\n {words(random.Random(seed), 40)}\r\n\t漢 end" for seed in range(20)]
    plain = write_jsonl(tmp_path / "a.jsonl", texts)
    lines = plain.read_bytes().splitlines(keepends=True)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[:9])) + gzip.compress(b"".join(lines[9:])))
    (tmp_path / "c.jsonl.zst").write_bytes(zstd(b"".join(lines[:5])) + zstd(b"".join(lines[5:])))
    write_parquet(tmp_path / "d.parquet", {"text": texts})
    write_files(tmp_path, {f"e{index:02}.txt": text.encode() for index, text in enumerate(texts)})
    expected = whole(plain, val_fraction=0.5)
    assert [document.text for document in expected] == texts and {d.split for d in expected} == {"train", "val"}
    assert whole(*find_files(tmp_path), val_fraction=0.5) == expected * 5


def test_fields_sources_and_null(tmp_path: Path) -> None:
    rows = [{"content": f"text {n}", "meta": {"set": name, "n": n}} for n, name in enumerate("aabbbcc")]
    rows[2]["content"] = None  # as dumps of tables have it: an empty document
    lines = "\ufeff" + "\r\n\n".join(json.dumps(row) for row in rows)  # blank lines, no end of the last one
    (tmp_path / "a.jsonl").write_text(lines)
    write_parquet(tmp_path / "b.parquet", {"content": [r["content"] for r in rows], "meta": [r["meta"] for r in rows]})
    for name, place in (("a.jsonl", "a.jsonl:5"), ("b.parquet", "b.parquet: row 2")):
        fields = {"split": "train", "text_field": "content", "source_field": "meta.set"}
        found = whole(tmp_path / name, **fields, empty_documents="skip")
        assert found == [Whole("train", row["content"], row["meta"]["set"]) for row in rows if row["content"]]
        with pytest.raises(InputError, match=f"{place}: an empty document; use empty_documents=skip to pass over it"):
            whole(tmp_path / name, **fields)


# -- files and their splits ----------------------------------------------------------------------------------------


def test_files_are_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "b.txt a/z.jsonl a/.hidden.txt .git/x.txt c/d/e.parquet a.txt notes.pdf README.md".split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [str(path.relative_to(tmp_path)) for path in find_files(tmp_path)]
    assert found == ["a/z.jsonl", "a.txt", "b.txt", "c/d/e.parquet"]
    assert "passing over notes.pdf: not one of" in caplog.text and "README" not in caplog.text
    (tmp_path / "c/back").symlink_to("..")
    with pytest.raises(InputError, match=r"/c/back/.*: is too many folders deep; does a link lead back"):
        find_files(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: holds no files in \.txt, \.jsonl, \.jsonl\.gz"):
        find_files(tmp_path / "empty")


NAMES = {
    "TinyStories-train.txt": "train", "TinyStories-valid.txt": "val", "ptb.test.txt": "test",
    "c4-validation.00000-of-00001.jsonl.gz": "val", "train/a.txt": "train", "data/training.txt": "train",
    "my data/dev 1/a.txt": "val", "test_1.txt": "test", "eval/train.txt": "test", "train00000.parquet": "train",
    "trainer.txt": None, "validity.txt": None, "a/testament.txt": None, "contest.txt": None, "Train.txt": None,
}  # fmt: skip


def test_a_split_is_named_as_in_hugging_face_datasets() -> None:
    assert {name: split_of(Path("/test", name), Path("/test")) for name in NAMES} == NAMES
    with pytest.raises(InputError, match=r"/a/train-and-test\.txt: 'train-and-test\.txt' names two splits, train"):
        split_of(Path("/a/train-and-test.txt"), Path("/a"))


def test_small_files_share_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, size in enumerate([5, 4, 1, 1, 30, 1, 9]):
        (tmp_path / f"{number}.txt").write_text("x" * size)
    monkeypatch.setattr("lra_ssm.datamodules.language.files.PART_BYTES", 10)
    parts = in_parts(file_inputs([(path, None) for path in find_files(tmp_path)], ReadOptions()))
    assert [[each.size for each in part] for part in parts] == [[5, 4, 1], [1], [30], [1, 9]]


# -- bad input -----------------------------------------------------------------------------------------------------

GOOD = b'{"text": "good"}\n' * 5
LINES = b"".join(b'{"text": "%d"}\n' % random.Random(n).getrandbits(200) for n in range(2000))
DAMAGED = r"cannot be read, or is cut off or damaged \("
BAD_LINES = {  # the sixth of a file
    b'{"text": "cut': r"is not JSON \(Unterminated string .* column 10 .*\); expected one document per line",
    b"[" * 100_000: "is not JSON .maximum recursion",
    b'{"txt": "a"}': "has no 'text'; it has 'txt'",
    b'["a"]': r"has no 'text'; it has \['a'\]",
    b'{"text": 3}': "'text' is 3 instead of a string",
    b'{"text": " \\n"}': "an empty document",
    b'{"text": "\\ud800"}': r"half of a surrogate pair \(\\ud800\)",
    b'{"text": "\xff"}': r"is not JSON \('utf-8' codec can't decode byte 0xff in position 10",
}


def refused(path: Path, data: bytes, message: str) -> None:
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"{path.name}: ?{message}") as error:
        whole(path)
    assert "\n" not in str(error.value)


def test_damaged_lines_and_compression_are_named(tmp_path: Path) -> None:
    for line, message in BAD_LINES.items():
        refused(tmp_path / "a.jsonl", GOOD + line + b"\n" + GOOD, f"6: {message}")
    for name, data in (("a.jsonl.gz", gzip.compress(LINES)), ("a.jsonl.zst", zstd(LINES))):
        for damaged in [data[:-1], data[: len(data) // 2], data[:5], data + b"garbage behind", b"no archive"]:
            refused(tmp_path / name, damaged, DAMAGED)


def test_damaged_parquet_is_named(tmp_path: Path) -> None:
    import pyarrow

    path = tmp_path / "a.parquet"
    offsets, data = pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pyarrow.py_buffer(b"ab\xff")
    for column, message in (
        ({"body": ["a"]}, "has no column 'text'; it has body"),
        ({"text": [1]}, "row 0: 'text' is 1 instead of a string"),
        ({"text": pyarrow.StringArray.from_buffers(2, offsets, data)}, rf"{DAMAGED}.*0xff"),
    ):
        refused(path, write_parquet(path, column).read_bytes(), message)
    intact = write_parquet(path, {"text": ["x" * 3000 + str(n) for n in range(300)]}, rows=50).read_bytes()
    for bad in (intact[:-100], intact[:20] + bytes(380) + intact[400:], b""):
        refused(path, bad, DAMAGED)
