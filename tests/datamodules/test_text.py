"""LRA's Text and Retrieval: reviews and pairs as characters and bytes, the reviews that are held out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra_ssm.datamodules import Retrieval, Text
from lra_ssm.datamodules.characters import SPECIALS
from lra_ssm.datamodules.text import read_reviews
from lra_ssm.errors import InputError
from tests.datamodules import helpers
from tests.datamodules.helpers import digests, real_data, sequences, texts
from tests.small_data import write_files, write_imdb

TINY = {f"{split}/{name}/0_1.txt": "x" for split in ("train", "test") for name in ("neg", "pos")}


def write_reviews(folder: Path, reviews: dict[str, str]) -> Path:
    return write_files(folder / "aclImdb", reviews)


def prepared(root: Path, **settings: Any) -> Text:
    return helpers.prepared(Text(root=str(root), **({"min_freq": 1} | settings)))


def test_reviews_are_read_as_they_are(tmp_path: Path) -> None:
    reviews = TINY | {"train/neg/10_1.txt": '"a\tb"\r\n', "train/neg/9_1.txt": "", "train/pos/3_9.txt": "\ufeffñ"}
    train = read_reviews(write_reviews(tmp_path, reviews))["train"]
    assert train == [("x", 0), ('"a\tb"\r\n', 0), ("", 0), ("x", 1), ("\ufeffñ", 1)]
    assert sorted(texts(prepared(tmp_path, validation="test"), "train")) == sorted(text for text, _ in train)


def test_characters_and_bytes_of_the_cut_training_texts(tmp_path: Path) -> None:
    reviews = {"train/neg/0_1.txt": "aaab", "train/neg/1_1.txt": "abz", "train/pos/0_9.txt": "aac"}
    write_reviews(tmp_path, reviews | {"test/neg/0_1.txt": "qaq", "test/pos/0_9.txt": "bc"})
    data = prepared(tmp_path, max_length=3, validation="test")
    assert data.manifest()["vocabulary"] == [*SPECIALS, "a", "b"]
    assert sorted(texts(data, "train")) == ["aa", "aa", "ab"] and sorted(texts(data, "test")) == ["<unk>a", "b<unk>"]
    assert prepared(tmp_path, max_length=3, min_freq=2, validation="test").manifest()["vocabulary"] == [*SPECIALS, "a"]
    whole = prepared(tmp_path, min_freq=2, validation="test").manifest()
    assert whole["vocabulary"] == [*SPECIALS, "a", "b"] and whole["splits"]["train"]["length"]["max"] == 5
    odd = {"train/neg/1_1.txt": "é", "train/neg/2_1.txt": "", "train/neg/3_1.txt": "abé"}
    write_reviews(tmp_path / "odd", TINY | odd)
    data = prepared(tmp_path / "odd", inputs="bytes", max_length=3, validation="test")
    assert sorted(sequences(data.prepared.split("train"))) == [[0], [98, 99, 196], [121], [121], [196, 170]]
    assert len(data.manifest()["vocabulary"]) == 257 and data.vocab_size is None


def test_what_is_held_out_depends_only_on_the_texts(tmp_path: Path) -> None:
    folder = write_imdb(tmp_path / "all/aclImdb", 100, 20)
    reviews = {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.txt"))}
    write_reviews(tmp_path / "renamed", {name.replace("_", "7_"): text for name, text in reversed(reviews.items())})
    data = prepared(tmp_path / "all")
    assert digests(data) == digests(prepared(tmp_path / "renamed"))
    splits = data.manifest()["splits"]
    assert splits["train"]["class_counts"] == [90, 90] and splits["val"]["class_counts"] == [10, 10]
    everything = sorted(text for name, text in reviews.items() if name.startswith("train"))
    assert sorted(texts(data, "train") + texts(data, "val")) == everything
    assert len({tuple(texts(prepared(tmp_path / "all", split_seed=seed), "val")) for seed in (1, 2, 42)}) == 3
    on_test = prepared(tmp_path / "all", validation="test")
    assert texts(on_test, "val") == texts(on_test, "test") == texts(data, "test")
    for name in ("train", "val", "test"):  # every split is mixed
        labels = data.prepared.split(name)["labels"]
        assert set(labels[:10].tolist()) == {0, 1} and (np.diff(labels) != 0).sum() > len(labels) / 4
    with pytest.raises(InputError, match="there are no training examples"):
        prepared(tmp_path / "renamed", val_fraction=1.0)


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


# -- Retrieval ---------------------------------------------------------------------------------------------------------

# Quotes that open and are never closed, one of them across a line's end for a csv reader.
ROWS = {
    "train": [
        '1.0\tP05-1022\tN07-1051\t"We present a\tparser" is "here',
        '0.0\tW02-1502\tP98-2184\t"An open quote\tthe second',
        '1.0\t"W1\tW2"\t\t"ends here" \'\'',
    ],
    "eval": ["0.0\ta\tb\tzebra é\tpapers"],
    "test": ["1.0\ta\tb\ttest\tset"],
}


def pairs(folder: Path, rows: dict[str, list[str]], end: str = "\n", **settings: Any) -> Retrieval:
    texts = {split: "".join(line + end for line in lines) for split, lines in rows.items()}
    write_files(folder, {f"new_aan_pairs.{split}.tsv": text for split, text in texts.items()})
    return helpers.prepared(Retrieval(root=str(folder), **settings))


def labelled(data: Retrieval, name: str) -> list[tuple[int, str, str]]:
    found = texts(data, name)
    return list(zip(data.prepared.split(name)["labels"].tolist(), found[::2], found[1::2], strict=True))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_pairs_are_read_without_quotes(tmp_path: Path, end: str) -> None:
    data = pairs(tmp_path, ROWS, end)
    expected = [(1, '"We present a', 'parser" is "here'), (0, '"An open quote', "the second")]
    assert labelled(data, "train") == [*expected, (1, "", "\"ends here\" ''")]
    counted = "".join(text for _, *two in labelled(data, "train") for text in two)
    by_frequency = sorted(set(counted), key=lambda character: (-counted.count(character), character))
    assert data.manifest()["vocabulary"] == [*SPECIALS, *by_frequency]  # of the training texts
    assert labelled(data, "val") == [(0, "<unk>e<unk>ra <unk>", "papers")]
    odd = pairs(tmp_path / "odd", ROWS | {"train": ["1\ta\tb\t\t", "1.0\ta\tb\tx\ry\t\x00"]}, end)
    assert labelled(odd, "train") == [(1, "", ""), (1, "x\ry", "\x00")]


def test_documents_are_cut_one_by_one(tmp_path: Path) -> None:
    rows = ROWS | {"train": ["1\tx\ty\tabcdefgh\tabc", "0\tx\ty\tab\tabé" + "z" * 100]}
    data = pairs(tmp_path, rows, max_length=4)
    assert labelled(data, "train") == [(1, "abc", "abc"), (0, "ab", "abé")]
    assert data.manifest()["vocabulary"] == [*SPECIALS, "a", "b", "c", "é"]
    split = pairs(tmp_path, rows, max_length=4, inputs="bytes").prepared.split("train")
    assert sequences(split) == [[98, 99, 100, 101], [98, 99, 100], [98, 99], [98, 99, 0xC4, 0xAA]]
