"""Arguments of commands: typed functions and their help; how files and options of a fit are merged, and short names."""

import functools
import inspect
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import yaml
from torch import nn

from lra_ssm import datamodules, layers
from lra_ssm.cli.command import call
from lra_ssm.cli.coordcheck import coordcheck
from lra_ssm.cli.data import prepare
from lra_ssm.cli.fit import fit
from lra_ssm.cli.merge import CHOICES
from lra_ssm.cli.text import generate, score
from tests.runner import FIT, everything_below, in_process, printed

# --- a typed function ---


@pytest.mark.parametrize(
    ("function", "line", "expected"),
    [
        (generate, "m --prompt a --prompt=b --top_k=4 --num-samples 2 --allow-pickle",
         {"model": "m", "prompt": ["a", "b"], "top_k": 4, "num_samples": 2,
          "allow_pickle": True, "seed": None, "temperature": 0.8, "stop": [], "trust": []}),
        (score, "m a --allow-pickle b --device cpu c", {"model": "m", "files": ("a", "b", "c"), "allow_pickle": True}),
        # Settings of a configuration are handed on as they are.
        (fit, "--config quickstart --estimate --fresh --data=Text",
         {"settings": ("--config=quickstart", "--data=Text"), "estimate": True, "fresh": True}),
        (coordcheck, "--data.root here quickstart --widths 64 128 --model.network.layer=S6",
         {"config": "quickstart", "widths": [64, 128], "settings": ("--data.root=here", "--model.network.layer=S6")}),
        (prepare, "text --limit 3 --root=data --inputs=bytes",
         {"dataset": "text", "options": ("--limit=3", "--inputs=bytes"), "root": "data"}),
    ],
)  # fmt: skip
def test_a_signature_is_a_command_line(function, line, expected):
    record = functools.wraps(function)(mock.Mock(return_value=None))
    assert call("example", record, line.split()) == 0
    got = inspect.signature(function).bind(*record.call_args.args, **record.call_args.kwargs).arguments
    assert {name: got.get(name, ()) for name in expected} == expected


def test_help_of_fit_has_our_classes_first_and_a_title_for_every_group(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    out = printed(["fit", "--help"], capsys)
    titles = ["usage: lightning fit --config FILE", "Our classes", "--fresh", "Trainer (Lightning's own", "Model:",
              "Data:", "Which checkpoints a run keeps:", "lightning fit --config quickstart"]  # fmt: skip
    places = [out.index(title) for title in titles]
    assert places == sorted(places)
    for option, classes in CHOICES.items():
        assert f"  {option} " in out and all(f"  {cls.__name__} " in out for cls in classes)
    assert len(out.splitlines()) < 330 and max(map(len, out.splitlines())) <= 100
    assert not any(each in out for each in ("<class", "torch.nn.", "weights_only", "Path to a configuration", "hpc"))


@pytest.mark.parametrize("option", CHOICES)
def test_every_class_is_explained_by_its_short_name(option, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    for cls in CHOICES[option]:
        out = printed(["fit", f"{option}.help", cls.__name__], capsys)
        assert cls.__name__ in out and "torch.nn" not in out and len(out.splitlines()) < 110, out
        assert "usage" not in out
        assert all(name.startswith(f"{option}.") for name in re.findall(r"^  (--[\w.]+)", out, re.M))
        for about in re.findall(r"^  --\S.*(?:\n {4,}.*)*", out, re.M):
            text = re.sub(r"--\S+|{.*?}|\[.*?\]|\b[A-Z_]+\b|[,\s]", "", about.split("(type: ")[0])
            assert text, f"no word on what it is:\n{about}"


# --- a configuration ---

SEVERAL = "model: {init_args: {network: {init_args: {layer: [{class_path: S6, init_args: {d_state: 5}}, LRU]}}}}"


@pytest.fixture
def config(capsys, here):
    """The configuration that tiny.yaml and these options make, in an empty folder."""
    return lambda *flags: yaml.safe_load(printed([*FIT, *flags, "--print_config"], capsys))


@pytest.fixture
def network(config):
    return lambda *flags: config(*flags)["model"]["init_args"]["network"]["init_args"]


def defaults(cls):
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


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
    block = "model: {init_args: {network: {init_args: {block: {class_path: lra_ssm.layers.MambaBlock}}}}}"
    Path("block.yaml").write_text(block)
    found = network("--config", "block.yaml")
    assert found["block"]["init_args"] == defaults(layers.MambaBlock)
    assert found["layer"]["init_args"]["num_blocks"] == 2  # next to it nothing changes


BAG = ["--model.network=tests.helpers.Bag"]


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        (BAG, "Bag replaces Classifier and keeps its settings num_classes, vocab_size, layer"),
        ([*BAG, "--model.network.num_classes=10"], "Bag replaces Classifier and keeps its settings vocab_size, layer"),
        (["--model.network.block=S5Block"], "S5Block replaces S4Block and keeps its settings dropout"),
        (["--model.network.block=S5Block", "--model.network.block.dropout=0"], None),
        (["--model.network.block=MambaBlock"], None),
    ],
)
def test_what_a_new_class_keeps_is_said_but_for_what_is_given_to_it(flags, note, capsys):
    """All of a base's, of another class only what it has no default for."""
    code, out, errors = in_process([*FIT, *flags, "--print_config"], capsys)
    assert code == 0 and errors == ([f"note: {note}"] if note else [])
    if flags[0].endswith("Bag"):
        found = yaml.safe_load(out)["model"]["init_args"]["network"]["init_args"]
        assert found["num_classes"] == 10 and found["vocab_size"] == 18 and "d_model" not in found


def test_a_list_replaces_a_list_and_its_items_leave_nothing(config, network):
    Path("several.yaml").write_text(SEVERAL)
    Path("other.yaml").write_text(SEVERAL.replace("{class_path: S6, init_args: {d_state: 5}}, LRU", "S6, S6"))
    given = ["--config=several.yaml", "--config=other.yaml"]
    for flags in (given, [given[0], "--model.network.layer=[S6, S6]"]):
        assert [each["init_args"]["d_state"] for each in network(*flags)["layer"]] == [16, 16]
    one = {"class_path": "lra_ssm.layers.S6", "init_args": defaults(layers.S6)}
    other = {"class_path": "lra_ssm.layers.LRU", "init_args": defaults(layers.LRU)}
    five = {**one, "init_args": {**one["init_args"], "d_state": 5}}
    assert network(given[0])["layer"] == [five, other] and network(given[0], "--model.network.layer=S6")["layer"] == one
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


def test_configs_are_found_by_name_or_are_any_file(config, capsys):
    for name in ("lra/listops/b2s6", "configs/lra/listops/b2s6.yaml"):  # outside a checkout, too
        assert config(f"--config={name}")["experiment"] == "lra/listops/b2s6"
    Path("tabs.json").write_text('{\n\t"experiment": "tabs"\n}')
    os.mkdir("quickstart")  # a folder hides no config
    assert config("--config=quickstart", "--config=tabs.json")["experiment"] == "tabs"
    reads, writes = os.pipe()
    os.write(writes, b"{experiment: piped}")
    os.close(writes)
    assert "experiment: piped" in printed([*FIT, "-c", f"/dev/fd/{reads}", "--print_config"], capsys)
    os.rmdir("quickstart")
    Path("quickstart").write_text("experiment: mine")  # a file of that name goes first
    assert config("--config=quickstart")["experiment"] == "mine"
