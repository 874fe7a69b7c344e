"""Documents: what they are in plain text and in files of every form, where they are cut, which split they are of."""

import gzip
import io
import json
import random
import re
from pathlib import Path

import pytest

from lra_ssm.datamodules.language import corpus
from lra_ssm.datamodules.language.corpus import CUT, Document, ReadOptions, cut, read_text, segments
from lra_ssm.datamodules.language.files import file_inputs, find_files, split_of
from lra_ssm.datamodules.text import text_keys
from lra_ssm.errors import InputError
from tests.datamodules.language.helpers import joined, read
from tests.small_data import words, write_files, write_jsonl, write_parquet, zstd

CHARACTERS = "a|b | c|\n|\n|\n|\r\n|\t|é|\u3000|\u2003|\xa0|\u2028|\x85|\x1c|漢|🙂".split("|")
PARTS = ["one", " two", "three ", "\n", "\n", "\n\n", "\n  \n", "\r\n", "\r\n\r\n", "\t", "é\n漢", "\n\n\n\n", "x" * 30]
HEADINGS = ["\n \n = Title = \n \n", "\n \n = = Section = = \n \n", "\n = not a heading = \n"]


def documents(data: str | bytes, mode: corpus.Documents, **options) -> list[str]:
    file = io.BytesIO(data.encode() if isinstance(data, str) else data)
    return [whole.text for whole in joined(segments(read_text(file, "a.txt", mode, "train"), ReadOptions(**options)))]


def articles(text: str) -> list[str]:
    """Line by line: a first-level heading between blank lines begins one."""
    lines, found = text.splitlines(keepends=True), [""]
    for before, line, after in zip(["x", *lines], lines, [*lines[1:], "x"], strict=False):
        heading = line.startswith(" = ") and not line.startswith(" = = ") and line.endswith(" = \n")
        if heading and not before.strip() and after.endswith("\n") and not after.strip():
            found.append("")
        found[-1] += line
    return found


@pytest.mark.parametrize("seed", range(4))
def test_plain_text_is_divided_into_documents(seed, monkeypatch):
    more = [*PARTS, *HEADINGS, "long " * 200, "line\n" * 100]
    text = "begins " + "".join(random.Random(seed).choices(more, k=150))
    paragraphs = re.split(r"\n(?:[ \t\r\f\v]*\n)+", re.sub(r"\A(?:[ \t\r\f\v]*\n)+", "", text))
    expected = {
        "file": [text],
        "line": [line.rstrip("\r") for line in text.split("\n") if line.strip()],
        "article": articles(text),
        "paragraph": [part.strip("\r\n") for part in paragraphs if part.strip()],
        "endoftext": [text.strip("\r\n")],
    }
    for size in (corpus.TEXT_SIZE, 100):  # long documents come in several segments
        monkeypatch.setattr(corpus, "TEXT_SIZE", size)
        for mode, wanted in expected.items():
            assert documents(text, mode) == wanted, mode


def test_a_separator_ends_a_document(caplog):
    """TinyStories has it on lines of its own, others in a line."""
    text = "One.\nMore.\n<|endoftext|>\n\nTwo.\n<|endoftext|>\n<|endoftext|>\nThree.<|endoftext|>Four."
    assert documents(text, "endoftext") == ["One.\nMore.", "Two.", "Three.", "Four."]
    assert not caplog.records
    for mode in ("file", "line", "paragraph"):
        corpus._warn_of_separators.cache_clear()
        caplog.clear()
        assert any("<|endoftext|>" in document for document in documents(text, mode))
        assert len(caplog.records) == 1 and f"documents={mode}; documents=endoftext ends a document" in caplog.text


def test_marks_line_ends_and_empty_documents():
    data = b"\xef\xbb\xbfone\r\ntwo\r\n"
    assert documents(data, "file") == ["one\r\ntwo\r\n"] and documents(data, "line") == ["one", "two"]
    for data in (b"", b" \n\n", b"\xef\xbb\xbf"):
        with pytest.raises(InputError, match=r"^a\.txt:1: an empty document; use empty_documents=skip to pass over it"):
            documents(data, "file")
        assert documents(data, "file", empty_documents="skip") == []
        assert documents(data, "line") == documents(data, "endoftext") == []


@pytest.mark.parametrize("mode", ["file", "line", "paragraph", "article", "endoftext"])
def test_text_that_is_not_utf8_is_named_by_its_line(mode):
    for data, where in (("é\n\n".encode() * 40 + b"good\nab\xffcd\n\nx", "82.*0xff"), (b"cut \xe6\xbc", "1.*0xe6")):
        with pytest.raises(InputError, match=rf"^a\.txt:{where.replace('.*', ': is not UTF-8 .byte ')}"):
            documents(data, mode)


@pytest.mark.parametrize("seed", range(6))
def test_cuts_follow_the_rule(seed, monkeypatch):
    """After the end of a line with a character that is not white space on either side."""
    chance = random.Random(seed)
    text = "".join(chance.choices(CHARACTERS, k=400))
    inside = range(1, len(text) - 1)
    allowed = {i + 1 for i in inside if text[i] == "\n" and not (text[i - 1].isspace() or text[i + 1].isspace())}
    assert {found.end() for found in CUT.finditer(text)} == allowed
    size = chance.choice([8, 40, 100])
    monkeypatch.setattr(corpus, "TEXT_SIZE", size)
    expected, begin = [], 0
    while len(text) - begin > size and (ahead := [place for place in allowed if place > begin]):
        near = [place for place in ahead if place - begin <= size]
        end = max(near) if near else min(ahead)
        expected.append(text[begin:end])
        begin = end
    assert list(cut(text)) == [*expected, text[begin:]]
    assert list(cut("a\n" + "x" * 250)) == ["a\n", "x" * 250] and list(cut("word " * 50)) == ["word " * 50]


def test_every_line_may_end():
    odd = " \n = T = \n \n a\u2028b\x85c\x0bd \n \n e \n"  # what str.splitlines takes for ends of lines
    found = list(segments([Document(odd, "x", "train")], ReadOptions("article", end_lines=True)))
    assert [each.text for each in found] == [" = T = \n", " a\u2028b\x85c\x0bd \n", " e \n"]
    assert [each.first for each in found] == [True, False, False] and all(each.last for each in found)


def test_held_out_share():
    texts = [f"document {number}" for number in range(20_000)]
    small = ReadOptions(split_seed=3, val_fraction=0.05, test_fraction=0.02)
    large = ReadOptions(split_seed=3, val_fraction=0.1)
    splits = [small.split(text) for text in texts]
    for split, share in (("train", 0.93), ("val", 0.05), ("test", 0.02)):
        assert splits.count(split) / len(texts) == pytest.approx(share, abs=0.005)
    assert [split == "val" for split in splits] == (text_keys(texts, 3) < 0.05 * 2.0**64).tolist()
    assert all(large.split(text) == "val" for text, split in zip(texts, splits, strict=True) if split == "val")
    for val, test in ((1.0, 0.0), (-0.1, 0.0), (0.5, 0.5)):
        with pytest.raises(InputError):
            ReadOptions(val_fraction=val, test_fraction=test)


# -- files of every form -------------------------------------------------------------------------------------------


def whole(*paths: Path, split: str | None = None, **options) -> list[Document]:
    return read(file_inputs([(path, split) for path in paths], ReadOptions(**options)))


def test_forms_give_the_same_documents(tmp_path: Path) -> None:
    texts = [f"\n {words(random.Random(seed), 40)}\r\n\t漢 end" for seed in range(20)]
    plain = write_jsonl(tmp_path / "a.jsonl", texts)
    lines = plain.read_bytes().splitlines(keepends=True)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[:9])) + gzip.compress(b"".join(lines[9:])))
    (tmp_path / "c.jsonl.zst").write_bytes(zstd(b"".join(lines[:5])) + zstd(b"".join(lines[5:])))
    write_parquet(tmp_path / "d.parquet", {"text": texts})
    write_files(tmp_path, {f"e{index:02}.txt": text for index, text in enumerate(texts)})
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
        assert found == [Document(row["content"], "", "train", row["meta"]["set"]) for row in rows if row["content"]]
        with pytest.raises(InputError, match=f"{place}: an empty document; use empty_documents=skip to pass over it"):
            whole(tmp_path / name, **fields)


# -- files and their splits ----------------------------------------------------------------------------------------


def test_files_are_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = "b.txt a/z.jsonl a/.hidden.txt .git/x.txt c/d/e.parquet a.txt notes.pdf README.md"
    write_files(tmp_path, dict.fromkeys(names.split(), "x"))
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


# -- bad input -----------------------------------------------------------------------------------------------------

GOOD = b'{"text": "good"}\n' * 5
LINES = b"".join(b'{"text": "%d"}\n' % random.Random(n).getrandbits(200) for n in range(2000))
DAMAGED = r"cannot be read, or is cut off or damaged \("
BAD_LINES = {  # the sixth of a file
    b'{"text": "cut': r"is not JSON \(Unterminated string .* column 10 .*\); expected one document per line",
    b'{"txt": "a"}': "has no 'text'; it has 'txt'",
    b'["a"]': r"has no 'text'; it has \['a'\]",
    b'{"text": 3}': "'text' is 3 instead of a string",
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
