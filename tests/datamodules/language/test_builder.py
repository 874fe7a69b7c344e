"""From shards to prepared tokens: turns, processes, kills, damage."""

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from lra_ssm.datamodules.language import builder, shards
from lra_ssm.datamodules.language.builder import Preparation, Turn
from lra_ssm.datamodules.language.choosing import load_tokenizer, parse_tokenizer
from lra_ssm.datamodules.language.documents import Reading
from lra_ssm.datamodules.language.files import FileCorpus
from lra_ssm.datamodules.language.shards import RECORD
from lra_ssm.datamodules.old_storage import disk
from lra_ssm.datamodules.old_storage.format import PreparedDataset, TokenSplit, open_prepared
from lra_ssm.datamodules.old_storage.writer import write_manifest
from lra_ssm.datamodules.storage import prepare
from lra_ssm.errors import InputError
from tests.datamodules.language.corpora import by_split
from tests.datamodules.language.deadly import Deadly
from tests.datamodules.language.helpers import flip
from tests.runner import Command

LINES = Reading("line", empty_documents="skip", val_fraction=0.1)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with 900 lines of which some are held out, and 60 for testing."""
    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(0)
    words = ["the", "states", "größe", "of", "a", "decay", "λ", "memory", "slowly", "reset"]
    for name, number in (("a.txt", 900), ("b.txt", 60)):
        lines = [" ".join(rng.choice(words, rng.integers(1, 20))) for _ in range(number)]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def preparation(texts: Path, made: Path, tokenizer="words", processes=1, **settings) -> Preparation:
    files = ((str(texts / "a.txt"), None), (str(texts / "b.txt"), "test"))
    settings = {"reading": LINES, "shard_bytes": 2000, **settings}
    reader = FileCorpus(str(texts), files, **settings)
    return Preparation(made, "lines", reader, parse_tokenizer(tokenizer), processes=processes)


def finished(preparation: Preparation, folder: Path) -> Path:
    folder.mkdir()
    finish(preparation, folder)
    return folder


def finish(preparation: Preparation, folder: Path) -> None:
    write_manifest(folder, preparation.finish(folder) | {"source": {"kind": "test"}})


def prepared(preparation: Preparation, folder: Path) -> Path:
    preparation.tokenise()
    return finished(preparation, folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def streams(dataset: PreparedDataset) -> dict[str, tuple[list[int], list[int]]]:
    """Tokens and starts of each split, whatever shards they are in."""
    found = {}
    for name in dataset.manifest["splits"]:
        split = dataset.split(name)
        assert isinstance(split, TokenSplit)
        whole = 0, split.num_tokens
        found[name] = (split.tokens(*whole).tolist(), split.starts(*whole).tolist())
    return found


def counts(dataset: PreparedDataset) -> dict[str, dict]:
    return {name: entry | {"shards": None} for name, entry in dataset.manifest["splits"].items()}


@pytest.fixture(scope="module")
def once(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("once")
    return prepared(preparation(texts, folder / "shards"), folder / "prepared")


# -- what is made --------------------------------------------------------------------------------------------------


def test_every_document_is_there_once_in_order_in_its_split(texts, once):
    tokenizer, found = load_tokenizer(once), {}
    for name, (tokens, starts) in streams(open_prepared(once, verify=True)).items():
        ends = [*starts[1:], len(tokens)]
        found[name] = [tokenizer.decode(tokens[a:b]).rstrip("\n") for a, b in zip(starts, ends, strict=True)]
    assert list(found) == ["train", "val", "test"] and found == by_split(preparation(texts, once).reader)
    assert 40 < len(found["val"]) < 160 and len(found["train"]) + len(found["val"]) == 900
    assert found["test"] == (texts / "b.txt").read_text().splitlines()


def test_the_manifest_counts_documents_tokens_bytes_words_and_lines(texts, once):
    entry, lines = open_prepared(once).manifest["splits"]["test"], (texts / "b.txt").read_text().splitlines()
    words, size = sum(len(line.split()) for line in lines), sum(len(line.encode()) for line in lines)
    expected = {"documents": 60, "tokens": words + 60, "bytes": size, "words": words, "lines": 60}
    assert {name: entry[name] for name in expected} == expected and entry["sources"] == {"": expected}


def test_neither_processes_nor_the_size_of_shards_change_anything(texts, once, tmp_path):
    made = preparation(texts, tmp_path / "shards", processes=3)
    assert contents(prepared(made, tmp_path / "by three")) == contents(once)
    for size in (700, 10**9):
        made = preparation(texts, tmp_path / f"shards{size}", shard_bytes=size)
        found, expected = open_prepared(prepared(made, tmp_path / f"{size}"), verify=True), open_prepared(once)
        assert streams(found) == streams(expected) and counts(found) == counts(expected)
        assert (found.folder / "vocabulary.json").read_bytes() == (once / "vocabulary.json").read_bytes()


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe:300"])
def test_a_long_document_in_many_shards_has_the_tokens_of_the_whole(texts, tmp_path, tokenizer):
    found = []
    for size in (10**9, 3000):
        one = {"reading": Reading("file"), "shard_bytes": size}
        made = preparation(texts, tmp_path / f"shards{size}", tokenizer, **one)
        assert (len(made.reader.shards()) > 10) == (size == 3000)
        found.append(open_prepared(prepared(made, tmp_path / f"{size}")))
    assert streams(found[0]) == streams(found[1]) and counts(found[0]) == counts(found[1])
    assert found[0].split("train").num_documents == 1


# -- several machines ----------------------------------------------------------------------------------------------


def test_turns_in_any_order_give_what_one_process_gives(texts, once, tmp_path):
    made = preparation(texts, tmp_path / "shards")
    (tmp_path / "prepared").mkdir()
    with pytest.raises(InputError, match="nothing is tokenised yet; --shard=1/n"):
        finish(made, tmp_path / "prepared")
    for number in (3, 1):
        made.tokenise(Turn(number, 3))
    with pytest.raises(InputError, match=r"shards: \d+ of \d+ shards are missing, the first is 000001: .*run those"):
        finish(made, tmp_path / "prepared")
    assert not any((tmp_path / "prepared").iterdir())
    made.tokenise(Turn(2, 3))
    finish(made, tmp_path / "prepared")
    assert contents(tmp_path / "prepared") == contents(once)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2", ""])
def test_a_turn_that_is_none_is_one_line(text):
    with pytest.raises(InputError, match="must be i/n with i from 1 to n, as 3/16"):
        Turn.parse(text)


def test_a_changed_corpus_or_tokenizer_is_one_line(texts, tmp_path):
    copied = shutil.copytree(texts, tmp_path / "copied")
    made = preparation(copied, tmp_path / "shards", "bpe:300")
    made.tokenise(Turn(1, 2))
    saved = shutil.copy(made.folder / "tokenizer.json", tmp_path / "mine.json")
    with open(copied / "a.txt", "a") as file:
        file.write("one more\n" * 500)
    with pytest.raises(InputError, match="the corpus has changed since; delete the folder"):
        made.tokenise(Turn(2, 2))

    given = preparation(texts, tmp_path / "others", str(saved))
    given.tokenise(Turn(1, 2))
    changed = json.loads(saved.read_text())
    kept = list(changed["model"]["vocab"].items())[:-1]
    changed["model"] |= {"vocab": dict(kept), "merges": changed["model"]["merges"][:-1]}
    saved.write_text(json.dumps(changed))
    with pytest.raises(InputError, match=r"mine.json: has changed since the first shard"):
        given.tokenise(Turn(2, 2))


# -- killed --------------------------------------------------------------------------------------------------------


def tokenise_slowly(arguments: list[str]) -> int:
    """In a process of its own: texts, the folder of shards, whose turn it is."""
    counted = shards.count
    shards.count = lambda *text: time.sleep(0.002) or counted(*text)
    preparation(Path(arguments[0]), Path(arguments[1])).tokenise(Turn.parse(arguments[2]))
    return 0


def test_killed_turns_go_on_where_they_were(texts, once, tmp_path):
    made = preparation(texts, tmp_path / "shards")

    def done():
        return {path.parent.name: path.stat().st_mtime_ns for path in made.folder.glob(f"[0-9]*/{RECORD}")}

    before: dict[str, int] = {}
    for kills in range(3):
        given = [str(texts), str(made.folder)]
        started = [Command([*given, turn], tmp_path, call=tokenise_slowly) for turn in ("1/2", "2/2")]
        if kills < 2:
            deadline = time.monotonic() + 60
            while len(done()) < len(before) + 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            for command in started:
                command.kill()
        assert [command.wait().code for command in started] == ([0, 0] if kills == 2 else [-9, -9])
        assert before.items() <= done().items()  # what was done stays as it is
        before = done()
    assert contents(finished(made, tmp_path / "prepared")) == contents(once)


def finish_and_die(arguments: list[str]) -> int:
    """In a process of its own: texts, the data root, after how many links it is killed."""
    root, last, link, links = Path(arguments[1]), int(arguments[2]), builder._link, count(1)

    def deadly(file: Path, target: Path) -> None:
        link(file, target)
        if next(links) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    builder._link = deadly
    made = preparation(Path(arguments[0]), root / "shards")
    prepare(root, "lines", "files-1", partial(finish, made))
    return 0


def test_a_killed_finish_leaves_nothing_wrong(texts, once, tmp_path):
    """Between the links, and behind the last."""
    made = preparation(texts, tmp_path / "shards")
    made.tokenise()
    before = {path: path.read_bytes() for path in made.folder.rglob("*.npy")}
    for last in (1, 5, len(before)):
        assert Command([str(texts), str(tmp_path), str(last)], tmp_path, call=finish_and_die).wait().code == -9
        (left,) = (path for path in (tmp_path / "lines").iterdir() if path.name != ".lock")
        assert left.name.startswith(".unfinished-") and len(list(left.glob("*.npy"))) == last
    assert {path: path.read_bytes() for path in made.folder.rglob("*.npy")} == before
    folder = prepare(tmp_path, "lines", "files-1", partial(finish, made))
    assert contents(folder) == contents(once)
    assert {path.name for path in (tmp_path / "lines").iterdir()} == {"files-1", ".lock"}


def test_a_killed_process_of_several_is_said(texts, tmp_path):
    made = preparation(texts, tmp_path / "shards", processes=2)
    made.tokenise(Turn(1, 2))
    deadly = Deadly(**vars(made.reader), alive=os.getpid())
    with pytest.raises(InputError, match="a worker process was killed"):
        replace(made, reader=deadly).tokenise()
    assert made.progress()[0] == (len(made.reader.shards()) + 1) // 2


# -- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 2])
def test_bad_input_is_one_line_and_leaves_no_half_of_a_shard(texts, tmp_path, processes):
    copied = shutil.copytree(texts, tmp_path / "copied")
    (copied / "a.txt").write_bytes(b"one line\n" * 400 + b"\xff is no UTF-8\n" + b"another\n" * 400)
    made = preparation(copied, tmp_path / "shards", "bytes", processes)
    with pytest.raises(InputError, match=r"a.txt:401: is not UTF-8"):
        made.tokenise()
    whole = {path.parent for path in made.folder.glob(f"*/{RECORD}")}
    unfinished = set(made.folder.glob(".unfinished-*")) if processes == 2 else set()
    assert {path for path in made.folder.iterdir() if path.is_dir()} <= whole | unfinished


def test_a_damaged_shard_is_named_and_made_anew(texts, once, tmp_path):
    made = preparation(texts, tmp_path / "shards")
    made.tokenise()
    array = made.folder / "000002/train_tokens_00002.npy"
    flip(array, -1, 0)
    record = made.folder / "000001" / RECORD
    record.write_text('{"splits": ')
    for file, what in ((record, "is not what was written"), (array, "does not have its recorded sha256")):
        with pytest.raises(InputError, match=f"{file}: {what}.*; delete the folder {file.parent} and"):
            finished(made, tmp_path / "half")
        shutil.rmtree(tmp_path / "half", ignore_errors=True)
        shutil.rmtree(file.parent)
        made.tokenise()
    assert contents(finished(made, tmp_path / "prepared")) == contents(once)


def test_a_full_disk_is_said_before_anything_is_written(texts, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("漢字\n" * 10_000)
    shutil.copy(texts / "b.txt", tmp_path)
    size = sum((tmp_path / name).stat().st_size for name in ("a.txt", "b.txt"))
    for free in (size, 3 * size):  # a token of two bytes for each
        usage = shutil.disk_usage(tmp_path)._replace(free=free)
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder, usage=usage: usage)
        made = preparation(tmp_path, tmp_path / "shards", "bytes")
        if free > size:
            made.tokenise()
            continue
        with pytest.raises(
            InputError, match=r"tokenising lines needs 0\.000 GB on the disk .* where 0\.000 GB are free"
        ):
            made.tokenise()
        assert not list(made.folder.glob("[0-9]*"))
