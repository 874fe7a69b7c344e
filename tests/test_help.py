"""`--help` of the run commands: our classes first, by their short names; Lightning's options briefly."""

import re
import sys
from types import SimpleNamespace

import pytest
import yaml
from torch import nn

from lra_ssm.cli.help import CHOICES
from tests.runner import FIT, printed


def test_our_classes_come_first_and_every_group_has_a_title(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    out = printed(["fit", "--help"], capsys)
    assert out.startswith("usage: lightning fit --config FILE [--config …] [options]\n")
    assert "example: lightning fit" in out
    titles = ["Our classes", "Trainer (Lightning's own", "Model:", "Data:", "Which checkpoints a run keeps:"]
    places = [out.index(title) for title in titles]
    assert places == sorted(places)
    for option, classes in CHOICES.items():
        assert f"  {option} " in out
        for cls in classes:
            assert f"  {cls.__name__} " in out
    assert len(out.splitlines()) < 330 and max(map(len, out.splitlines())) <= 100
    assert not any(each in out for each in ("<class", "torch.nn.", "weights_only", "Path to a configuration"))
    assert "--ckpt_path" in out and "--fresh" in out and "hpc" not in out


@pytest.mark.parametrize("option", CHOICES)
def test_every_class_is_explained_by_its_short_name(option, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    config = FIT if option.startswith("--model.network") else ["fit"]
    for cls in CHOICES[option]:
        out = printed([*config, f"{option}.help", cls.__name__], capsys)
        assert cls.__name__ in out and "torch.nn" not in out and len(out.splitlines()) < 110, out
        assert "usage" not in out
        typed = re.findall(r"^  (--[\w.]+)", out, re.M)
        assert all(name.startswith(f"{option}.") for name in typed)
        for about in re.findall(r"^  --\S.*(?:\n {4,}.*)*", out, re.M):
            said = re.sub(r"--\S+|{.*?}|\[.*?\]|\b[A-Z_]+\b|[,\s]", "", about.split("(type: ")[0])
            assert said, f"no word on what it is:\n{about}"


def test_short_names_serve_as_values_on_the_command_line_and_in_files(tmp_path, monkeypatch, capsys):
    """Also where another library has been imported that calls its own so, as transformers does."""
    others = [type(name, (nn.Module,), {"__module__": "others"}) for name in ("MambaBlock", "S6")]
    monkeypatch.setitem(sys.modules, "others", SimpleNamespace(**{cls.__name__: cls for cls in others}))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.yaml").write_text(
        "model: {class_path: Classification, init_args: {network: {class_path: Classifier, init_args:"
        " {layer: S4D, num_classes: 2, vocab_size: 134, block: {class_path: MambaBlock}}}}}\ndata: Text\n"
    )
    config = yaml.safe_load(printed(["fit", "--config", "short.yaml", "--print_config"], capsys))
    network = config["model"]["init_args"]["network"]["init_args"]
    assert config["data"]["class_path"] == "lra_ssm.datamodules.Text"
    assert network["layer"]["class_path"] == "lra_ssm.layers.S4D"
    assert network["block"]["class_path"] == "lra_ssm.layers.MambaBlock"
    flags = ["--data=MNIST", "--model.network.pooling=LastPooling", "--model.network.layer=S6"]
    config = yaml.safe_load(printed([*FIT, *flags, "--print_config"], capsys))
    network = config["model"]["init_args"]["network"]["init_args"]
    assert config["data"]["class_path"] == "lra_ssm.datamodules.MNIST"
    assert network["pooling"]["class_path"] == "lra_ssm.models.LastPooling"
    assert network["layer"]["init_args"]["d_state"] == 16
