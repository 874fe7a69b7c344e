"""Networks saved as a folder and loaded again; what is refused, and that nothing of it is run."""

import copy
import json
import pickle
import sys
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from lra_ssm.datamodules.language.tokenizer import CharacterTokenizer
from lra_ssm.datamodules.language.tokenizer_spec import load_tokenizer
from lra_ssm.errors import InputError
from lra_ssm.layers import NetworkSpec
from lra_ssm.models import Classifier, LanguageModel, Pretrained, load_pretrained, save_network
from tests.models.cases import IDS, model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def refused(folder: Path, **asked: Any) -> str:
    with pytest.raises(InputError) as error:
        LanguageModel.from_pretrained(folder, **asked)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)
    return str(error.value)


def test_precision_tokenizer_arguments_and_origin_are_kept(tmp_path: Path) -> None:
    network, tokenizer = model().double(), CharacterTokenizer("abcdefg")
    network.save_pretrained(tmp_path / "a", tokenizer=tokenizer, source={"run": "lm/1"})
    assert load_tokenizer(tmp_path / "a").digest == tokenizer.digest
    drawn = torch.random.get_rng_state()
    single, exact = (LanguageModel.from_pretrained(tmp_path / "a", dtype=x) for x in (torch.float32, torch.float64))
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert {p.dtype for p in single.parameters()} == {torch.float32} and not single.training
    assert all(torch.equal(p, q) for p, q in zip(exact.parameters(), network.parameters(), strict=True))
    single(IDS).sum().backward()
    for twin in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert twin.specification() == network.specification()
    assert isinstance(Pretrained.from_pretrained(tmp_path / "a"), LanguageModel)
    with pytest.raises(InputError, match="is a LanguageModel, not a Classifier"):
        Classifier.from_pretrained(tmp_path / "a")
    config = json.loads((tmp_path / "a/config.json").read_text())
    assert config["format"] == "lra_ssm/1" and config["source"] == {"run": "lm/1"} and config["lra_ssm_version"]
    with safe_open(tmp_path / "a/model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"} and {*file.keys()} == network.state_dict().keys()


OTHERS = """
from lra_ssm.layers import S6
from torch import nn

class Mine(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = self.again = layer(4)  # the same weights by two names

class MyS6(S6):
    pass
"""


def test_other_classes_are_imported_only_where_they_are_trusted(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "others.py").write_text(OTHERS)
    spec = {"class_path": "others.Mine", "init_args": {"layer": {"class_path": "others.MyS6", "init_args": {}}}}
    network = NetworkSpec.of(spec)()
    save_network("saved", spec, network.state_dict())
    assert not any(name.startswith("again.") for name in load_file("saved/model.safetensors"))
    sys.modules.pop("others")
    for trust in ((), ("others.Mine",), ("others",)):
        with pytest.raises(InputError, match=r"is built with others\.\w+, which is not a module of lra_ssm, lightning"):
            load_pretrained("saved", nn.Module, trust=trust)
    assert "others" not in sys.modules
    trusted, x = load_pretrained("saved", nn.Module, trust=("others.Mine", "others.MyS6")), torch.randn(1, 5, 4)
    assert torch.equal(trusted.layer(x), network.layer(x)) and trusted.again is trusted.layer


NOT_MODULES = (
    "os.system", "lra_ssm.files.shutil.rmtree", "lra_ssm.layers.spec.import_module", "lra_ssm.layers.blocks.nn.Linear",
    "lra_ssm.layers.nothing.Here", "torch.hub.load", "lightning.pytorch.cli.LightningCLI", "torch.nn.functional.relu",
)  # fmt: skip
UNTRUSTED = "its network is built with {}, which is not a module of lra_ssm, lightning"
# where in config.json, the value, and the words of the error
WRONG = [
    *(("network.class_path", path, UNTRUSTED.format(path)) for path in NOT_MODULES),
    ("network.init_args.layer", {"class_path": "os.system"}, UNTRUSTED.format("os.system")),
    ("network.init_args.block", "os.system", UNTRUSTED.format("os.system")),
    ("network.init_args.d_model", [{"x": "os.system"}], UNTRUSTED.format("os.system")),
    ("format", "lra_ssm/2", "its config.json has the format 'lra_ssm/2'; this version reads 'lra_ssm/1'"),
    ("network", 3, "its config.json has no network, a class_path and its init_args"),
    ("network.class_path", "shutil:os.system", "is not an import path"),
    ("network.class_path", "lra_ssm.models.Backbone", "cannot be built"),
    ("network.init_args.d_modle", 3, "takes no argument 'd_modle'; did you mean 'd_model'?"),
    ("network.init_args.n_layers", 0, "its network cannot be built: n_layers is 0; it must be at least 1"),
    ("network.init_args.n_layers", 3, "is missing in the checkpoint"),
    ("network.init_args.d_model", 10**15, ""),
    ("network.init_args.layer.init_args.d_state", 40_000, "A_log is (16, 4) in the checkpoint, (16, 40000) in the"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "value", "message"), WRONG)
def test_settings_that_are_not_trusted_or_do_not_fit_are_one_line(where, value, message, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    *above, name = where.split(".")
    reduce(getitem, above, config)[name] = value
    (folder / "config.json").write_text(json.dumps(config))
    assert message in refused(folder)


def test_files_that_cannot_be_read(folder: Path) -> None:
    file, config, name = folder / "model.safetensors", folder / "config.json", "backbone.blocks.0.layer.A_log"
    whole = load_file(file)
    for tensors, message in (
        ({key: value for key, value in whole.items() if key != name}, f"{name} is missing in the checkpoint, (16, 4)"),
        ({**whole, "head.weight": torch.zeros(2)}, "head.weight is (2,) in the checkpoint, missing in the model"),
        ({**whole, name: torch.zeros(4, 16)}, f"{name} is (4, 16) in the checkpoint, (16, 4) in the model"),
        ({**whole, name: torch.zeros(16, 4, dtype=torch.int64)}, f"{name} is of torch.int64, not torch.float32"),
    ):
        save_file(tensors, file)
        assert message in refused(folder)
    for damage in (b"", b"\0" * 100, file.read_bytes()[:-1]):
        file.write_bytes(damage)
        assert "model.safetensors is damaged or not a safetensors file" in refused(folder)
    file.unlink()
    assert "has no model.safetensors" in refused(folder)
    texts = {'{"a": 1}': "has no known layout: keys ['a']", "{": "is not valid JSON", "[]": "is not a JSON object"}
    for text, message in texts.items():
        config.write_text(text)
        assert message in refused(folder)
    config.unlink()
    assert "has no config.json: it is not a saved model" in refused(folder)


@pytest.mark.parametrize(("name", "save"), [("model.safetensors", save_file), ("pytorch_model.bin", torch.save)])
def test_weights_in_parts(name: str, save: Any, folder: Path) -> None:
    weights, pickled = load_file(folder / "model.safetensors"), save is torch.save
    (folder / "model.safetensors").unlink()
    parts = {f"1-{name}": [*weights][:3], f"2-{name}": [*weights][3:]}
    for part, own in parts.items():
        save({key: weights[key] for key in own}, folder / part)
    index = {key: part for part, own in parts.items() for key in own}
    (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": index}))
    pickle_message = "are a pickle, which can run code when it is read: allow_pickle=True (--allow-pickle)"
    assert not pickled or pickle_message in refused(folder)
    loaded = LanguageModel.from_pretrained(folder, allow_pickle=pickled)
    assert all(torch.equal(x, weights[key]) for key, x in loaded.state_dict().items())
    torch.save([1], folder / f"2-{name}")
    said = "holds a list, not tensors by name" if pickled else "is damaged"
    assert f"2-{name} {said}" in refused(folder, allow_pickle=pickled)
    (folder / f"2-{name}").unlink()
    assert f"has no 2-{name}" in refused(folder, allow_pickle=pickled)
    (folder / f"{name}.index.json").write_text("{}")
    assert "has no weight_map" in refused(folder, allow_pickle=pickled)


def test_a_folder_is_replaced_only_if_it_holds_a_saved_model(folder: Path, tmp_path: Path) -> None:
    model().save_pretrained(folder, tokenizer=CharacterTokenizer("abcdefg"))
    other, mine = model(n_layers=1), tmp_path / "mine"
    (folder / "README.md").write_text("kept")
    other.save_pretrained(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert torch.equal(LanguageModel.from_pretrained(folder)(IDS), other.eval()(IDS))
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1  # whoever may read one may read all
    mine.mkdir()
    other.save_pretrained(mine)  # an empty one
    for content in ("{}", "no JSON"):
        (mine / "config.json").write_text(content)
        for path in (mine, mine / "config.json"):
            with pytest.raises(InputError, match="is not empty and holds no saved model: give a new or an empty"):
                other.save_pretrained(path)
        assert (mine / "config.json").read_text() == content
    assert not list(tmp_path.rglob(".unfinished*"))


def test_a_model_that_could_not_be_written_leaves_the_one_before(folder: Path, tmp_path: Path, monkeypatch) -> None:
    before, new = {path.name: path.read_bytes() for path in folder.iterdir()}, tmp_path / "new"
    with pytest.raises(InputError, match="format is 'onnx'; it must be lra_ssm or hf"):
        model().save_pretrained(new, format="onnx")  # type: ignore[arg-type]
    monkeypatch.setattr("safetensors.torch.save_file", Mock(side_effect=OSError(28, "No space left on device")))
    for target in (folder, new):
        with pytest.raises(InputError, match=r"the model cannot be saved there \(No space left on device\)"):
            model().save_pretrained(target)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
