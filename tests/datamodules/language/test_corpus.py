"""Documents: what they are in plain text, where they are cut, which are held out."""

import io
import random
import re

import pytest

from lra_ssm.datamodules.language import corpus
from lra_ssm.datamodules.language.corpus import CUT, Document, ReadOptions, cut, read_text, segments
from lra_ssm.datamodules.text import text_keys
from lra_ssm.errors import InputError
from tests.datamodules.language.helpers import joined

CHARACTERS = "a|b | c|\n|\n|\n|\r\n|\t|é|\u3000|\u2003|\xa0|\u2028|\x85|\x1c|漢|🙂".split("|")
PARTS = ["one", " two", "three ", "\n", "\n", "\n\n", "\n  \n", "\r\n", "\r\n\r\n", "\t", "é\n漢", "\n\n\n\n", "x" * 30]
HEADINGS = ["\n \n = Title = \n \n", "\n \n = = Section = = \n \n", "\n = not a heading = \n"]


def documents(data: str | bytes, mode: corpus.Documents, **options) -> list[str]:
    file = io.BytesIO(data.encode() if isinstance(data, str) else data)
    return [whole.text for whole in joined(segments(read_text(file, "a.txt", mode, "train"), ReadOptions(**options)))]


def articles(text: str) -> list[str]:
    """Line by line: a first-level heading between blank lines begins one."""
    lines, found = text.splitlines(keepends=True), [""]
    for before, line, after in zip(["x", *lines], lines, [*lines[1:], "x"], strict=False):
        heading = line.startswith(" = ") and not line.startswith(" = = ") and line.endswith(" = \n")
        if heading and not before.strip() and after.endswith("\n") and not after.strip():
            found.append("")
        found[-1] += line
    return found


@pytest.mark.parametrize("seed", range(4))
def test_plain_text_is_divided_into_documents(seed, monkeypatch):
    more = [*PARTS, *HEADINGS, "long " * 200, "line\n" * 100]
    text = "begins " + "".join(random.Random(seed).choices(more, k=150))
    paragraphs = re.split(r"\n(?:[ \t\r\f\v]*\n)+", re.sub(r"\A(?:[ \t\r\f\v]*\n)+", "", text))
    expected = {
        "file": [text],
        "line": [line.rstrip("\r") for line in text.split("\n") if line.strip()],
        "article": articles(text),
        "paragraph": [part.strip("\r\n") for part in paragraphs if part.strip()],
        "endoftext": [text.strip("\r\n")],
    }
    for size in (corpus.TEXT_SIZE, 100):  # long documents come in several segments
        monkeypatch.setattr(corpus, "TEXT_SIZE", size)
        for mode, wanted in expected.items():
            assert documents(text, mode) == wanted, mode


def test_a_separator_ends_a_document(caplog):
    """TinyStories has it on lines of its own, others in a line."""
    text = "One.\nMore.\n<|endoftext|>\n\nTwo.\n<|endoftext|>\n<|endoftext|>\nThree.<|endoftext|>Four."
    assert documents(text, "endoftext") == ["One.\nMore.", "Two.", "Three.", "Four."]
    assert not caplog.records
    for mode in ("file", "line", "paragraph"):
        corpus._warn_of_separators.cache_clear()
        caplog.clear()
        assert any("<|endoftext|>" in document for document in documents(text, mode))
        assert len(caplog.records) == 1 and f"documents={mode}; documents=endoftext ends a document" in caplog.text


def test_marks_line_ends_and_empty_documents():
    data = b"\xef\xbb\xbfone\r\ntwo\r\n"
    assert documents(data, "file") == ["one\r\ntwo\r\n"] and documents(data, "line") == ["one", "two"]
    for data in (b"", b" \n\n", b"\xef\xbb\xbf"):
        with pytest.raises(InputError, match=r"^a\.txt:1: an empty document; use empty_documents=skip to pass over it"):
            documents(data, "file")
        assert documents(data, "file", empty_documents="skip") == []
        assert documents(data, "line") == documents(data, "endoftext") == []


@pytest.mark.parametrize("mode", ["file", "line", "paragraph", "article", "endoftext"])
def test_text_that_is_not_utf8_is_named_by_its_line(mode):
    for data, where in (("é\n\n".encode() * 40 + b"good\nab\xffcd\n\nx", "82.*0xff"), (b"cut \xe6\xbc", "1.*0xe6")):
        with pytest.raises(InputError, match=rf"^a\.txt:{where.replace('.*', ': is not UTF-8 .byte ')}"):
            documents(data, mode)


@pytest.mark.parametrize("seed", range(6))
def test_cuts_follow_the_rule(seed, monkeypatch):
    """After the end of a line with a character that is not white space on either side."""
    chance = random.Random(seed)
    text = "".join(chance.choices(CHARACTERS, k=400))
    inside = range(1, len(text) - 1)
    allowed = {i + 1 for i in inside if text[i] == "\n" and not (text[i - 1].isspace() or text[i + 1].isspace())}
    assert {found.end() for found in CUT.finditer(text)} == allowed
    size = chance.choice([8, 40, 100])
    monkeypatch.setattr(corpus, "TEXT_SIZE", size)
    expected, begin = [], 0
    while len(text) - begin > size and (ahead := [place for place in allowed if place > begin]):
        near = [place for place in ahead if place - begin <= size]
        end = max(near) if near else min(ahead)
        expected.append(text[begin:end])
        begin = end
    assert list(cut(text)) == [*expected, text[begin:]]
    assert list(cut("a\n" + "x" * 250)) == ["a\n", "x" * 250] and list(cut("word " * 50)) == ["word " * 50]


def test_every_line_may_end():
    odd = " \n = T = \n \n a\u2028b\x85c\x0bd \n \n e \n"  # what str.splitlines takes for ends of lines
    found = list(segments([Document(odd, "x", "train")], ReadOptions("article", end_lines=True)))
    assert [each.text for each in found] == [" = T = \n", " a\u2028b\x85c\x0bd \n", " e \n"]
    assert [each.first for each in found] == [True, False, False] and all(each.last for each in found)


def test_held_out_share():
    texts = [f"document {number}" for number in range(20_000)]
    small = ReadOptions(split_seed=3, val_fraction=0.05, test_fraction=0.02)
    large = ReadOptions(split_seed=3, val_fraction=0.1)
    splits = [small.split(text) for text in texts]
    for split, share in (("train", 0.93), ("val", 0.05), ("test", 0.02)):
        assert splits.count(split) / len(texts) == pytest.approx(share, abs=0.005)
    assert [split == "val" for split in splits] == (text_keys(texts, 3) < 0.05 * 2.0**64).tolist()
    assert all(large.split(text) == "val" for text, split in zip(texts, splits, strict=True) if split == "val")
    for val, test in ((1.0, 0.0), (-0.1, 0.0), (0.5, 0.5)):
        with pytest.raises(InputError):
            ReadOptions(val_fraction=val, test_fraction=test)
