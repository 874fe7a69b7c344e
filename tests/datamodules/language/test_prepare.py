"""From a corpus to prepared tokens: parts, shards, kills, damage."""

import os
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from lra_ssm.cli import main
from lra_ssm.datamodules import Corpus
from lra_ssm.datamodules.language import prepare as prepare_module
from lra_ssm.datamodules.language.prepare import parse_shard
from lra_ssm.datamodules.language.tokenizer_spec import load_tokenizer
from lra_ssm.datamodules.storage import LOCK, MANIFEST, verify
from lra_ssm.errors import InputError
from lra_ssm.files import locked
from tests.datamodules.language.corpora import by_split
from tests.runner import Command

SETTINGS = {"tokenizer": "words", "documents": "line", "val_fraction": 0.1}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("lra_ssm.datamodules.language.files.PART_BYTES", 3000)
    monkeypatch.setattr(prepare_module, "_BATCH_TEXTS", 7)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Files with 900 lines of which some are held out, and 60 for testing."""
    folder, rng = tmp_path_factory.mktemp("texts"), np.random.default_rng(0)
    words = ["the", "states", "größe", "of", "a", "decay", "λ", "memory", "slowly", "reset"]
    for name, number in (*((f"train-{n}.txt", 150) for n in range(6)), ("test.txt", 60)):
        lines = [" ".join(rng.choice(words, rng.integers(1, 20))) for _ in range(number)]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def corpus(root: Path, texts: Path, **settings) -> Corpus:
    return Corpus(root=str(root), source=str(texts), **{**SETTINGS, **settings})


@pytest.fixture(scope="module")
def once(texts, tmp_path_factory):
    data = corpus(tmp_path_factory.mktemp("once"), texts)
    data.prepare_data()
    return data


def contents(data: Corpus) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(data.prepared_folder.iterdir()) if path.name != MANIFEST}


def left(data: Corpus) -> list[str]:
    """What began and did not end."""
    return [path.name for path in data.data_root.glob("*/.*") if path.is_dir()]


def documents(data: Corpus, name: str) -> list[str]:
    """A split's documents as text."""
    split, tokenizer = data.prepared.split(name), load_tokenizer(data.prepared_folder)
    return [tokenizer.decode(tokens).rstrip("\n") for tokens in np.split(split["tokens"], split["starts"][1:])]


# -- what is made --------------------------------------------------------------------------------------------------


def test_every_document_is_there_once_in_order_in_its_split(texts, once):
    verify(once.prepared)
    found = {name: documents(once, name) for name in once.prepared.manifest["splits"]}
    assert list(found) == ["train", "val", "test"] and found == by_split(once.corpus())
    assert 40 < len(found["val"]) < 160 and len(found["train"]) + len(found["val"]) == 900
    assert found["test"] == (texts / "test.txt").read_text().splitlines()
    assert not left(once)


def test_the_manifest_counts_documents_tokens_bytes_words_and_lines(texts, once):
    entry, lines = once.prepared.manifest["splits"]["test"], (texts / "test.txt").read_text().splitlines()
    words, size = sum(len(line.split()) for line in lines), sum(len(line.encode()) for line in lines)
    expected = {"documents": 60, "tokens": words + 60, "bytes": size, "words": words, "lines": 60}
    assert {name: entry[name] for name in expected} == expected and entry["sources"] == {"": expected}
    source = once.manifest()["source"]
    assert (source["kind"], source["source"], source["val_fraction"]) == ("files", str(texts), 0.1)


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe:300"])
def test_a_long_document_has_the_tokens_of_the_whole(texts, tmp_path, tokenizer, monkeypatch):
    found = []
    for size in (1 << 20, 500):
        monkeypatch.setattr("lra_ssm.datamodules.language.corpus.TEXT_SIZE", size)
        data = corpus(
            tmp_path / str(size), texts / "train-0.txt", tokenizer=tokenizer, documents="file", val_fraction=0
        )
        data.data_root.mkdir()
        data.prepare_data()
        split = data.prepared.split("train")
        found.append((split["tokens"].tolist(), split["starts"].tolist()))
    assert found[0] == found[1] and found[0][1] == [0]


def test_another_tokenizer_or_corpus_is_prepared_beside_it(texts, once, tmp_path):
    copied = shutil.copytree(texts, tmp_path / "copied")
    data = corpus(tmp_path, copied)
    before = data.prepared_folder
    with open(copied / "train-0.txt", "a") as file:
        file.write("one more\n")
    assert corpus(tmp_path, copied).prepared_folder != before
    file = once.prepared_folder / once.prepared.manifest["tokenizer"]["file"]
    for folder in ("one", "two"):  # wherever a file is, its content counts
        (tmp_path / folder).mkdir()
        shutil.copy(file, tmp_path / folder)
    named = [corpus(tmp_path, texts, tokenizer=str(tmp_path / folder / file.name)) for folder in ("one", "two")]
    assert named[0].record() == named[1].record() != once.record()


# -- several machines ----------------------------------------------------------------------------------------------


def test_shards_in_any_order_and_a_merge_give_what_one_process_gives(texts, once, tmp_path):
    data = corpus(tmp_path, texts)
    with pytest.raises(InputError, match="5 of 5 parts are missing, the first is 0|parts are missing"):
        data.merge()
    for number in (3, 1):
        data.tokenize((number, 3))
    with pytest.raises(InputError, match=r"\d+ of \d+ parts are missing, the first is 1"):
        data.merge()
    assert data.tokenize((2, 3)).endswith("parts are made; --merge puts them together")
    data.merge()
    assert contents(data) == contents(once) and not left(data)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2", ""])
def test_a_shard_that_is_not_one_is_one_line(text):
    with pytest.raises(InputError, match="must be i/n with i from 1 to n, as 3/16"):
        parse_shard(text)


def test_shards_and_a_merge_by_command(texts, once, tmp_path, capsys):
    options = ["prepare", "corpus", f"--source={texts}", f"--root={tmp_path}"]
    options += [f"--{name}={value}" for name, value in SETTINGS.items()]
    assert main([*options, "--shard=1/2"]) == 0
    assert re.search(r"\d of \d parts are made$", capsys.readouterr().out.strip())
    assert main([*options, "--merge"]) == 2
    assert "parts are missing, the first is 1" in capsys.readouterr().err
    assert main([*options, "--shard=2/2"]) == main([*options, "--merge"]) == 0
    printed, data = capsys.readouterr().out, corpus(tmp_path, texts)
    assert f"{data.prepared_folder}: corpus (files): " in printed and "lightning fit" in printed
    assert {name: data for name, data in contents(data).items() if name != "settings.json"} == contents(once)


def test_what_was_begun_is_named_and_removed(texts, tmp_path, capsys):
    data = corpus(tmp_path, texts)
    data.tokenize((1, 2))
    (parts,) = (tmp_path / "corpus").glob(".parts-*")
    assert main(["prepare", "--summary", f"--root={tmp_path}"]) == 0
    assert f"not finished: {parts}" in capsys.readouterr().out
    with ThreadPoolExecutor() as pool:
        with locked(tmp_path / "corpus" / LOCK, "prepares this dataset", keep=True):
            cleaning = pool.submit(main, ["prepare", "--clean", f"--root={tmp_path}"])
            with pytest.raises(TimeoutError):
                cleaning.result(0.3)
            assert parts.is_dir()  # a preparation that goes on may need it
        assert cleaning.result() == 0
    assert not left(data)


# -- killed --------------------------------------------------------------------------------------------------------


def prepare_and_die(arguments: list[str]) -> int:
    """In a process of its own: texts, the data root, after how many parts it is killed."""
    made, part, last = [], prepare_module.Preparation._part, int(arguments[2])

    def deadly(self, *given):
        made.append(given)
        if len(made) > last:
            os.kill(os.getpid(), signal.SIGKILL)
        return part(self, *given)

    prepare_module.Preparation._part = deadly
    corpus(Path(arguments[1]), Path(arguments[0])).prepare_data()
    return 0


def test_a_killed_preparation_goes_on_where_it_was(texts, once, tmp_path):
    before: dict[Path, int] = {}
    for last in (2, 1, 1):
        assert Command([str(texts), str(tmp_path), str(last)], tmp_path, call=prepare_and_die).wait().code == -9
        done = {path: path.stat().st_mtime_ns for path in (tmp_path / "corpus").glob(".parts-*/0*/part.json")}
        assert before.items() < done.items()  # what was done stays as it is
        before = done
    data = corpus(tmp_path, texts)
    assert len(before) == 4 and not data.is_prepared()
    data.prepare_data()
    assert contents(data) == contents(once) and not left(data)


# -- bad input -----------------------------------------------------------------------------------------------------

BAD = {
    "latin-1": ("a.txt", b"one\ntw\xf6\n", r"a.txt:2: is not UTF-8"),
    "one document": ("b.txt", b"one\ntwo\n", r"b.txt: is one document, which cannot be divided among splits"),
    "none for val": ("a.jsonl", b'{"text": "one"}\n', r"corpus: no document for val \(1 for train\)"),
    "parquet": ("a.parquet", b"PAR1 and nothing more", r"a.parquet: .* is broken off or damaged"),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, capsys, case):
    name, data, message = BAD[case]
    for folder in ("bad", "root"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bad" / name).write_bytes(data)
    held_out = {"one document": "0.01", "none for val": "1e-9"}.get(case, "0")
    options = [f"--source={tmp_path / 'bad'}", "--tokenizer=bytes", f"--val_fraction={held_out}"]
    assert main(["prepare", "corpus", *options, f"--root={tmp_path / 'root'}"]) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1 and re.search(message, err)
    assert not list((tmp_path / "root").rglob("*"))
