"""A tokenizer.json: our tokens are the library's, special tokens in a text are text, nothing of it runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from lra_ssm.datamodules.language.tokenizer import SubwordTokenizer
from lra_ssm.datamodules.language.tokenizer_spec import load_tokenizer, parse_tokenizer, train_tokenizer
from lra_ssm.errors import InputError
from tests.datamodules.language.test_tokenizers import random_texts

END = "<|endoftext|>"
TEXTS = random_texts(3, 400, 60)


def library(content: dict) -> Tokenizer:
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.encode_special_tokens = True
    return tokenizer


@pytest.fixture(scope="module")
def bpe() -> dict:
    """A tokenizer.json as GPT-2 has it, of few words."""
    return json.loads(train_tokenizer(parse_tokenizer("bpe:500"), TEXTS).content())


@pytest.fixture(scope="module")
def neox(bpe) -> dict:
    """As GPT-NeoX has it: NFC, tokens of several spaces."""
    tokenizer = Tokenizer.from_str(json.dumps(bpe))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in (2, 3, 4)])
    return json.loads(tokenizer.to_str())


def word_level(*words: str, **added: bool) -> dict:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    content = json.loads(tokenizer.to_str())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **added}
    content["added_tokens"] = [{"id": 0, "content": words[0], **plain}]
    return content


def write(folder: Path, content: dict) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


def opened(content: dict, end_of_text: str | int | None = None) -> SubwordTokenizer:
    return SubwordTokenizer(json.dumps(content).encode(), end_of_text, "tokenizer.json")


@pytest.fixture(scope="module")
def other(bpe) -> dict:
    """One that puts a space before every text."""
    return {**bpe, "pre_tokenizer": {**bpe["pre_tokenizer"], "add_prefix_space": True}}


KINDS = pytest.mark.parametrize("kind", ["bpe", "neox", "other"])


@KINDS
def test_the_tokens_are_the_librarys(kind, request):
    content = request.getfixturevalue(kind)
    tokenizer = opened(content)
    texts = [*TEXTS, "don't they'll 'sup 'S we're!'s .'d can't1"]
    last = [number % 3 > 0 for number in range(len(texts))]
    ids = [encoding.ids for encoding in library(content).encode_batch(texts)]
    want = [found + [tokenizer.end_of_text] * ends for found, ends in zip(ids, last, strict=True)]
    encoded = tokenizer.encode(texts, last)
    assert encoded.tokens.tolist() == sum(want, []) and encoded.lengths.tolist() == [*map(len, want)]
    assert tokenizer.dtype == encoded.tokens.dtype == np.uint16 and encoded.lengths.dtype == np.int64


@KINDS
def test_no_text_forges_its_end(kind, request):
    tokenizer = opened(request.getfixturevalue(kind))
    encoded = tokenizer.encode([f"a{END}b", END], [False, True])
    assert encoded.tokens.tolist().count(tokenizer.end_of_text) == 1 and encoded.tokens[-1] == tokenizer.end_of_text
    assert tokenizer.decode(encoded.tokens).strip() == f"a{END}b{' ' if kind == 'other' else ''}{END}{END}"


def test_an_end_that_words_become_is_refused():
    """The unknown token, or one that the file calls no special token."""
    with pytest.raises(InputError, match=r"tokenizer\.json: makes its end-of-text '</s>' of a text"):
        opened(word_level("</s>", "a")).encode(["a new"], [True])


def unigram(*pieces: str, unknown: int = 0) -> dict:
    """As SentencePiece makes it: special tokens are pieces of the model, too, with the best score."""
    scores = [(piece, 0.0 if piece.startswith("<") else -float(number)) for number, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram(scores, unknown))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens([piece for piece in pieces if piece.startswith("<")])
    return json.loads(tokenizer.to_str())


PIECES = ("<unk>", "<s>", "</s>", "▁", "a", "s", "/", "▁a")


@pytest.mark.parametrize("angles", ["", "<>"])
def test_a_special_token_spelled_out_is_plain_text(angles):
    """A Unigram model, and a vocabulary of words, would find it by themselves."""
    tokenizer = opened(unigram(*PIECES, *(f"{angle}" for angle in angles.replace("<", "")), unknown=0), "</s>")
    text = "a</s>a <s>"
    encoded = tokenizer.encode([text], [True]).tokens.tolist()
    assert encoded[-1] == 2 and not {1, 2} & {*encoded[:-1]} and encoded[0] == PIECES.index("▁a")
    assert PIECES.index("/") in encoded and tokenizer.decode([1, 2]) == "<s></s>"
    words = opened(word_level("[UNK]", "</s>", "a"))
    assert words.encode(["a </s> a"], [True]).tokens.tolist() == [2, 0, 2, 1]


def test_the_unknown_token_of_a_unigram_model_is_noticed():
    tokenizer = opened(unigram(*PIECES), "</s>")
    assert tokenizer.unknown("a s é a") == ["é"] and tokenizer.unknown("as a") == []


def test_what_transformers_puts_before_a_text_is_known_and_not_in_documents(bpe):
    from tokenizers import processors

    tokenizer = Tokenizer.from_str(json.dumps(unigram(*PIECES)))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    ours = opened(json.loads(tokenizer.to_str()), "</s>")
    assert ours.prefix == (1,) and 1 not in ours.encode(["a"], [True]).tokens and opened(bpe).prefix == ()


def test_nothing_is_added_cut_or_padded(bpe):
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
               "pad_type_id": 0, "pad_token": END}  # fmt: skip
    dropout = {**bpe["model"], "dropout": 0.9}
    post = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": END, "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {END: {"id": END, "ids": [0], "tokens": [END]}}}  # fmt: skip
    changed = {**bpe, "truncation": truncation, "padding": padding, "model": dropout, "post_processor": post}
    text = "a better 1.09 text"
    assert opened(changed).encode([text], [False]).tokens.tolist() == library(bpe).encode(text).ids


@pytest.mark.parametrize(
    ("words", "config", "given", "want"),
    [
        (("[UNK]", "</s>", END), None, None, END),
        (("[UNK]", "</s>", "[SEP]"), None, None, "</s>"),
        (("[UNK]", "</s>", "x"), {"eos_token": "x"}, None, "x"),
        (("[UNK]", "</s>", "x"), {"eos_token": {"content": "x"}}, None, "x"),
        (("[UNK]", "</s>", "x"), {"eos_token": "</s>"}, "x", "x"),
        (("[UNK]", "</s>", "x"), None, 2, "x"),
    ],
)
def test_which_token_ends_a_text(words, config, given, want, tmp_path):
    write(tmp_path, word_level(*words))
    if config:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path, given)
    assert (tokenizer.end_of_text_name, tokenizer.end_of_text) == (want, words.index(want))


def test_what_a_vocabulary_lacks_is_told(bpe):
    words = SubwordTokenizer(json.dumps(word_level("[UNK]", "a", "</s>")).encode(), None, "x")
    assert words.unknown("a bé a [UNK] bé") == ["bé", "[UNK]"]
    assert SubwordTokenizer(json.dumps(bpe).encode(), None, "x").unknown("any é 🙂") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a tokenizer: not JSON"),
        ("[" * 100_000, "is not a tokenizer: not JSON"),
        ("\udcff", "is not a tokenizer: not JSON"),
        ("[1]", "is not a tokenizer: JSON, but not an object"),
        ("{}", "is not a tokenizer.json that `tokenizers` reads (Cannot instantiate Tokenizer from buffer"),
        ({"model": {"type": "Nope"}}, "is not a tokenizer.json that `tokenizers` reads"),
        ({"model": 3, "added_tokens": 3}, "is not a tokenizer.json that `tokenizers` reads"),
        (word_level("[UNK]", "a"), "which token ends a text is not known; give end_of_text; special are [UNK]"),
    ],
)  # fmt: skip
def test_what_is_no_tokenizer_is_refused_in_a_line(content, message, tmp_path):
    text = json.dumps(content) if isinstance(content, dict) else content
    (tmp_path / "tokenizer.json").write_text(text, errors="surrogateescape")
    with pytest.raises(InputError, match=re.escape(message)) as error:
        load_tokenizer(tmp_path / "tokenizer.json")
    assert "tokenizer.json: " in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("</S>", "end_of_text '</S>' is not one of its tokens; did you mean '</s>'?"),
        (9, "end_of_text 9 is not one of its tokens; special are </s>"),
    ],
)
def test_an_end_that_is_no_token_is_refused(given, message):
    with pytest.raises(InputError, match=re.escape(message)):
        opened(word_level("</s>", "a"), given)


def test_a_text_that_the_tokenizer_has_no_token_for_is_refused():
    content = word_level("</s>", "a")
    content["model"]["unk_token"] = "gone"
    with pytest.raises(InputError, match=r"tokenizer\.json: cannot encode a text \(.*gone|Missing"):
        opened(content).encode(["b"], [True])


def test_a_bpe_is_the_same_however_it_is_made(tmp_path):
    """With other numbers of threads, in other processes, whose strings have other hashes."""
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from lra_ssm.datamodules.language.tokenizer_spec import parse_tokenizer, train_tokenizer\n"
        "print(train_tokenizer(parse_tokenizer('bpe:500'), json.load(open('texts.json'))).digest)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parents[3])]
    digests = set()
    for number in "124":
        environment = {**os.environ, "RAYON_NUM_THREADS": number, "PYTHONHASHSEED": number}
        digests.add(subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True).stdout)
    assert len(digests) == 1


def test_a_bpe_has_all_bytes_an_end_and_at_most_so_many_tokens():
    tokenizer = train_tokenizer(parse_tokenizer("bpe:257"), ["abab"])
    assert (tokenizer.vocab_size, tokenizer.end_of_text, tokenizer.end_of_text_name) == (257, 0, END)
    assert tokenizer.decode(tokenizer.encode(["ß日\x00"], [False]).tokens) == "ß日\x00"
    assert train_tokenizer(parse_tokenizer("bpe:5000"), ["abab"]).vocab_size == 259  # ab, abab


@pytest.mark.network
def test_gpt2_itself():
    """Ids as GPT-2's own code (openai/gpt-2, src/encoder.py) gives them."""
    choice = parse_tokenizer("gpt2")
    choice.fetch()
    tokenizer = choice.open()
    assert (tokenizer.vocab_size, tokenizer.end_of_text, tokenizer.dtype) == (50257, 50256, np.uint16)
    assert tokenizer.encode(["Hello world"], [True]).tokens.tolist() == [15496, 995, 50256]
    own = Tokenizer.from_str(tokenizer.content().decode())
    own.encode_special_tokens = True
    assert tokenizer.encode(TEXTS, [False] * len(TEXTS)).tokens.tolist() == sum(
        (encoding.ids for encoding in own.encode_batch(TEXTS)), []
    )
