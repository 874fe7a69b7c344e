"""What a user may say for a tokenizer, and what is answered to the rest."""

import json
import pickle
import re

import pytest

from lra_ssm.datamodules.language.tokenizer import ByteTokenizer
from lra_ssm.datamodules.language.tokenizer_spec import parse_tokenizer, train_tokenizer
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


def test_paths_are_known_by_what_they_hold(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    choices = [parse_tokenizer(text) for text in (str(saved), str(saved.parent), "own", "./own/tokenizer.json")]
    identities = {choice.identity() for choice in choices}
    assert len(identities) == 1 and identities.pop().startswith("sha256:")
    assert {choice.open().digest for choice in choices} == {choices[0].open().digest}
    (saved.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": "a"}))
    assert parse_tokenizer("own").open().end_of_text_name == "a"
    before = parse_tokenizer("own").identity()
    saved.write_text(saved.read_text() + " ")
    assert parse_tokenizer("own").identity() != before
    assert isinstance(parse_tokenizer("bytes").open(), ByteTokenizer)
    train_tokenizer(parse_tokenizer("words"), ["a b a"]).save(tmp_path)
    assert parse_tokenizer(str(tmp_path)).open().decode([1, 2, 3]) == "a b <unk>"


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


def test_a_folder_that_wants_something_run_is_refused(tmp_path):
    (tmp_path / "tokenization_x.py").write_text("raise SystemExit")
    with pytest.raises(InputError, match=r"has no tokenizer\.json, the form of tokenizer that runs no code"):
        parse_tokenizer(str(tmp_path))


def test_code_beside_a_tokenizer_is_not_run(saved):
    (saved.parent / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}}')
    (saved.parent / "evil.py").write_text("raise SystemExit('run')")
    assert parse_tokenizer(str(saved.parent)).open().vocab_size == 260


def hub_of(folder, monkeypatch, files=()):
    """The hub's cache in a folder, no network, and a repository "me/own" of which these files are cached."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr("socket.getaddrinfo", _no_network)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the hub's own tries
    repository = folder / "models--me--own"
    for file in files:
        (repository / "snapshots/0123").mkdir(parents=True, exist_ok=True)
        (repository / "snapshots/0123" / file.name).write_bytes(file.read_bytes())
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs/main").write_text("0123")


def test_without_a_network_the_hubs_cache_is_all_there_is(saved, tmp_path, monkeypatch):
    config = saved.with_name("tokenizer_config.json")
    config.write_text(json.dumps({"eos_token": "a"}))
    hub_of(tmp_path, monkeypatch, [saved, config])
    parse_tokenizer("me/own").fetch()
    tokenizer = parse_tokenizer("me/own@main").open()
    assert tokenizer.vocab_size == 260 and tokenizer.end_of_text_name == "a"


def test_without_a_network_and_a_cache_the_way_out_is_said(tmp_path, monkeypatch):
    hub_of(tmp_path, monkeypatch)
    with pytest.raises(InputError, match=r"tokenizer gpt2: its tokenizer.json cannot be had of the hub \(.*connection"):
        parse_tokenizer("gpt2").fetch()
    with pytest.raises(InputError, match=r"tokenizer gpt2: the hub's cache has no tokenizer.json of it; `lra-ssm prep"):
        parse_tokenizer("gpt2").open()


def _no_network(*_, **__):
    raise OSError("no network")
