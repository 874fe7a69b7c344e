"""Corpus, SlimPajama and WikiText: their layouts, splits and sources, and what batches hold."""

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lra_ssm.datamodules import Corpus, SlimPajama, WikiText, wikitext
from lra_ssm.datamodules.language.tokenizer_spec import load_tokenizer
from lra_ssm.errors import InputError
from tests.datamodules.language.corpora import by_split, read, write_jsonl, write_parquet
from tests.datamodules.test_text import write_archive, write_folder

REAL = Path(os.environ.get("LRA_SSM_TEST_DATA", "/nowhere"))


def corpus(path: Path, **settings: Any) -> Corpus:
    given = {"tokenizer": "bytes", "val_fraction": 0.5, "test_fraction": 0.2, **settings}
    return Corpus(root=str(path), source=str(path), **given)


def found(path: Path, **settings: Any) -> dict[str, list[str]]:
    return by_split(corpus(path, **settings).corpus())


# -- Corpus --------------------------------------------------------------------------------------------------------


def test_named_splits(tmp_path: Path) -> None:
    for number, names in enumerate(
        [
            {"train": "train/a.txt", "val": "validation/a.txt", "test": "test/sub/a.txt"},
            {"train": "TinyStories-train.txt", "val": "TinyStories-valid.txt", "test": "ptb.test.txt"},
        ]
    ):
        folder = tmp_path / str(number)
        for split, name in names.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{split} one\n{split} two\n")
        named = found(folder, documents="line")
        assert named == {split: [f"{split} one", f"{split} two"] for split in names}
        assert sum(map(len, found(folder, documents="line", splits="hash").values())) == 6
    (folder / names["val"]).unlink()  # held out from train then, and nothing for test
    without = found(folder, documents="line")
    assert without.pop("test") == named["test"] and sorted(sum(without.values(), [])) == named["train"]


def test_adding_files_moves_no_document(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "b.jsonl", [f"document {n}" for n in range(100)])
    before = found(tmp_path)
    assert set(before) == {"train", "val", "test"} and found(tmp_path / "b.jsonl") == before
    write_jsonl(tmp_path / "a" / "a.jsonl", [f"other {n}" for n in range(100)])
    after = found(tmp_path)
    for split in before:
        assert [text for text in after[split] if text.startswith("document")] == before[split]
    assert found(tmp_path, split_seed=1) != after


def test_names_that_are_not_clear_and_documents_that_cannot_be_divided(tmp_path: Path) -> None:
    for name in ("b/testament.txt", "only/valid.txt", "a.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one\ntwo\n")
    one = r"is one document, which cannot be divided among splits: make several of it \(documents=par"
    for name, message in {
        "only": r"only: its files name the splits val but not train",
        "a.csv": r"a\.csv: is not in one of the forms \.txt, \.jsonl",
        ".": r'testament\.txt: names no split .* but valid\.txt does; splits="hash"',
        "b": rf"testament\.txt: {one}",
        "nowhere": r"Corpus source .*nowhere': must be one of imdb, or an existing",
    }.items():
        with pytest.raises(InputError, match=message):
            found(tmp_path / name)
    assert sum(map(len, found(tmp_path, splits="hash").values())) == 2
    assert found(tmp_path / "b", val_fraction=0.0, test_fraction=0.0) and found(tmp_path / "b", documents="line")


def test_one_text_in_head_and_tail(tmp_path: Path) -> None:
    """nanoGPT's cut: the first int(0.9 n) for training, to the byte; never within a character."""
    text = "".join(f"line {n}, naïve\n" for n in range(40))
    data, ascii_text = text.encode(), text.replace("ï", "i")
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_text(ascii_text)

    def tail(name: str, val: float, test: float = 0.0, **more: Any) -> dict[str, list[str]]:
        return found(tmp_path / name, splits="tail", val_fraction=val, test_fraction=test, **more)

    n = int(0.9 * len(ascii_text))
    assert tail("b.txt", 0.1) == {"train": [ascii_text[:n]], "val": [ascii_text[n:]]}
    for end in range(len(data) - 20, len(data) - 1):
        parts = tail("a.txt", (len(data) - end) / len(data))
        head, last = parts["train"][0], parts["val"][0]
        assert head + last == text and 0 <= len(head.encode()) - end <= 1, end
    for val, test, names in ((0.2, 0.1, ["train", "val", "test"]), (0.0, 0.3, ["train", "test"])):
        parts = tail("a.txt", val, test)
        assert list(parts) == names and "".join(part for (part,) in parts.values()) == text
    lines = tail("a.txt", 0.2, documents="line")
    assert len(lines["train"]) + len(lines["val"]) == 41  # the line that is cut is one in each
    write_jsonl(tmp_path / "c.jsonl", ["a"])
    for name, what in (("c.jsonl", "this is c.jsonl"), (".", "this is 3 files")):
        with pytest.raises(InputError, match=f"splits=tail holds out the end of one text, a .txt file; {what}"):
            tail(name, 0.1)


@pytest.mark.skipif(not REAL.joinpath("tinyshakespeare").is_dir(), reason="needs tinyshakespeare")
def test_tinyshakespeare_is_cut_where_nanogpt_cuts_it() -> None:
    parts = found(REAL / "tinyshakespeare", splits="tail", val_fraction=0.1, test_fraction=0.0)
    assert {split: len(text) for split, (text,) in parts.items()} == {"train": 1_003_854, "val": 111_540}
    assert len({*parts["train"][0]}) == 65


def test_reviews(tmp_path: Path) -> None:
    """Stanford's folder and archive, with what is left out of both."""
    names = [
        f"{split}/{label}/{n}_{n}.txt" for split in ("train", "test") for label in ("pos", "neg") for n in range(11)
    ]
    reviews = {name: f"{name} ü" for name in names}
    others = {"train/unsup/1_0.txt": "none", "train/urls_pos.txt": "none", "README": "none"}
    folder = write_folder(tmp_path / "a" / "aclImdb", reviews | others)
    archive = write_archive(tmp_path / "aclImdb_v1.tar.gz", reviews)
    expected = sorted(text for name, text in reviews.items() if name.startswith("test/"))
    for splits in ("auto", "hash"):
        parts = {path: found(path, splits=splits) for path in (folder, archive, folder.parent)}
        assert parts[folder] == parts[archive] == parts[folder.parent]
        assert sorted(text for texts in parts[folder].values() for text in texts) == sorted(reviews.values())
        assert (sorted(parts[folder]["test"]) == expected) == (splits == "auto")
    assert len(corpus(folder).files()) == len(reviews) and corpus(archive).files() == [archive]
    with pytest.raises(InputError, match="end of one text, a .txt file; this is IMDb's reviews"):
        found(archive, splits="tail")
    archive.rename(tmp_path / "a" / archive.name)
    below = Corpus(root=str(tmp_path / "a"), source="imdb", tokenizer="bytes", val_fraction=0.5)
    assert by_split(below.corpus()) == found(folder)
    with pytest.raises(InputError, match="no IMDb reviews .* `lra-ssm prepare corpus --source=imdb --root="):
        Corpus(root=str(tmp_path / "b"), source="imdb", tokenizer="bytes").corpus()


# -- SlimPajama ----------------------------------------------------------------------------------------------------


def test_slimpajama_keeps_its_sources_and_splits(tmp_path: Path) -> None:
    sources = ["RedPajamaC4", "RedPajamaBook", "RedPajamaGithub"]
    for split, count in (("train", 90), ("validation", 3), ("test", 3)):
        meta = [{"redpajama_set_name": sources[n % 3]} for n in range(count)]
        rows = {"text": [f"a text of {split}, number {n} größe" for n in range(count)], "meta": meta}
        write_parquet(tmp_path / f"data/{split}-00000-of-00001.parquet", rows)
    data = SlimPajama(root=str(tmp_path), source=str(tmp_path), tokenizer="bpe:300", length=128, batch_size=4)
    data.prepare_data()
    splits = data.manifest()["splits"]
    assert {name: entry["documents"] for name, entry in splits.items()} == {"train": 90, "val": 3, "test": 3}
    by_source = splits["train"]["sources"]
    assert {name: source["documents"] for name, source in by_source.items()} == dict.fromkeys(sorted(sources), 30)
    for name in ("documents", "tokens", "bytes"):
        assert sum(source[name] for source in by_source.values()) == splits["train"][name]
    assert data.manifest()["tokenizer"]["specification"] == "bpe:300"


def test_slimpajama_that_is_not_whole(tmp_path: Path) -> None:
    data = SlimPajama(source=str(tmp_path), root=str(tmp_path), tokenizer="bytes")
    for name, message in {
        "train/a.jsonl": "no files of train and of validation; expected SlimPajama's train",
        "validation/a.jsonl": r"train/a\.jsonl:1: has no 'meta\.redpajama_set_name'; it has 'text'",
        "other.jsonl": r"other\.jsonl is of no split",
    }.items():
        write_jsonl(tmp_path / name, ["a"])
        with pytest.raises(InputError, match=message):
            read(data.corpus())
    with pytest.raises(InputError, match="no copy of the Hub's DKYoon/SlimPajama-6B below it; `lra-ssm prepare slim"):
        SlimPajama(root=str(tmp_path)).corpus()


# -- WikiText ------------------------------------------------------------------------------------------------------

ARTICLE = " = Title {0} = \n \n Text of <unk> {0} . \n \n = = Section = = \n \n More ü text = here = . \n \n"
WIKITEXT = {
    split: " \n" + "".join(ARTICLE.format(f"{split} {n}") for n in range(count))
    for split, count in (("train", 12), ("val", 2), ("test", 3))
}
ARTICLES = {
    split: [("" if n else " \n") + " = Title" + part for n, part in enumerate(text.split(" = Title")[1:])]
    for split, text in WIKITEXT.items()
}


def write_wikitext(folder: Path, form: str, suffix: str = "tokens") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    published = {f"wiki.{wikitext.SPLITS[split][0]}.{suffix}": text for split, text in WIKITEXT.items()}
    if form == "zip":
        name = f"wikitext-2{'-raw' if suffix == 'raw' else ''}"
        with zipfile.ZipFile(folder / f"{name}-v1.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file, text in published.items():
                archive.writestr(f"{name}/{file}", text)
        return folder / f"{name}-v1.zip"
    if form == "parquet":  # the Hub's: a line a row, blank ones empty, an article in two files
        for split, text in WIKITEXT.items():
            lines = [line if line.strip() else "" for line in text.splitlines(keepends=True)]
            middle = len(lines) // 2 if split == "train" else len(lines)
            for number, part in enumerate(filter(None, (lines[:middle], lines[middle:]))):
                name = f"{wikitext.SPLITS[split][1]}-{number:05}-of-00002.parquet"
                write_parquet(folder / name, {"text": part}, 4)
        return folder
    for name, text in published.items():
        (folder / name).write_text(text)
    return folder


def small(path: Path, **settings: Any) -> WikiText:
    return WikiText(root=str(path.parent), source=str(path), version="2", **settings)


@pytest.mark.parametrize("form", ["published", "zip", "parquet"])
def test_wikitext_layouts(form: str, tmp_path: Path) -> None:
    path = write_wikitext(tmp_path / "wikitext-2", form)
    for place in (path, tmp_path) if form != "zip" else (path,):
        data = small(place)
        assert by_split(data.corpus()) == ARTICLES
        assert len({*data.files()}) == {"zip": 1, "parquet": 4}.get(form, 3)


def test_wikitext_is_found_below_the_root_and_missed_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no wikitext-2-v1.zip, its folder, .* below it; `lra-ssm prepare wikitext2"):
        WikiText(root=str(tmp_path), version="2").prepare_data()
    with pytest.raises(InputError, match=r"copy of the Hub's wikitext below it; .* --level=raw --source=hugg"):
        WikiText(root=str(tmp_path), level="raw", source="huggingface").corpus()
    path = write_wikitext(tmp_path / "wikitext/download", "zip", "raw")
    data = WikiText(root=str(tmp_path), version="2", level="raw")
    data.prepare_data()
    path.unlink()
    again = WikiText(root=str(tmp_path), version="2", level="raw")  # serves without the files
    again.prepare_data()
    assert again.prepared_folder == data.prepared_folder
    assert all(file.digest and file.size for file in wikitext.ARCHIVES.values()) and len(wikitext.ARCHIVES) == 4
    hub = WikiText(root=str(tmp_path), version="2", source="huggingface")
    write_wikitext(hub.hub.path(tmp_path) / "wikitext-2-v1", "parquet")
    assert by_split(hub.corpus()) == ARTICLES


def test_wikitext_that_is_not_whole(tmp_path: Path) -> None:
    def refused(path: Path, level: Any, match: str) -> None:
        with pytest.raises(InputError, match=match):
            read(WikiText(root=str(tmp_path), source=str(path), version="2", level=level).corpus())

    refused(tmp_path, "raw", r"has no wiki\.train\.raw, nor the Hub's train-\*\.parquet")
    path = write_wikitext(tmp_path / "zip", "zip", "raw")
    refused(path, "word", r"wikitext-2-raw-v1\.zip: wikitext-2/wiki\.train\.tokens cannot be read")
    whole = path.read_bytes()
    path.write_bytes(whole[:80] + bytes(40) + whole[120:])
    refused(path, "raw", r"wikitext-2-raw-v1\.zip: wikitext-2-raw/wiki\.train\.raw cannot be read \(")
    folder = write_wikitext(tmp_path / "published", "published")
    (folder / "wiki.train.tokens").write_text(" \n \n" + WIKITEXT["train"])
    refused(folder, "word", r"wiki.train.tokens:1: an empty document")


def test_wikitext_by_words_has_a_token_for_each_line(tmp_path: Path) -> None:
    data = small(write_wikitext(tmp_path / "wikitext-2", "published"))
    data.prepare_data()
    manifest = data.manifest()
    for split, text in WIKITEXT.items():
        entry, words, lines = manifest["splits"][split], len(text.split()), text.count("\n")
        assert (entry["tokens"], entry["words"], entry["lines"]) == (words + lines, words, lines)
        assert entry["documents"] == len(ARTICLES[split])
    assert manifest["vocab_size"] == len(set(WIKITEXT["train"].split())) + 1  # the end of a line; <unk> is a word
    split, tokenizer = data.prepared.split("train"), load_tokenizer(data.prepared_folder)
    assert tokenizer.decode(split["tokens"]).split() == WIKITEXT["train"].split()
    second = int(split["starts"][1])
    assert tokenizer.decode(split["tokens"][second : second + 5]).split() == ["=", "Title", "train", "1", "="]


def test_wikitext_may_end_every_line_that_is_not_blank(tmp_path: Path) -> None:
    """As code that takes lines for rows of a table (AnnanYu/mamba-bare, lindermanlab/S5)."""
    folder = write_wikitext(tmp_path / "wikitext-2", "published")
    settings: dict[str, Any] = {"tokenizer": "bytes", "length": 48, "batch_size": 4}
    data, usual = small(folder, documents="line", **settings), small(folder, **settings)
    for made in (data, usual):
        made.prepare_data()
    assert data.prepared_folder != usual.prepared_folder
    for split, text in WIKITEXT.items():
        arrays, of_usual = data.prepared.split(split), usual.prepared.split(split)
        tokens, starts = arrays["tokens"].tolist(), arrays["starts"].tolist()
        lines = [line for line in text.split("\n") if line.strip()]
        assert tokens == [token for line in lines for token in [*f"{line}\n".encode(), 256]]
        # documents stay articles: a state is dropped where one begins, at its first line
        assert of_usual["tokens"].tolist().count(256) == len(starts) == len(of_usual["starts"])
        assert starts[0] == 0 and all(tokens[start - 1] == 256 for start in starts[1:])
        assert data.text_counts(split).words == usual.text_counts(split).words
        assert data.text_counts(split).lines == len(lines)
    batch = next(iter(data.test_dataloader()))
    assert batch.reset.sum() == 3 and (batch.inputs[batch.reset] == 256).all()
    with pytest.raises(InputError, match="documents 'line': line is for other tokenizers: 'words' ends every line"):
        small(folder, documents="line")


# Lines, as torchtext has them, and tokens by words with one for the end of each line: Merity et al. (2016), table 1.
PUBLISHED = {"val": (3_760, 217_646), "test": (4_358, 245_569)}


@pytest.mark.skipif(not (REAL / "wikitext-2/valid.txt").is_file(), reason="needs LRA_SSM_TEST_DATA")
def test_real_wikitext(tmp_path: Path) -> None:
    """Sixty articles in either split, and the published numbers of lines and tokens."""
    for name in ("valid", "test"):
        shutil.copy(REAL / f"wikitext-2/{name}.txt", tmp_path / f"wiki.{name}.tokens")
    (tmp_path / "wiki.train.tokens").write_text(WIKITEXT["train"])
    parts, lines = by_split(small(tmp_path).corpus()), small(tmp_path, documents="line", tokenizer="bytes").corpus()
    for split, name in (("val", "valid"), ("test", "test")):
        text = "".join(parts[split])
        assert text == (REAL / f"wikitext-2/{name}.txt").read_text() and len(parts[split]) == 60
        assert all(article.lstrip("\n ").startswith("= ") for article in parts[split])
        assert (text.count("\n"), text.count("\n") + len(text.split())) == PUBLISHED[split]
    ended = [segment for each in lines for segment in each.read() if segment.split != "train"]
    assert len(ended) == 5352 and sum(segment.first for segment in ended) == 120
