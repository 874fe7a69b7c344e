"""lra-ssm pull and the names of saved models: the Hub, wandb, a folder; verified, whole or not at all.

What comes with the package: test_shipped.py. What answers huggingface_hub, and wandb's API, are stand-ins.
"""

import hashlib
import json
import os
import pickle
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import constants, get_session, set_client_factory
from huggingface_hub.utils._http import default_client_factory

from lra_ssm.checkpoints import ModelFiles
from lra_ssm.datamodules.language.tokenizer import CharacterTokenizer
from lra_ssm.layers import S6, LayerSpec
from lra_ssm.models import LanguageModel, save_network
from tests.runner import refused
from tests.test_push import done

IDS = torch.arange(5)[None]
HTTPX = import_module(type(get_session()).__module__.partition(".")[0])  # httpx, or httpx2 since huggingface_hub 2
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json", "model.safetensors", "vocabulary.json", "config.yaml", "README.md"}


class Hub:
    """Answers what huggingface_hub asks. Repositories are folders by name, each with one commit (main, v1, COMMIT)."""

    def __init__(self, repositories: dict[str, Path]) -> None:
        self.repositories = repositories
        self.reachable = True
        self.downloads = Counter[str]()  # by file
        self.damaged: set[str] = set()  # files whose bytes are not those of their digest

    def answer(self, request: Any) -> Any:
        if not self.reachable:
            raise HTTPX.ConnectError("no route to the host")
        asked = re.fullmatch(
            r"(?:/api/models)?/([^/]+/[^/]+)(?:/(revision|tree|resolve)/([^/]+)(?:/(.+))?)?", request.url.path
        )
        if asked is None:  # the library asks for its own things now and then
            return HTTPX.Response(404)
        repository, what, revision, file = asked.groups()
        if (folder := self.repositories.get(repository)) is None:
            return HTTPX.Response(401, headers={"X-Error-Code": "RepoNotFound"})
        if revision not in (None, "main", "v1", COMMIT):
            return HTTPX.Response(404, headers={"X-Error-Code": "RevisionNotFound"})
        if what != "resolve":
            files = sorted(path.name for path in folder.iterdir())
            tree = [{"type": "file", "path": name, "size": 1, "oid": "0"} for name in files]
            about = {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            return HTTPX.Response(200, json=tree if what == "tree" else about)
        data = (folder / file).read_bytes()
        large = file.endswith((".safetensors", ".bin"))  # the others are named as git names them
        digest = hashlib.sha256(data) if large else hashlib.sha1(b"blob %d\0" % len(data) + data)
        headers = {"ETag": f'"{digest.hexdigest()}"', "X-Repo-Commit": COMMIT, "Content-Length": str(len(data))}
        if request.method == "HEAD":
            return HTTPX.Response(200, headers=headers)
        self.downloads[file] += 1
        damaged = data[:-1] + bytes([data[-1] ^ 1])
        return HTTPX.Response(200, headers=headers, content=damaged if file in self.damaged else data)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As push writes it, with a file that does not belong to a model."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("saved") / "lm"
    model = LanguageModel(LayerSpec(S6, d_state=4), vocab_size=9, d_model=8, n_layers=1)
    files = {"config.yaml": b"experiment: lm\n", "README.md": b"a card\n"}
    source = {"data": {"dataset": "corpus"}, "metrics": {"test": {"test/perplexity": 3.5}}}
    tokenizer = CharacterTokenizer("abcdefg")
    save_network(folder, model.specification(), model.state_dict(), tokenizer, source, other_files=files)
    (folder / "run_me.py").write_text("raise SystemExit")
    return folder


@pytest.fixture
def own(saved: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(saved, tmp_path / "own"))


@pytest.fixture
def hub(saved: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that huggingface_hub of this process asks, with an empty cache of its own."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # before huggingface_hub tries again
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(here / "cache"))
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(here / "cache/assets"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # another protocol, which this one does not speak
    hub = Hub({"me/lm": saved, "short": saved})
    set_client_factory(lambda: HTTPX.Client(transport=HTTPX.MockTransport(hub.answer), follow_redirects=True))
    yield hub
    set_client_factory(default_client_factory)


def logits(name: str | Path, revision: str | None = None) -> torch.Tensor:
    return LanguageModel.from_pretrained(name, revision=revision)(IDS)


def changed(folder: Path, **source: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["source"] |= source
    (folder / "config.json").write_text(json.dumps(config))


def test_a_repository_is_fetched_verified_and_cached(
    hub: Hub, saved: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, place, use = done(capsys, "pull", "me/lm@v1")
    assert first.startswith(f"me/lm@{COMMIT[:12]}: LanguageModel, 5 files, ")
    assert use == 'use it: lra-ssm generate me/lm@v1 --prompt "The"'
    assert {path.name for path in Path(place).iterdir()} == FILES
    assert Path(place).is_relative_to(Path("cache").resolve())
    done(capsys, "pull", "me/lm@v1", "--to", "here/lm")
    assert {path.name for path in Path("here/lm").iterdir()} == FILES and not Path("here/lm/config.json").is_symlink()
    message = "here/lm already holds a model: --force replaces it"
    assert refused(["pull", "me/lm@v1", "--to", "here/lm"], capsys) == message
    done(capsys, "pull", "me/lm@v1", "--to", "here/lm", "--force")
    expected = logits(saved)
    names = (("here/lm", None), ("me/lm", None), ("me/lm", COMMIT), (f"hf://me/lm@{COMMIT}", None), ("me/lm", "v1"))
    for name, revision in names:
        assert torch.equal(logits(name, revision), expected)
    assert hub.downloads == dict.fromkeys(FILES, 1)
    hub.repositories.clear()  # what is cached is enough
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert torch.equal(logits("me/lm"), expected)


def test_a_wrong_digest_is_refused_and_the_message_says_how_it_is_downloaded_again(hub: Hub, own: Path, capsys) -> None:
    hub.damaged = {"model.safetensors"}
    line = refused(["pull", "me/lm", "--to", "lm"], capsys)
    assert "model.safetensors does not have the published sha256 " in line and not Path("lm").exists()
    path = Path(line.partition("delete ")[2].partition(" and its target")[0])
    hub.damaged = set()
    for file in (path.resolve(), path):
        file.unlink()
    done(capsys, "pull", "me/lm", "--to", "lm")
    assert hub.downloads["model.safetensors"] == 2 and hub.downloads["config.json"] == 1
    # What config.json says of other files holds everywhere.
    hub.repositories["me/own"] = own
    (own / "vocabulary.json").write_text('{"kind": "bytes"}\n')
    for name in ("me/own", str(own)):
        line = refused(["pull", name], capsys)
        assert "vocabulary.json does not have the published sha256 " in line and "or was changed afterwards" in line
    (own / "vocabulary.json").unlink()
    assert refused(["pull", str(own)], capsys) == f"{own}: has no vocabulary.json, which its config.json names"
    changed(own, files={"../../secret": "0" * 64, "model.safetensors": 7})  # the first is never looked at
    done(capsys, "pull", str(own))


def test_a_name_that_leads_nowhere_is_one_line(hub: Hub, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("empty").mkdir()
    hub.repositories["me/empty"] = Path("empty").resolve()
    Path("file.pt").touch()
    Path("runs/mnist/38722f686f").mkdir(parents=True)
    Path("here").mkdir()
    nowhere = "there is no such folder, neither a run nor a saved model"
    for name, message in {
        "me/nothing": "me/nothing: there is no such folder, and the Hub has no such model, or it is private",
        "me/lm@v7": "me/lm@v7: it has no such revision",
        "me/empty": f"me/empty@{COMMIT[:12]}: has no config.json: it is not a saved model",
        "file.pt": "file.pt is a file; a saved model is a folder",
        "a b": "a b: there is no such folder, and it is not a valid name of a Hub repository",
        "short": "short: there is no such folder, and no such model comes with lra_ssm (it has ",
        "mnist-s4": "mnist-s4: there is no such folder, and no such model comes with lra_ssm (did you mean ",
        # What looks like a run or a folder is not looked up on the Hub.
        "./lm": f"./lm: {nowhere}",
        "runs/mnits/38722f686f": f"runs/mnits/38722f686f: {nowhere}; did you mean runs/mnist?",
        "here/lm": f"here/lm: {nowhere}; a repository of the Hub is hf://here/lm",
    }.items():
        assert refused(["pull", name], capsys).startswith(message)
    assert not hub.downloads
    hub.reachable = False
    message = "me/lm: the Hub cannot be reached, and its cache does not have all files of it"
    assert refused(["pull", "me/lm"], capsys) == message


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("evil",)


def test_a_pickle_is_neither_fetched_nor_run_unasked(hub: Hub, own: Path, capsys) -> None:
    weights = ModelFiles(own).weights()
    (own / "model.safetensors").unlink()
    changed(own, files={})
    hub.repositories["me/old"] = own
    (own / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Evil()}))
    for name in ("me/old", str(own)):
        line = refused(["pull", name], capsys)
        assert "weights in pytorch_model.bin are a pickle, which can run code when it is read" in line
    assert not hub.downloads["pytorch_model.bin"]
    line = refused(["pull", "me/old", "--allow-pickle", "--to", "lm"], capsys)
    assert "pytorch_model.bin cannot be read as tensors" in line and hub.downloads["pytorch_model.bin"] == 1
    assert not Path("lm").exists() and not Path("evil").exists()
    torch.save({name: x.clone() for name, x in weights.items()}, own / "pytorch_model.bin")
    assert "--allow-pickle" in done(capsys, "pull", str(own), "--allow-pickle")[-1]


def test_a_path_in_a_file_name_leads_nowhere(hub: Hub, own: Path, capsys) -> None:
    (own / "model.safetensors").unlink()
    hub.repositories["me/own"] = own
    for file in ("../secret.safetensors", "/etc/secret.safetensors", "a\\b.safetensors", "run_me.py"):
        (own / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": file}}))
        line = refused(["pull", "me/own" if file.startswith("..") else str(own)], capsys)
        assert f"names the file {file!r}, which is not a .safetensors next to it" in line
    assert hub.downloads.keys() <= {*FILES, "model.safetensors.index.json"}


def test_an_artifact_of_wandb(hub: Hub, saved: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def artifact(name: str, type: str) -> SimpleNamespace:
        if (name, type) != ("me/lra/lm:latest", "model"):
            raise ValueError(f"artifact '{name}' not found\nand more")

        def download(root: str) -> None:
            shutil.copytree(saved, root, dirs_exist_ok=True)

        return SimpleNamespace(qualified_name="me/lra/lm:v3", digest="abc", download=download)

    monkeypatch.setattr("wandb.Api", lambda: SimpleNamespace(artifact=artifact))
    first = done(capsys, "pull", "wandb:me/lra/lm:latest", "--to", "lm")[0]
    assert first.startswith("wandb:me/lra/lm:v3: LanguageModel, 5 files")
    assert torch.equal(logits("wandb:me/lra/lm:latest"), logits(saved))
    line = refused(["pull", "wandb:me/lra/other:v0"], capsys)
    assert line == "wandb:me/lra/other:v0: it cannot be downloaded (artifact 'me/lra/other:v0' not found and more)"
