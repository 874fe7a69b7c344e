"""A tokenizer.json: our tokens are the library's, special tokens in a text are text, nothing of it runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

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
    """A tokenizer.json as GPT-2 has it, with few words."""
    return json.loads(train_tokenizer(parse_tokenizer("bpe:500"), TEXTS).content())


@pytest.fixture(scope="module")
def neox(bpe) -> dict:
    """As GPT-NeoX has it: NFC, tokens of several spaces."""
    tokenizer = Tokenizer.from_str(json.dumps(bpe))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in (2, 3, 4)])
    return json.loads(tokenizer.to_str())


@pytest.fixture(scope="module")
def other(bpe) -> dict:
    """One that puts a space before every text."""
    return {**bpe, "pre_tokenizer": {**bpe["pre_tokenizer"], "add_prefix_space": True}}


def word_level(*words: str) -> dict:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([words[0]])
    return json.loads(tokenizer.to_str())


def opened(content: dict, end_of_text: str | int | None = None) -> SubwordTokenizer:
    return SubwordTokenizer(json.dumps(content).encode(), end_of_text, "tokenizer.json")


@pytest.mark.parametrize("kind", ["bpe", "neox", "other"])
def test_the_tokens_are_the_librarys_and_no_text_forges_its_end(kind, request):
    content = request.getfixturevalue(kind)
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
    assert tokenizer.decode(forged).strip() == f"a{END}b{' ' if kind == 'other' else ''}{END}{END}"
    assert tokenizer.unknown("any é 🙂") == []


def test_nothing_is_added_cut_or_padded(bpe):
    tokenizer = Tokenizer.from_str(json.dumps(bpe))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    tokenizer.model.dropout = 0.9
    tokenizer.post_processor = processors.TemplateProcessing("$A " + END, None, [(END, 0)])
    tokens = opened(json.loads(tokenizer.to_str())).encode(["a better 1.09 text"], [False]).tokens
    assert tokens.tolist() == library(bpe).encode("a better 1.09 text").ids


def test_a_unigram_model_with_a_token_before_every_text(bpe):
    """As SentencePiece makes it. transformers puts <s> before a text, a corpus does not."""
    scores = [(piece, -float(n)) for n, piece in enumerate(("<unk>", "<s>", "</s>", "▁", "a", "s", "▁a"))]
    tokenizer = Tokenizer(models.Unigram(scores, 0))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    ours = opened(json.loads(tokenizer.to_str()), "</s>")
    assert ours.prefix == (1,) and opened(bpe).prefix == ()
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
        ("{", None, "is not a tokenizer: not JSON"),
        ("[" * 100_000, None, "is not a tokenizer: not JSON"),
        ("\udcff", None, "is not a tokenizer: not JSON"),
        ("[1]", None, "is not a tokenizer: JSON, but not an object"),
        ("{}", None, "is not a tokenizer.json that `tokenizers` reads (Cannot instantiate Tokenizer from buffer"),
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
    for number in "14":
        environment = {**os.environ, "RAYON_NUM_THREADS": number, "PYTHONHASHSEED": number}
        digests.add(subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True).stdout)
    assert len(digests) == 1


def test_a_bpe_has_all_bytes_an_end_and_at_most_so_many_tokens():
    tokenizer = train_tokenizer(parse_tokenizer("bpe:257"), ["abab"])
    assert (tokenizer.vocab_size, tokenizer.end_of_text, tokenizer.end_of_text_name) == (257, 0, END)
    assert train_tokenizer(parse_tokenizer("bpe:5000"), ["abab"]).vocab_size == 259  # ab, abab


@pytest.mark.network
def test_gpt2_itself():
    """Ids as GPT-2's own code (openai/gpt-2, src/encoder.py) gives them."""
    spec = parse_tokenizer("gpt2")
    spec.fetch()
    tokenizer = spec.open()
    assert (tokenizer.vocab_size, tokenizer.end_of_text, tokenizer.dtype) == (50257, 50256, np.uint16)
    assert tokenizer.encode(["Hello world"], [True]).tokens.tolist() == [15496, 995, 50256]
