"""Corpora as users prepare them: by data module and by command, in turns, and what batches then hold."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from lra_ssm.datamodules.old_storage import intact

from lra_ssm.cli import main
from lra_ssm.datamodules import Corpus, SlimPajama, WikiText
from lra_ssm.datamodules.language.tokenizer_spec import load_tokenizer
from lra_ssm.datamodules.storage import LOCK
from lra_ssm.errors import InputError
from lra_ssm.files import locked
from tests.datamodules.language.corpora import write_parquet
from tests.small_data import write_imdb


@pytest.fixture
def root(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("LRA_SSM_DATA", str(folder))
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Sixty files of a few lines."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(60):
        lines = (f"line {i} of text {number}\n" for i in range(number % 7 + 1))
        (folder / f"{number:02d}.txt").write_text("".join(lines))
    return folder


def left(root: Path) -> list[str]:
    """What began and did not end."""
    return [path.name for path in root.glob("*/.*") if path.is_dir()]


# -- Corpus --------------------------------------------------------------------------------------------------------


def test_a_corpus_is_prepared_once_and_its_windows_hold_its_documents(root, texts, monkeypatch):
    data = Corpus(source=str(texts), tokenizer="bytes", val_fraction=0.2, length=64, batch_size=4)
    assert not data.is_prepared()
    data.prepare_data()
    assert data.is_prepared() and not left(root)
    manifest, source = data.manifest(), data.manifest()["source"]
    assert (source["kind"], source["path"], source["val_fraction"]) == ("files", str(texts), 0.2)
    assert manifest["tokenizer"]["file"] == "vocabulary.json" and (data.prepared_folder / "vocabulary.json").is_file()
    assert data.provenance()["tokens"]["train"] == manifest["splits"]["train"]["tokens"]
    state = {path: path.stat().st_mtime_ns for path in data.prepared_folder.iterdir()}
    Corpus(source=str(texts), tokenizer="bytes", val_fraction=0.2).prepare_data()
    assert {path: path.stat().st_mtime_ns for path in data.prepared_folder.iterdir()} == state
    monkeypatch.setattr(intact, "check_digest", lambda *array: pytest.fail(f"{array} was read through"))
    data.setup("fit")  # what was just written is not compared
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


def test_killed_before_its_shards_were_removed_it_removes_them_when_it_is_started_again(root, texts, monkeypatch):
    data, rmtree = Corpus(source=str(texts), tokenizer="bytes", val_fraction=0.2), shutil.rmtree
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path, **_: None if "shards" in str(path) else rmtree(path, **_))
        data.prepare_data()
    assert left(root) == [f".shards-{data.prepared_folder.name}"]
    data.prepare_data()
    assert not left(root) and data.is_prepared()


def test_turns_and_a_merge_by_command_give_what_one_command_gives(root, texts, capsys):
    options = ["prepare", "corpus", f"--source={texts}", "--tokenizer=words", "--val_fraction=0.2", "--documents=line"]
    assert main([*options, "--processes=1"]) == 0
    printed = capsys.readouterr().out
    (folder,) = (path for path in (root / "corpus").iterdir() if path.name.startswith("files-"))
    assert f"{folder}: corpus (files): " in printed and "lightning fit" in printed
    whole = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".npy"}
    shutil.rmtree(folder)
    assert main([*options, "--shard=2/2"]) == 0  # there is one shard: the second has no turn, but makes the vocabulary
    assert "2/2 is done; 0 of 1 shards are there" in capsys.readouterr().out
    assert main([*options, "--merge"]) == 2
    assert "1 of 1 shards are missing, the first is 000000: --shard=i/n makes those whose" in capsys.readouterr().err
    assert main([*options, "--shard=1/2", "--processes=1"]) == 0
    assert "1 of 1 shards are there; --merge puts them together" in capsys.readouterr().out
    assert main([*options, "--merge"]) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".npy"} == whole
    assert not left(root)


def test_what_was_begun_is_named_and_removed(root, texts, capsys):
    options = [f"--source={texts}", "--val_fraction=0.2", "--documents=line"]
    assert main(["prepare", "corpus", *options, "--tokenizer=bytes"]) == 0
    assert main(["prepare", "corpus", *options, "--tokenizer=words", "--shard=1/2"]) == 0
    (root / "listops/.unfinished-1").mkdir(parents=True)
    (begun,) = (root / "corpus").glob(".shards-*")
    found = [begun, root / "listops/.unfinished-1"]
    capsys.readouterr()
    assert main(["prepare", "--summary"]) == 0
    *table, first, second, advice = capsys.readouterr().out.splitlines()
    assert [first, second] == [f"not finished: {path}" for path in found] and any("bytes" in line for line in table)
    assert advice == f"the same command goes on there; `lra-ssm prepare --clean --root={root}` removes them"
    with ThreadPoolExecutor() as pool:
        with locked(root / "corpus" / LOCK, "prepares this dataset", keep=True):
            cleaning = pool.submit(main, ["prepare", "--clean"])
            with pytest.raises(TimeoutError):
                cleaning.result(0.3)
            assert begun.is_dir()  # a preparation that goes on may need it
        assert cleaning.result() == 0
    for removed in (found, []):
        assert capsys.readouterr().out.splitlines() == [f"removed: {path}" for path in removed]
        assert main(["prepare", "--clean", f"--root={root}"]) == 0
    assert not left(root) and main(["prepare", "--summary"]) == 0
    assert capsys.readouterr().out.splitlines() == table
    assert main(["prepare", "--clean", "corpus"]) == 2
    assert "unrecognized arguments: corpus" in capsys.readouterr().err


def test_reviews_are_documents(root, tmp_path):
    write_imdb(tmp_path)
    counts = []
    for source in (str(tmp_path / "aclImdb"), "imdb"):
        data = Corpus(source=source, tokenizer="characters", val_fraction=0.3)
        data.prepare_data()
        counts.append({name: entry["documents"] for name, entry in data.manifest()["splits"].items()})
        if source != "imdb":
            shutil.move(source, root / "aclImdb")
    assert counts[0] == counts[1] and counts[0]["test"] == 40 == counts[0]["train"] + counts[0]["val"]


# -- SlimPajama ----------------------------------------------------------------------------------------------------


def test_slimpajama_keeps_its_sources_and_splits(root, tmp_path):
    sources = ["RedPajamaC4", "RedPajamaBook", "RedPajamaGithub"]
    for split, count in (("train", 90), ("validation", 3), ("test", 3)):
        meta = [{"redpajama_set_name": sources[n % 3]} for n in range(count)]
        rows = {"text": [f"a text of {split}, number {n} größe" for n in range(count)], "meta": meta}
        write_parquet(tmp_path / f"data/{split}-00000-of-00001.parquet", rows)
    data = SlimPajama(source=str(tmp_path), tokenizer="bpe:300", length=128, batch_size=4)
    data.prepare_data()
    manifest = data.manifest()
    assert {name: entry["documents"] for name, entry in manifest["splits"].items()} == {
        "train": 90,
        "val": 3,
        "test": 3,
    }
    train = manifest["splits"]["train"]
    assert {name: source["documents"] for name, source in train["sources"].items()} == dict.fromkeys(sources, 30)
    for name in ("documents", "tokens", "bytes"):
        assert sum(source[name] for source in train["sources"].values()) == train[name]
    assert manifest["tokenizer"]["specification"] == "bpe:300" and data.text_counts("train").bytes == train["bytes"]
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch.inputs.shape == (4, 128) and int(batch.inputs.max()) < 300


# -- WikiText ------------------------------------------------------------------------------------------------------

WIKI = (
    " \n = {title} = \n \n The words of {title} , and <unk> of them . \n \n = = Section = = \n \n More of {title} . \n"
)


@pytest.fixture
def wikitext(tmp_path):
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    for name, titles in {"train": ("Alpha", "Beta", "Gamma"), "valid": ("Delta",), "test": ("Alpha", "Zeta")}.items():
        (folder / f"wiki.{name}.tokens").write_text("".join(WIKI.format(title=title) for title in titles) + " \n")
    return folder


def test_wikitext_by_words_is_articles_with_eos_for_each_line(root, wikitext, caplog):
    data = WikiText(source=str(wikitext), version="2", length=16, batch_size=2)
    data.prepare_data()
    assert re.search(r"wikitext-2: train has 25 lines and \d+ tokens; published are 36,718 and 2,088,628", caplog.text)
    manifest = data.manifest()
    for split, name in (("train", "train"), ("val", "valid"), ("test", "test")):
        text = (wikitext / f"wiki.{name}.tokens").read_text()
        entry, words, lines = manifest["splits"][split], len(text.split()), text.count("\n")
        assert (entry["tokens"], entry["words"], entry["lines"]) == (words + lines, words, lines)
    assert [manifest["splits"][name]["documents"] for name in ("train", "val", "test")] == [3, 1, 2]
    train = (wikitext / "wiki.train.tokens").read_text().split()
    assert manifest["vocab_size"] == len(set(train)) + 1  # <eos>; <unk> is one of the words
    assert manifest["source"]["published_counts"] is False
    (split,), tokenizer = data.text_splits("train"), load_tokenizer(data.prepared_folder)
    assert tokenizer.decode(split.tokens(0, split.num_tokens)).split() == train
    beta = int(split.starts(0, split.num_tokens)[1])
    assert tokenizer.decode(split.tokens(beta, beta + 3)).split() == ["=", "Beta", "="]


def as_lines_with_ends(text: str) -> list[int]:
    """Every line that is not blank, as bytes, each followed by end-of-text, as code has it that takes lines for rows of
    a table (AnnanYu/mamba-bare, lindermanlab/S5)."""
    return [token for line in text.split("\n") if line.strip() for token in [*f"{line}\n".encode(), 256]]


def test_wikitext_may_end_every_line_that_is_not_blank(root, wikitext):
    odd = WIKI.format(title="a\u2028b\x85c\x0bd") + " \n \n"  # what str.splitlines takes for lines' ends
    with open(wikitext / "wiki.train.tokens", "a", encoding="utf-8") as file:
        file.write(odd)
    settings = dict(source=str(wikitext), version="2", tokenizer="bytes", length=48, batch_size=4)
    data, articles = WikiText(documents="line", **settings), WikiText(**settings)
    for made in (data, articles):
        made.prepare_data()
    assert data.prepared_folder != articles.prepared_folder
    for split, name, titles in (("train", "train", 4), ("val", "valid", 1), ("test", "test", 2)):
        text = (wikitext / f"wiki.{name}.tokens").read_text(encoding="utf-8")
        (found,), (usual,) = data.text_splits(split), articles.text_splits(split)
        tokens = found.tokens(0, found.num_tokens).tolist()
        assert tokens == as_lines_with_ends(text)
        assert usual.tokens(0, usual.num_tokens).tolist().count(256) == usual.num_documents == titles
        # documents stay articles: a state is dropped where one begins, at its first line
        starts = found.starts(0, found.num_tokens).tolist()
        assert found.num_documents == len(starts) == titles and starts[0] == 0
        assert all(tokens[start - 1] == 256 and bytes(tokens[start : start + 3]) == b" = " for start in starts[1:])
        counts, usual_counts = data.text_counts(split), articles.text_counts(split)
        lines = sum(1 for line in text.split("\n") if line.strip())
        assert (counts.words, counts.lines) == (usual_counts.words, lines)
    data.setup("test")
    batch = next(iter(data.test_dataloader()))
    assert batch.reset.sum() == 2 and (batch.inputs[batch.reset] == 256).all()
    with pytest.raises(InputError, match="documents 'line': line is for other tokenizers: 'words' ends every line"):
        WikiText(source=str(wikitext), version="2", documents="line")
    with pytest.raises(InputError, match="documents 'file': must be article or line"):
        WikiText(source=str(wikitext), version="2", documents="file")


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


def test_blank_lines_before_the_first_article_are_said_or_skipped(root, wikitext):
    train = wikitext / "wiki.train.tokens"
    train.write_text(" \n \n" + train.read_text())
    with pytest.raises(InputError, match=r"wiki.train.tokens:1: an empty document; empty_documents=skip passes over"):
        WikiText(source=str(wikitext), version="2").prepare_data()
    data = WikiText(source=str(wikitext), version="2", empty_documents="skip")
    data.prepare_data()
    assert data.manifest()["source"]["empty_documents_skipped"] == 1
    assert data.manifest()["splits"]["train"]["documents"] == 3


# -- bad input -----------------------------------------------------------------------------------------------------


def test_a_fit_never_downloads_a_tokenizer(root, texts, tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    missing = "tokenizer nobody/nothing: .*cache has no tokenizer.json of it; `lra-ssm prep"
    with pytest.raises(InputError, match=missing):
        Corpus(source=str(texts), tokenizer="nobody/nothing").prepare_data()
    assert not list(root.rglob("files-*"))


BAD = {
    "latin-1": ("a.txt", b"one\ntw\xf6\n", r"a.txt:2: is not UTF-8"),
    "one document": ("b.txt", b"one\ntwo\n", r"b.txt: is one document, of which none can be held out"),
    "none for val": ("a.jsonl", b'{"text": "one"}\n', r"corpus: no document for val \(1 for train\)"),
    "parquet": ("a.parquet", b"PAR1 and nothing more", r"a.parquet: is broken off or damaged"),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_bad_input_is_one_line_and_leaves_nothing(root, tmp_path, capsys, case):
    name, data, message = BAD[case]
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / name).write_bytes(data)
    held_out = {"one document": "0.01", "none for val": "1e-9"}.get(case, "0")
    options = [f"--source={tmp_path / 'bad'}", "--tokenizer=bytes", f"--val_fraction={held_out}"]
    assert main(["prepare", "corpus", *options]) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1 and re.search(message, err)
    assert not list(root.rglob("*"))
