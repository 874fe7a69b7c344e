"""From a corpus to prepared tokens: parts, shards, a kill, damage."""

import os
import re
import shutil
import signal
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from lra_ssm.cli import main
from lra_ssm.datamodules import Corpus
from lra_ssm.datamodules.language import files as files_module
from lra_ssm.datamodules.language import prepare as prepare_module
from lra_ssm.datamodules.language.tokenizer_spec import load_tokenizer
from lra_ssm.datamodules.storage import verify
from tests.datamodules.helpers import contents
from tests.datamodules.language.helpers import by_split
from tests.runner import Command

SETTINGS = {"tokenizer": "words", "documents": "line", "val_fraction": 0.1}


PART_BYTES, BATCH_TEXTS = 3000, 7


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(files_module, "PART_BYTES", PART_BYTES)
    monkeypatch.setattr(prepare_module, "_BATCH_TEXTS", BATCH_TEXTS)


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


def unfinished(data: Corpus) -> list[Path]:
    return [path for path in data.data_root.glob("*/.*") if path.is_dir()]


def test_every_document_is_stored_once_in_order_in_its_split(texts, once):
    verify(once.prepared)
    tokenizer, found = load_tokenizer(once.prepared_folder), {}
    for name in once.prepared.manifest["splits"]:
        split = once.prepared.split(name)
        parts = np.split(split["tokens"], split["starts"][1:])
        found[name] = [tokenizer.decode(tokens).rstrip("\n") for tokens in parts]
    assert list(found) == ["train", "val", "test"] and found == by_split(once.corpus())
    assert 40 < len(found["val"]) < 160 and len(found["train"]) + len(found["val"]) == 900
    lines = (texts / "test.txt").read_text().splitlines()
    assert found["test"] == lines and not unfinished(once)
    entry, words = once.prepared.manifest["splits"]["test"], sum(len(line.split()) for line in lines)
    size = sum(len(line.encode()) for line in lines)
    expected = {"documents": 60, "tokens": words + 60, "bytes": size, "words": words}
    assert {name: entry[name] for name in expected} == expected and entry["sources"] == {"": expected}
    source = once.manifest()["source"]
    assert (source["kind"], source["source"], source["val_fraction"]) == ("files", str(texts), 0.1)


def test_shards_in_any_order_and_a_merge_give_what_one_process_gives(texts, once, tmp_path, capsys):
    options = ["prepare", "corpus", f"--source={texts}", f"--root={tmp_path}"]
    options += [f"--{name}={value}" for name, value in SETTINGS.items()]
    for shard in ("0/3", "4/3", "1", "a/b", "1/0", "-1/2", "/16"):
        assert main([*options, f"--shard={shard}"]) == 2
        assert f"shard {shard!r}: must be i/n with i from 1 to n, as 3/16" in capsys.readouterr().err
    assert main([*options, "--shard=2/2"]) == 0
    assert re.search(r"\d of \d parts are made$", capsys.readouterr().out.strip())
    assert main([*options, "--merge"]) == 2
    assert "parts are missing, the first is 0" in capsys.readouterr().err
    data = corpus(tmp_path, texts)
    (parts,) = unfinished(data)
    shutil.rmtree(parts)
    assert main([*options, "--shard=2/2"]) == main([*options, "--shard=1/2"]) == main([*options, "--merge"]) == 0
    printed = capsys.readouterr().out
    assert "parts are made; --merge puts them together" in printed and "lightning fit" in printed
    assert f"{data.prepared_folder}: corpus (files): " in printed
    assert contents(data.prepared_folder) == contents(once.prepared_folder) and not unfinished(data)
    assert main(["prepare", "--summary", f"--root={tmp_path}"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if data.prepared_folder.name in line]
    counts = {name: str(entry["documents"]) for name, entry in data.manifest()["splits"].items()}
    assert [row[1:4] for row in rows] == [["words", *item] for item in counts.items()]


def prepare_and_die(arguments: list[str]) -> int:
    """Run in a process of its own, which is killed after two parts. Arguments: texts, the data root."""
    files_module.PART_BYTES, prepare_module._BATCH_TEXTS = PART_BYTES, BATCH_TEXTS  # the process has no fixtures
    part, made = prepare_module.Preparation._tokenize_part, count()
    prepare_module.Preparation._tokenize_part = lambda *given: (
        part(*given) if next(made) < 2 else os.kill(os.getpid(), signal.SIGKILL)
    )
    corpus(Path(arguments[1]), Path(arguments[0])).prepare_data()
    return 0


def test_a_killed_preparation_continues(texts, once, tmp_path, monkeypatch):
    assert Command([str(texts), str(tmp_path)], tmp_path, call=prepare_and_die).wait().code == -9
    data = corpus(tmp_path, texts)
    assert len([*tmp_path.glob("corpus/.parts-*/0*/part.json")]) == 2 and not data.is_prepared()
    made, part = list[int](), prepare_module.Preparation._tokenize_part
    monkeypatch.setattr(
        prepare_module.Preparation, "_tokenize_part", lambda *given: made.append(given[-1]) or part(*given)
    )
    data.prepare_data()
    assert made == [2, 3, 4, 5, 6][: len(made)] and made[0] == 2
    assert contents(data.prepared_folder) == contents(once.prepared_folder) and not unfinished(data)
