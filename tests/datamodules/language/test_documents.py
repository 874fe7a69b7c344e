"""Where documents are cut, and which are held out."""

import random

import pytest

from lra_ssm.datamodules.language.documents import CUT, BadText, Reading, cut
from lra_ssm.datamodules.text import text_keys
from lra_ssm.errors import InputError
from tests.datamodules.language.corpora import small_sizes

PARTS = "a|b | c|\n|\n|\n|\r\n|\t|é|\u3000|\u2003|\xa0|\u2028|\x85|\x1c|漢|🙂".split("|")


def places(text: str) -> list[int]:
    """By the rule: behind a line's end with a character that is no whitespace on either side."""
    inside = range(1, len(text) - 1)
    return [i + 1 for i in inside if text[i] == "\n" and not text[i - 1].isspace() and not text[i + 1].isspace()]


def parts(data: bytes, begin: int = 0) -> list[bytes]:
    return [data[here:there] for here, there in cut(data, begin, len(data))]


@pytest.mark.parametrize("seed", range(10))
def test_cuts_follow_the_rule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    text = "".join(chance.choices(PARTS, k=400))
    data = text.encode()
    allowed = {len(text[:place].encode()) for place in places(text)}
    assert {found.end() for found in CUT.finditer(data)} == allowed
    most = chance.choice([8, 40, 100])
    small_sizes(monkeypatch, most)
    for first in (0, min(allowed)):
        expected, begin = [], first
        while len(data) - begin > most and (ahead := [place for place in allowed if place > begin]):
            near = [place for place in ahead if place - begin <= most]
            end = max(near) if near else min(ahead)
            expected.append(data[begin:end])
            begin = end
        assert parts(data, first) == [*expected, data[begin:]]


def test_a_document_that_cannot_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    small_sizes(monkeypatch, 10, most=50)
    assert parts(b"a\n" + b"x" * 50) == [b"a\n", b"x" * 50]
    with pytest.raises(BadText, match="^50 bytes of a document without a line that ends and begins without") as error:
        parts(b"a\n" + b"x" * 51 + b"\nb")
    assert error.value.offset == 2


def test_held_out_share() -> None:
    texts = [f"document {number}" for number in range(20_000)]
    small, large = Reading(seed=3, val_fraction=0.05, test_fraction=0.02), Reading(seed=3, val_fraction=0.1)
    splits = [small.split(text.encode()) for text in texts]
    for split, share in (("train", 0.93), ("val", 0.05), ("test", 0.02)):
        assert splits.count(split) / len(texts) == pytest.approx(share, abs=0.005)
    assert [split == "val" for split in splits] == (text_keys(texts, 3) < 0.05 * 2.0**64).tolist()
    assert all(large.split(text.encode()) == "val" for text, split in zip(texts, splits, strict=True) if split == "val")
    assert {Reading().split(text.encode()) for text in texts} == {"train"}
    for wrong in ((1.0, 0.0), (-0.1, 0.0), (0.5, 0.5)):
        with pytest.raises(InputError):
            Reading(val_fraction=wrong[0], test_fraction=wrong[1])
