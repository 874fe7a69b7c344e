"""Tokenizers: published rules on texts small enough to do by hand; files of `tokenizers`; what a setting may name."""

import json
import pickle
import random
import re
from functools import cache
from unittest.mock import Mock

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from lra_ssm.datamodules.language.corpus import CUT
from lra_ssm.datamodules.language.tokenizer import ByteTokenizer, CharacterTokenizer, SubwordTokenizer, words_of
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
    ends = {"": [0], "\n": [0], "a": [3, 0], "a\n": [3, 0], "a\n\n": [3, 0, 0]}  # every text ends once
    assert {text: tokens(tokenizer, text) for text in ends} == ends
    assert tokens(tokenizer, "a\na", last=False) == [3, 0, 3]
    forged = made("words", "b a a <eos> <eos> <eos>")  # no <unk> in the texts: it comes last; no word ends a line
    assert words(forged) == ["<eos>", "a", "b", "<unk>"] and tokens(forged, "a <eos> c") == [2, 1, 4, 0]
    assert words_of(["a", "<unk>"]).unknown("a b\nc <unk> b <eos>") == ["b", "c", "<eos>"]
    wide = words_of([*(f"w{i}" for i in range(70_000)), "<unk>"])
    assert wide.dtype == np.uint32 and tokens(wide, "w69999 w0 no") == [70_000, 1, 70_001, 0]


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


@pytest.mark.parametrize("specification", ["bytes", "characters", "bpe:257"])
def test_halves_of_surrogate_pairs_are_refused(specification):
    with pytest.raises(InputError, match=r"the text holds U\+D83D, half of a surrogate pair"):
        made(specification, "a").encode(["a", json.loads('"a \\ud83d b"')], [True, True])


# -- what a setting may name -------------------------------------------------------------------------------------------


def test_specifications():
    for text, kind, trained in (("bytes", "bytes", False), ("words", "words", True), ("gpt2", "hub", False)):
        spec = parse_tokenizer(text)
        assert (spec.kind, spec.is_trained, spec.identity()) == (kind, trained, text)
    assert parse_tokenizer("bpe:016000").identity() == "bpe:16000" and parse_tokenizer("bpe:300").is_trained
    smallest = made("bpe:257", "abab")
    assert (smallest.vocab_size, smallest.end_of_text, smallest.end_of_text_name) == (257, 0, END)
    assert made("bpe:5000", "abab").vocab_size == 259  # ab, abab
    assert parse_tokenizer("EleutherAI/gpt-neox-20b@c292233c").kind == "hub"
    for text, message in {
        "byte": "tokenizer 'byte': did you mean 'bytes'?",
        **dict.fromkeys(
            ("bpe", "bpe:0", "bpe:1e4", "bpe:99999999"), "bpe:N has 257 (all bytes, end of text) to 16777216"
        ),
        **dict.fromkeys(("", "missing/tokenizer.json", "gpt2@"), "there is no such path; it must be bytes, characters"),
    }.items():
        with pytest.raises(InputError, match=re.escape(message)):
            parse_tokenizer(text)


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    return made("bpe:260", "abcab").save(folder)


def test_paths_are_identified_by_what_they_hold(saved, here):
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
        parse_tokenizer(str(here))


def test_without_a_network_only_the_hubs_cache_is_read(saved, tmp_path, monkeypatch):
    """It has a repository "me/own"."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("socket.getaddrinfo", Mock(side_effect=OSError("no network")))
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


# -- a tokenizer.json: our tokens are the library's, special tokens in a text are text ---------------------------------

END = "<|endoftext|>"
TEXTS = random_texts(3, 400, 60)


def library(content: dict) -> Tokenizer:
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.encode_special_tokens = True
    return tokenizer


@cache
def tokenizer_json(kind: str = "bpe") -> dict:
    """As GPT-2 has it, with few words; as GPT-NeoX: NFC, tokens of several spaces; with a space before every text."""
    if kind == "bpe":
        return json.loads(made("bpe:500", *TEXTS).content())
    if kind == "prefix space":
        content = tokenizer_json()
        return {**content, "pre_tokenizer": {**content["pre_tokenizer"], "add_prefix_space": True}}
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json()))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in (2, 3, 4)])
    return json.loads(tokenizer.to_str())


def word_level(*words: str) -> dict:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([words[0]])
    return json.loads(tokenizer.to_str())


def opened(content: dict, end_of_text: str | int | None = None) -> SubwordTokenizer:
    return SubwordTokenizer(json.dumps(content).encode(), end_of_text, "tokenizer.json")


@pytest.mark.parametrize("kind", ["bpe", "neox", "prefix space"])
def test_the_tokens_are_the_librarys_and_no_text_forges_its_end(kind):
    content = tokenizer_json(kind)
    tokenizer = opened(content)
    texts = [*TEXTS, "don't they'll 'sup 'S we're!'s .'d can't1"]
    last = [number % 3 > 0 for number in range(len(texts))]
    ids = [encoding.ids for encoding in library(content).encode_batch(texts)]
    want = [found + [tokenizer.end_of_text] * ends for found, ends in zip(ids, last, strict=True)]
    encoded = tokenizer.encode(texts, last)
    assert encoded.tokens.tolist() == sum(want, []) and encoded.lengths.tolist() == [*map(len, want)]
    assert tokenizer.dtype == encoded.tokens.dtype == np.uint16 and encoded.lengths.dtype == np.int64
    forged = tokenizer.encode([f"a{END}b", END], [False, True]).tokens
    assert forged.tolist().count(tokenizer.end_of_text) == 1 and forged[-1] == tokenizer.end_of_text
    assert tokenizer.decode(forged).strip() == f"a{END}b{' ' if kind == 'prefix space' else ''}{END}{END}"
    assert tokenizer.unknown("any é 🙂") == []


def test_nothing_is_added_cut_or_padded():
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json()))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    tokenizer.model.dropout = 0.9
    tokenizer.post_processor = processors.TemplateProcessing("$A " + END, None, [(END, 0)])
    tokens = opened(json.loads(tokenizer.to_str())).encode(["a better 1.09 text"], [False]).tokens
    assert tokens.tolist() == library(tokenizer_json()).encode("a better 1.09 text").ids


def test_a_unigram_model_with_a_token_before_every_text():
    """As SentencePiece makes it. transformers puts <s> before a text, a corpus does not."""
    scores = [(piece, -float(n)) for n, piece in enumerate(("<unk>", "<s>", "</s>", "▁", "a", "s", "▁a"))]
    tokenizer = Tokenizer(models.Unigram(scores, 0))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    ours = opened(json.loads(tokenizer.to_str()), "</s>")
    assert ours.prefix == (1,) and opened(tokenizer_json()).prefix == ()
    assert ours.encode(["as a"], [True]).tokens.tolist() == [6, 5, 6, 2]
    assert ours.unknown("a s é a") == ["é"] and ours.unknown("as a") == []


@pytest.mark.parametrize(
    ("words", "config", "given", "want"),
    [
        (("[UNK]", "</s>", END), None, None, END),
        (("[UNK]", "</s>", "x"), {"eos_token": "x"}, None, "x"),
        (("[UNK]", "</s>", "x"), {"eos_token": {"content": "x"}}, None, "x"),
        (("[UNK]", "</s>", "x"), {"eos_token": "</s>"}, "x", "x"),
        (("[UNK]", "</s>", "x"), None, 2, "x"),
    ],
)
def test_which_token_ends_a_text(words, config, given, want, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(word_level(*words)))
    if config:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path, given)
    assert (tokenizer.end_of_text_name, tokenizer.end_of_text) == (want, words.index(want))
    assert tokenizer.unknown("a bé") == ["a", "bé"]


def test_texts_that_become_the_end_or_no_token_are_refused():
    """The end may be the unknown token, or one that the file calls no special token."""
    with pytest.raises(InputError, match=r"tokenizer\.json: turns a text into its end-of-text '</s>'"):
        opened(word_level("</s>", "a")).encode(["a new"], [True])
    content = word_level("</s>", "a")
    content["model"]["unk_token"] = "gone"
    with pytest.raises(InputError, match=r"tokenizer\.json: cannot encode a text \("):
        opened(content).encode(["b"], [True])


@pytest.mark.parametrize(
    ("content", "given", "message"),
    [
        ({"kind": "words"}, None, "is not a saved vocabulary of bytes or characters"),
        ({"kind": "characters", "tokens": ["ab"]}, None, "is not a saved vocabulary of bytes or characters"),
        ("\udcff", None, "is not a tokenizer: not JSON"),
        ("[1]", None, "is not a tokenizer: JSON, but not an object"),
        ('{"model": 3}', None, "is not a tokenizer.json that `tokenizers` reads"),
        (word_level("[UNK]", "a"), None, "which token ends a text is not known; give end_of_text; special are [UNK]"),
        (word_level("</s>", "a"), "</S>", "end_of_text '</S>' is not one of its tokens; did you mean '</s>'?"),
        (word_level("</s>", "a"), 9, "end_of_text 9 is not one of its tokens; special are </s>"),
    ],
)
def test_what_is_not_a_tokenizer_is_refused_in_a_line(content, given, message, tmp_path):
    text = json.dumps(content) if isinstance(content, dict) else content
    (tmp_path / "tokenizer.json").write_text(text, errors="surrogateescape")
    with pytest.raises(InputError, match=re.escape(message)) as error:
        load_tokenizer(tmp_path / "tokenizer.json", given)
    assert "tokenizer.json: " in str(error.value) and len(str(error.value)) < 400


@pytest.mark.network
def test_gpt2_itself():
    """Ids as GPT-2's own code (openai/gpt-2, src/encoder.py) gives them."""
    spec = parse_tokenizer("gpt2")
    spec.fetch()
    tokenizer = spec.open()
    assert (tokenizer.vocab_size, tokenizer.end_of_text, tokenizer.dtype) == (50257, 50256, np.uint16)
    assert tokenizer.encode(["Hello world"], [True]).tokens.tolist() == [15496, 995, 50256]
