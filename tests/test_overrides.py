"""How files and options are merged: what an override leaves of the configuration before it, and short names."""

import inspect
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from torch import nn

from lra_ssm import datamodules, layers
from lra_ssm.cli.config import add_sections
from tests.runner import FIT, everything_below, in_process, printed, refused

SEVERAL = "model: {init_args: {network: {init_args: {layer: [{class_path: S6, init_args: {d_state: 5}}, LRU]}}}}"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def config(capsys):
    return lambda *flags: yaml.safe_load(printed([*FIT, *flags, "--print_config"], capsys))


@pytest.fixture
def network(config):
    return lambda *flags: config(*flags)["model"]["init_args"]["network"]["init_args"]


def defaults(cls, *given):
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in given}


def test_dotted_overrides_at_every_depth_and_null(config, tmp_path):
    """jsonargparse makes the text None of a null in a class within a class."""
    read = config("--model.network.layer.num_blocks=4", "--model.init_args.optimizer.lr=0.5", "--data.batch_size=7",
                  "--model.network.head=LinearHead", "--model.optimizer.roles.delta.lr_factor=1",
                  "--model.network.vocab_size=null", "--data.eval_batch_size=null", "--model.network.head=null",
                  "--model.network.layer.delta_min=null", "--model.optimizer.roles.delta.lr_factor=null")  # fmt: skip
    model = read["model"]["init_args"]
    network, delta = model["network"]["init_args"], model["optimizer"]["roles"]["delta"]
    assert network["layer"]["init_args"]["num_blocks"] == 4 and model["optimizer"]["lr"] == 0.5
    found = [network["vocab_size"], network["head"], network["layer"]["init_args"]["delta_min"], delta["lr_factor"]]
    assert found == [None] * 4 and read["data"]["init_args"]["eval_batch_size"] is None
    assert read["data"]["init_args"]["batch_size"] == 7 and everything_below(tmp_path) == []


def test_a_new_class_starts_from_its_own_defaults(config, network):
    read = config("--model.network.layer=lra_ssm.layers.S4D", "--data=lra_ssm.datamodules.Text")
    assert read["data"]["init_args"] == defaults(datamodules.Text)
    found = read["model"]["init_args"]["network"]["init_args"]
    assert found["layer"]["init_args"] == defaults(layers.S4D) and found["d_model"] == 8
    layer, state = "--model.network.layer=lra_ssm.layers.S6", "--model.network.layer.d_state=2"
    for flags, d_state in (((layer, state), 2), ((state, layer), 16), ((layer, state, layer), 2)):
        assert network(*flags)["layer"]["init_args"]["d_state"] == d_state, flags
    assert network("--model.network.layer=lra_ssm.layers.b2s6.B2S6")["layer"]["init_args"]["num_blocks"] == 2
    Path("block.yaml").write_text(
        "model: {init_args: {network: {init_args: {block: {class_path: lra_ssm.layers.MambaBlock}}}}}"
    )
    found = network("--config", "block.yaml")
    assert found["block"]["init_args"] == defaults(layers.MambaBlock)
    assert found["layer"]["init_args"]["num_blocks"] == 2  # next to it nothing changes


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        (["--model.network=tests.helpers.Bag"], "Bag replaces Classifier: num_classes, vocab_size, layer"),
        (["--model.network=tests.helpers.Bag", "--model.network.num_classes=10"], "Bag replaces Classifier: vocab_size,"
         " layer"),
        (["--model.network.block=S5Block"], "S5Block replaces S4Block: dropout"),
        (["--model.network.block=S5Block", "--model.network.block.dropout=0"], None),
        (["--model.network.block=MambaBlock"], None),
    ],
)  # fmt: skip
def test_what_a_new_class_keeps_is_said_but_for_what_is_given_to_it(flags, note, capsys):
    """All of a base's, of another class only what it has no default for."""
    code, out, errors = in_process([*FIT, *flags, "--print_config"], capsys)
    assert code == 0 and errors == ([f"note: {note.replace(':', ' and keeps its settings')}"] if note else [])
    if flags[0].endswith("Bag"):
        found = yaml.safe_load(out)["model"]["init_args"]["network"]["init_args"]
        assert found["num_classes"] == 10 and found["vocab_size"] == 18 and "d_model" not in found


def test_a_list_replaces_a_list_and_has_no_names(config, network, capsys):
    """The items of the list before leave nothing in those that replace them."""
    Path("several.yaml").write_text(SEVERAL)
    Path("other.yaml").write_text(SEVERAL.replace("{class_path: S6, init_args: {d_state: 5}}, LRU", "S6, S6"))
    given = ["--config=several.yaml", "--config=other.yaml"]
    for flags in (given, [given[0], "--model.network.layer=[S6, S6]"]):
        assert [each["init_args"]["d_state"] for each in network(*flags)["layer"]] == [16, 16]
    one = {"class_path": "lra_ssm.layers.S6", "init_args": defaults(layers.S6)}
    other = {"class_path": "lra_ssm.layers.LRU", "init_args": defaults(layers.LRU)}
    five = {**one, "init_args": {**one["init_args"], "d_state": 5}}
    assert network(given[0])["layer"] == [five, other] and network(given[0], "--model.network.layer=S6")["layer"] == one
    for flags, key in (
        ([given[0], "--model.network.layer.d_state=3"], "--model.network.layer is a list"),
        (["--trainer.callbacks.patience=3"], "--trainer.callbacks is a list"),
        (["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitr=a"], "takes no key 'monitr'; did you"),
    ):
        assert key in refused([*FIT, *flags], capsys)
    added = ["--trainer.callbacks+=[Timer, EarlyStopping]", "--trainer.callbacks.monitor=val/loss"]
    names = [each["class_path"].rpartition(".")[2] for each in config(*added)["trainer"]["callbacks"]]
    assert names == ["KillMe", "Timer", "EarlyStopping"]


def test_short_names_serve_on_the_command_line_and_in_files(config, monkeypatch):
    """Also where another library has been imported that calls its own so, as transformers does."""
    others = [type(name, (nn.Module,), {"__module__": "others"}) for name in ("MambaBlock", "S6")]
    monkeypatch.setitem(sys.modules, "others", SimpleNamespace(**{cls.__name__: cls for cls in others}))
    Path("short.yaml").write_text(
        "model: {class_path: Classification, init_args: {network: {class_path: Classifier, init_args:"
        " {layer: S4D, num_classes: 2, vocab_size: 134, block: {class_path: MambaBlock}}}}}\ndata: Text\n"
    )
    for flags, expected in (
        (["--config=short.yaml"], ("datamodules.Text", "layers.MambaBlock", "layers.S4D", "models.MeanPooling")),
        (["--data=MNIST", "--model.network.pooling=LastPooling", "--model.network.layer=S6"],
         ("datamodules.MNIST", "layers.S4Block", "layers.S6", "models.LastPooling")),
    ):  # fmt: skip
        read = config(*flags)
        found = read["model"]["init_args"]["network"]["init_args"]
        paths = [each["class_path"] for each in (read["data"], found["block"], found["layer"], found["pooling"])]
        assert paths == [f"lra_ssm.{each}" for each in expected]


def test_configs_are_found_by_name_or_are_any_file(capsys):
    for name in ("lra/listops/b2s6", "configs/lra/listops/b2s6.yaml"):  # outside a checkout, too
        assert "experiment: lra/listops/b2s6" in printed(["fit", "--config", name, "--print_config"], capsys)
    Path("tabs.json").write_text('{\n\t"experiment": "tabs"\n}')
    os.mkdir("quickstart")  # a folder hides no config
    assert "experiment: tabs" in printed(["fit", "--config=quickstart", "--config=tabs.json", "--print_config"], capsys)
    reads, writes = os.pipe()
    os.write(writes, b"{experiment: piped}")
    os.close(writes)
    assert "experiment: piped" in printed([*FIT, "-c", f"/dev/fd/{reads}", "--print_config"], capsys)
    os.rmdir("quickstart")
    Path("quickstart").write_text("experiment: mine")  # a file of that name goes first
    assert "experiment: mine" in printed([*FIT, "--config", "quickstart", "--print_config"], capsys)


def test_one_batch_is_not_all_in_whichever_order_typing_gives_the_types(monkeypatch, config):
    for text, value in (("1", 1), ("1.0", 1.0)):
        read = config(f"--trainer.limit_test_batches={text}")["trainer"]["limit_test_batches"]
        assert repr(read) == repr(value)

    class Parser:
        """Its Trainer has the types as a module wrote them that put float first."""

        groups = dict.fromkeys(("trainer", "model", "data"), SimpleNamespace())
        _actions = [SimpleNamespace(_typehint=float | int | None)]
        add_argument = add_class_arguments = add_subclass_arguments = lambda *_, **__: None

    add_sections(Parser())
    assert str(Parser._actions[0]._typehint) == "int | float | None"
