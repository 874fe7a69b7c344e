"""Where documents are cut, and which are held out."""

import random

import pytest

from lra_ssm.datamodules.language import documents
from lra_ssm.datamodules.language.documents import CUT, HeldOut, cut, key_of
from lra_ssm.datamodules.storage.selection import text_keys
from lra_ssm.errors import InputError
from tests.datamodules.language.corpora import small_sizes

PARTS = [
    "a",
    "b ",
    " c",
    "\n",
    "\n",
    "\n",
    "\r\n",
    "\t",
    "é",
    "\u3000",
    "\u2003",
    "\xa0",
    "\u2028",
    "\x85",
    "\x1c",
    "漢",
    "🙂",
]


def places(text: str) -> list[int]:
    """By the rule: behind a line's end with a character that is no whitespace on either side."""
    inside = range(1, len(text) - 1)
    return [i + 1 for i in inside if text[i] == "\n" and not text[i - 1].isspace() and not text[i + 1].isspace()]


def where(offset: int) -> str:
    return f"file:{offset}"


@pytest.mark.parametrize("seed", range(20))
def test_cuts_follow_the_rule_whatever_the_blocks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    text = "".join(chance.choices(PARTS, k=400))
    data = text.encode()
    allowed = {len(text[:place].encode()) for place in places(text)}
    assert {found.end() for found in CUT.finditer(data)} == allowed
    segment = chance.choice([8, 40, 100])
    small_sizes(monkeypatch, segment)
    expected, begin = [], 0
    while len(data) - begin > segment and (ahead := [place for place in allowed if place > begin]):
        near = [place for place in ahead if place - begin <= segment]
        end = max(near) if near else min(ahead)
        expected.append(data[begin:end])
        begin = end
    expected.append(data[begin:])
    for size in (1, 7, 64, 1 << 20):
        parts = list(cut([data[i : i + size] for i in range(0, len(data), size)], where))
        assert [part for part, _ in parts] == expected
        assert [last for _, last in parts] == [False] * (len(parts) - 1) + [True]


def test_a_document_longer_than_memory_should_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    small_sizes(monkeypatch, 10, most=50)
    assert [part for part, _ in cut([b"a\n", b"x" * 50], where)] == [b"a\n", b"x" * 50]
    for blocks in ([b"a\n" + b"x" * 51 + b"\nb"], [b"a\n", *[b"x"] * 200]):
        with pytest.raises(InputError, match="^file:2: a document longer than memory should hold: 50 bytes without"):
            list(cut(blocks, where))


def test_tokenizers_give_the_same_for_the_parts() -> None:
    """Of the parts at every place where a text may be cut, GPT-2's kind of tokenizer makes the whole's tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    splitter = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    text = "It's one.\nTwo, \n three!\n\nFour\nfive  \nsix\t7\n8\n'll\n" * 3 + "end"
    whole = [piece for piece, _ in splitter.pre_tokenize_str(text)]
    assert len(places(text)) >= 6
    for place in places(text):
        parts = splitter.pre_tokenize_str(text[:place]) + splitter.pre_tokenize_str(text[place:])
        assert [piece for piece, _ in parts] == whole


def test_held_out_share() -> None:
    assert key_of(b"a text", 3) == int(text_keys(["a text"], 3)[0])
    keys = [key_of(f"document {number}".encode(), 0) for number in range(20_000)]
    small, large = HeldOut(0.05, 0.02), HeldOut(0.1, 0.02)
    splits = [small.split(key) for key in keys]
    for split, share in (("train", 0.93), ("val", 0.05), ("test", 0.02)):
        assert splits.count(split) / len(keys) == pytest.approx(share, abs=0.005)
    more = [large.split(key) for key in keys]
    assert all(b == "val" for a, b in zip(splits, more, strict=True) if a == "val")
    assert {HeldOut().split(key) for key in (0, 2**64 - 1)} == {"train"}
    for wrong in ((1.0, 0.0), (-0.1, 0.0), (0.5, 0.5)):
        with pytest.raises(InputError):
            HeldOut(*wrong)


def test_sizes() -> None:
    assert documents.SEGMENT_BYTES == 1 << 20 and documents.MAX_SEGMENT_BYTES == documents.PIECE_BYTES == 64 << 20
