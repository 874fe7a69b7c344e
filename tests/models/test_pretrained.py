"""Networks saved as a folder and loaded again: every kind; what is refused, and that nothing of it is run."""

import json
import os
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from lra_ssm.datamodules.language.tokenizer import CharacterTokenizer
from lra_ssm.datamodules.language.tokenizer_spec import load_tokenizer
from lra_ssm.errors import InputError
from lra_ssm.layers import (
    B2S6,
    LRU,
    S4D,
    S6,
    BlockSpec,
    LayerSpec,
    MambaBlock,
    NetworkSpec,
    S4Block,
    StableSSM,
)
from lra_ssm.models import (
    Classifier,
    DualEncoder,
    LanguageModel,
    LRAPairHead,
    Pretrained,
    Regressor,
    ScalarEmbedding,
    load_pretrained,
    save_network,
)

SMALL = {"d_model": 8, "n_layers": 2}
IDS = torch.randint(9, (2, 7), generator=torch.Generator().manual_seed(0))
NETWORKS = {
    "S6": (lambda: LanguageModel(LayerSpec(S6, d_state=4), 9, **SMALL), IDS),
    "untied": (lambda: LanguageModel(LayerSpec(LRU, d_state=4), 9, tie_embeddings=False, **SMALL), IDS),
    "B2S6": (lambda: LanguageModel(LayerSpec(B2S6, num_blocks=2, d_state=4), vocab_size=9, **SMALL), IDS),
    "S4D": (lambda: Classifier(LayerSpec(S4D, d_state=4, bidirectional=True), 3, d_input=2, **SMALL),
            torch.randn(2, 7, 2, generator=torch.Generator().manual_seed(0))),
    "scalars": (lambda: Classifier("lra_ssm.layers.S6", 3, 9, embedding=ScalarEmbedding,
                                   block="lra_ssm.layers.MambaBlock", **SMALL), IDS),
    "pairs": (lambda: DualEncoder(LayerSpec(S6, d_state=4), 2, vocab_size=9, head=LRAPairHead, **SMALL),
              IDS[:, None].expand(2, 2, 7)),
    "regressor": (lambda: Regressor(LayerSpec(StableSSM, d_state=4), 2, vocab_size=9, pooling=None, **SMALL), IDS),
    "batch norm": (lambda: Classifier(LayerSpec(S6, d_state=4), 3, vocab_size=9, block=BlockSpec(S4Block, dropout=0.5),
                                      **SMALL), IDS),
}  # fmt: skip


def language_model(**settings: Any) -> LanguageModel:
    return LanguageModel(LayerSpec(S6, d_state=4), vocab_size=9, **{**SMALL, **settings})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    language_model().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def refused(folder: Path, **asked: Any) -> str:
    with pytest.raises(InputError) as error:
        LanguageModel.from_pretrained(folder, **asked)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)
    return str(error.value)


def edit(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_saved_is_loaded_with_the_same_outputs(name: str, tmp_path: Path) -> None:
    make, inputs = NETWORKS[name]
    network = make()
    for buffer in network.buffers():  # as after training
        buffer.add_(1)
    network.eval()
    network.save_pretrained(tmp_path / "a", source={"run": "lm/1"})
    drawn = torch.random.get_rng_state()
    loaded = type(network).from_pretrained(tmp_path / "a")
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert type(loaded) is type(network) and not loaded.training and not any(p.is_meta for p in loaded.parameters())
    with torch.no_grad():
        assert torch.equal(loaded(inputs), network(inputs))
    loaded(inputs).sum().backward()
    config = json.loads((tmp_path / "a/config.json").read_text())
    assert config["format"] == "lra_ssm/1" and config["source"] == {"run": "lm/1"} and config["lra_ssm_version"]
    loaded.save_pretrained(tmp_path / "b")
    assert json.loads((tmp_path / "b/config.json").read_text())["network"] == config["network"]
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert a.keys() == network.state_dict().keys() and all(torch.equal(a[key], b[key]) for key in a)
    with safe_open(tmp_path / "a/model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("name", ["S6", "S4D", "pairs"])
def test_inputs_of_another_shape_are_one_line_and_an_empty_batch_is_empty(name: str, tmp_path: Path) -> None:
    make, inputs = NETWORKS[name]
    make().save_pretrained(tmp_path / "a")
    loaded = load_pretrained(tmp_path / "a", nn.Module)
    assert loaded(inputs[:0]).shape == loaded(inputs)[:0].shape
    expected = "(batch, length, 2) features, floating" if name == "S4D" else "(batch, length) ids, int64"
    length = inputs[..., :0, :] if name == "S4D" else inputs[..., :0]
    for wrong in (inputs[..., None], inputs.bool(), length, *([inputs[0]] if name != "pairs" else [])):
        with pytest.raises(ValueError) as error:
            loaded(wrong)
        got = tuple((wrong.flatten(0, 1) if name == "pairs" else wrong).shape)
        said = f"inputs: expected {expected}, length at least 1; got shape {got}, {wrong.dtype}"
        assert str(error.value) == said


def test_precision_is_what_is_asked_for(tmp_path: Path) -> None:
    network = language_model().double()
    network.save_pretrained(tmp_path / "a")
    assert {p.dtype for p in LanguageModel.from_pretrained(tmp_path / "a").parameters()} == {torch.float32}
    exact = LanguageModel.from_pretrained(tmp_path / "a", dtype=torch.float64)
    assert all(torch.equal(p, q) for p, q in zip(exact.parameters(), network.parameters(), strict=True))


def test_a_copy_knows_its_arguments() -> None:
    import copy
    import pickle

    network = language_model()
    for twin in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert twin.specification() == network.specification()
    assert network.specification()["init_args"]["d_model"] == 8


def test_the_tokenizer_is_kept_beside(tmp_path: Path) -> None:
    tokenizer = CharacterTokenizer("abcdefg")
    language_model().save_pretrained(tmp_path / "a", tokenizer=tokenizer)
    assert load_tokenizer(tmp_path / "a").digest == tokenizer.digest
    for name, given in {"b": tmp_path / "a", "c": str(tmp_path / "a/vocabulary.json")}.items():
        language_model().save_pretrained(tmp_path / name, tokenizer=given)
        assert load_tokenizer(tmp_path / name).digest == tokenizer.digest
    for given in (tmp_path / "none", tmp_path / "a/config.json", tmp_path):
        with pytest.raises(InputError, match=r"is not a vocabulary\.json or tokenizer\.json, or a folder with one"):
            language_model().save_pretrained(tmp_path / "d", tokenizer=given)
    assert not (tmp_path / "d").exists()


# --- a class outside the package ---

MARKED = """
from pathlib import Path
Path("imported").touch()
from torch import nn
from lra_ssm.layers import S6

class Mine(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.again = layer(4), None
        self.again = self.layer  # the same weights by two names

    def forward(self, inputs, lengths=None):
        return self.layer(inputs, lengths)

class MyS6(S6):
    pass
"""


def test_classes_of_others_are_imported_where_they_are_trusted_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "others.py").write_text(MARKED)
    spec = {"class_path": "others.Mine", "init_args": {"layer": {"class_path": "others.MyS6", "init_args": {}}}}
    try:
        network = NetworkSpec.of(spec)()
        save_network("saved", spec, network.state_dict())
        assert not any(name.startswith("again.") for name in load_file("saved/model.safetensors"))
        sys.modules.pop("others")
        os.remove("imported")
        for trust in ((), ("others.Mine",), ("others",)):
            with pytest.raises(
                InputError, match=r"is built with others\.\w+, which is not a module of lra_ssm, lightning"
            ):
                load_pretrained("saved", nn.Module, trust=trust)
        assert "others" not in sys.modules and not Path("imported").exists()
        trusted, x = load_pretrained("saved", nn.Module, trust=("others.Mine", "others.MyS6")), torch.randn(1, 5, 4)
        assert torch.equal(trusted(x), network(x)) and trusted.again is trusted.layer
    finally:
        sys.modules.pop("others", None)


@pytest.mark.parametrize("path", ["shutil:os.system", "others.a-b"])
def test_what_only_looks_like_no_import_path_is_not_run_either(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "others.py").write_text(MARKED)
    network = {"class_path": path, "init_args": {"command": "touch imported"}}
    save_network("saved", network, {"w": torch.zeros(2)})
    with pytest.raises((InputError, ValueError), match="is not a module of lra_ssm|is not an import path"):
        load_pretrained("saved", nn.Module)
    assert "others" not in sys.modules and not Path("imported").exists()


def test_torchs_own_modules_need_no_trust(tmp_path: Path) -> None:
    spec = NetworkSpec(nn.Linear, in_features=2, out_features=3)
    network, x = spec(), torch.randn(4, 2)
    save_network(tmp_path / "a", spec.as_dict(), network.state_dict())
    assert torch.equal(load_pretrained(tmp_path / "a", nn.Linear)(x), network(x))


FOREIGN = (
    "os.system", "lra_ssm.files.shutil.rmtree", "lra_ssm.layers.spec.import_module", "lra_ssm.layers.blocks.nn.Linear",
    "lra_ssm.layers.nothing.Here", "lra_ssm.__main__.main", "torch.hub.load", "lightning.pytorch.cli.LightningCLI",
    "torch.distributed.elastic.multiprocessing.subprocess_handler.SubprocessHandler", "torch.nn.functional.relu",
)  # fmt: skip


def test_what_is_no_layer_of_ours_is_refused_wherever_it_stands(folder: Path) -> None:
    network = json.loads((folder / "config.json").read_text())["network"]
    places = {
        "layer": lambda path: {"class_path": path, "init_args": {}},
        "block": lambda path: path,
        "d_model": lambda path: [{"x": path}],
    }
    for path, (name, value) in zip(FOREIGN, cycle(places.items()), strict=False):
        edit(folder, network={**network, "init_args": {**network["init_args"], name: value(path)}})
        assert f"its network is built with {path}, which is not a module of lra_ssm, lightning" in refused(folder)
    edit(folder, network={"class_path": "os.system"})
    assert "its network is built with os.system" in refused(folder)


# --- what does not fit ---


def test_configurations_that_cannot_be_read(folder: Path) -> None:
    network = json.loads((folder / "config.json").read_text())["network"]
    edit(folder, format="lra_ssm/2")
    assert "its config.json has the format 'lra_ssm/2'; this version reads 'lra_ssm/1'" in refused(folder)
    edit(folder, format="lra_ssm/1", network=3)
    assert "its config.json has no network, a class_path and its init_args" in refused(folder)
    edit(folder, network={**network, "init_args": {**network["init_args"], "d_modle": 3}})
    assert "takes no argument 'd_modle'; did you mean 'd_model'?" in refused(folder)
    edit(folder, network={**network, "init_args": {**network["init_args"], "n_layers": 0}})
    assert "its network cannot be built: n_layers is 0; it must be at least 1" in refused(folder)
    edit(folder, network={**network, "class_path": "lra_ssm.models.Backbone"})
    assert "cannot be built" in refused(folder)
    (folder / "config.json").write_text('{"a": 1}')
    assert "its config.json has no known layout: keys ['a']" in refused(folder)
    for text, said in {"{": "config.json is not valid JSON", "[]": "config.json is not a JSON object"}.items():
        (folder / "config.json").write_text(text)
        assert said in refused(folder)
    (folder / "config.json").unlink()
    assert "has no config.json: it is not a saved model; it holds model.safetensors" in refused(folder)


@pytest.mark.parametrize(
    "where, name, value",
    [((), "d_model", 10**15), ((), "vocab_size", 10**30), ((), "d_model", 1e12), ((), "n_layers", 3),
     (("layer", "init_args"), "d_state", 40_000), (("block", "init_args"), "d_conv", 10**15)],
)  # fmt: skip
def test_sizes_that_the_weights_do_not_have_are_one_line(
    where: tuple[str, ...], name: str, value: Any, folder: Path
) -> None:
    network = json.loads((folder / "config.json").read_text())["network"]
    arguments = network["init_args"]
    for key in where:
        arguments = arguments[key]
    arguments[name] = value
    edit(folder, network=network)
    assert refused(folder)


def test_a_factor_that_cannot_be_counted_is_one_line(folder: Path) -> None:
    network = json.loads((folder / "config.json").read_text())["network"]
    for value in (10**15, 1e300):
        network["init_args"]["block"]["init_args"]["expand"] = value
        edit(folder, network=network)
        assert "its network cannot be built: " in refused(folder)


def test_a_network_of_another_class(folder: Path) -> None:
    with pytest.raises(InputError, match="is a LanguageModel, not a Classifier"):
        Classifier.from_pretrained(folder)
    assert isinstance(Pretrained.from_pretrained(folder), LanguageModel)
    assert isinstance(load_pretrained(folder, nn.Module), LanguageModel)


def test_tensors_that_do_not_fit(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = load_file(file)
    name = "backbone.blocks.0.layer.A_log"
    save_file({key: value for key, value in whole.items() if key != name}, file)
    assert f"{name} is missing in the checkpoint, (16, 4) in the model" in refused(folder)
    save_file({**whole, "head.weight": torch.zeros(2)}, file)
    assert "head.weight is (2,) in the checkpoint, missing in the model" in refused(folder)
    save_file({**whole, name: torch.zeros(4, 16)}, file)
    assert f"{name} is (4, 16) in the checkpoint, (16, 4) in the model" in refused(folder)
    save_file({**whole, name: torch.zeros(16, 4, dtype=torch.int64)}, file)
    assert f"{name} is of torch.int64, not torch.float32" in refused(folder)
    for damage in (b"", b"\0" * 100, file.read_bytes()[:-1]):
        file.write_bytes(damage)
        assert "model.safetensors is damaged or not a safetensors file" in refused(folder)
    file.unlink()
    assert "has no model.safetensors; it holds config.json" in refused(folder)


# --- pickles ---


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("was-run",)


def test_a_pickle_in_parts_is_read_where_it_is_asked_for(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, parts = [*weights], ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
    for part, own in zip(parts, (names[:3], names[3:]), strict=True):
        torch.save({name: weights[name] for name in own}, folder / part)
    index = {"weight_map": {name: parts[i >= 3] for i, name in enumerate(names)}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert f"{parts[0]} is a pickle" in refused(folder)
    loaded = LanguageModel.from_pretrained(folder, allow_pickle=True).state_dict()
    assert all(torch.equal(loaded[name], weights[name]) for name in names)
    (folder / parts[1]).unlink()
    assert f"has no {parts[1]}; it holds" in refused(folder, allow_pickle=True)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "best.ckpt"])
def test_a_pickle_is_read_where_it_is_asked_for_and_never_run(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / name)
    said = refused(folder)
    assert f"{name} is a pickle" in said and "allow_pickle=True (--allow-pickle)" in said
    loaded = LanguageModel.from_pretrained(folder, allow_pickle=True)
    assert all(torch.equal(x, weights[key]) for key, x in loaded.state_dict().items())
    torch.save({**weights, "evil": Evil()}, folder / name)
    refused(folder)
    assert f"{name} cannot be read as tensors" in refused(folder, allow_pickle=True)
    assert not (tmp_path / "was-run").exists()
    torch.save([1], folder / name)
    assert f"{name} holds a list, not tensors by name" in refused(folder, allow_pickle=True)


# --- writing ---


def test_a_folder_is_replaced_where_it_holds_a_saved_model_alone(folder: Path, tmp_path: Path) -> None:
    language_model().save_pretrained(folder, tokenizer=CharacterTokenizer("abcdefg"))
    other = language_model(n_layers=1)
    (folder / "README.md").write_text("kept")
    other.save_pretrained(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert torch.equal(LanguageModel.from_pretrained(folder)(IDS), other.eval()(IDS))
    mine = tmp_path / "mine"
    mine.mkdir()
    other.save_pretrained(mine)  # an empty one
    for content in ("{}", "no JSON"):
        (mine / "config.json").write_text(content)
        with pytest.raises(InputError, match="is not empty and holds no saved model: give a new or an empty folder"):
            other.save_pretrained(mine)
        assert (mine / "config.json").read_text() == content
    with pytest.raises(InputError, match="is not empty"):
        other.save_pretrained(mine / "config.json")
    other.save_pretrained(tmp_path / "new/below")
    assert len({path.stat().st_mode for path in (tmp_path / "new/below").iterdir()}) == 1  # whoever may read one
    assert not list(tmp_path.rglob(".unfinished*"))


def test_nothing_stays_of_a_model_that_could_not_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    for target in (folder, tmp_path / "new"):
        with pytest.raises(InputError, match=r"the model cannot be saved there \(No space left on device\)"):
            language_model().save_pretrained(target)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_arguments_that_no_file_can_hold(tmp_path: Path) -> None:
    class Own(MambaBlock):
        pass

    with pytest.raises(ValueError, match="cannot be imported again"):
        language_model(block=Own).save_pretrained(tmp_path / "a")
    with pytest.raises(InputError, match="format is 'onnx'; it must be lra_ssm or hf"):
        language_model().save_pretrained(tmp_path / "a", format="onnx")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cannot be saved: Object of type set is not JSON serializable"):
        save_network(tmp_path / "a", {}, {}, source={"when": {1, 2}})
    assert not list(tmp_path.iterdir())
