"""Files of every form in shards of any size; bad input in one line."""

import gzip
import json
import pickle
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from lra_ssm.datamodules.language.documents import Reading

from lra_ssm.datamodules.language.files import FileCorpus, find_files
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
def test_shards_of_any_size_give_the_same(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents, keys and text, with documents that are cut among them."""
    text = "begins " + made_up(seed, *HEADINGS, "long " * 200, "line\n" * 100)
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    stripped = re.sub(r"\A(?:[ \t\r\f\v]*\n)+", "", text)
    paragraphs = re.split(r"\n(?:[ \t\r\f\v]*\n)+", stripped)
    expected = {
        "file": [text],
        "line": [line.rstrip("\r") for line in text.split("\n") if line.strip()],
        "article": articles(text),
        "paragraph": [part.strip("\r\n") for part in paragraphs if part.strip()],
    }
    for mode, wanted in expected.items():
        assert texts(corpus(path, documents=mode, seed=seed)) == wanted, mode
    small_sizes(monkeypatch, 100)
    monkeypatch.setattr("lra_ssm.datamodules.language.plain_text._REACH", 64)
    for mode, wanted in expected.items():
        whole = read(corpus(path, documents=mode, seed=seed))
        assert [document.text for document in whole] == wanted, mode
        for shard_bytes in (1, 100, 1000):
            one = replace(corpus(path, documents=mode, seed=seed), shard_bytes=shard_bytes)
            assert len(one.shards()) > 1 and read(one) == whole, (mode, shard_bytes)


def test_forms_give_the_same_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [made_up(seed) + "end" for seed in range(20)]
    plain = write_jsonl(tmp_path / "a.jsonl", words)
    lines = plain.read_bytes().splitlines(keepends=True)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[:9])) + gzip.compress(b"".join(lines[9:])))
    (tmp_path / "c.jsonl.zst").write_bytes(zstd(b"".join(lines[:5])) + zstd(b"".join(lines[5:])))
    write_parquet(tmp_path / "d.parquet", {"text": words})
    for index, text in enumerate(words):
        (tmp_path / f"e{index:02}.txt").write_bytes(text.encode())
    files = find_files(tmp_path)
    expected = read(corpus(plain, val_fraction=0.5))
    assert [document.text for document in expected] == words and {d.split for d in expected} == {"train", "val"}
    for shard_bytes in (1, 500, 1 << 20):
        assert read(replace(corpus(*files, val_fraction=0.5), shard_bytes=shard_bytes)) == expected * 5
    assert len(corpus(*files).shards()) == 1
    small_sizes(monkeypatch, 50)  # long ones come in several texts then
    one = corpus(*files)
    found = [text for shard in one.shards() for text in one.texts(shard)]
    assert len(found) > 1000 and [document.text for document in read(one)] == words * 5
    assert pickle.loads(pickle.dumps(corpus(*files))) == corpus(*files)


def test_a_large_corpus_has_no_more_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [f"text {n}" for n in range(300)])
    one = replace(corpus(path), shard_bytes=1)
    assert 120 < len(one.shards()) < 140
    monkeypatch.setattr("lra_ssm.datamodules.language.files.MOST_SHARDS", 5)
    assert len(one.shards()) <= 6 and len(read(one)) == 300


def test_sources_and_fields(tmp_path: Path) -> None:
    rows = [{"content": f"text {n}", "meta": {"set": name, "n": n}} for n, name in enumerate("aabbbcc")]
    (tmp_path / "a.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows))  # blank lines, no end of the last
    write_parquet(tmp_path / "b.parquet", {"content": [r["content"] for r in rows], "meta": [r["meta"] for r in rows]})
    for name in ("a.jsonl", "b.parquet"):
        found = read(corpus(tmp_path / name, split="train", text_field="content", source_field="meta.set"))
        assert found == [Document("train", row["content"], row["meta"]["set"]) for row in rows]


def test_byte_order_mark_and_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert texts(corpus(path)) == ["one\r\ntwo\r\n"]
    assert texts(corpus(path, documents="line")) == ["one", "two"]
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n{"text": "two"}\r\n')
    assert texts(corpus(tmp_path / "b.jsonl")) == ["one", "two"]


def test_files_are_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "b.txt a/z.jsonl a/.hidden.txt .git/x.txt c/d/e.parquet a.txt notes.pdf README.md".split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [str(path.relative_to(tmp_path)) for path in find_files(tmp_path)]
    assert found == ["a/z.jsonl", "a.txt", "b.txt", "c/d/e.parquet"]
    assert "passing over notes.pdf: none of" in caplog.text and "README" not in caplog.text
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"gone\.txt: is a link to nothing"):
        find_files(tmp_path)
    (tmp_path / "gone.txt").unlink()
    (tmp_path / "c/back").symlink_to("..")
    with pytest.raises(InputError, match=r"/c/back/.*: lies too many folders deep; does a link"):
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
    assert replace(one, reading=Reading(val_fraction=0.1)).content_settings() != before
    assert replace(one, reading=Reading("line")).content_settings() != before
    (tmp_path / "a.txt").write_text("other")
    assert one.content_settings() != before


# -- bad input -----------------------------------------------------------------------------------------------------


def refuse(one: FileCorpus, match: str) -> None:
    for shard_bytes in (20, 1 << 20):
        with pytest.raises(InputError, match=match) as error:
            read(replace(one, shard_bytes=shard_bytes))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("mode", ["file", "line", "paragraph", "article"])
def test_not_utf8(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for data, match in (("é\n\n".encode() * 40 + b"good\nab\xffcd\n\nx", "82: .*0xff"), (b"cut \xe6\xbc", "1: .*0xe6")):
        path.write_bytes(data)
        refuse(corpus(path, documents=mode), rf"a\.txt:{match.replace('.*', r'is not UTF-8 .byte ')}")


LINES = {
    b'{"text": "cut': r"is no JSON \(Unterminated string starting at, column 10\); a document a line is expected",
    b"[" * 100_000: "is no JSON .maximum recursion",
    b'{"txt": "a"}': "has no 'text'; there is 'txt'",
    b'["a"]': r"has no 'text'; there is \['a'\]",
    b'{"text": null}': "'text' is None instead of a string",
    b'{"text": ""}': "an empty document; empty_documents=skip passes over such",
    b'{"text": " \\n"}': "an empty document",
    b'{"text": "\\ud800"}': r"its text has half of a surrogate pair alone \(\\ud800\)",
    b'{"text": "\xff"}': r"is not UTF-8 \(byte 0xff, the line's number 11\)",
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:16].decode(errors="replace"))
def test_bad_lines(line: bytes, tmp_path: Path) -> None:
    good = b'{"text": "good"}\n' * 5
    data = good + line + b"\n" + good
    (tmp_path / "a.jsonl").write_bytes(data)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(data))
    (tmp_path / "c.jsonl.zst").write_bytes(zstd(data))
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst"):
        refuse(corpus(tmp_path / name), f"{name}:6: {LINES[line]}")


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
            read(corpus(path))


def test_bad_parquet(tmp_path: Path) -> None:
    import pyarrow

    path = tmp_path / "a.parquet"
    write_parquet(path, {"text": ["a", "b", "c", "d", None]})
    refuse(corpus(path), r"a\.parquet: row 4: 'text' is None instead of a string")
    write_parquet(path, {"text": ["a", "b", "c", "d", " "]})
    refuse(corpus(path), r"a\.parquet: row 4: an empty document")
    assert texts(corpus(path, empty_documents="skip")) == ["a", "b", "c", "d", ""]
    write_parquet(path, {"body": ["a"]})
    refuse(corpus(path), r"a\.parquet: has no column 'text'; there is body")
    write_parquet(path, {"text": [1]})
    refuse(corpus(path), r"a\.parquet: row 0: 'text' is 1 instead of a string")
    offsets, data = pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pyarrow.py_buffer(b"ab\xff")
    write_parquet(path, {"text": pyarrow.StringArray.from_buffers(2, offsets, data)})
    refuse(corpus(path), r"a\.parquet: is broken off or damaged parquet near row 0 \(.*0xff")
    write_parquet(path, {"text": ["x" * 3000 + str(n) for n in range(300)]}, rows=50)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    refuse(corpus(path), r"a\.parquet: is broken off or damaged parquet \(")
    path.write_bytes(whole[:20] + bytes(380) + whole[400:])
    refuse(corpus(path), r"a\.parquet: is broken off or damaged parquet near row 0 \(")


def test_empty_and_missing_files(tmp_path: Path) -> None:
    for name, data in (("a.txt", b""), ("b.txt", b" \n\n"), ("c.txt", b"\xef\xbb\xbf")):
        (tmp_path / name).write_bytes(data)
        refuse(corpus(tmp_path / name), rf"{name}:1: an empty document; empty_documents=skip passes over such")
        assert texts(corpus(tmp_path / name, empty_documents="skip")) == [""]
        assert texts(corpus(tmp_path / name, documents="line")) == []
    refuse(corpus(tmp_path / "gone.jsonl"), r"gone\.jsonl: cannot be read \(No such file or directory\)")
    refuse(corpus(tmp_path / "gone.parquet"), r"gone\.parquet: .*(No such file or directory|cannot be read)")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_files_that_shrink_before_they_are_read(name: str, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / name, ["one", "two", "three"])
    one = replace(corpus(path, documents="line"), shard_bytes=16)
    shards = one.shards()
    assert len(shards) == 3
    path.write_text("")
    with pytest.raises(InputError, match=f"{name}: has become shorter while it was read"):
        list(one.texts(shards[1]))


def test_nowhere_to_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_sizes(monkeypatch, 50, most=500)
    path = tmp_path / "a.txt"
    path.write_text("first\nsecond\n" + "word " * 200)
    refuse(corpus(path), r"a\.txt:3: 500 bytes of a document without a line")
    path.write_text("first\n\nsecond\n" + "word " * 200)
    for mode in ("paragraph", "line"):
        refuse(corpus(path, documents=mode), r"a\.txt:4: 500 bytes of a document")


# What a process holds of its own; mapped files are the system's to drop.
READ = """
import re, sys; from pathlib import Path
from lra_ssm.datamodules.language.documents import Reading
from lra_ssm.datamodules.language.files import FileCorpus
path, mode = sys.argv[1:]; import pyarrow.parquet
def held(): return int(re.search(r'RssAnon:\\s*(\\d+)', Path('/proc/self/status').read_text())[1]) / 1024
one, size, most, before = FileCorpus(path, ((path, None),), Reading(mode)), 0, 0, held()
for shard in one.shards():
    for number, text in enumerate(one.texts(shard)):
        size += len(text.text)
        most = max(most, held()) if number % 50 == 0 else most
assert size > 290_000_000, size
print(most - before)
"""


@pytest.mark.trials
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="what a process holds is read of Linux")
def test_memory_stays_small(tmp_path: Path) -> None:
    """300 MB of one document, and of many; compressed too."""
    line = "a line of text without much to say, and another one \\ to follow it closely behind\n"
    with open(tmp_path / "a.txt", "w") as file:
        for _ in range(300):
            file.write(line * (1_000_000 // len(line)))
    text = (line * 40)[:-1]
    count = 300_000_000 // len(text)
    with gzip.open(tmp_path / "b.jsonl.gz", "wb", compresslevel=1) as file:
        for _ in range(count):
            file.write(json.dumps({"text": text}).encode() + b"\n")
    write_parquet(tmp_path / "c.parquet", {"text": [f"{n} {text}" for n in range(count)]}, rows=count)
    for name, mode in [("a.txt", mode) for mode in ("file", "line", "paragraph")] + [
        ("b.jsonl.gz", "file"),
        ("c.parquet", "file"),
    ]:
        command = [sys.executable, "-c", READ, str(tmp_path / name), mode]
        more = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{name} as {mode}: {more:.0f} MB")
        assert 0 < more < 100, (name, mode)
