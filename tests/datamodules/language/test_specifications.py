"""What a user may say for a tokenizer, and what is answered to the rest."""

import json
import pickle
import re
import time

import pytest

from lra_ssm.datamodules.language.specifications import parse_tokenizer
from lra_ssm.datamodules.language.tokenizers import ByteTokenizer
from lra_ssm.datamodules.language.vocabularies import train_tokenizer
from lra_ssm.errors import InputError


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    return train_tokenizer(parse_tokenizer("bpe:260"), ["abcab"]).save(folder)


@pytest.mark.parametrize(
    ("text", "kind", "trained", "identity"),
    [
        ("bytes", "bytes", False, "bytes"),
        ("characters", "characters", True, "characters"),
        ("words", "words", True, "words"),
        ("bpe:16000", "bpe", True, "bpe:16000"),
        ("bpe:016000", "bpe", True, "bpe:16000"),
        ("gpt2", "hub", False, "gpt2"),
        ("EleutherAI/gpt-neox-20b@c292233c", "hub", False, "EleutherAI/gpt-neox-20b@c292233c"),
    ],
)
def test_specifications(text, kind, trained, identity):
    choice = parse_tokenizer(text)
    assert (choice.kind, choice.is_trained, choice.identity()) == (kind, trained, identity)
    assert pickle.loads(pickle.dumps(choice)) == choice


def test_bytes_need_nothing():
    assert isinstance(parse_tokenizer("bytes").open(), ByteTokenizer)


def test_paths_are_known_by_what_they_hold(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    choices = [parse_tokenizer(text) for text in (str(saved), str(saved.parent), "own", "./own/tokenizer.json")]
    identities = {choice.identity() for choice in choices}
    assert len(identities) == 1 and identities.pop().startswith("sha256:")
    assert {choice.open().digest for choice in choices} == {choices[0].open().digest}
    (saved.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": "a"}))
    assert (
        parse_tokenizer("own").identity() != choices[0].kind and parse_tokenizer("own").open().end_of_text_name == "a"
    )
    before = parse_tokenizer("own").identity()
    saved.write_text(saved.read_text() + " ")
    assert parse_tokenizer("own").identity() != before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("byte", "tokenizer 'byte': did you mean 'bytes'?"),
        ("chars", "did you mean 'characters'?"),
        ("word", "did you mean 'words'?"),
        ("bpe", "tokenizer 'bpe': bpe:N has 257 (all bytes, end of text) to 16777216 tokens"),
        ("bpe:0", "bpe:N has 257"),
        ("bpe:-5", "bpe:N has 257"),
        ("bpe:1e4", "bpe:N has 257"),
        ("bpe:99999999", "bpe:N has 257"),
        ("", "there is no such path; it must be bytes, characters, words, bpe:16000, a tokenizer.json"),
        ("no such/thing/", "there is no such path"),
        ("missing/tokenizer.json", "there is no such path"),
        ("gpt2@", "there is no such path"),
    ],
)
def test_wrong_ones_are_answered_in_a_line(text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parse_tokenizer(text)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "it has nothing"),
        ({"tokenizer.model": "x"}, "it has sentencepiece's (tokenizer.model), which is not loaded"),
        ({"tokenizer.pkl": "x"}, "it has pickles (tokenizer.pkl)"),
        ({"vocab.json": "{}", "merges.txt": ""}, "it has an older form (merges.txt, vocab.json)"),
        (
            {"tokenization_x.py": "raise SystemExit", "tokenizer_config.json": '{"auto_map": {"AutoTokenizer": "x"}}'},
            "it has Python code (tokenization_x.py, auto_map {'AutoTokenizer': 'x'}), which is not loaded",
        ),
    ],
)
def test_a_folder_that_wants_something_run_is_refused(files, message, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=re.escape(message)) as error:
        parse_tokenizer(str(tmp_path))
    assert "has no tokenizer.json, the form of tokenizer that runs no code" in str(error.value)


def test_code_beside_a_tokenizer_is_not_run(saved):
    (saved.parent / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}}')
    (saved.parent / "evil.py").write_text("raise SystemExit('run')")
    assert parse_tokenizer(str(saved.parent)).open().vocab_size == 260


def test_without_a_network_the_hub_is_given_up_at_once(tmp_path, monkeypatch, capfd):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("socket.getaddrinfo", _no_network)
    begin = time.monotonic()
    missing = r"tokenizer gpt2: the hub's cache has no tokenizer.json of it, and the hub cannot be reached; `lra-ssm"
    with pytest.raises(InputError, match=missing):
        parse_tokenizer("gpt2").fetch()
    with pytest.raises(
        InputError, match=r"tokenizer gpt2: the hub's cache has no tokenizer.json of it; `lra-ssm prepare"
    ):
        parse_tokenizer("gpt2").open()
    assert time.monotonic() - begin < 10 and capfd.readouterr().err == ""


def _no_network(*_, **__):
    raise OSError("no network")
