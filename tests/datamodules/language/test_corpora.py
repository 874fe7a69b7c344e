"""Corpus, WikiText and SlimPajama: their layouts, splits and sources."""

import json
import logging
import os
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from lra_ssm.datamodules.language.documents import CorpusReader, Reading

from lra_ssm.datamodules.corpus import reader as corpus
from lra_ssm.datamodules.slimpajama import reader as slimpajama
from lra_ssm.datamodules.wikitext import reader as wikitext
from lra_ssm.errors import InputError
from tests.datamodules.language.corpora import by_split, read, small_sizes, write_jsonl, write_parquet
from tests.datamodules.language.hub_server import serving_hub
from tests.datamodules.test_text import write_archive, write_folder

REAL = Path(os.environ.get("LRA_SSM_TEST_DATA", "/nowhere"))


def find(path: Path, splits: corpus.Splits = "auto", **reading: object) -> CorpusReader:
    return corpus.find_at(path, splits, Reading(**{"val_fraction": 0.5, "test_fraction": 0.2, **reading}))


# -- Corpus --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        {"train": "train/a.txt", "val": "validation/a.txt", "test": "test/sub/a.txt"},
        {"train": "train-00000-of-00001.txt", "val": "dev.txt", "test": "test_1.txt"},
        {"train": "data/training.txt", "val": "data/val.txt", "test": "data/eval.txt"},
        {"train": "train.txt", "val": "valid.1.txt", "test": "testing/x.txt"},
    ],
)
def test_named_splits(names: dict[str, str], tmp_path: Path) -> None:
    for split, name in names.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{split} one\n{split} two\n")
    named = by_split(find(tmp_path, documents="line"))
    assert named == {split: [f"{split} one", f"{split} two"] for split in names}
    hashed = find(tmp_path, "hash", documents="line")
    assert {shard.split for shard in hashed.shards()} == {None} and len(read(hashed)) == 6


def test_held_out_of_train_alone(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", [f"train {n}" for n in range(200)])
    only = by_split(find(tmp_path))
    assert set(only) == {"train", "val"} and 70 < len(only["val"]) < 130
    write_jsonl(tmp_path / "test.jsonl", ["test"])
    assert by_split(find(tmp_path)) == only | {"test": ["test"]}


def test_adding_files_moves_no_document(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "b.jsonl", [f"document {n}" for n in range(100)])
    before = by_split(find(tmp_path))
    assert set(before) == {"train", "val", "test"}
    assert by_split(find(tmp_path / "b.jsonl")) == before
    write_jsonl(tmp_path / "a" / "a.jsonl", [f"other {n}" for n in range(100)])
    after = by_split(find(tmp_path))
    for split in before:
        assert [text for text in after[split] if text.startswith("document")] == before[split]
    assert by_split(find(tmp_path, seed=1)) != after


def test_names_that_are_not_clear(tmp_path: Path) -> None:
    for name in ("trainer.txt", "validity.txt", "b/testament.txt", "only/valid.txt", "only/test.txt", "a.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    with pytest.raises(InputError, match=r"only: its files name the splits test and val but none is train"):
        find(tmp_path / "only")
    with pytest.raises(InputError, match=r"a\.csv: is in none of the forms \.txt, \.jsonl"):
        find(tmp_path / "a.csv")
    (tmp_path / "only/valid.txt").unlink()
    assert {shard.split for shard in find(tmp_path / "b", documents="line").shards()} == {None}
    (tmp_path / "only/test.txt").rename(tmp_path / "test.txt")
    with pytest.raises(InputError, match=r'testament\.txt: names no split .* though test\.txt does; splits="hash"'):
        find(tmp_path)
    assert len(read(find(tmp_path, "hash"))) == 4


@pytest.mark.parametrize("names", [["one.txt"], ["train.txt", "test.txt"], ["train/a.txt", "test/a.txt", "test/b.txt"]])
def test_one_document_of_which_none_can_be_held_out(names: list[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one\ntwo\n")
    what = rf"{names[0]}: is one document, of which none can be held out: make several of it \(documents=paragraph"
    for place in {tmp_path, tmp_path / names[0] if len(names) == 1 else tmp_path}:
        with pytest.raises(InputError, match=what):
            find(place)
        assert find(place, val_fraction=0, test_fraction=0).shards()
        assert find(place, documents="line").shards()


def test_one_text_in_head_and_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nanoGPT's cut: the first int(0.9 n) for training, to the byte; never within a character, nor behind a BOM."""
    text = "".join(f"line {n}, naïve\n" for n in range(40))
    (tmp_path / "a.txt").write_text(text)

    def tail(val: float, test: float = 0, name: str = "a.txt", size: int = 1 << 20, documents="file") -> CorpusReader:
        found = find(tmp_path / name, "tail", documents=documents, val_fraction=val, test_fraction=test)
        return replace(found, shard_bytes=size)

    ascii_text = text.replace("ï", "i")
    (tmp_path / "b.txt").write_text(ascii_text)
    n = int(0.9 * len(ascii_text))
    assert by_split(tail(0.1, name="b.txt")) == {"train": [ascii_text[:n]], "val": [ascii_text[n:]]}
    data = text.encode()
    for end in range(len(data) - 20, len(data) - 1):
        parts = by_split(tail((len(data) - end) / len(data)))
        head, last = parts["train"][0], parts["val"][0]
        assert head + last == text and 0 <= len(head.encode()) - end <= 1, end
    small_sizes(monkeypatch, 40)
    for held_out, names in (((0.2, 0.1), ["train", "val", "test"]), ((0, 0.3), ["train", "test"])):
        whole = tail(*held_out)
        parts = by_split(whole)
        assert list(parts) == names and "".join(part for (part,) in parts.values()) == text
        assert len(tail(*held_out, size=64).shards()) > 8 and by_split(tail(*held_out, size=64)) == parts
        assert pickle.loads(pickle.dumps(whole)).content_settings() == whole.content_settings()
    lines = by_split(tail(0.2, documents="line", size=64))
    assert lines["train"] + lines["val"] != text.splitlines()  # the line that is cut is one in each
    assert len(lines["train"]) + len(lines["val"]) == 41 and lines["val"][-1] == "line 39, naïve"
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbf" + b"abcdefghij")
    assert by_split(tail(0.5, name="bom.txt")) == {"train": ["abc"], "val": ["defghij"]}


def test_head_and_tail_are_of_one_text(tmp_path: Path) -> None:
    def refusal(name: str, held_out: float = 0.1) -> str:
        with pytest.raises(InputError) as error:
            read(find(tmp_path / name, "tail", val_fraction=held_out, test_fraction=0))
        return str(error.value).removeprefix(f"{tmp_path}/")

    for name in ("many/a.txt", "many/b.txt", "rows/a.jsonl", "one/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("ab")
    said = "splits=tail holds out the end of one text, a .txt file; here is"
    assert refusal("many") == f"many: {said} 2 files"
    assert refusal("rows") == f"rows: {said} a.jsonl" and refusal("rows/a.jsonl") == f"rows/a.jsonl: {said} a.jsonl"
    assert refusal("one", 0.9).startswith("one/a.txt:1: an empty document")  # nothing is left to train on
    with pytest.raises(InputError, match="tail'?: is of one text, .* IMDb's reviews are many"):
        corpus.reviews(tmp_path, "tail", Reading())
    with pytest.raises(InputError, match=r"hold out its end \(splits=tail\)"):
        find(tmp_path / "one")


@pytest.mark.skipif(not REAL.joinpath("tinyshakespeare").is_dir(), reason="needs tinyshakespeare")
def test_tinyshakespeare_is_cut_where_nanogpt_cuts_it() -> None:
    found = by_split(find(REAL / "tinyshakespeare", "tail", val_fraction=0.1, test_fraction=0))
    assert {split: len(text) for split, (text,) in found.items()} == {"train": 1_003_854, "val": 111_540}
    assert len({*found["train"][0]}) == 65


REVIEWS = {
    f"{split}/{label}/{n}_{n}.txt": f"{split} {label} {n} ü"
    for split in ("train", "test")
    for label in ("pos", "neg")
    for n in range(1, 12)
}


def test_reviews(tmp_path: Path) -> None:
    """Stanford's folder and archive, with what is left out of both."""
    others = {"train/unsup/1_0.txt": "none", "train/urls_pos.txt": "none", "README": "none"}
    folder = write_folder(tmp_path / "aclImdb", REVIEWS | others)
    archive = write_archive(tmp_path / "aclImdb_v1.tar.gz", REVIEWS)
    expected = sorted(text for name, text in REVIEWS.items() if name.startswith("test/"))
    for splits in ("auto", "hash"):
        found = {path: by_split(find(path, splits, documents="line")) for path in (folder, archive, tmp_path)}
        assert found[folder] == found[archive] == found[tmp_path]
        assert sorted(text for texts in found[folder].values() for text in texts) == sorted(REVIEWS.values())
        if splits == "auto":
            assert set(found[folder]) == {"train", "val", "test"} and sorted(found[folder]["test"]) == expected
    one = find(archive)
    assert pickle.loads(pickle.dumps(one)) == one
    assert json.loads(json.dumps(one.content_settings()))["files"] == 1
    assert find(folder).content_settings()["files"] == len(REVIEWS)


def test_bad_reviews(tmp_path: Path) -> None:
    bad = {"aclImdb/train/pos/1_1.txt": b"bad \xff"}
    archive = write_archive(tmp_path / "aclImdb_v1.tar.gz", {"test/neg/1_1.txt": " "}, bad)
    one = find(archive)
    train, test = one.shards()
    with pytest.raises(InputError, match=r"aclImdb_v1\.tar\.gz: aclImdb/train/pos/1_1\.txt: is not UTF-8 \(byte 0xff"):
        list(one.texts(train))
    with pytest.raises(InputError, match=r"aclImdb/test/neg/1_1\.txt: an empty document"):
        list(one.texts(test))
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"aclImdb_v1\.tar\.gz: is broken off or damaged"):
        list(one.texts(train))


# -- WikiText ------------------------------------------------------------------------------------------------------

WORDS, RAW, LARGE = wikitext.Edition("2", False), wikitext.Edition("2", True), wikitext.Edition("103", False)
ARTICLE = " = Title {0} = \n \n Text of <unk> {0} . \n \n = = Section = = \n \n More ü text = here = . \n \n"
WIKITEXT = {
    split: " \n" + "".join(ARTICLE.format(f"{split} {n}") for n in range(count))
    for split, count in (("train", 12), ("val", 2), ("test", 3))
}


def articles(text: str) -> list[str]:
    return [("" if n else " \n") + " = Title" + part for n, part in enumerate(text.split(" = Title")[1:])]


def write_wikitext(folder: Path, form: str, raw: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    suffix = "raw" if raw else "tokens"
    published = {f"wiki.{wikitext.SPLITS[split]}.{suffix}": text for split, text in WIKITEXT.items()}
    if form == "zip":
        path = folder / wikitext.Edition("2", raw).archive
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in published.items():
                archive.writestr(f"{wikitext.Edition('2', raw).folder}/{name}", text)
        return path
    if form == "parquet":  # the Hub's: a line a row, blank ones empty, an article in two files
        for split, text in WIKITEXT.items():
            lines = [line if line.strip() else "" for line in text.splitlines(keepends=True)]
            middle = len(lines) // 2 if split == "train" else len(lines)
            for number, part in enumerate(filter(None, (lines[:middle], lines[middle:]))):
                write_parquet(folder / f"{wikitext.HUB_SPLITS[split]}-{number:05}-of-00002.parquet", {"text": part}, 4)
        return folder
    for name, text in published.items():
        (folder / (name if form == "published" else name.split(".")[1] + ".txt")).write_text(text)
    return folder


def ended_lines(lines: CorpusReader) -> dict[str, list[tuple[str, bool]]]:
    """Of each split what end-of-text follows, and whether a document begins with it."""
    found: dict[str, list[tuple[str, bool]]] = {"train": [], "val": [], "test": []}
    for shard in lines.shards():
        for text in lines.texts(shard):
            assert text.last and shard.split is not None
            found[shard.split].append((text.text, text.first))
    return found


@pytest.mark.parametrize("form", ["published", "txt", "zip", "parquet"])
def test_wikitext_layouts(form: str, tmp_path: Path) -> None:
    path = write_wikitext(tmp_path / "wikitext-2", form)
    expected = {split: articles(text) for split, text in WIKITEXT.items()}
    assert len(expected["train"]) == 12 and "".join(expected["train"]) == WIKITEXT["train"]
    for place in (path, tmp_path) if form != "zip" else (path,):
        one = wikitext.find_at(place, WORDS, Reading("article"))
        assert by_split(one) == expected and pickle.loads(pickle.dumps(one)) == one
        assert json.loads(json.dumps(one.content_settings()))["documents"] == "article"
        for shard_bytes in (1, 50, 300, 1000):
            small = replace(one, shard_bytes=shard_bytes)
            assert by_split(small) == expected, shard_bytes
            assert len(small.shards()) == 17 or shard_bytes > 100
            assert ended_lines(replace(small, ended_lines=True)) == {
                split: [(line, line.startswith(" = T")) for line in text.splitlines(keepends=True) if line.strip()]
                for split, text in WIKITEXT.items()
            }


def test_wikitext_is_found_below_the_root(tmp_path: Path) -> None:
    assert RAW.found(tmp_path, "original") is None
    path = write_wikitext(tmp_path / "wikitext/download", "zip", raw=True)
    assert RAW.found(tmp_path, "original") == path
    assert WORDS.found(tmp_path, "original") is None
    assert LARGE.found(tmp_path, "original") is None
    assert all(file.digest and file.size for file in wikitext.ARCHIVES.values()) and len(wikitext.ARCHIVES) == 4


def test_wikitext_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_wikitext(tmp_path / "wikitext-2-v1", "parquet")
    files = {f"wikitext-2-v1/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with serving_hub(files | {"wikitext-103-v1/train-0.parquet": b"x"}, monkeypatch, WORDS.hub) as hub:
        WORDS.fetch(tmp_path, "huggingface")
        assert sorted(hub.asked) == sorted([*files, "listing"])
    found = WORDS.found(tmp_path, "huggingface")
    assert found is not None and LARGE.found(tmp_path, "huggingface") is None
    one = wikitext.find_at(found, WORDS, Reading("article"))
    assert by_split(one) == {split: articles(text) for split, text in WIKITEXT.items()}


def test_wikitext_that_is_not_whole(tmp_path: Path) -> None:
    def refused(path: Path, raw: bool, match: str) -> None:
        with pytest.raises(InputError, match=match):
            read(wikitext.find_at(path, wikitext.Edition("2", raw), Reading("article")))

    refused(tmp_path, True, r"holds no wikitext-2-raw; expected wiki\.\{train,valid,test\}\.tokens or \.raw, ")
    write_wikitext(tmp_path, "txt")
    (tmp_path / "train.txt").unlink()
    refused(tmp_path, False, r"train\.txt: missing; WikiText needs all splits")
    path = write_wikitext(tmp_path / "zip", "zip", raw=True)
    refused(path, False, r"holds no wiki\.train\.tokens; expected the archive wikitext-2-v1\.zip")
    whole = path.read_bytes()
    path.write_bytes(whole[:80] + bytes(40) + whole[120:])
    refused(path, True, r"wikitext-2-raw-v1\.zip: wikitext-2-raw/wiki\.train\.raw is broken off or damaged \(")
    path.write_bytes(whole[:-30])
    refused(path, True, "cannot be read as WikiText's zip archive")
    folder = write_wikitext(tmp_path / "hub", "parquet")
    write_parquet(folder / "test-00000-of-00002.parquet", {"body": ["x"]})
    refused(folder, False, r"test-00000-of-00002\.parquet: has no column text, or is broken off")
    next(folder.glob("validation-*")).unlink()
    refused(folder, False, r"validation-\*\.parquet: missing; WikiText needs all splits")


def test_published_counts(caplog: pytest.LogCaptureFixture) -> None:
    counts = {name: {"lines": c.lines, "words": c.tokens - c.lines} for name, c in wikitext.PUBLISHED["2"].items()}
    assert wikitext.check_counts(WORDS, counts) and not caplog.records
    counts["train"]["words"] += 1
    assert wikitext.check_counts(RAW, counts)
    with caplog.at_level(logging.WARNING):
        assert not wikitext.check_counts(WORDS, counts)
    assert "wikitext-2: train has 36,718 lines and 2,088,629 tokens; published are 36,718 and 2,088,628" in caplog.text


@pytest.mark.skipif(not (REAL / "wikitext-2/valid.txt").is_file(), reason="needs LRA_SSM_TEST_DATA")
def test_real_wikitext(tmp_path: Path) -> None:
    """Sixty articles in either split, and the published numbers of lines and tokens."""
    for name in ("valid", "test"):
        (tmp_path / f"{name}.txt").symlink_to(REAL / f"wikitext-2/{name}.txt")
    (tmp_path / "train.txt").write_text(WIKITEXT["train"])
    one = wikitext.find_at(tmp_path, WORDS, Reading("article"))
    found, lines = by_split(one), ended_lines(replace(one, ended_lines=True))
    for split, name in (("val", "valid"), ("test", "test")):
        text = "".join(found[split])
        assert text == (REAL / f"wikitext-2/{name}.txt").read_text() and len(found[split]) == 60
        assert all(article.lstrip("\n ").startswith("= ") for article in found[split])
        published = wikitext.PUBLISHED["2"][split]
        assert (text.count("\n"), text.count("\n") + len(text.split())) == published
        assert sum(first for _, first in lines[split]) == 60
    assert len(lines["val"]) + len(lines["test"]) == 5352


# -- SlimPajama ----------------------------------------------------------------------------------------------------


def test_slimpajama_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = {}
    for split in ("train", "validation", "test"):
        columns = {"text": [split], "meta": [{"redpajama_set_name": "RedPajamaC4"}], "__index_level_0__": [1]}
        path = write_parquet(tmp_path / f"{split}-00000-of-00001-ab3669701d34fafd.parquet", columns)
        files[f"data/{path.name}"] = path.read_bytes()
    with serving_hub(files | {"README.md": b"x"}, monkeypatch, slimpajama.HUB):
        slimpajama.HUB.fetch(tmp_path / "root")
    folder = slimpajama.HUB.found(tmp_path / "root")
    assert folder is not None and by_split(slimpajama.find_at(folder)) == {
        "train": ["train"], "val": ["validation"], "test": ["test"]
    }  # fmt: skip
    assert "passing over" not in caplog.text


def test_slimpajama_that_is_not_whole(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train/a.jsonl", ["a"])
    with pytest.raises(InputError, match="no files of validation; expected SlimPajama's train, validation and test"):
        slimpajama.find_at(tmp_path)
    write_jsonl(tmp_path / "validation/a.jsonl", ["a"])
    with pytest.raises(InputError, match=r"train/a\.jsonl:1: has no 'meta\.redpajama_set_name'; there is 'text'"):
        read(slimpajama.find_at(tmp_path))
    write_jsonl(tmp_path / "other.jsonl", ["a"])
    with pytest.raises(InputError, match=r"other\.jsonl is of no split"):
        slimpajama.find_at(tmp_path)
