"""lra-ssm pull: from the Hub, wandb, a folder and the package; verified, whole or not at all.

The Hub is tests/hub_models.py behind huggingface_hub itself; of wandb's API there is a stand-in object here.
"""

import json
import os
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lra_ssm.checkpoints import ModelFiles
from lra_ssm.datamodules.language.tokenizer import CharacterTokenizer
from lra_ssm.layers import S6, LayerSpec
from lra_ssm.models import LanguageModel, NetworkSpec, save_network
from tests.hub_models import COMMIT, Hub, point_at, serving
from tests.runner import printed, refused

IDS = torch.arange(5)[None]
FILES = {"config.json", "model.safetensors", "vocabulary.json", "config.yaml", "README.md"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As push writes it."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("saved") / "lm"
    model = LanguageModel(LayerSpec(S6, d_state=4), vocab_size=9, d_model=8, n_layers=1)
    beside = {"config.yaml": b"experiment: lm\n", "README.md": b"a card\n"}
    source = {"data": {"dataset": "corpus"}, "metrics": {"test": {"test/perplexity": 3.5}}}
    tokenizer = CharacterTokenizer("abcdefg")
    save_network(folder, model.specification(), model.state_dict(), tokenizer, source, beside=beside)
    (folder / "run_me.py").write_text("raise SystemExit")
    return folder


@pytest.fixture
def own(saved: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(saved, tmp_path / "own"))


@pytest.fixture
def hub(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # before huggingface_hub tries again
    with serving({"me/lm": saved}, tmp_path / "cache", monkeypatch) as hub:
        yield hub


def pulled(capsys, *arguments: str) -> list[str]:
    """The lines of a pull that ends well."""
    return printed(["pull", *arguments], capsys).splitlines()


def logits(name: str | Path) -> torch.Tensor:
    return LanguageModel.from_pretrained(name)(IDS)


def changed(folder: Path, **source: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["source"] |= source
    (folder / "config.json").write_text(json.dumps(config))


def got(hub: Hub, file: str) -> int:
    return sum(method == "GET" and name == file for method, _, name, *_ in hub.asked)


# -- the Hub -----------------------------------------------------------------------------------------------------------


def test_a_repository_is_fetched_verified_and_cached(hub: Hub, saved: Path, capsys) -> None:
    first, place, use = pulled(capsys, "me/lm@v1")
    assert first.startswith(f"me/lm@{COMMIT[:12]}: LanguageModel, 5 files, ")
    assert use == 'use it: lra-ssm generate me/lm@v1 --prompt "The"'
    assert {path.name for path in Path(place).iterdir()} == FILES and Path(place).is_relative_to(
        Path("cache").resolve()
    )
    assert torch.equal(logits("me/lm@v1"), logits(saved))
    pulled(capsys, "me/lm@v1", "--to", "here/lm")
    assert {path.name for path in Path("here/lm").iterdir()} == FILES and not Path("here/lm/config.json").is_symlink()
    assert torch.equal(logits("here/lm"), logits(saved))
    assert all(got(hub, file) == 1 for file in FILES) and not got(hub, "run_me.py")


def test_a_wrong_digest_is_refused_and_the_message_says_how_it_is_downloaded_again(hub: Hub, capsys) -> None:
    hub.damaged = {"model.safetensors"}
    line = refused(["pull", "me/lm", "--to", "lm"], capsys)
    assert "model.safetensors does not have the published sha256 " in line and not Path("lm").exists()
    path = Path(line.partition("delete ")[2].partition(" and its target")[0])
    hub.damaged = set()
    for file in (path.resolve(), path):
        file.unlink()
    pulled(capsys, "me/lm", "--to", "lm")
    assert got(hub, "model.safetensors") == 2 and got(hub, "config.json") == 1


def test_what_the_config_says_of_other_files_holds_everywhere(hub: Hub, own: Path, capsys) -> None:
    hub.repositories["me/own"] = own
    (own / "vocabulary.json").write_text('{"kind": "bytes"}\n')
    for name in ("me/own", str(own)):
        line = refused(["pull", name], capsys)
        assert "vocabulary.json does not have the published sha256 " in line and "or was changed afterwards" in line
    (own / "vocabulary.json").unlink()
    assert refused(["pull", str(own)], capsys) == f"{own}: has no vocabulary.json, which its config.json names"
    changed(own, files={"../../secret": "0" * 64, "model.safetensors": 7})  # the first is never looked at
    pulled(capsys, str(own))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("evil",)


def test_a_pickle_is_neither_fetched_nor_run_unasked(hub: Hub, own: Path, capsys) -> None:
    weights = ModelFiles(own).weights()
    (own / "model.safetensors").unlink()
    changed(own, files={})
    hub.repositories["me/old"] = own
    (own / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Evil()}))
    assert "pytorch_model.bin is a pickle, which can run code" in refused(["pull", "me/old"], capsys)
    assert not got(hub, "pytorch_model.bin")
    line = refused(["pull", "me/old", "--allow-pickle", "--to", "lm"], capsys)
    assert "pytorch_model.bin cannot be read as tensors" in line and got(hub, "pytorch_model.bin") == 1
    assert not Path("lm").exists() and not Path("evil").exists()
    torch.save({name: x.clone() for name, x in weights.items()}, own / "pytorch_model.bin")
    assert "--allow-pickle" in pulled(capsys, str(own), "--allow-pickle")[-1]


def test_a_path_in_a_file_name_leads_nowhere(hub: Hub, own: Path, capsys) -> None:
    (own / "model.safetensors").unlink()
    hub.repositories["me/own"] = own
    for file in ("../secret.safetensors", "/etc/secret.safetensors", "a\\b.safetensors", "run_me.py"):
        (own / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": file}}))
        hub.repositories[f"me/{len(hub.repositories)}"] = own
        line = refused(["pull", f"me/{len(hub.repositories) - 1}"], capsys)
        assert f"names the file {file!r}, which is not a .safetensors next to it" in line
    assert {file for _, _, file, *_ in hub.asked} <= {*FILES, "model.safetensors.index.json"}


def test_a_class_outside_the_package_is_imported_if_it_is_trusted_alone(
    hub: Hub, own: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("their_layer.py").write_text("import lra_ssm.layers\nclass Theirs(lra_ssm.layers.S6):\n    pass\n")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    spec = NetworkSpec(LanguageModel, layer="their_layer.Theirs", vocab_size=9, d_model=8, n_layers=1)
    trained = spec()
    sys.modules.pop("their_layer")
    save_network(own, spec.as_dict(), trained.state_dict())
    hub.repositories["me/own"] = own
    line = refused(["pull", "me/own", "--to", "lm"], capsys)
    assert "built with their_layer.Theirs" in line and "--trust" in line
    assert "their_layer" not in sys.modules and not Path("lm").exists()
    lines = pulled(capsys, "me/own", "--to", "lm", "--trust", "their_layer.Theirs")
    assert lines[-1] == 'use it: lra-ssm generate lm --trust their_layer.Theirs --prompt "The"'


def test_to_replaces_nothing_unasked(saved: Path, tmp_path: Path, capsys) -> None:
    to, other = tmp_path / "lm", tmp_path / "other"
    pulled(capsys, str(saved), "--to", str(to))
    (to / "notes.txt").write_text("mine")
    (to / "model.safetensors").write_bytes(b"old")
    assert refused(["pull", str(saved), "--to", str(to)], capsys) == f"{to} already holds a model: --force replaces it"
    pulled(capsys, str(saved), "--to", str(to), "--force")
    assert torch.equal(logits(to), logits(saved)) and (to / "notes.txt").is_file()
    other.mkdir()
    (other / "thesis.tex").touch()
    said = refused(["pull", str(saved), "--to", str(other), "--force"], capsys)
    assert "is not empty and holds no saved model" in said
    assert [p.name for p in other.iterdir()] == ["thesis.tex"]


# -- wandb, the package, and what we know ------------------------------------------------------------------------------


class Artifact:
    """What we use of wandb.Artifact."""

    qualified_name, digest = "me/lra/lm:v3", "abc"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def download(self, root: str) -> None:
        shutil.copytree(self.folder, root, dirs_exist_ok=True)


def test_an_artifact_of_wandb(hub: Hub, saved: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    class Api:
        def artifact(self, name: str, type: str) -> Artifact:
            assert type == "model"
            if name != "me/lra/lm:latest":
                raise ValueError(f"artifact '{name}' not found\nand more")
            return Artifact(saved)

    monkeypatch.setattr("wandb.Api", Api)
    assert pulled(capsys, "wandb:me/lra/lm:latest", "--to", "lm")[0].startswith(
        "wandb:me/lra/lm:v3: LanguageModel, 5 files"
    )
    assert torch.equal(logits("wandb:me/lra/lm:latest"), logits(saved))
    line = refused(["pull", "wandb:me/lra/other:v0"], capsys)
    assert line == "wandb:me/lra/other:v0: cannot be downloaded (artifact 'me/lra/other:v0' not found and more)"
    with pytest.raises(ValueError, match="is an artifact, which has no revision 'v1'"):
        ModelFiles("wandb:me/lra/lm:latest", revision="v1")


def test_what_comes_with_the_package_has_a_name(
    hub: Hub, saved: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(saved, tmp_path / "pretrained" / "lm-tiny")
    monkeypatch.setattr("lra_ssm.checkpoints.sources.SHIPPED", tmp_path / "pretrained")
    assert pulled(capsys, "lm-tiny")[0].startswith("lm-tiny: LanguageModel, 5 files")
    assert torch.equal(logits("lm-tiny"), logits(saved))
    first, second, *_ = pulled(capsys, "--list")
    assert first.split() == ["name", "task", "stated", "parameters", "size"]
    assert second.split()[:4] == ["lm-tiny", "corpus", "perplexity", "3.50"]
    assert not hub.asked
    with pytest.raises(ValueError, match="comes with lra_ssm, which has no revision 'v1'"):
        ModelFiles("lm-tiny", revision="v1")


def test_the_list_needs_no_network(hub: Hub, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at("http://127.0.0.1:9", monkeypatch)
    lines = pulled(capsys, "--list")
    row = next(line for line in lines if line.startswith("state-spaces/mamba-130m-hf "))
    assert "129,135,360" in row and "516.5 MB" in row
    pickles = [line.split()[0] for line in lines if "a pickle" in line]
    assert "state-spaces/mamba-2.8b" in pickles and "state-spaces/mamba-130m" not in pickles
    for arguments in (["pull"], ["pull", "lm", "--list"]):
        assert refused(arguments, capsys) == "give the name of a model, or --list, which shows the known names"


def test_the_sizes_that_we_list_are_those_of_the_networks() -> None:
    import yaml

    from lra_ssm.checkpoints import files
    from lra_ssm.models.mamba_checkpoints import network_of_mamba

    layers = {"130m": 24, "370m": 48, "790m": 48, "780m": 48, "1.4b": 48, "1.3b": 48, "2.8b": 64, "2.7b": 64}
    widths = {"130m": 768, "370m": 1024, "790m": 1536, "780m": 1536, "1.4b": 2048, "1.3b": 2048}
    known = yaml.safe_load(Path(files.__file__).with_name("known.yaml").read_text())
    assert len(known) == 15
    for name, entry in known.items():
        family, size = name.removeprefix("state-spaces/").removesuffix("-hf").split("-")
        of_family = {"mamba": (8, {}), "mamba2": (16, {"layer": "Mamba2"})}
        multiple, cfg = of_family[family]
        counts = []
        for few in (1, 2):  # every layer more is as large as the second
            config = {"n_layer": few, "d_model": widths.get(size, 2560), "vocab_size": 50277, "ssm_cfg": cfg}
            spec = network_of_mamba({**config, "pad_vocab_size_multiple": multiple}, name)
            assert spec is not None
            with torch.device("meta"):
                counts.append(sum(p.numel() for p in NetworkSpec.of(spec)().parameters()))
        assert entry["parameters"] == counts[0] + (layers[size] - 1) * (counts[1] - counts[0]), name
