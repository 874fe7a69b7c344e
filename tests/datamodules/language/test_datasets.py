"""Corpus, SlimPajama and WikiText: their layouts, splits and sources, and what batches hold."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from lra_ssm.datamodules import Corpus, SlimPajama, WikiText
from lra_ssm.datamodules.language.tokenizer_spec import load_tokenizer
from lra_ssm.errors import InputError
from tests.datamodules.helpers import prepared, real_data
from tests.datamodules.language.helpers import by_split
from tests.small_data import WIKITEXT, write_files, write_imdb, write_slimpajama, write_wikitext


def corpus(path: Path, **settings: Any) -> Corpus:
    given = {"tokenizer": "bytes", "val_fraction": 0.5, "test_fraction": 0.2, **settings}
    return Corpus(root=str(path), source=str(path), **given)


def found(path: Path, **settings: Any) -> dict[str, list[str]]:
    return by_split(corpus(path, **settings).corpus())


# -- Corpus --------------------------------------------------------------------------------------------------------


def test_named_splits(tmp_path: Path) -> None:
    names = {"train": "TinyStories-train.txt", "val": "valid/a.txt", "test": "sub/ptb.test.txt"}
    write_files(tmp_path, {name: f"{split} one\n{split} two\n" for split, name in names.items()})
    named = found(tmp_path, documents="line")
    assert named == {split: [f"{split} one", f"{split} two"] for split in names}
    assert sum(map(len, found(tmp_path, documents="line", splits="hash").values())) == 6
    (tmp_path / names["val"]).unlink()  # held out from train then, and nothing for test
    without = found(tmp_path, documents="line")
    assert without.pop("test") == named["test"] and sorted(sum(without.values(), [])) == named["train"]


def test_names_that_are_not_clear_and_documents_that_cannot_be_divided(tmp_path: Path) -> None:
    write_files(tmp_path, dict.fromkeys(("b/testament.txt", "only/valid.txt", "a.csv"), "one\ntwo\n"))
    one = r"is one document, which cannot be divided among splits: make several of it \(documents=par"
    for name, message in {
        "only": r"only: its files name the splits val but not train",
        "a.csv": r"a\.csv: is not in one of the forms \.txt, \.jsonl",
        ".": r'testament\.txt: names no split .* but valid\.txt does; splits="hash"',
        "b": rf"testament\.txt: {one}",
    }.items():
        with pytest.raises(InputError, match=message):
            found(tmp_path / name)
    assert sum(map(len, found(tmp_path, splits="hash").values())) == 2
    assert found(tmp_path / "b", val_fraction=0.0, test_fraction=0.0) and found(tmp_path / "b", documents="line")


def test_one_text_in_head_and_tail(tmp_path: Path) -> None:
    """nanoGPT's cut: the first int(0.9 n) for training, to the byte; never within a character."""
    text = "".join(f"line {n}, naïve\n" for n in range(40))
    data, ascii_text = text.encode(), text.replace("ï", "i")
    write_files(tmp_path, {"a.txt": text, "b.txt": ascii_text})

    def tail(name: str, val: float, test: float = 0.0, **more: Any) -> dict[str, list[str]]:
        return found(tmp_path / name, splits="tail", val_fraction=val, test_fraction=test, **more)

    n = int(0.9 * len(ascii_text))
    assert tail("b.txt", 0.1) == {"train": [ascii_text[:n]], "val": [ascii_text[n:]]}
    for end in range(len(data) - 20, len(data) - 1):
        (head,), (last,) = tail("a.txt", (len(data) - end) / len(data)).values()
        assert head + last == text and 0 <= len(head.encode()) - end <= 1, end
    assert "".join(part for (part,) in tail("a.txt", 0.2, 0.1).values()) == text
    assert list(tail("a.txt", 0.0, 0.3)) == ["train", "test"]
    lines = tail("a.txt", 0.2, documents="line")
    assert len(lines["train"]) + len(lines["val"]) == 41  # the line that is cut is one in each
    with pytest.raises(InputError, match="splits=tail holds out the end of one text, a .txt file; this is 2 files"):
        tail(".", 0.1)


def test_tinyshakespeare_is_cut_where_nanogpt_cuts_it() -> None:
    parts = found(real_data("tinyshakespeare"), splits="tail", val_fraction=0.1, test_fraction=0.0)
    assert {split: len(text) for split, (text,) in parts.items()} == {"train": 1_003_854, "val": 111_540}
    assert len({*parts["train"][0]}) == 65


def test_reviews_are_documents_of_published_splits(tmp_path: Path) -> None:
    folder = write_imdb(tmp_path / "aclImdb")
    texts = {split: sorted(path.read_text() for path in folder.glob(f"{split}/*/*.txt")) for split in ("train", "test")}
    write_files(folder, {"train/unsup/1_0.txt": b"none", "train/urls_pos.txt": b"none", "README": b"none"})
    for splits in ("auto", "hash"):
        parts = found(folder, splits=splits)
        assert parts == found(tmp_path, splits=splits) and len(corpus(folder).files()) == 80
        assert sorted(sum(parts.values(), [])) == sorted(sum(texts.values(), []))
        assert (sorted(parts["test"]) == texts["test"]) == (splits == "auto")
    with pytest.raises(InputError, match="end of one text, a .txt file; this is IMDb's reviews"):
        found(folder, splits="tail")


# -- SlimPajama ----------------------------------------------------------------------------------------------------


def test_slimpajama_keeps_its_sources_and_splits(tmp_path: Path) -> None:
    source = write_slimpajama(tmp_path / "files", count=9)
    data = SlimPajama(root=str(tmp_path), source=str(source), tokenizer="bpe:300", length=128, batch_size=4)
    splits = prepared(data).manifest()["splits"]
    assert {name: entry["documents"] for name, entry in splits.items()} == {"train": 27, "val": 9, "test": 9}
    by_source = splits["train"]["sources"]
    assert sorted(by_source) == ["RedPajamaBook", "RedPajamaC4"]
    for name in ("documents", "tokens", "bytes"):
        assert sum(source[name] for source in by_source.values()) == splits["train"][name]
    assert data.manifest()["tokenizer"]["specification"] == "bpe:300"


# -- WikiText ------------------------------------------------------------------------------------------------------

SPLITS = {"train": "train", "valid": "val", "test": "test"}  # as published, as ours


def small(path: Path, **settings: Any) -> WikiText:
    return WikiText(root=str(path.parent), source=str(path), version="2", **settings)


def test_wikitext_by_words_has_a_token_for_each_line(tmp_path: Path) -> None:
    data = prepared(small(write_wikitext(tmp_path / "wikitext-2")))
    articles, manifest = by_split(data.corpus()), data.manifest()
    for split, text in WIKITEXT.items():
        entry, words, lines = manifest["splits"][SPLITS[split]], len(text.split()), text.count("\n")
        assert (entry["tokens"], entry["words"]) == (words + lines, words)
        beginning, *rest = text.split(" = Title")
        assert articles[SPLITS[split]] == [f"{beginning} = Title{rest[0]}", *(f" = Title{part}" for part in rest[1:])]
        assert entry["documents"] == len(rest)
    assert manifest["vocab_size"] == len(set(WIKITEXT["train"].split())) + 1  # the end of a line; <unk> is a word
    split, tokenizer = data.prepared.split("train"), load_tokenizer(data.prepared_folder)
    assert tokenizer.decode(split["tokens"]).split() == WIKITEXT["train"].split()
    second = int(split["starts"][1])
    assert tokenizer.decode(split["tokens"][second : second + 5]).split() == ["=", "Title", "train", "1", "="]


def test_wikitext_may_end_every_line_that_is_not_blank(tmp_path: Path) -> None:
    """As code that takes lines for rows of a table (AnnanYu/mamba-bare, lindermanlab/S5)."""
    folder = write_wikitext(tmp_path / "wikitext-2")
    settings: dict[str, Any] = {"tokenizer": "bytes", "length": 48, "batch_size": 4}
    data, usual = small(folder, documents="line", **settings), small(folder, **settings)
    for made in (data, usual):
        prepared(made)
    assert data.prepared_folder != usual.prepared_folder
    for split, text in WIKITEXT.items():
        arrays, of_usual = data.prepared.split(SPLITS[split]), usual.prepared.split(SPLITS[split])
        tokens, starts = arrays["tokens"].tolist(), arrays["starts"].tolist()
        lines = [line for line in text.split("\n") if line.strip()]
        assert tokens == [token for line in lines for token in [*f"{line}\n".encode(), 256]]
        # documents stay articles: a state is dropped where one begins, at its first line
        assert of_usual["tokens"].tolist().count(256) == len(starts) == len(of_usual["starts"])
        assert starts[0] == 0 and all(tokens[start - 1] == 256 for start in starts[1:])
        assert data.text_counts(SPLITS[split]).words == usual.text_counts(SPLITS[split]).words
    batch = next(iter(data.test_dataloader()))
    assert batch.reset.sum() == 3 and (batch.inputs[batch.reset] == 256).all()


# Lines, as torchtext has them, and tokens by words with one for the end of each line: Merity et al. (2016), table 1.
PUBLISHED = {"val": (3_760, 217_646), "test": (4_358, 245_569)}


def test_real_wikitext(tmp_path: Path) -> None:
    """Sixty articles in either split, and the published numbers of lines and tokens."""
    for name in ("valid", "test"):
        shutil.copy(real_data(f"wikitext-2/{name}.txt"), tmp_path / f"wiki.{name}.tokens")
    (tmp_path / "wiki.train.tokens").write_text(WIKITEXT["train"])
    parts, lines = by_split(small(tmp_path).corpus()), small(tmp_path, documents="line", tokenizer="bytes").corpus()
    for split, name in (("val", "valid"), ("test", "test")):
        text = "".join(parts[split])
        assert text == real_data(f"wikitext-2/{name}.txt").read_text() and len(parts[split]) == 60
        assert all(article.lstrip("\n ").startswith("= ") for article in parts[split])
        assert (text.count("\n"), text.count("\n") + len(text.split())) == PUBLISHED[split]
    ended = [segment for each in lines for segment in each.read() if segment.split != "train"]
    assert len(ended) == 5352 and sum(segment.first for segment in ended) == 120
