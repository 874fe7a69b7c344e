"""Bytes, characters and words: published rules on texts small enough to do by hand; what a setting may name."""

import json
import pickle
import random
import re

import numpy as np
import pytest

from lra_ssm.datamodules.language.corpus import CUT
from lra_ssm.datamodules.language.tokenizer import ByteTokenizer, CharacterTokenizer, words_of
from lra_ssm.datamodules.language.tokenizer_spec import load_tokenizer, parse_tokenizer, train_tokenizer
from lra_ssm.errors import InputError

ODD = ["", "größe\r\n", "日本\u3000語", "\x00\x1c\x85", "e\u0301\u0338", "\U0010ffff", "  \n\n\t x ", "\ufeff|<eos>|"]
ALPHABET = list("abstmdrevl'SL  \n\n\r\t09.,!_\x1c\x85\xa0éßñ²Ⅷ٣日\u0301\u0338\u2009ſ’😀")
KINDS = ["bytes", "characters", "words", "bpe:400"]


def random_texts(seed: int, count: int, longest: int) -> list[str]:
    drawn = random.Random(seed)
    return ["".join(drawn.choices(ALPHABET, k=drawn.randint(0, longest))) for _ in range(count)]


def tokens(tokenizer, *texts: str, last: bool = True) -> list[int]:
    return tokenizer.encode(texts, [last] * len(texts)).tokens.tolist()


def made(specification: str, *texts: str):
    spec = parse_tokenizer(specification)
    return train_tokenizer(spec, texts) if spec.is_trained else spec.open()


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
    assert tokenizer.decode([97, 0xC3, 256, 0x9F, 98]) == "a\ufffd<eos>\ufffdb" and tokenizer.unknown("any 🙂") == []


def test_characters_are_ordered_by_frequency_then_code_point():
    tokenizer = made("characters", "bbaac", "", "\U0001f3acaa\n")
    assert tokenizer.characters == ("a", "b", "\n", "c", "\U0001f3ac")
    assert (tokenizer.vocab_size, tokenizer.end_of_text, tokenizer.dtype) == (7, 0, np.uint8)
    assert tokens(tokenizer, "ab?", "\U0001f3ac") == [2, 3, 1, 0, 6, 0]
    assert tokenizer.decode([2, 3, 1, 0, 6]) == "ab<unk><eos>\U0001f3ac"
    assert CharacterTokenizer("ab ").unknown("a bc dca") == ["c", "d"]
    assert made("characters", "ab").digest == made("characters", "b", "a").digest != made("characters", "a").digest


def test_words_are_those_of_the_public_code():
    """state-spaces/s4 and transformer-xl: `<eos>` first and for every line, then by falling frequency, ties as met."""
    tokenizer = made("words", " = A = \n\n the a the \n", "a <unk> b The\n")
    assert words(tokenizer) == ["=", "the", "a", "A", "<unk>", "b", "The"]
    assert tokens(tokenizer, " = A = \n\n the a the \n") == [1, 4, 1, 0, 0, 2, 3, 2, 0]
    assert tokens(tokenizer, "the  new\r\n") == tokens(tokenizer, "the new") == [2, 5, 0]
    assert tokenizer.decode([1, 4, 1, 0, 0, 2, 3, 0, 0, 0, 2]) == "= A =\n\nthe a\n\n\nthe"
    forged = made("words", "b a a <eos> <eos> <eos>")  # no <unk> in the texts: it comes last; no word ends a line
    assert words(forged) == ["<eos>", "a", "b", "<unk>"] and tokens(forged, "a <eos> c") == [2, 1, 4, 0]
    assert words_of(["a", "<unk>"]).unknown("a b\nc <unk> b <eos>") == ["b", "c", "<eos>"]


def test_every_text_of_words_ends_once():
    tokenizer = made("words", "a")
    for text, want in (("", [0]), ("\n", [0]), ("a", [1, 0]), ("a\n", [1, 0]), ("a\n\n", [1, 0, 0])):
        assert tokens(tokenizer, text) == want
    assert tokens(tokenizer, "a\na", last=False) == [1, 0, 1]


def test_wide_vocabularies():
    tokenizer = words_of([*(f"w{i}" for i in range(70_000)), "<unk>"])
    assert tokenizer.dtype == np.uint32 and tokens(tokenizer, "w69999 w0 no") == [70_000, 1, 70_001, 0]


@pytest.mark.parametrize("specification", KINDS)
def test_cut_saved_and_decoded(specification, tmp_path):
    """Where the readers cut documents, the tokens of the parts are those of the whole."""
    texts = [*ODD, *random_texts(1, 300, 60)]
    tokenizer, cut = made(specification, *texts), 0
    for text in texts:
        places = [0, *(match.end() for match in CUT.finditer(text)), len(text)]
        parts = [text[begin:end] for begin, end in zip(places[:-1], places[1:], strict=True)]
        encoded = tokenizer.encode(parts, [False] * (len(parts) - 1) + [True])
        assert encoded.tokens.tolist() == tokens(tokenizer, text)
        cut += len(parts) - 1
        assert specification == "words" or tokenizer.decode(tokens(tokenizer, text, last=False)) == text
    assert cut > 100
    want = tokens(tokenizer, *texts, "never seen")
    path = tokenizer.save(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [tokenizer.file] == [path.name]
    for other in (load_tokenizer(path), load_tokenizer(tmp_path), pickle.loads(pickle.dumps(tokenizer))):
        assert type(other) is type(tokenizer) and tokens(other, *texts, "never seen") == want
        assert (other.digest, other.end_of_text) == (tokenizer.digest, tokenizer.end_of_text)


@pytest.mark.parametrize("content", ['{"kind": "words"}', '{"kind": "characters", "tokens": ["ab"]}', '{"kind": "x"}'])
def test_damaged_vocabularies_are_refused(content, tmp_path):
    (tmp_path / "vocabulary.json").write_text(content)
    with pytest.raises(InputError, match=r"vocabulary\.json: is not a saved vocabulary of bytes or characters"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("specification", ["bytes", "characters", "bpe:257"])
def test_halves_of_surrogate_pairs_are_refused(specification):
    with pytest.raises(InputError, match=r"the text holds U\+D83D, half of a surrogate pair"):
        made(specification, "a").encode(["a", json.loads('"a \\ud83d b"')], [True, True])


# -- what a setting may name -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "trained", "identity"),
    [
        ("bytes", "bytes", False, "bytes"),
        ("words", "words", True, "words"),
        ("bpe:016000", "bpe", True, "bpe:16000"),
        ("gpt2", "hub", False, "gpt2"),
        ("EleutherAI/gpt-neox-20b@c292233c", "hub", False, "EleutherAI/gpt-neox-20b@c292233c"),
    ],
)
def test_specifications(text, kind, trained, identity):
    spec = parse_tokenizer(text)
    assert (spec.kind, spec.is_trained, spec.identity()) == (kind, trained, identity)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("byte", "tokenizer 'byte': did you mean 'bytes'?"),
        ("bpe", "tokenizer 'bpe': bpe:N has 257 (all bytes, end of text) to 16777216 tokens"),
        ("bpe:0", "bpe:N has 257"),
        ("bpe:1e4", "bpe:N has 257"),
        ("bpe:99999999", "bpe:N has 257"),
        ("", "there is no such path; it must be bytes, characters, words, bpe:16000, a tokenizer.json"),
        ("missing/tokenizer.json", "there is no such path"),
        ("gpt2@", "there is no such path"),
    ],
)
def test_wrong_specifications(text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parse_tokenizer(text)


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    return made("bpe:260", "abcab").save(folder)


def test_paths_are_identified_by_what_they_hold(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    specs = [parse_tokenizer(text) for text in (str(saved), str(saved.parent), "own", "./own/tokenizer.json")]
    identities = {spec.identity() for spec in specs}
    assert len(identities) == 1 and identities.pop().startswith("sha256:")
    assert {spec.open().digest for spec in specs} == {specs[0].open().digest}
    config = {"eos_token": "a", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}  # code that is not run
    (saved.parent / "tokenizer_config.json").write_text(json.dumps(config))
    (saved.parent / "evil.py").write_text("raise SystemExit('run')")
    assert parse_tokenizer("own").open().end_of_text_name == "a"
    before = parse_tokenizer("own").identity()
    saved.write_text(saved.read_text() + " ")
    assert parse_tokenizer("own").identity() != before
    with pytest.raises(InputError, match=r"has no tokenizer\.json, the form of tokenizer that runs no code"):
        parse_tokenizer(str(tmp_path))


def _no_network(*_, **__):
    raise OSError("no network")


def test_without_a_network_only_the_hubs_cache_is_read(saved, tmp_path, monkeypatch):
    """It has a repository "me/own"."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("socket.getaddrinfo", _no_network)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the hub's own tries
    saved.with_name("tokenizer_config.json").write_text(json.dumps({"eos_token": "a"}))
    repository = tmp_path / "models--me--own"
    (repository / "snapshots").mkdir(parents=True)
    saved.parent.rename(repository / "snapshots/0123")
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("0123")
    parse_tokenizer("me/own").fetch()
    tokenizer = parse_tokenizer("me/own@main").open()
    assert tokenizer.vocab_size == 260 and tokenizer.end_of_text_name == "a"
    with pytest.raises(InputError, match=r"tokenizer gpt2: its tokenizer.json cannot be .* hub \(.*connection"):
        parse_tokenizer("gpt2").fetch()
    with pytest.raises(InputError, match=r"tokenizer gpt2: the hub's cache has no tokenizer.json of it; `lra-ssm prep"):
        parse_tokenizer("gpt2").open()
