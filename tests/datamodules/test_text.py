"""LRA's Text: layouts of IMDb's reviews, tokens, the reviews that are held out."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra_ssm.datamodules import Text
from lra_ssm.datamodules.characters import EOS_ID, SPECIALS
from lra_ssm.datamodules.text import HUB, read_reviews
from lra_ssm.errors import InputError
from tests.datamodules.helpers import sequences
from tests.datamodules.image_helpers import real_data, write_files, write_tar
from tests.datamodules.language import corpora

WORDS = 'a bad "good" film, isn\'t it? <br /> Überraschung naïve 映画 \U0001f3ac'.split(" ")
TINY = {f"{split}/{name}/0_1.txt": "x" for split in ("train", "test") for name in ("neg", "pos")}


def some_reviews(count: int = 20) -> dict[str, str]:
    """Contents by path below aclImdb, as many of each class and split."""
    source = random.Random(0)
    return {
        f"{split}/{name}/{number}_{rating}.txt": " ".join(source.choices(WORDS, k=source.randint(1, 30)))
        for split in ("train", "test")
        for name, rating in (("neg", 3), ("pos", 9))
        for number in range(count)
    }


def write_folder(folder: Path, reviews: dict[str, str]) -> Path:
    return write_files(folder, {name: text.encode() for name, text in reviews.items()})


def write_archive(path: Path, reviews: dict[str, str]) -> Path:
    """In a random order, with what else archives hold."""
    members = {f"aclImdb/{name}": text.encode() for name, text in reviews.items()} | {
        "aclImdb/README": b"about",
        "aclImdb/train/unsup/0_0.txt": b"without a label",
        "aclImdb/train/pos/._0_9.txt": b"\xff\xfe of macOS",
        "aclImdb/train/urls_pos.txt": b"http",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_tar(path, {name: members[name] for name in random.Random(1).sample([*members], len(members))})


def write_parquet(folder: Path, reviews: dict[str, str]) -> None:
    for split in ("train", "test"):
        rows = [(text, int("/pos/" in name)) for name, text in reviews.items() if name.startswith(split)]
        random.Random(2).shuffle(rows)
        columns = dict(zip(("text", "label"), map(list, zip(*rows, strict=True)), strict=True))
        corpora.write_parquet(folder / f"{split}-00000-of-00001.parquet", columns)


def prepared(root: Path, **settings: Any) -> Text:
    data = Text(root=str(root), **({"min_freq": 1} | settings))
    data.prepare_data()
    return data


def texts(data: Text, name: str) -> list[str]:
    vocabulary, found = data.manifest()["vocabulary"], sequences(data.prepared.split(name))
    assert all(tokens[-1] == EOS_ID and EOS_ID not in tokens[:-1] for tokens in found)
    return ["".join(vocabulary[token] for token in tokens[:-1]) for tokens in found]


def digests(data: Text) -> list[str]:
    splits = data.manifest()["splits"].values()
    return [array["sha256"] for split in splits for array in split["arrays"].values()]


def test_layouts_and_orders_make_no_difference(tmp_path: Path) -> None:
    reviews, found = some_reviews(), []
    for place in ("", "imdb", "text", "text/download"):
        write_folder(tmp_path / f"folder{place}" / place / "aclImdb", reviews)
        write_archive(tmp_path / f"archive{place}" / place / "aclImdb_v1.tar.gz", reviews)
        found += [prepared(tmp_path / f"{kind}{place}") for kind in ("folder", "archive")]
    write_parquet(HUB.path(tmp_path / "hub"), reviews)
    found.append(prepared(tmp_path / "hub", source="huggingface"))
    for source in ("folder", "folder/aclImdb", "archive/aclImdb_v1.tar.gz", "hub/text"):
        found.append(prepared(tmp_path / "root", source=str(tmp_path / source)))
        assert found[-1].prepared_folder.name.startswith("files-")
    assert all(digests(data) == digests(found[0]) for data in found)
    assert "36 train, 4 val, 40 test" in found[0].describe()


def test_reviews_are_read_as_they_are(tmp_path: Path) -> None:
    reviews = TINY | {"train/neg/10_1.txt": '"a\tb"\r\n', "train/neg/9_1.txt": "", "train/pos/3_9.txt": "\ufeffñ"}
    write_folder(tmp_path / "aclImdb", reviews)
    train = read_reviews(tmp_path / "aclImdb")["train"]
    assert train == [("x", 0), ('"a\tb"\r\n', 0), ("", 0), ("x", 1), ("\ufeffñ", 1)]
    assert sorted(texts(prepared(tmp_path, validation="test"), "train")) == sorted(text for text, _ in train)


def test_characters_and_bytes_of_the_cut_training_texts(tmp_path: Path) -> None:
    reviews = {"train/neg/0_1.txt": "aaab", "train/neg/1_1.txt": "abz", "train/pos/0_9.txt": "aac"}
    write_folder(tmp_path / "aclImdb", reviews | {"test/neg/0_1.txt": "qaq", "test/pos/0_9.txt": "bc"})
    data = prepared(tmp_path, max_length=3, validation="test")
    assert data.manifest()["vocabulary"] == [*SPECIALS, "a", "b"]
    assert sorted(texts(data, "train")) == ["aa", "aa", "ab"] and sorted(texts(data, "test")) == ["<unk>a", "b<unk>"]
    assert prepared(tmp_path, max_length=3, min_freq=2, validation="test").manifest()["vocabulary"] == [*SPECIALS, "a"]
    whole = prepared(tmp_path, min_freq=2, validation="test").manifest()
    assert whole["vocabulary"] == [*SPECIALS, "a", "b"] and whole["splits"]["train"]["length"]["max"] == 5
    odd = {"train/neg/1_1.txt": "é", "train/neg/2_1.txt": "", "train/neg/3_1.txt": "abé"}
    write_folder(tmp_path / "odd" / "aclImdb", TINY | odd)
    data = prepared(tmp_path / "odd", inputs="bytes", max_length=3, validation="test")
    assert sorted(sequences(data.prepared.split("train"))) == [[0], [98, 99, 196], [121], [121], [196, 170]]
    assert len(data.manifest()["vocabulary"]) == 257 and data.vocab_size is None


def test_what_is_held_out_depends_only_on_the_texts(tmp_path: Path) -> None:
    reviews = some_reviews(count=100)
    write_folder(tmp_path / "all" / "aclImdb", reviews)
    renamed = {name.replace("_", "7_"): text for name, text in reversed(reviews.items())}
    write_folder(tmp_path / "renamed" / "aclImdb", renamed)
    data, other = prepared(tmp_path / "all"), prepared(tmp_path / "renamed")
    assert digests(data) == digests(other)
    splits = data.manifest()["splits"]
    assert splits["train"]["class_counts"] == [90, 90] and splits["val"]["class_counts"] == [10, 10]
    everything = sorted(text for name, text in reviews.items() if name.startswith("train"))
    assert sorted(texts(data, "train") + texts(data, "val")) == everything
    seeds = {tuple(texts(prepared(tmp_path / "all", split_seed=seed), "val")) for seed in (1, 2, 42)}
    assert len(seeds) == 3
    on_test = prepared(tmp_path / "all", validation="test")
    assert texts(on_test, "val") == texts(on_test, "test") == texts(data, "test")
    assert prepared(tmp_path / "all", validation="test", split_seed=5).prepared_folder == on_test.prepared_folder
    some = prepared(tmp_path / "all", limit=15)  # every split is mixed, and limited to its first reviews
    for name in ("train", "val", "test"):
        labels = data.prepared.split(name)["labels"]
        assert set(labels[:10].tolist()) == {0, 1} and (np.diff(labels) != 0).sum() > len(labels) / 4
        assert texts(some, name) == texts(data, name)[:15]
    assert some.manifest()["vocabulary"] == data.manifest()["vocabulary"]


def test_missing_and_wrong_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no IMDb reviews .*`lra-ssm prepare text --source=original --root=.*`"):
        prepared(tmp_path)
    with pytest.raises(InputError, match=r"no copy of the Hub's stanfordnlp/imdb .*--source=huggingface"):
        prepared(tmp_path, source="huggingface")
    root = tmp_path / "root"
    cases = {
        "no reviews of both classes in test": {name: text for name, text in TINY.items() if name != "test/pos/0_1.txt"},
        "val_fraction 0.9: leaves no training review of one class": TINY,
    }
    for number, (message, reviews) in enumerate(cases.items()):
        source = write_folder(tmp_path / str(number) / "aclImdb", reviews)
        with pytest.raises(InputError, match=message) as error:
            prepared(root, source=str(source), val_fraction=0.9)
        assert "\n" not in str(error.value) and not root.exists()
    (source / "train/neg/5_1.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=r"train/neg/5_1.txt: is not UTF-8 \(byte 0xe9\)"):
        prepared(root, source=str(source))


@pytest.mark.slow
def test_the_real_reviews(tmp_path: Path) -> None:
    archive = real_data("aclImdb-labelled.tar.gz")
    data = prepared(tmp_path, source=str(archive), min_freq=15)
    manifest = data.manifest()
    assert len(manifest["vocabulary"]) == 134
    classes = {name: split["class_counts"] for name, split in manifest["splits"].items()}
    assert classes == {"train": [11_250] * 2, "val": [1_250] * 2, "test": [12_500] * 2}
    assert not set(texts(data, "train")) & set(texts(data, "val"))  # copies of a review are on one side
    whole = prepared(tmp_path, source=str(archive), min_freq=15, max_length=20_000, validation="test").manifest()
    length = whole["splits"]["train"]["length"]
    assert length["max"] == 13_704 + 1 and abs(length["mean"] - 1 - 1325.07) < 0.01
    assert len(whole["vocabulary"]) == 136 and whole["vocabulary"][3:6] == [" ", "e", "t"]
