"""Bytes, characters and words: published rules on texts small enough to do by hand; what is saved, loaded, refused."""

import json
import pickle
import random

import numpy as np
import pytest

from lra_ssm.datamodules.language.corpus import CUT
from lra_ssm.datamodules.language.tokenizer import ByteTokenizer, CharacterTokenizer, words_of
from lra_ssm.datamodules.language.tokenizer_spec import load_tokenizer, parse_tokenizer, train_tokenizer
from lra_ssm.errors import InputError

ODD = [
    "",
    "a",
    "größe\r\n",
    "日本\u3000語",
    "\x00\x1c\x85",
    "e\u0301\u0338",
    "👩‍👩‍👧 \U0010ffff",
    "  \n\n\t x ",
    "\ufeff|<eos>|",
]
ALPHABET = list("abstmdrevl'SL  \n\n\r\t09.,!_\x1c\x85\xa0éßñ²Ⅷ٣日\u0301\u0338\u2009ſ’😀")


def random_texts(seed: int, count: int, longest: int) -> list[str]:
    drawn = random.Random(seed)
    return ["".join(drawn.choices(ALPHABET, k=drawn.randint(0, longest))) for _ in range(count)]


def tokens(tokenizer, *texts: str, last: bool = True) -> list[int]:
    return tokenizer.encode(texts, [last] * len(texts)).tokens.tolist()


def made(specification: str, *texts: str):
    return train_tokenizer(parse_tokenizer(specification), texts)


def words(tokenizer) -> list[str]:
    """In the order of their ids, which begin at 1."""
    vocabulary = json.loads(tokenizer.content())["model"]["vocab"]
    assert vocabulary["\n"] == 0
    return sorted(vocabulary, key=vocabulary.get)[1:]


def test_bytes():
    tokenizer = ByteTokenizer()
    assert (tokenizer.vocab_size, tokenizer.end_of_text, tokenizer.dtype) == (257, 256, np.uint16)
    encoded = tokenizer.encode(["a", "", "ß", "b"], [True, True, False, True])
    assert encoded.tokens.tolist() == [97, 256, 256, 0xC3, 0x9F, 98, 256] and encoded.tokens.dtype == np.uint16
    assert encoded.lengths.tolist() == [2, 1, 2, 2] and encoded.lengths.dtype == np.int64
    assert tokenizer.decode([97, 0xC3, 256, 0x9F, 98]) == "a\ufffd<eos>\ufffdb"


def test_characters_are_ordered_by_frequency_then_code_point():
    tokenizer = made("characters", "bbaac", "", "\U0001f3acaa\n")
    assert tokenizer.characters == ("a", "b", "\n", "c", "\U0001f3ac")
    assert (tokenizer.vocab_size, tokenizer.end_of_text, tokenizer.dtype) == (7, 0, np.uint8)
    assert tokens(tokenizer, "ab?", "\U0001f3ac") == [2, 3, 1, 0, 6, 0]
    assert tokenizer.decode([2, 3, 1, 0, 6]) == "ab<unk><eos>\U0001f3ac"


def test_words_as_the_public_code_has_them():
    """state-spaces/s4 and transformer-xl: `<eos>` first and for every line, then by falling frequency, ties as met."""
    tokenizer = made("words", " = A = \n\n the a the \n", "a <unk> b The\n")
    assert words(tokenizer) == ["=", "the", "a", "A", "<unk>", "b", "The"]
    assert tokens(tokenizer, " = A = \n\n the a the \n") == [1, 4, 1, 0, 0, 2, 3, 2, 0]
    assert tokens(tokenizer, "the  new\r\n") == tokens(tokenizer, "the new") == [2, 5, 0]
    assert tokenizer.decode([1, 4, 1, 0, 0, 2, 3, 0, 0, 0, 2]) == "= A =\n\nthe a\n\n\nthe"


def test_words_without_an_unknown_one_get_it_last_and_none_forges_a_line_end():
    tokenizer = made("words", "b a a <eos> <eos> <eos>")
    assert words(tokenizer) == ["<eos>", "a", "b", "<unk>"]
    assert tokens(tokenizer, "a <eos> c") == [2, 1, 4, 0]


@pytest.mark.parametrize(
    ("text", "want"), [("", [0]), ("\n", [0]), ("a", [1, 0]), ("a\n", [1, 0]), ("a\n\n", [1, 0, 0])]
)
def test_every_text_of_words_ends(text, want):
    assert tokens(made("words", "a"), text) == want


def test_a_line_of_words_that_goes_on_does_not_end():
    assert tokens(made("words", "a"), "a\na", last=False) == [1, 0, 1]


def test_wide_vocabularies():
    words = [f"w{i}" for i in range(70_000)]
    tokenizer = words_of([*words, "<unk>"])
    assert tokenizer.dtype == np.uint32 and tokens(tokenizer, "w69999 w0 no") == [70_000, 1, 70_001, 0]


@pytest.mark.parametrize("specification", ["bytes", "characters", "bpe:300"])
def test_odd_texts_come_back(specification):
    texts = [*ODD, *random_texts(0, 50, 40)]
    tokenizer = ByteTokenizer() if specification == "bytes" else made(specification, *texts)
    for text in texts:
        assert tokenizer.decode(tokens(tokenizer, text, last=False)) == text


@pytest.mark.parametrize("specification", ["bytes", "characters", "words", "bpe:400"])
def test_texts_are_cut_without_a_change(specification):
    """Where the readers cut documents, the tokens of the parts are those of the whole."""
    texts = random_texts(1, 300, 60)
    tokenizer = ByteTokenizer() if specification == "bytes" else made(specification, *texts)
    cut = 0
    for text in texts:
        places = [0, *(match.end() for match in CUT.finditer(text)), len(text)]
        parts = [text[begin:end] for begin, end in zip(places[:-1], places[1:], strict=True)]
        encoded = tokenizer.encode(parts, [False] * (len(parts) - 1) + [True])
        assert encoded.tokens.tolist() == tokens(tokenizer, text)
        cut += len(parts) - 1
    assert cut > 100


@pytest.mark.parametrize("specification", ["bytes", "characters", "words", "bpe:400"])
def test_saved_loaded_pickled(specification, tmp_path):
    texts = random_texts(2, 50, 40)
    tokenizer = ByteTokenizer() if specification == "bytes" else made(specification, *texts)
    want = tokens(tokenizer, *texts, "never seen")
    path = tokenizer.save(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [tokenizer.file] == [path.name]
    for other in (load_tokenizer(path), load_tokenizer(tmp_path), pickle.loads(pickle.dumps(tokenizer))):
        assert type(other) is type(tokenizer) and tokens(other, *texts, "never seen") == want
        assert (other.digest, other.end_of_text, other.vocab_size) == (
            tokenizer.digest, tokenizer.end_of_text, tokenizer.vocab_size
        )  # fmt: skip


def test_another_vocabulary_has_another_digest():
    assert made("words", "a b").digest != made("words", "b a").digest
    assert made("characters", "ab").digest == made("characters", "b", "a").digest


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"kind": "words"}', '{"kind": "characters", "tokens": ["ab"]}', '{"kind": "x"}']
)  # fmt: skip
def test_damaged_vocabularies_are_refused(content, tmp_path):
    (tmp_path / "vocabulary.json").write_text(content)
    with pytest.raises(InputError, match=r"vocabulary\.json: is not a "):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharacterTokenizer("a"), made("bpe:257", "a")])
def test_halves_of_surrogate_pairs_are_refused(tokenizer):
    with pytest.raises(InputError, match=r"the text holds U\+D83D, half of a surrogate pair"):
        tokenizer.encode(["a", json.loads('"a \\ud83d b"')], [True, True])


def test_what_a_vocabulary_lacks_is_told():
    assert ByteTokenizer().unknown("any 🙂") == []
    assert CharacterTokenizer("ab ").unknown("a bc dca") == ["c", "d"]
    assert words_of(["a", "<unk>"]).unknown("a b\nc <unk> b <eos>") == ["b", "c", "<eos>"]
