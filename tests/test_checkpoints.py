"""Saved models on the Hub: what is fetched, kept, and said where it cannot be had."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lra_ssm.checkpoints import ModelFiles
from lra_ssm.datamodules.language.tokenizer import CharacterTokenizer
from lra_ssm.errors import InputError
from lra_ssm.layers import S6, LayerSpec
from lra_ssm.models import LanguageModel
from tests.hub_models import COMMIT, Hub, point_at, serving

IDS = torch.arange(5)[None]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("saved") / "lm"
    model = LanguageModel(LayerSpec(S6, d_state=4), vocab_size=9, d_model=8, n_layers=1)
    model.save_pretrained(folder, tokenizer=CharacterTokenizer("abcdefg"))
    (folder / "README.md").write_text("a card")
    return folder


@pytest.fixture
def hub(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    with serving({"me/lm": saved, "short": saved}, tmp_path / "cache", monkeypatch) as hub:
        yield hub


def refused(name: str, revision: str | None = None) -> str:
    with pytest.raises(InputError) as error:
        LanguageModel.from_pretrained(name, revision=revision)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_files_that_are_needed_are_fetched_once(hub: Hub, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = LanguageModel.from_pretrained(saved)(IDS)
    assert torch.equal(LanguageModel.from_pretrained("me/lm")(IDS), expected)
    assert {(file, revision) for _, _, file, revision, _ in hub.asked} == {
        ("config.json", "main"), ("model.safetensors", COMMIT),  # of the same commit, whatever main has become
    }  # fmt: skip
    received = [file for method, _, file, *_ in hub.asked if method == "GET"]
    assert sorted(received) == ["config.json", "model.safetensors"]
    for name, revision in (("me/lm", COMMIT), (f"me/lm@{COMMIT}", None), ("me/lm@v1", None), ("me/lm@v1", "v1")):
        assert torch.equal(LanguageModel.from_pretrained(name, revision=revision)(IDS), expected)
    assert [file for method, _, file, *_ in hub.asked if method == "GET"] == received
    files = ModelFiles("me/lm")
    tokenizer = files.tokenizer()
    assert tokenizer is not None and tokenizer.read_bytes() == (saved / "vocabulary.json").read_bytes()
    assert files.name == f"me/lm@{COMMIT[:12]}"
    hub.repositories.clear()  # what is cached is enough
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert torch.equal(LanguageModel.from_pretrained("me/lm")(IDS), expected)
    assert "the Hub cannot be reached, and config.json is not in its cache" in refused("hf://short")
    assert "short: there is no such folder, and no such model comes with lra_ssm (it has " in refused("short")
    assert "(did you mean 'mnist-s4d'?)" in refused("mnist-s4")


def test_a_folder_comes_before_a_repository_of_its_name(hub: Hub, saved: Path) -> None:
    Path("me").mkdir()
    Path("me/lm").symlink_to(saved)
    LanguageModel.from_pretrained("me/lm")
    assert not hub.asked
    assert refused("me/lm", "main") == "me/lm is a folder, which has no revision 'main'"


def test_what_the_hub_has_not(hub: Hub, saved: Path, tmp_path: Path) -> None:
    assert refused("me/nothing") == (
        "me/nothing: there is no such folder, and the Hub has no such model, or it is private"
    )
    assert refused("me/lm@v7") == refused("me/lm", "v7") == "me/lm@v7: has no such revision"
    assert refused("me/lm@v1", "main") == "me/lm@v1 names a revision, and revision='main' another one"
    empty = tmp_path / "empty"
    empty.mkdir()
    hub.repositories["me/empty"] = empty
    assert refused("me/empty") == "me/empty: has no config.json: it is not a saved model"
    (empty / "config.json").write_bytes((saved / "config.json").read_bytes())
    assert refused("me/empty") == f"me/empty@{COMMIT[:12]}: has no model.safetensors"
    asked = len(hub.asked)
    for name in ("a/b/c", "a b", "a/b/best.ckpt"):
        assert "there is no such folder, and it is not a valid name of a Hub repository" in refused(name)
    assert "me/two..dots: config.json cannot be downloaded (" in refused("me/two..dots")
    assert len(hub.asked) == asked
    Path("file.pt").touch()
    assert "file.pt is a file; a saved model is a folder" in refused("file.pt")


def test_what_looks_like_a_run_is_not_asked_of_the_hub(hub: Hub) -> None:
    said = "there is no such folder, neither a run nor a saved model"
    for name in ("./lm", "/nowhere/lm", "../lm", "runs/nope", "runs/a/b/c"):
        assert refused(name) == f"{name}: {said}"
    Path("runs/mnist/38722f686f").mkdir(parents=True)
    assert refused("runs/mnits/38722f686f") == f"runs/mnits/38722f686f: {said}; did you mean runs/mnist?"
    assert refused("runs/mnist/38722f68") == f"runs/mnist/38722f68: {said}; did you mean runs/mnist/38722f686f?"
    Path("me").mkdir()
    assert refused("me/lm") == f"me/lm: {said}; a repository of the Hub is hf://me/lm"
    assert not hub.asked
    LanguageModel.from_pretrained("hf://me/lm")


def test_a_private_one_is_read_with_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.private["me/lm"] = "hf_secret"
    assert "the Hub has no such model, or it is private" in refused("me/lm")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    LanguageModel.from_pretrained("me/lm")


def test_a_hub_that_cannot_be_reached(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at("http://127.0.0.1:9", monkeypatch)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # before huggingface_hub tries again
    said = "me/lm: there is no such folder, the Hub cannot be reached, and config.json is not in its cache"
    assert refused("me/lm") == said


def test_weights_that_were_not_cached(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    ModelFiles("me/lm").config()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    said = "has no model.safetensors in the Hub's cache, and the Hub cannot be reached"
    assert refused("me/lm") == f"me/lm@{COMMIT[:12]}: {said}"
