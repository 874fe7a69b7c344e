"""Corpora as users prepare them: by data module and by command, in shares, and what batches then hold."""

import json
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lra_ssm.cli import main
from lra_ssm.datamodules import Corpus, SlimPajama, WikiText
from lra_ssm.datamodules.language.choosing import load_tokenizer
from lra_ssm.errors import InputError

from .made_up_slimpajama import SOURCES, write


@pytest.fixture
def root(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("LRA_SSM_DATA", str(folder))
    return folder


@pytest.fixture(scope="module")
def slimpajama(tmp_path_factory):
    """The same documents in both forms of SlimPajama."""
    folder = tmp_path_factory.mktemp("slimpajama")
    for form in ("parquet", "jsonl.zst"):
        write(folder / form, form, 300_000, files=3)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Sixty files of a few lines."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(60):
        (folder / f"{number:02d}.txt").write_text(
            "".join(f"line {i} of text {number}\n" for i in range(number % 7 + 1))
        )
    return folder


def test_a_corpus_is_prepared_once_and_its_windows_hold_its_documents(root, texts):
    data = Corpus(source=str(texts), tokenizer="bytes", val_fraction=0.2, length=64, batch_size=4)
    assert not data.is_prepared()
    data.prepare_data()
    assert data.is_prepared() and not list((root / "corpus").glob(".parts-*"))
    state = {path: path.stat().st_mtime_ns for path in data.prepared_folder.iterdir()}
    Corpus(source=str(texts), tokenizer="bytes", val_fraction=0.2).prepare_data()
    assert {path: path.stat().st_mtime_ns for path in data.prepared_folder.iterdir()} == state
    data.setup("fit")
    assert data.vocab_size is None or data.vocab_size == 257
    targets = {"train": [], "val": []}
    for name in targets:
        windows = data.evaluation_windows(data.text_splits(name))
        for number in range(len(windows)):
            batch = windows.batch(np.array([number]), 0)
            targets[name] += batch.targets[batch.targets != -100].tolist()
    tokenizer = load_tokenizer(data.prepared_folder)
    found = {name: tokenizer.decode(tokens).split("<eos>") for name, tokens in targets.items()}
    assert all(texts_of[-1] == "" for texts_of in found.values())
    assert sorted(found["train"][:-1] + found["val"][:-1]) == sorted(p.read_text() for p in texts.iterdir())
    assert 3 <= len(found["val"]) - 1 <= 25


def test_more_files_move_no_document_across(root, texts, tmp_path):
    more = tmp_path / "more"
    shutil.copytree(texts, more)
    (more / "05a.txt").write_text("another one\n")
    found = []
    for folder in (texts, more):
        data = Corpus(source=str(folder), tokenizer="bytes", val_fraction=0.2)
        data.prepare_data()
        (split,) = data.text_splits("val")
        tokenizer = load_tokenizer(data.prepared_folder)
        found.append(set(tokenizer.decode(split.tokens(0, split.num_tokens)).split("<eos>")))
    assert found[0] == found[1] - {"another one\n"}


@pytest.mark.parametrize("form", ["parquet", "jsonl.zst"])
def test_slimpajama_keeps_its_sources_and_splits(root, slimpajama, form):
    data = SlimPajama(source=str(slimpajama / form), tokenizer="bpe:400", length=128, batch_size=4)
    data.prepare_data()
    manifest = data.manifest()
    assert list(manifest["splits"]) == ["train", "val", "test"]
    train = manifest["splits"]["train"]
    assert set(train["sources"]) <= set(SOURCES) and len(train["sources"]) > 4
    for name in ("documents", "tokens", "bytes"):
        assert sum(source[name] for source in train["sources"].values()) == train[name]
    assert manifest["tokenizer"]["specification"] == "bpe:400" and data.text_counts("train").bytes > 290_000
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch.inputs.shape == (4, 128) and int(batch.inputs.max()) < 400


def test_both_forms_of_slimpajama_give_the_same_tokens(root, slimpajama):
    arrays = []
    for form in ("parquet", "jsonl.zst"):
        data = SlimPajama(source=str(slimpajama / form), tokenizer="bpe:400")
        data.prepare_data()
        arrays.append({p.name: p.read_bytes() for p in data.prepared_folder.iterdir() if p.name != "manifest.json"})
    assert arrays[0] == arrays[1]


def test_shares_and_a_merge_by_command_give_what_one_command_gives(root, texts, capsys):
    options = ["prepare", "corpus", f"--source={texts}", "--tokenizer=words", "--val_fraction=0.2", "--documents=line"]
    assert main([*options, "--processes=1"]) == 0
    printed = capsys.readouterr().out
    (folder,) = (path for path in (root / "corpus").iterdir() if path.name.startswith("files-"))
    assert f"{folder}: corpus (files): " in printed and "lightning fit" in printed
    whole = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".bin"}
    shutil.rmtree(folder)
    assert main([*options, "--shard=2/2"]) == 0  # one piece: the second share has none, but makes the vocabulary
    assert "share 2/2 is done; 0 of 1 parts are there" in capsys.readouterr().out
    assert main([*options, "--merge"]) == 2
    assert "1 of 1 parts are missing (000000): of n shards, number p mod n + 1 makes part p" in capsys.readouterr().err
    assert main([*options, "--shard=1/2", "--processes=1"]) == 0
    assert "1 of 1 parts are there; --merge puts them together" in capsys.readouterr().out
    assert main([*options, "--merge"]) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".bin"} == whole
    assert not list((root / "corpus").glob(".parts-*"))
    assert main(["prepare", "--summary"]) == 0
    assert "words" in capsys.readouterr().out


WIKI = (
    " \n = {title} = \n \n The words of {title} , and <unk> of them . \n \n = = Section = = \n \n More of {title} . \n"
)


@pytest.fixture(scope="module")
def wikitext(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wikitext") / "wikitext-2"
    folder.mkdir()
    for name, titles in {"train": ("Alpha", "Beta", "Gamma"), "valid": ("Delta",), "test": ("Alpha", "Zeta")}.items():
        (folder / f"wiki.{name}.tokens").write_text("".join(WIKI.format(title=title) for title in titles) + " \n")
    return folder


def test_wikitext_by_words_is_articles_with_eos_for_each_line(root, wikitext, caplog):
    data = WikiText(source=str(wikitext), version="2", length=16, batch_size=2)
    data.prepare_data()
    assert re.search(r"wikitext-2: train has 25 lines and \d+ tokens; published are 36,718 and 2,088,628", caplog.text)
    manifest = data.manifest()
    tokenizer = load_tokenizer(data.prepared_folder)
    for split, name in (("train", "train"), ("val", "valid"), ("test", "test")):
        text = (wikitext / f"wiki.{name}.tokens").read_text()
        entry = manifest["splits"][split]
        assert entry["tokens"] == len(text.split()) + text.count("\n")
        assert (entry["words"], entry["lines"]) == (len(text.split()), text.count("\n"))
    assert [manifest["splits"][name]["documents"] for name in ("train", "val", "test")] == [3, 1, 2]
    train = (wikitext / "wiki.train.tokens").read_text().split()
    assert manifest["vocab_size"] == len(set(train)) + 1  # <eos>; <unk> is one of the words
    assert manifest["source"]["published_counts"] is False
    (split,) = data.text_splits("train")
    words = tokenizer.decode(split.tokens(0, split.num_tokens))
    assert words.split() == train
    starts = split.starts(0, split.num_tokens)
    assert tokenizer.decode(split.tokens(int(starts[1]), int(starts[1]) + 3)).split() == ["=", "Beta", "="]


def as_lines_with_ends(text: str) -> list[int]:
    """Every line that is not blank, as bytes, each followed by end-of-text, as code has it that takes lines for rows of
    a table (AnnanYu/mamba-bare, lindermanlab/S5)."""
    return [token for line in text.split("\n") if line.strip() for token in [*f"{line}\n".encode(), 256]]


def test_wikitext_may_end_every_line_that_is_not_blank(root, wikitext, tmp_path):
    copied = shutil.copytree(wikitext, tmp_path / "wikitext-2")
    odd = WIKI.format(title="a\u2028b\x85c\x0bd") + " \n \n"  # what str.splitlines takes for lines' ends
    (copied / "wiki.train.tokens").write_text((wikitext / "wiki.train.tokens").read_text() + odd, encoding="utf-8")
    settings = dict(source=str(copied), version="2", tokenizer="bytes", length=48, batch_size=4)
    data, articles = WikiText(documents="line", **settings), WikiText(**settings)
    for module in (data, articles):
        module.prepare_data()
    assert data.prepared_folder != articles.prepared_folder
    for split, name in (("train", "train"), ("val", "valid"), ("test", "test")):
        text = (copied / f"wiki.{name}.tokens").read_text(encoding="utf-8")
        (found,), (usual,) = data.text_splits(split), articles.text_splits(split)
        tokens = found.tokens(0, found.num_tokens).tolist()
        assert tokens == as_lines_with_ends(text)
        assert usual.tokens(0, usual.num_tokens).tolist().count(256) == usual.num_documents < tokens.count(256)
        # documents stay articles: a state is dropped where one begins, at its first line
        starts = found.starts(0, found.num_tokens).tolist()
        titles = [line for line in text.split("\n") if line.startswith(" = ") and not line.startswith(" = = ")]
        assert found.num_documents == len(starts) == len(titles) == usual.num_documents
        for start, title in zip(starts, titles, strict=True):
            assert bytes(found.tokens(start, start + len(f"{title}\n".encode())).tolist()).decode() == f"{title}\n"
            assert start == 0 or tokens[start - 1] == 256
        entry, lines = data.manifest()["splits"][split], sum(1 for line in text.split("\n") if line.strip())
        assert (entry["words"], entry["lines"]) == (articles.manifest()["splits"][split]["words"], lines)
    data.setup("test")
    batch = next(iter(data.test_dataloader()))
    assert batch.reset.sum() == 2 and (batch.inputs[batch.reset] == 256).all()
    assert (batch.inputs == 256).sum() > 4


def test_wikitext_by_lines_is_none_by_words(wikitext):
    with pytest.raises(InputError, match="documents 'line': line is for other tokenizers: 'words' ends every line"):
        WikiText(source=str(wikitext), version="2", documents="line")
    with pytest.raises(InputError, match="documents 'file': must be article or line"):
        WikiText(source=str(wikitext), version="2", documents="file")


def test_the_published_archive_gives_what_its_folder_gives(root, wikitext, tmp_path):
    archive = tmp_path / "wikitext-2-v1.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(wikitext.iterdir()):
            file.write(path, f"wikitext-2/{path.name}")
    folders = []
    for source in (wikitext, archive):
        data = WikiText(source=str(source), version="2")
        data.prepare_data()
        folders.append({p.name: p.read_bytes() for p in data.prepared_folder.iterdir() if p.suffix == ".bin"})
    assert folders[0] == folders[1] and folders[0]


def test_wikitext_is_found_below_the_root_and_missed_in_one_line(root, wikitext):
    with pytest.raises(InputError, match=r"no wikitext-2/ or wikitext-2-v1.zip below it; `lra-ssm prepare wikitext2"):
        WikiText(version="2").prepare_data()
    shutil.copytree(wikitext, root / "wikitext-2")
    data = WikiText(version="2")
    data.prepare_data()
    shutil.rmtree(root / "wikitext-2")
    again = WikiText(version="2")  # what was prepared serves without a publisher's files
    again.prepare_data()
    assert again.prepared_folder == data.prepared_folder


def test_blank_lines_before_the_first_article_are_said_or_skipped(root, wikitext, tmp_path):
    copied = shutil.copytree(wikitext, tmp_path / "wikitext-2")
    train = copied / "wiki.train.tokens"
    train.write_text(" \n \n" + train.read_text())
    with pytest.raises(InputError, match=r"wiki.train.tokens:1: an empty document; empty_documents=skip passes over"):
        WikiText(source=str(copied), version="2").prepare_data()
    data = WikiText(source=str(copied), version="2", empty_documents="skip")
    data.prepare_data()
    assert data.manifest()["source"]["empty_documents_skipped"] == 1
    assert data.manifest()["splits"]["train"]["documents"] == 3


def test_reviews_are_documents(root, tmp_path, capsys):
    for split in ("train", "test"):
        for label in ("neg", "pos"):
            folder = tmp_path / "aclImdb" / split / label
            folder.mkdir(parents=True)
            for number in range(30):
                (folder / f"{number}_1.txt").write_text(f"{split} {label} review {number}<br />")
    data = Corpus(source=str(tmp_path / "aclImdb"), tokenizer="characters", val_fraction=0.3)
    data.prepare_data()
    splits = data.manifest()["splits"]
    assert splits["test"]["documents"] == 60 and splits["train"]["documents"] + splits["val"]["documents"] == 60
    shutil.move(tmp_path / "aclImdb", root / "aclImdb")
    named = Corpus(source="imdb", tokenizer="characters", val_fraction=0.3)
    named.prepare_data()
    assert {name: entry["documents"] for name, entry in named.manifest()["splits"].items()} == {
        name: entry["documents"] for name, entry in splits.items()
    }


def test_a_fit_never_downloads_a_tokenizer(root, texts, tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        InputError, match="tokenizer nobody/nothing: .*cache has no tokenizer.json of it; `lra-ssm prep"
    ):
        Corpus(source=str(texts), tokenizer="nobody/nothing").prepare_data()
    assert not list(root.rglob("files-*"))


BAD = {
    "empty": ("a.txt", b" \n", r"a.txt: an empty document; empty_documents=skip"),
    "latin-1": ("a.txt", b"one\ntw\xf6\n", r"a.txt:2: is not UTF-8"),
    "broken": ("a.jsonl", b'{"text": "one"}\n{"text": "tw\n', r"a.jsonl:2: is no JSON"),
    "other": ("a.jsonl", b'{"body": "one"}\n', r"a.jsonl:1: has no 'text'; there is 'body'"),
    "parquet": ("a.parquet", b"PAR1 and nothing more", r"a.parquet: "),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_bad_input_is_one_line_and_leaves_nothing(root, tmp_path, capsys, case):
    name, data, message = BAD[case]
    folder = tmp_path / "bad"
    folder.mkdir()
    (folder / name).write_bytes(data)
    assert main(["prepare", "corpus", f"--source={folder}", "--tokenizer=bytes", "--processes=1"]) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1
    assert re.search(message, err)
    assert not list(root.rglob("*"))


def test_the_manifest_says_where_the_text_came_from(root, texts):
    data = Corpus(source=str(texts), tokenizer="bpe:300", val_fraction=0.2)
    data.prepare_data()
    manifest = json.loads((data.prepared_folder / "manifest.json").read_text())
    source = manifest["source"]
    assert source["kind"] == "files" and source["path"] == str(texts) and source["val_fraction"] == 0.2
    assert manifest["tokenizer"]["file"] == "tokenizer.json"
    assert Path(data.prepared_folder / "tokenizer.json").is_file()
    assert data.provenance()["tokens"]["train"] == manifest["splits"]["train"]["tokens"]
