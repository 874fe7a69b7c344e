"""Corpus, WikiText and SlimPajama: their layouts, splits and sources."""

import io
import json
import logging
import os
import pickle
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from lra_ssm.datamodules.corpus import reader as corpus
from lra_ssm.datamodules.language.documents import CorpusReader, HeldOut, Reading
from lra_ssm.datamodules.language.files import FileCorpus
from lra_ssm.datamodules.slimpajama import reader as slimpajama
from lra_ssm.datamodules.wikitext import reader as wikitext
from lra_ssm.datamodules.wikitext.rows import EndedLines, RowCorpus
from lra_ssm.errors import InputError
from tests.datamodules.language.corpora import read, write_jsonl, write_parquet
from tests.datamodules.language.hub_server import serving_hub

REAL = Path(os.environ.get("LRA_SSM_TEST_DATA", "/nowhere"))
HALF = HeldOut(0.5, 0.2)


def find(path: Path, splits: corpus.Splits = "auto", held_out: HeldOut = HALF, **reading: object) -> CorpusReader:
    return corpus.find_at(path, splits, Reading(**reading), held_out)


def by_split(one: CorpusReader) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for document in read(one):
        found.setdefault(document.split or one.split_of(document.key), []).append(document.text)
    return found


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
    hashed = read(find(tmp_path, "hash", documents="line"))
    assert {document.split for document in hashed} == {None} and len(hashed) == 6


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
    for name in ("trainer.txt", "validity.txt", "b/testament.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert {document.split for document in read(find(tmp_path))} == {None}
    (tmp_path / "test.txt").write_text("x")
    with pytest.raises(InputError, match=r'testament\.txt: names no split .* though test\.txt does; splits="hash"'):
        find(tmp_path)
    assert len(read(find(tmp_path, "hash"))) == 4
    (tmp_path / "only").mkdir()
    (tmp_path / "only/valid.txt").write_text("x")
    (tmp_path / "only/test.txt").write_text("x")
    with pytest.raises(InputError, match=r"only: its files name the splits test and val but none is train"):
        find(tmp_path / "only")
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(InputError, match=r"a\.csv: is in none of the forms \.txt, \.jsonl"):
        find(tmp_path / "a.csv")


REVIEWS = {f"{split}/{label}/{n}_{n}.txt": f"{split} {label} {n} ü" for split in ("train", "test") for label in ("pos", "neg") for n in range(1, 12)}  # fmt: skip # noqa: E501


@pytest.fixture
def imdb(tmp_path: Path) -> tuple[Path, Path]:
    """Stanford's folder and archive, with what is left out of both."""
    folder, archive = tmp_path / "aclImdb", tmp_path / "aclImdb_v1.tar.gz"
    others = {"train/unsup/1_0.txt": "none", "train/urls_pos.txt": "none", "README": "none"}
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in sorted({**REVIEWS, **others}.items(), reverse=True):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
            member = tarfile.TarInfo(f"aclImdb/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return folder, archive


def test_reviews(imdb: tuple[Path, Path]) -> None:
    folder, archive = imdb
    expected = sorted((text for name, text in REVIEWS.items() if name.startswith("test/")))
    for splits in ("auto", "hash"):
        found = {path: by_split(find(path, splits, documents="line")) for path in (folder, archive, folder.parent)}
        assert found[folder] == found[archive] == found[folder.parent]
        assert sorted(text for texts in found[folder].values() for text in texts) == sorted(REVIEWS.values())
        if splits == "auto":
            assert set(found[folder]) == {"train", "val", "test"} and sorted(found[folder]["test"]) == expected
    one = find(archive)
    assert pickle.loads(pickle.dumps(one)) == one
    assert json.loads(json.dumps(one.content_settings()))["files"] == 1
    assert find(folder).content_settings()["files"] == len(REVIEWS)


def test_bad_reviews(imdb: tuple[Path, Path]) -> None:
    _, archive = imdb
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in (("train/pos/1_1.txt", b"bad \xff"), ("test/neg/1_1.txt", b" ")):
            member = tarfile.TarInfo(f"aclImdb/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    one = find(archive)
    train, test = one.pieces()
    with pytest.raises(InputError, match=r"aclImdb_v1\.tar\.gz: aclImdb/train/pos/1_1\.txt: is not UTF-8 \(byte 0xff"):
        list(one.segments(train))
    with pytest.raises(InputError, match=r"aclImdb/test/neg/1_1\.txt: an empty document"):
        list(one.segments(test))
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"aclImdb_v1\.tar\.gz: is broken off or damaged"):
        list(one.segments(train))


# -- WikiText ------------------------------------------------------------------------------------------------------

ARTICLE = " = Title {0} = \n \n Text of <unk> {0} . \n \n = = Section = = \n \n More ü text = here = . \n \n"
WIKITEXT = {
    split: " \n" + "".join(ARTICLE.format(f"{split} {n}") for n in range(count))
    for split, count in (("train", 12), ("val", 2), ("test", 3))
}


def articles(text: str) -> list[str]:
    return [("" if n else " \n") + " = Title" + part for n, part in enumerate(text.split(" = Title")[1:])]


def rows(text: str) -> list[str]:
    """As the Hub has them: blank lines are empty."""
    return [line if line.strip() else "" for line in text.splitlines(keepends=True)]


def write_wikitext(folder: Path, form: str, raw: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    suffix = "raw" if raw else "tokens"
    published = {f"wiki.{wikitext.SPLITS[split]}.{suffix}": text for split, text in WIKITEXT.items()}
    if form == "zip":
        path = folder / wikitext.names("2", raw)[1]
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in published.items():
                archive.writestr(f"{wikitext.names('2', raw)[0]}/{name}", text)
        return path
    if form == "parquet":
        for split, text in WIKITEXT.items():
            lines = rows(text)
            middle = len(lines) // 2 if split == "train" else len(lines)
            for number, part in enumerate(filter(None, (lines[:middle], lines[middle:]))):
                write_parquet(folder / f"{wikitext.HUB_SPLITS[split]}-{number:05}-of-00002.parquet", {"text": part}, 4)
        return folder
    for name, text in published.items():
        (folder / (name if form == "published" else name.split(".")[1] + ".txt")).write_text(text)
    return folder


def ended_lines(articles: CorpusReader) -> dict[str, list[tuple[str, bool]]]:
    """Of each split what end-of-text follows, and whether a document begins with it."""
    found: dict[str, list[tuple[str, bool]]] = {"train": [], "val": [], "test": []}
    lines = EndedLines(articles)
    for piece in lines.pieces():
        for segment in lines.segments(piece):
            assert segment.last and piece.split is not None
            found[piece.split].append((segment.text, segment.first))
    return found


@pytest.mark.parametrize("form", ["published", "txt", "zip", "parquet"])
def test_wikitext_layouts(form: str, tmp_path: Path) -> None:
    path = write_wikitext(tmp_path / "wikitext-2", form)
    expected = {split: articles(text) for split, text in WIKITEXT.items()}
    assert len(expected["train"]) == 12 and "".join(expected["train"]) == WIKITEXT["train"]
    for place in (path, tmp_path) if form != "zip" else (path,):
        one = wikitext.find_at(place, "2", raw=False)
        assert by_split(one) == expected
        assert isinstance(one, FileCorpus | RowCorpus) and pickle.loads(pickle.dumps(one)) == one
        for piece_bytes in (1, 50, 300, 1000):
            small = replace(one, piece_bytes=piece_bytes)
            assert by_split(small) == expected, piece_bytes
            assert ended_lines(small) == {
                split: [(line, line.startswith(" = T")) for line in text.splitlines(keepends=True) if line.strip()]
                for split, text in WIKITEXT.items()
            }
            assert len(small.pieces()) > (17 if piece_bytes < 60 and form != "zip" else 3) - 1
        assert json.loads(json.dumps(one.content_settings()))["documents"] == "article"


def test_wikitext_is_found_below_the_root(tmp_path: Path) -> None:
    assert wikitext.find_published(tmp_path, "2", raw=True) is None
    write_wikitext(tmp_path / "wikitext/download", "zip", raw=True)
    one = wikitext.find_published(tmp_path, "2", raw=True)
    assert one is not None and set(by_split(one)) == {"train", "val", "test"}
    assert wikitext.find_published(tmp_path, "2", raw=False) is None
    assert wikitext.find_published(tmp_path, "103", raw=True) is None
    for raw in (False, True):
        for version in ("103", "2"):
            file = wikitext.ARCHIVES[wikitext.names(version, raw)[1]]
            assert file.digest and file.size


def test_wikitext_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    folder = write_wikitext(tmp_path / "wikitext-2-v1", "parquet")
    files = {f"wikitext-2-v1/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with serving_hub(files | {"wikitext-103-v1/train-0.parquet": b"x"}, wikitext.HUB_REVISION) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(wikitext, "HUB_NAME", "owner/name")
        assert wikitext.find_huggingface(tmp_path, "2", raw=False) is None
        wikitext.fetch_huggingface(tmp_path, "2", raw=False)
        wikitext.fetch_huggingface(tmp_path, "2", raw=False)
        assert len(hub.asked) == 1 + len(files)
    one = wikitext.find_huggingface(tmp_path, "2", raw=False)
    assert one is not None and by_split(one) == {split: articles(text) for split, text in WIKITEXT.items()}
    assert wikitext.find_huggingface(tmp_path, "103", raw=False) is None


def test_wikitext_that_is_not_whole(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no wikitext-103-raw; expected wiki\.\{train,valid,test\}\.tokens"):
        wikitext.find_at(tmp_path, "103", raw=True)
    write_wikitext(tmp_path, "txt")
    (tmp_path / "train.txt").unlink()
    with pytest.raises(InputError, match=r"train\.txt: missing; WikiText needs train\.txt, valid\.txt, test\.txt"):
        wikitext.find_at(tmp_path, "2", raw=False)
    path = write_wikitext(tmp_path / "zip", "zip", raw=True)
    with pytest.raises(InputError, match=r"holds no wiki\.train\.tokens; expected the archive wikitext-2-v1\.zip"):
        wikitext.find_at(path, "2", raw=False)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="cannot be read as WikiText's zip archive"):
        wikitext.find_at(path, "2", raw=True)
    folder = write_wikitext(tmp_path / "hub", "parquet")
    next(folder.glob("validation-*")).unlink()
    with pytest.raises(InputError, match=r"validation-\*\.parquet: missing; WikiText needs all splits"):
        wikitext.find_at(folder, "2", raw=False)


def test_a_damaged_member(tmp_path: Path) -> None:
    path = write_wikitext(tmp_path, "zip")
    one = wikitext.find_at(path, "2", raw=False)
    data = bytearray(path.read_bytes())
    data[80:120] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(
        InputError, match=r"wikitext-2-v1\.zip::wikitext-2/wiki\.train\.tokens: is broken off or damaged"
    ):
        read(one)


def test_published_counts(caplog: pytest.LogCaptureFixture) -> None:
    counts = {name: {"lines": c.lines, "words": c.tokens - c.lines} for name, c in wikitext.PUBLISHED["2"].items()}
    assert wikitext.check_counts("2", False, counts) and not caplog.records
    counts["train"]["words"] += 1
    assert wikitext.check_counts("2", True, counts)
    with caplog.at_level(logging.WARNING):
        assert not wikitext.check_counts("2", False, counts)
    assert "wikitext-2: train has 36,718 lines and 2,088,629 tokens; published are 36,718 and 2,088,628" in caplog.text


@pytest.mark.skipif(not (REAL / "wikitext-2/valid.txt").is_file(), reason="needs LRA_SSM_TEST_DATA")
def test_real_wikitext(tmp_path: Path) -> None:
    """Sixty articles in either split, and the published numbers of lines and tokens."""
    for name in ("valid", "test"):
        (tmp_path / f"{name}.txt").symlink_to(REAL / f"wikitext-2/{name}.txt")
    (tmp_path / "train.txt").write_text(WIKITEXT["train"])
    found = by_split(wikitext.find_at(tmp_path, "2", raw=False))
    assert (len(found["val"]), len(found["test"])) == (60, 60)
    for split, name in (("val", "valid"), ("test", "test")):
        text = "".join(found[split])
        assert text == (REAL / f"wikitext-2/{name}.txt").read_text()
        assert all(article.lstrip("\n ").startswith("= ") for article in found[split])
        published = wikitext.PUBLISHED["2"][split]
        assert (text.count("\n"), text.count("\n") + len(text.split())) == published
    lines = ended_lines(wikitext.find_at(tmp_path, "2", raw=False))
    assert [sum(first for _, first in lines[split]) for split in ("val", "test")] == [60, 60]
    assert len(lines["val"]) + len(lines["test"]) == 5352


# -- SlimPajama ----------------------------------------------------------------------------------------------------

SOURCES = ("RedPajamaC4", "RedPajamaGithub", "RedPajamaC4")


def write_slimpajama(folder: Path, form: str) -> None:
    for split in ("train", "validation", "test"):
        texts = [f"{split} {n}" for n in range(3)]
        meta = [{"redpajama_set_name": source} for source in SOURCES]
        if form == "parquet":
            columns = {"text": texts, "meta": meta, "__index_level_0__": [1, 2, 3]}
            write_parquet(folder / f"data/{split}-00000-of-00001-ab3669701d34fafd.parquet", columns)
            continue
        import pyarrow

        lines = "".join(json.dumps({"text": t, "meta": m}) + "\n" for t, m in zip(texts, meta, strict=True))
        path = folder / split / "chunk1" / "example_holdout_0.jsonl.zst"
        path.parent.mkdir(parents=True)
        path.write_bytes(pyarrow.compress(lines.encode(), codec="zstd", asbytes=True))


@pytest.mark.parametrize("form", ["parquet", "jsonl.zst"])
def test_slimpajama(form: str, tmp_path: Path) -> None:
    write_slimpajama(tmp_path, form)
    found = read(slimpajama.find_at(tmp_path))
    for split, name in (("train", "train"), ("val", "validation"), ("test", "test")):
        assert [(d.text, d.source) for d in found if d.split == split] == [
            (f"{name} {n}", source) for n, source in enumerate(SOURCES)
        ]
    assert len(found) == 9


def test_slimpajama_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from huggingface_hub import constants

    write_slimpajama(tmp_path / "hub", "parquet")
    files = {f"data/{path.name}": path.read_bytes() for path in (tmp_path / "hub/data").iterdir()}
    with serving_hub(files | {"README.md": b"x"}, slimpajama.HUB_REVISION) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(slimpajama, "HUB_NAME", "owner/name")
        assert slimpajama.find_huggingface(tmp_path / "root") is None
        slimpajama.fetch_huggingface(tmp_path / "root")
    folder = slimpajama.find_huggingface(tmp_path / "root")
    assert folder is not None and len(read(slimpajama.find_at(folder))) == 9
    assert "passing over" not in caplog.text


def test_slimpajama_that_is_not_whole(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train/a.jsonl", ["a"])
    with pytest.raises(InputError, match="no files of validation; expected SlimPajama's train, validation and test"):
        slimpajama.find_at(tmp_path)
    write_jsonl(tmp_path / "validation/a.jsonl", ["a"])
    one = slimpajama.find_at(tmp_path)
    with pytest.raises(InputError, match=r"train/a\.jsonl:1: has no 'meta\.redpajama_set_name'; there is 'text'"):
        read(one)
    write_jsonl(tmp_path / "other.jsonl", ["a"])
    with pytest.raises(InputError, match=r"other\.jsonl is of no split"):
        slimpajama.find_at(tmp_path)
