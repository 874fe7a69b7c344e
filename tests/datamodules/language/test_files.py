"""Files of every form in pieces of any size; bad input in one line."""

import gzip
import json
import pickle
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from lra_ssm.datamodules.language.documents import HeldOut, Reading
from lra_ssm.datamodules.language.files import FileCorpus, find_files, segments
from lra_ssm.errors import InputError
from tests.datamodules.language.corpora import Document, read, small_sizes, write_jsonl, write_parquet

PARTS = ["one", " two", "three ", "\n", "\n", "\n\n", "\n  \n", "\r\n", "\r\n\r\n", "\t", "é\n漢", "\n\n\n\n", "x" * 30]
HEADINGS = ["\n \n = Title = \n \n", "\n \n = = Section = = \n \n", "\n = no heading = \n"]


def corpus(*paths: Path, split: str | None = None, **reading: object) -> FileCorpus:
    return FileCorpus(str(paths[0]), tuple((str(path), split) for path in paths), Reading(**reading))


def texts(corpus: FileCorpus) -> list[str]:
    return [document.text for document in read(corpus)]


def zstd(data: bytes) -> bytes:
    import pyarrow

    return pyarrow.compress(data, codec="zstd", asbytes=True)


def made_up(seed: int, *more: str) -> str:
    return "".join(random.Random(seed).choices([*PARTS, *more], k=150))


def articles(text: str) -> list[str]:
    """Line by line: a first-level heading between blank lines begins one."""
    lines = text.splitlines(keepends=True)
    found = [""]
    for before, line, after in zip(["x", *lines], lines, [*lines[1:], "x"], strict=False):
        heading = line.startswith(" = ") and not line.startswith(" = = ") and line.endswith(" = \n")
        if heading and not before.strip() and after.endswith("\n") and not after.strip():
            found.append("")
        found[-1] += line
    return found


# -- what documents are --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_any_size_give_the_same(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents, keys and text, with documents longer than what is read at a time, and cut, among them."""
    text = "begins " + made_up(seed, *HEADINGS, "long " * 200, "line\n" * 100)
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    expected = {
        "file": [text],
        "line": [line.rstrip("\r") for line in text.split("\n") if line.strip()],
        "article": articles(text),
    }
    stripped = re.sub(r"\A(?:[ \t\r\f\v]*\n)+", "", text)
    paragraphs = re.split(r"\n(?:[ \t\r\f\v]*\n)+", stripped)
    expected["paragraph"] = [part.strip("\r\n") for part in paragraphs if part.strip()]
    for mode, wanted in expected.items():
        whole = read(corpus(path, documents=mode, seed=seed))
        assert [document.text for document in whole] == wanted, mode
    small_sizes(monkeypatch, segment=100, block=256)
    monkeypatch.setattr("lra_ssm.datamodules.language.plain_text._REACH", 64)
    for mode, wanted in expected.items():
        whole = read(corpus(path, documents=mode, seed=seed))
        assert [document.text for document in whole] == wanted, mode
        for piece_bytes in (1, 100, 1000):
            one = replace(corpus(path, documents=mode, seed=seed), piece_bytes=piece_bytes)
            assert len(one.pieces()) > 1
            assert read(one) == whole, (mode, piece_bytes)


def test_forms_give_the_same_documents(tmp_path: Path) -> None:
    words = [made_up(seed) + "end" for seed in range(20)]
    plain = write_jsonl(tmp_path / "a.jsonl", words)
    lines = plain.read_bytes().splitlines(keepends=True)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[:9])) + gzip.compress(b"".join(lines[9:])))
    (tmp_path / "c.jsonl.zst").write_bytes(zstd(b"".join(lines[:5])) + zstd(b"".join(lines[5:])))
    write_parquet(tmp_path / "d.parquet", {"text": words})
    for index, text in enumerate(words):
        (tmp_path / f"e{index:02}.txt").write_bytes(text.encode())
    files = find_files(tmp_path)
    expected = read(corpus(plain))
    assert [document.text for document in expected] == words and len({d.key for d in expected}) == 20
    for piece_bytes in (1, 500, 1 << 20):
        assert read(replace(corpus(*files), piece_bytes=piece_bytes)) == expected * 5
    assert len(corpus(*files).pieces()) == 1
    assert pickle.loads(pickle.dumps(corpus(*files))) == corpus(*files)


def test_long_documents_come_in_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_sizes(monkeypatch, segment=50, block=64)
    long = "\n".join(f"line number {number}" for number in range(50))
    write_jsonl(tmp_path / "a.jsonl", [long, "short"])
    write_parquet(tmp_path / "b.parquet", {"text": [long, "short"]})
    (tmp_path / "c.txt").write_text(long)
    for name in ("a.jsonl", "b.parquet", "c.txt"):
        one = corpus(tmp_path / name)
        found = [segment for piece in one.pieces() for segment in one.segments(piece)]
        assert len(found) > 15 and max(len(segment.text) for segment in found) <= 50
        assert read(one) == read(corpus(tmp_path / "a.jsonl"))[: 1 if name == "c.txt" else 2]


def test_sources_and_fields(tmp_path: Path) -> None:
    rows = [{"content": f"text {n}", "meta": {"set": name, "n": n}} for n, name in enumerate("aabbbcc")]
    (tmp_path / "a.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows))  # blank lines, no end of the last
    write_parquet(tmp_path / "b.parquet", {"content": [r["content"] for r in rows], "meta": [r["meta"] for r in rows]})
    for name in ("a.jsonl", "b.parquet"):
        found = read(corpus(tmp_path / name, split="train", text_field="content", source_field="meta.set"))
        assert found == [Document("train", row["content"], row["meta"]["set"], 0) for row in rows]


def test_byte_order_mark_and_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert texts(corpus(path)) == ["one\r\ntwo\r\n"]
    assert texts(corpus(path, documents="line")) == ["one", "two"]
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n{"text": "two"}\r\n')
    assert texts(corpus(tmp_path / "b.jsonl")) == ["one", "two"]


def test_files_are_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["b.txt", "a/z.jsonl", "a/.hidden.txt", ".git/x.txt", "c/d/e.parquet", "a.txt", "notes.pdf", "README.md"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [str(path.relative_to(tmp_path)) for path in find_files(tmp_path)]
    assert found == ["a/z.jsonl", "a.txt", "b.txt", "c/d/e.parquet"]
    assert "passing over notes.pdf: none of" in caplog.text and "README" not in caplog.text
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"gone\.txt: is a link to nothing"):
        find_files(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: holds no files in \.txt, \.jsonl, \.jsonl\.gz"):
        find_files(tmp_path / "empty")


def test_content_settings_tell_changes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    one = corpus(tmp_path / "a.txt")
    before = one.content_settings()
    assert before == one.content_settings() and json.loads(json.dumps(before)) == before
    assert before["files"] == 1 and before["bytes"] == 3 and before["splits"] == ["hash"]
    assert replace(one, held_out=HeldOut(0.1)).content_settings() != before
    assert replace(one, reading=Reading("line")).content_settings() != before
    (tmp_path / "a.txt").write_text("other")
    assert one.content_settings() != before


# -- bad input -----------------------------------------------------------------------------------------------------


def refuse(one: FileCorpus, match: str) -> None:
    for piece_bytes in (20, 1 << 20):
        with pytest.raises(InputError, match=match) as error:
            read(replace(one, piece_bytes=piece_bytes))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("mode", ["file", "line", "paragraph", "article"])
def test_not_utf8(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("é\n\n".encode() * 40 + b"good\nab\xffcd\n\nx")
    for block in (1 << 20, 7):
        small_sizes(monkeypatch, 1 << 20, block=block)
        refuse(corpus(path, documents=mode), r"a\.txt:82: is not UTF-8 \(byte 0xff, the line's number 3\)")
    path.write_bytes(b"cut \xe6\xbc")
    refuse(corpus(path, documents=mode), r"a\.txt:1: is not UTF-8 \(byte 0xe6, the line's number 5\)")


GOOD = b'{"text": "good"}\n' * 5
LINES = {
    b'{"text": "cut': r"6: is no JSON \(Unterminated string starting at at column 10\); a document a line",
    b"[" * 100_000: "6: is no JSON",
    b'{"txt": "a"}': r"6: has no 'text'; there is 'txt'",
    b'["a"]': r"6: has no 'text': a list instead of an object",
    b'{"text": null}': r"6: 'text' is null instead of a string",
    b'{"text": 3}': r"6: 'text' is a number instead of a string",
    b'{"text": ""}': r"6: an empty document; empty_documents=skip passes over such",
    b'{"text": " \\n"}': r"6: an empty document",
    b'{"text": "\\ud800"}': r"6: its text has half of a surrogate pair alone \(\\ud800\)",
    b'{"text": "\xff"}': r"6: is not UTF-8 \(byte 0xff, the line's number 11\)",
    b'{"text": "' + b"x" * 300_000 + b'"}': r"6: a line longer than memory should hold \(more than 200,000 bytes\)",
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:16].decode(errors="replace"))
def test_bad_lines(line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_sizes(monkeypatch, 1 << 16, most=200_000, block=1 << 14)
    data = GOOD + line + b"\n" + GOOD
    (tmp_path / "a.jsonl").write_bytes(data)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(data))
    (tmp_path / "c.jsonl.zst").write_bytes(zstd(data))
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst"):
        refuse(corpus(tmp_path / name), f"{name}:{LINES[line]}")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_damaged_compression(name: str, tmp_path: Path) -> None:
    lines = b"".join(b'{"text": "%d"}\n' % random.Random(n).getrandbits(200) for n in range(2000))
    data = gzip.compress(lines) if name.endswith("gz") else zstd(lines)
    kind = "gzip" if name.endswith("gz") else "zstd"
    path = tmp_path / name
    for bad in (
        data[:-1],
        data[: len(data) // 2],
        data[:5],
        data + data[:-20],
        data + b"garbage behind",
        b"no archive",
    ):
        path.write_bytes(bad)
        with pytest.raises(InputError, match=rf"{name}: is broken off or damaged {kind} \("):
            read(corpus(path))
    if kind == "gzip":  # zstd has a checksum only where its writer wanted one
        damaged = bytearray(data)
        damaged[len(data) // 2] ^= 0xFF
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=name):
            read(corpus(path))


def test_bad_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow

    path = tmp_path / "a.parquet"
    write_parquet(path, {"text": ["a", "b", "c", "d", None]})
    refuse(corpus(path), r"a\.parquet: row 4: 'text' is null instead of a string")
    write_parquet(path, {"text": ["a", "b", "c", "d", " "]})
    refuse(corpus(path), r"a\.parquet: row 4: an empty document")
    assert texts(corpus(path, empty_documents="skip")) == ["a", "b", "c", "d", ""]
    write_parquet(path, {"body": ["a"]})
    refuse(corpus(path), r"a\.parquet: has no column 'text'; there is body")
    write_parquet(path, {"text": [1]})
    refuse(corpus(path), r"a\.parquet: column 'text' holds int64 instead of strings")
    broken = pyarrow.StringArray.from_buffers(
        2, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pyarrow.py_buffer(b"ab\xff")
    )
    write_parquet(path, {"text": broken})
    refuse(corpus(path), r"a\.parquet: row 1: is not UTF-8 \(byte 0xff, the text's number 2\)")
    write_parquet(path, {"text": ["x" * 3000 + str(n) for n in range(300)]}, rows=50)
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:-100])
    refuse(corpus(path), r"a\.parquet: is broken off or damaged parquet \(")
    data[20:400] = bytes(380)
    path.write_bytes(data)
    refuse(corpus(path), r"a\.parquet: is broken off or damaged parquet \(.* in row group 0")
    monkeypatch.setattr("lra_ssm.datamodules.language.parquet.MAX_SEGMENT_BYTES", 10)
    write_parquet(path, {"text": ["a", "x" * 11]})
    refuse(corpus(path), r"a\.parquet: row 1: a document longer than memory should hold \(more than 10 bytes\)")


def test_empty_and_missing_files(tmp_path: Path) -> None:
    for name, data in (("a.txt", b""), ("b.txt", b" \n\n"), ("c.txt", b"\xef\xbb\xbf")):
        (tmp_path / name).write_bytes(data)
        refuse(corpus(tmp_path / name), rf"{name}: an empty document; empty_documents=skip passes over such")
        assert texts(corpus(tmp_path / name, empty_documents="skip")) == [""]
        assert texts(corpus(tmp_path / name, documents="line")) == []
    refuse(corpus(tmp_path / "gone.jsonl"), r"gone\.jsonl: cannot be read \(No such file or directory\)")
    refuse(corpus(tmp_path / "gone.parquet"), r"gone\.parquet: cannot be read \(.*No such file or directory")


def test_files_that_shrink_while_they_are_read(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two", "three"])
    one = replace(corpus(path), piece_bytes=16)
    pieces = one.pieces()
    assert len(pieces) == 3
    path.write_text("")
    with pytest.raises(InputError, match="has become shorter while it was read"):
        list(one.segments(pieces[1]))


def test_nowhere_to_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_sizes(monkeypatch, segment=50, most=500, block=100)
    path = tmp_path / "a.txt"
    path.write_text("first\nsecond\n" + "word " * 200)
    match = r"a\.txt:3: a document longer than memory should hold: 500 bytes without a line"
    refuse(corpus(path), match)
    path.write_text("first\n\nsecond\n" + "word " * 200)
    refuse(corpus(path, documents="paragraph"), r"a\.txt:4: a document longer")
    refuse(corpus(path, documents="line"), r"a\.txt:4: a document longer")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the peak is read of Linux")
def test_memory_stays_small(tmp_path: Path) -> None:
    """300 MB of one document, and of many; compressed too."""
    import subprocess
    import sys

    code = (
        "import re, sys; from pathlib import Path\n"
        "from lra_ssm.datamodules.language.documents import Reading\n"
        "from lra_ssm.datamodules.language.files import FileCorpus\n"
        "path, mode = sys.argv[1:]; import pyarrow.parquet\n"
        "def peak(): return int(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1]) / 1024\n"
        "one = FileCorpus(path, ((path, None),), Reading(mode))\n"
        "before = peak()\n"
        "size = sum(len(s.text) for piece in one.pieces() for s in one.segments(piece))\n"
        "assert size > 290_000_000, size\n"
        "print(peak() - before)"
    )
    line = "a line of text without much to say, and another one \\ to follow it closely behind"
    with open(tmp_path / "a.txt", "w") as file:
        for _ in range(300):
            file.write((line + "\n") * (1_000_000 // (len(line) + 1)))
    text = ((line + "\n") * 40)[:-1]
    record = json.dumps({"text": text}).encode() + b"\n"
    count = 300_000_000 // len(text)
    with gzip.open(tmp_path / "b.jsonl.gz", "wb", compresslevel=1) as file:
        for _ in range(count):
            file.write(record)
    write_parquet(tmp_path / "c.parquet", {"text": [f"{n} {text}" for n in range(count)]}, rows=count)
    for name, mode in [
        ("a.txt", "file"),
        ("a.txt", "line"),
        ("a.txt", "paragraph"),
        ("b.jsonl.gz", "file"),
        ("c.parquet", "file"),
    ]:
        command = [sys.executable, "-c", code, str(tmp_path / name), mode]
        more = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{name} as {mode}: {more:.0f} MB")
        assert 0 < more < 100, (name, mode)


def test_segments_by_piece_alone(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    one = corpus(path, split="val")
    (piece,) = one.pieces()
    assert [segment.text for segment in segments(piece, one.reading)] == ["one", "two"] and piece.split == "val"
