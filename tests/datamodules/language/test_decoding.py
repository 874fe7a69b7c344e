"""Tokens that come one by one give the text that all give together, in whole characters."""

import pytest

from lra_ssm.datamodules.language.decoding import TextStream
from lra_ssm.datamodules.language.tokenizers import ByteTokenizer, CharacterTokenizer, WordTokenizer
from tests.datamodules.language.test_tokenizers import made

TEXT = "Naïve  words,\n\nand “more” 🙂 of\tthem: 東京 🏳️‍🌈!"
KINDS = {
    "bytes": ByteTokenizer(),
    "characters": CharacterTokenizer(sorted({*TEXT})),
    "words": WordTokenizer([*dict.fromkeys(TEXT.split()), "<unk>"]),
    "bpe": made("bpe:270", TEXT),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [0, 1, 5])
def test_pieces_are_whole_characters_and_make_the_text(kind, cut):
    tokenizer = KINDS[kind]
    ids = tokenizer.encode([TEXT], [False]).tokens.tolist()
    stream = TextStream(tokenizer, ids[:cut])
    pieces = [stream.add(token) for token in ids[cut:]]
    assert stream.rest() == ""
    assert tokenizer.decode(ids[:cut]) + "".join(pieces) == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)
    if kind == "bytes" and not cut:
        assert pieces[2:4] == ["", "ï"] and "東" in pieces


def test_what_is_no_character_is_shown_once_that_is_certain():
    stream = TextStream(ByteTokenizer(), [65])
    assert [stream.add(token) for token in (0xE2, 0x82, 66, 0xFF, 67, 0xE2)] == ["", "", "\ufffdB", "", "\ufffdC", ""]
    assert stream.rest() == "\ufffd" and stream.rest() == ""


def test_a_token_costs_the_same_however_long_the_text_is():
    class Counting(ByteTokenizer):
        most = 0

        def decode(self, ids):
            self.most = max(self.most, len(ids))
            return super().decode(ids)

    tokenizer = Counting()
    stream = TextStream(tokenizer)
    for token in "some € text ".encode() * 100:
        stream.add(token)
    assert tokenizer.most < 8
