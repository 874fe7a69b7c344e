"""From pieces to prepared tokens: parts, processes, shards, kills, merges."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from lra_ssm.datamodules.language import plain_text
from lra_ssm.datamodules.language.builder import Preparation, Share
from lra_ssm.datamodules.language.choosing import load_tokenizer, parse_tokenizer
from lra_ssm.datamodules.language.documents import HeldOut, Piece, Range, Reading
from lra_ssm.datamodules.language.parts import PART
from lra_ssm.datamodules.storage import disk
from lra_ssm.datamodules.storage.format import TokenSplit, open_prepared
from lra_ssm.errors import InputError


def the_source(splits):
    return {"kind": "test"}


@dataclass(frozen=True)
class Lines:
    """A file's lines as documents; the first file is for training and what is held out of it, the second for test."""

    files: tuple[str, str]
    piece_bytes: int = 2000
    held_out: HeldOut = HeldOut(0.1)
    reading: Reading = Reading("line", empty_documents="skip")

    def pieces(self):
        found = []
        for file, split in zip(self.files, (None, "test"), strict=True):
            size = Path(file).stat().st_size
            for share in plain_text.division(file, size, self.reading.documents, self.piece_bytes):
                found.append(Piece(split, (share,), (size if share.end is None else share.end) - share.begin))
        return found

    def segments(self, piece):
        (share,) = piece.ranges
        return plain_text.segments(share, self.reading, piece.split is None, 0)

    def split_of(self, key):
        return self.held_out.split(key)

    def content_settings(self):
        return {}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """900 documents for training, 60 for testing."""
    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(0)
    words = ["the", "states", "größe", "of", "a", "decay", "λ", "memory", "slowly", "reset"]
    for name, count in (("a.txt", 900), ("b.txt", 60)):
        lines = [" ".join(rng.choice(words, rng.integers(1, 20))) for _ in range(count)]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder / "a.txt", folder / "b.txt"


def preparation(texts, parts: Path, tokenizer="words", processes=1, **settings) -> Preparation:
    reader = Lines(tuple(map(str, texts)), **settings)
    return Preparation(parts, "lines", reader, parse_tokenizer(tokenizer), processes=processes)


def prepared(preparation: Preparation, folder: Path) -> Path:
    preparation.tokenise()
    folder.mkdir()
    preparation.merge(folder, the_source)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def once(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("once")
    return prepared(preparation(texts, folder / "parts"), folder / "prepared")


def decoded(split: TokenSplit, tokenizer) -> list[str]:
    starts = [*split.starts(0, split.num_tokens), split.num_tokens]
    tokens = split.tokens(0, split.num_tokens)
    return [tokenizer.decode(tokens[a:b]) for a, b in zip(starts, starts[1:], strict=False)]


def test_every_document_is_there_once_in_order_in_its_split(texts, once):
    dataset, tokenizer = open_prepared(once, verify=True), load_tokenizer(once)
    assert list(dataset.manifest["splits"]) == ["train", "val", "test"]
    found = {name: decoded(dataset.split(name), tokenizer) for name in dataset.manifest["splits"]}
    first, second = (file.read_text().splitlines() for file in texts)
    assert [text.rstrip("\n") for text in found["test"]] == second
    train, val = ([text.rstrip("\n") for text in found[name]] for name in ("train", "val"))
    assert 40 < len(val) < 160 and len(train) + len(val) == len(first)
    reader = Lines(tuple(map(str, texts)))
    kept = [s for piece in reader.pieces() if piece.split is None for s in reader.segments(piece)]
    assert train == [s.text for s in kept if reader.split_of(s.key) == "train"]
    assert val == [s.text for s in kept if reader.split_of(s.key) == "val"]


def test_the_manifest_counts_documents_tokens_bytes_words_and_lines(texts, once):
    entry = open_prepared(once).manifest["splits"]["test"]
    lines = texts[1].read_text().splitlines()
    words = sum(len(line.split()) for line in lines)
    expected = {
        "documents": len(lines),
        "tokens": words + len(lines),
        "bytes": sum(len(line.encode()) for line in lines),
        "words": words,
        "lines": len(lines),
    }
    assert {name: entry[name] for name in expected} == expected
    assert entry["sources"] == {"": expected}


@pytest.mark.parametrize("change", [{"processes": 3}, {"piece_bytes": 700}, {"piece_bytes": 10**9}], ids=str)
def test_processes_and_the_size_of_pieces_change_nothing(texts, once, tmp_path, change):
    folder = prepared(preparation(texts, tmp_path / "parts", **change), tmp_path / "prepared")
    assert contents(folder) == contents(once)


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe:300"])
def test_a_long_document_in_many_pieces_has_the_tokens_of_the_whole(texts, tmp_path, tokenizer):
    one = Reading("file", empty_documents="skip")
    folders = []
    for number, size in enumerate((10**9, 3000)):
        reader = {"reading": one, "piece_bytes": size, "held_out": HeldOut()}
        made = preparation(texts, tmp_path / f"parts{number}", tokenizer, **reader)
        assert len(made.reader.pieces()) == (2 if number == 0 else 2 + len(texts[0].read_bytes()) // 3000)
        folders.append(prepared(made, tmp_path / f"prepared{number}"))
    assert contents(folders[0]) == contents(folders[1])
    assert open_prepared(folders[0]).split("train").num_documents == 1


def test_shards_in_any_order_give_what_one_process_gives(texts, once, tmp_path):
    made = preparation(texts, tmp_path / "parts")
    (tmp_path / "prepared").mkdir()
    for number in (3, 1):
        made.tokenise(Share(number, 3))
    with pytest.raises(InputError, match=r"parts: \d+ of \d+ parts are missing \(000001, .*run those again"):
        made.merge(tmp_path / "prepared", the_source)
    assert not any((tmp_path / "prepared").iterdir())
    made.tokenise(Share(2, 3))
    made.merge(tmp_path / "prepared", the_source)
    assert contents(tmp_path / "prepared") == contents(once)


def test_merging_comes_after_tokenising(texts, tmp_path):
    with pytest.raises(InputError, match="nothing is tokenised yet; --shard=1/n"):
        preparation(texts, tmp_path / "parts").merge(tmp_path, the_source)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2", ""])
def test_a_shard_that_is_none_is_one_line(text):
    with pytest.raises(InputError, match="must be i/n with i from 1 to n, as 3/16"):
        Share.parse(text)


SHARE = """
import sys, pickle, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.datamodules.language.test_builder import preparation
from lra_ssm.datamodules.language import parts
from lra_ssm.datamodules.language.builder import Share
count = parts.count
def slowly(*arguments):
    time.sleep(0.002)
    return count(*arguments)
parts.count = slowly
preparation({texts!r}, Path({parts!r})).tokenise(Share(*map(int, sys.argv[1:])))
"""


def test_killed_shards_go_on_where_they_were(texts, once, tmp_path):
    root, parts = str(Path(__file__).parents[3]), tmp_path / "parts"
    script = SHARE.format(root=root, texts=tuple(map(str, texts)), parts=str(parts))

    def start(number):
        return subprocess.Popen([sys.executable, "-c", script, str(number), "2"])

    def done():
        return {path.parent.name: path.stat().st_mtime_ns for path in parts.glob(f"[0-9]*/{PART}")}

    before: dict[str, int] = {}
    for kills in range(3):
        processes = [start(1), start(2)]
        if kills < 2:
            deadline = time.monotonic() + 60
            while len(done()) < len(before) + 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            for process in processes:
                process.send_signal(signal.SIGKILL)
        codes = [process.wait() for process in processes]
        assert codes == ([0, 0] if kills == 2 else [-9, -9])
        assert before.items() <= done().items()  # what was done stays as it is
        before = done()
    (tmp_path / "prepared").mkdir()
    preparation(texts, parts).merge(tmp_path / "prepared", the_source)
    assert contents(tmp_path / "prepared") == contents(once)


@dataclass(frozen=True)
class Deadly(Lines):
    alive: int = 0  # the process that reads it and lives

    def segments(self, piece):
        if os.getpid() != self.alive:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().segments(piece)


def test_a_killed_process_of_several_is_said(texts, tmp_path):
    made = preparation(texts, tmp_path / "parts", processes=2)
    made.tokenise(Share(1, 2))
    deadly = Deadly(tuple(map(str, texts)), alive=os.getpid())
    with pytest.raises(InputError, match=r"ended with exit code -9 \(.*fewer.*--processes.*what is done stays done"):
        replace(made, reader=deadly).tokenise()
    assert made.progress()[0] == (len(made.reader.pieces()) + 1) // 2


@pytest.mark.parametrize("processes", [1, 2])
def test_bad_input_is_one_line_and_leaves_no_part(texts, tmp_path, processes):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"one line\n" * 400 + b"\xff is no UTF-8\n" + b"another\n" * 400)
    made = preparation((bad, texts[1]), tmp_path / "parts", "bytes", processes)
    with pytest.raises(InputError, match=r"bad.txt:401: is not UTF-8"):
        made.tokenise()
    assert {path.name for path in made.parts.iterdir() if path.is_dir() and not (path / PART).is_file()} <= {
        path.name for path in made.parts.glob(".unfinished-*") if processes == 2
    }


def test_a_changed_corpus_or_tokenizer_is_one_line(texts, tmp_path):
    first = shutil.copy(texts[0], tmp_path / "a.txt")
    made = preparation((first, texts[1]), tmp_path / "parts", "bpe:300")
    made.tokenise(Share(1, 2))
    saved = tmp_path / "mine.json"
    shutil.copy(made.parts / "tokenizer.json", saved)
    with open(first, "a") as file:
        file.write("one more\n" * 500)
    with pytest.raises(InputError, match="the corpus has changed since the first part was made"):
        made.tokenise(Share(2, 2))

    given = preparation(texts, tmp_path / "others", str(saved))
    given.tokenise(Share(1, 2))
    changed = json.loads(saved.read_text())
    kept = list(changed["model"]["vocab"].items())[:-1]
    changed["model"] |= {"vocab": dict(kept), "merges": changed["model"]["merges"][:-1]}
    saved.write_text(json.dumps(changed))
    with pytest.raises(InputError, match=r"mine.json: has changed since .*\(300 tokens then, 299 now\)"):
        given.tokenise(Share(2, 2))


def test_a_damaged_part_is_named_and_made_anew(texts, once, tmp_path):
    made = preparation(texts, tmp_path / "parts")
    made.tokenise()
    array = next(made.parts.glob("000002/train_tokens*"))
    data = bytearray(array.read_bytes())
    data[10] ^= 1
    array.write_bytes(data)
    (tmp_path / "prepared").mkdir()
    with pytest.raises(InputError, match=r"000002/train_tokens_00000.bin: is not what was written; delete the folder"):
        made.merge(tmp_path / "prepared", the_source)
    shutil.rmtree(array.parent)
    shutil.rmtree(tmp_path / "prepared")
    assert contents(prepared(made, tmp_path / "prepared")) == contents(once)


def test_a_part_whose_counts_are_damaged_is_named(texts, tmp_path):
    made = preparation(texts, tmp_path / "parts")
    made.tokenise()
    (made.parts / "000001" / PART).write_text('{"splits": ')
    (tmp_path / "prepared").mkdir()
    with pytest.raises(InputError, match=r"000001/part.json: is not what was written; delete the folder"):
        made.merge(tmp_path / "prepared", the_source)


def test_a_split_without_documents_is_one_line(texts, tmp_path):
    made = preparation(texts, tmp_path / "parts", held_out=HeldOut(1e-9))
    made.tokenise()
    (tmp_path / "prepared").mkdir()
    with pytest.raises(
        InputError, match=r"lines: no document for val \(900 for train, 60 for test\): hold out a larger"
    ):
        made.merge(tmp_path / "prepared", the_source)


def test_skipped_empty_documents_are_counted(texts, tmp_path):
    paragraphs = tmp_path / "empty.txt"
    paragraphs.write_text("x\n")
    folder = tmp_path / "of_files"
    folder.mkdir()

    @dataclass(frozen=True)
    class Files(Lines):
        def pieces(self):
            return [Piece("train", (Range(file, 0, None),), 2) for file in self.files]

    (folder / "blank.txt").write_text("  \n")
    reader = Files((str(paragraphs), str(folder / "blank.txt")), reading=Reading("file", empty_documents="skip"))
    made = replace(preparation(texts, tmp_path / "parts", "bytes"), reader=reader)
    manifest = open_prepared(prepared(made, tmp_path / "prepared")).manifest
    assert manifest["source"]["empty_documents_skipped"] == 1
    assert manifest["splits"]["train"]["documents"] == 1


def test_a_full_disk_is_said_before_anything_is_written(texts, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(InputError, match=r"tokenising lines needs 0\.000 GB on the disk .* where 0\.000 GB are free"):
        preparation(texts, tmp_path / "parts").tokenise()
    assert not list((tmp_path / "parts").glob("[0-9]*"))


def test_a_child_ends_with_its_parent(texts, tmp_path):
    script = SHARE.format(root=str(Path(__file__).parents[3]), texts=tuple(map(str, texts)), parts=str(tmp_path / "p"))
    script = script.replace(")).tokenise(", "), processes=2, piece_bytes=300).tokenise(")
    process = subprocess.Popen([sys.executable, "-c", script, "1", "1"])
    deadline = time.monotonic() + 60
    while not list((tmp_path / "p").glob(f"[0-9]*/{PART}")) and time.monotonic() < deadline:
        time.sleep(0.01)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
    assert len(children.split()) == 2
    process.kill()
    process.wait()
    for child in children.split():
        while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not Path(f"/proc/{child}").exists()
    assert os.path.isdir(tmp_path / "p")
