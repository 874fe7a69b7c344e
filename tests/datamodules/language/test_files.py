"""Files of every form give the same documents; which split a name means; bad input in one line."""

import gzip
import json
import random
from pathlib import Path

import pytest

from lra_ssm.datamodules.language.corpus import ReadOptions
from lra_ssm.datamodules.language.files import file_inputs, find_files, in_parts, split_of
from lra_ssm.errors import InputError
from tests.datamodules.language.corpora import Whole, read, small_sizes, write_jsonl, write_parquet


def whole(*paths: Path, split: str | None = None, **options) -> list[Whole]:
    return read(file_inputs([(path, split) for path in paths], ReadOptions(**options)))


def texts(*paths: Path, **options) -> list[str]:
    return [document.text for document in whole(*paths, **options)]


def zstd(data: bytes) -> bytes:
    import pyarrow

    return pyarrow.compress(data, codec="zstd", asbytes=True)


# -- forms ---------------------------------------------------------------------------------------------------------


def test_forms_give_the_same_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ["one", " two", "three ", "\n", "\n\n", "\r\n", "\t", "é\n漢", "x" * 30]
    words = ["".join(random.Random(seed).choices(parts, k=150)) + "end" for seed in range(20)]
    plain = write_jsonl(tmp_path / "a.jsonl", words)
    lines = plain.read_bytes().splitlines(keepends=True)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[:9])) + gzip.compress(b"".join(lines[9:])))
    (tmp_path / "c.jsonl.zst").write_bytes(zstd(b"".join(lines[:5])) + zstd(b"".join(lines[5:])))
    write_parquet(tmp_path / "d.parquet", {"text": words})
    for index, text in enumerate(words):
        (tmp_path / f"e{index:02}.txt").write_bytes(text.encode())
    files = find_files(tmp_path)
    expected = whole(plain, val_fraction=0.5)
    assert [document.text for document in expected] == words and {d.split for d in expected} == {"train", "val"}
    assert whole(*files, val_fraction=0.5) == expected * 5
    small_sizes(monkeypatch, 50)  # long ones come in several segments then
    assert len([s for each in file_inputs([(file, None) for file in files], ReadOptions()) for s in each.read()]) > 1000
    assert texts(*files) == words * 5


def test_sources_and_fields(tmp_path: Path) -> None:
    rows = [{"content": f"text {n}", "meta": {"set": name, "n": n}} for n, name in enumerate("aabbbcc")]
    (tmp_path / "a.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows))  # blank lines, no end of the last
    write_parquet(tmp_path / "b.parquet", {"content": [r["content"] for r in rows], "meta": [r["meta"] for r in rows]})
    for name in ("a.jsonl", "b.parquet"):
        found = whole(tmp_path / name, split="train", text_field="content", source_field="meta.set")
        assert found == [Whole("train", row["content"], row["meta"]["set"]) for row in rows]


def test_null_is_an_empty_document(tmp_path: Path) -> None:
    """As dumps of Common Crawl and of tables have it."""
    (tmp_path / "a.jsonl").write_text('\ufeff{"text": "one"}\r\n{"text": null}\n{"text": "two"}\n')
    write_parquet(tmp_path / "b.parquet", {"text": ["one", None, "two"]})
    for name, place in (("a.jsonl", "a.jsonl:2"), ("b.parquet", "b.parquet: row 1")):
        assert texts(tmp_path / name, empty_documents="skip") == ["one", "", "two"]
        with pytest.raises(InputError, match=f"{place}: an empty document; empty_documents=skip passes over such"):
            texts(tmp_path / name)


# -- files and their splits ----------------------------------------------------------------------------------------


def test_files_are_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "b.txt a/z.jsonl a/.hidden.txt .git/x.txt c/d/e.parquet a.txt notes.pdf README.md".split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [str(path.relative_to(tmp_path)) for path in find_files(tmp_path)]
    assert found == ["a/z.jsonl", "a.txt", "b.txt", "c/d/e.parquet"]
    assert "passing over notes.pdf: not one of" in caplog.text and "README" not in caplog.text
    (tmp_path / "c/back").symlink_to("..")
    with pytest.raises(InputError, match=r"/c/back/.*: lies too many folders deep; does a link"):
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


@pytest.mark.parametrize("name", NAMES)
def test_a_split_is_named_as_hugging_face_has_it(name: str) -> None:
    assert split_of(Path("/test", name), Path("/test")) == NAMES[name]


def test_a_name_of_two_splits_is_refused() -> None:
    with pytest.raises(InputError, match=r"/a/train-and-test\.txt: 'train-and-test\.txt' names two splits, train"):
        split_of(Path("/a/train-and-test.txt"), Path("/a"))


def test_small_files_share_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [5, 4, 1, 1, 30, 1, 9]
    for number, size in enumerate(sizes):
        (tmp_path / f"{number}.txt").write_text("x" * size)
    monkeypatch.setattr("lra_ssm.datamodules.language.files.PART_BYTES", 10)
    parts = in_parts(file_inputs([(path, None) for path in find_files(tmp_path)], ReadOptions()))
    assert [[each.size for each in part] for part in parts] == [[5, 4, 1], [1], [30], [1, 9]]


# -- bad input -----------------------------------------------------------------------------------------------------

LINES = {
    b'{"text": "cut': r"is not JSON \(Unterminated string starting at, column 10\); one document per line is expected",
    b"[" * 100_000: "is not JSON .maximum recursion",
    b'{"txt": "a"}': "has no 'text'; it has 'txt'",
    b'["a"]': r"has no 'text'; it has \['a'\]",
    b'{"text": 3}': "'text' is 3 instead of a string",
    b'{"text": ""}': "an empty document; empty_documents=skip passes over such",
    b'{"text": " \\n"}': "an empty document",
    b'{"text": "\\ud800"}': r"half of a surrogate pair \(\\ud800\)",
    b'{"text": "\xff"}': r"is not UTF-8 \(byte 0xff, the line's number 11\)",
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:16].decode(errors="replace"))
def test_bad_lines(line: bytes, tmp_path: Path) -> None:
    good = b'{"text": "good"}\n' * 5
    data = good + line + b"\n" + good
    for name, content in (("a.jsonl", data), ("b.jsonl.gz", gzip.compress(data)), ("c.jsonl.zst", zstd(data))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"{name}:6: {LINES[line]}") as error:
            whole(tmp_path / name)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_damaged_compression(name: str, tmp_path: Path) -> None:
    lines = b"".join(b'{"text": "%d"}\n' % random.Random(n).getrandbits(200) for n in range(2000))
    data = gzip.compress(lines) if name.endswith("gz") else zstd(lines)
    path, flipped = tmp_path / name, bytearray(data)
    flipped[len(data) // 2] ^= 0xFF
    damage = [data[:-1], data[: len(data) // 2], data[:5], data + data[:-20], data + b"garbage behind", b"no archive"]
    if name.endswith("gz"):  # zstd has a checksum only where its writer wanted one
        damage.append(bytes(flipped))
    for bad in damage:
        path.write_bytes(bad)
        with pytest.raises(InputError, match=rf"{name}: cannot be read, or is broken off or damaged \("):
            whole(path)


def test_bad_parquet(tmp_path: Path) -> None:
    import pyarrow

    path, damaged = tmp_path / "a.parquet", r"a\.parquet: cannot be read, or is broken off or damaged \("
    offsets, data = pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pyarrow.py_buffer(b"ab\xff")
    for column, match in (
        ({"text": ["a", "b", "c", "d", " "]}, r"a\.parquet: row 4: an empty document"),
        ({"body": ["a"]}, r"a\.parquet: has no column 'text'; it has body"),
        ({"text": [1]}, r"a\.parquet: row 0: 'text' is 1 instead of a string"),
        ({"text": pyarrow.StringArray.from_buffers(2, offsets, data)}, rf"{damaged}.*0xff"),
    ):
        write_parquet(path, column)
        with pytest.raises(InputError, match=match):
            whole(path)
    write_parquet(path, {"text": ["x" * 3000 + str(n) for n in range(300)]}, rows=50)
    intact = path.read_bytes()
    for bad in (intact[:-100], intact[:20] + bytes(380) + intact[400:], b""):
        path.write_bytes(bad)
        with pytest.raises(InputError, match=damaged):
            whole(path)
