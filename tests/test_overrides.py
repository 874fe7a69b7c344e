"""What an override leaves of the configuration before it: nothing of a class that another one replaces."""

import inspect

import pytest
import yaml
from lightning.pytorch.cli import LightningArgumentParser

from lra_ssm import datamodules, layers
from tests.runner import FIT, in_process, printed, refused


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def model_of(capsys, *flags):
    return yaml.safe_load(printed([*FIT, *flags, "--print_config"], capsys))["model"]["init_args"]


def defaults(cls, *given):
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in given}


def test_a_new_class_starts_from_its_own_defaults(capsys):
    flags = ["--model.network.layer=lra_ssm.layers.S4D", "--data=lra_ssm.datamodules.Text", "--print_config"]
    config = yaml.safe_load(printed([*FIT, *flags], capsys))
    network = config["model"]["init_args"]["network"]["init_args"]
    assert network["layer"]["init_args"] == defaults(layers.S4D) and network["d_model"] == 8
    assert config["data"]["init_args"] == defaults(datamodules.Text)


def test_what_is_given_after_the_class_belongs_to_it_and_what_before_does_not(capsys):
    layer, state = "--model.network.layer=lra_ssm.layers.S6", "--model.network.layer.d_state=2"
    for flags, d_state in (((layer, state), 2), ((state, layer), 16), ((layer, state, layer), 2)):
        network = model_of(capsys, *flags)["network"]["init_args"]
        assert network["layer"]["init_args"]["d_state"] == d_state, flags


def test_padding_and_discretization_as_in_the_public_code(capsys):
    flags = ["--model.network.padding=seen", "--model.network.layer=lra_ssm.layers.S4D"]
    network = model_of(capsys, *flags, "--model.network.layer.discretization=bilinear")["network"]["init_args"]
    assert network["padding"] == "seen" and network["layer"]["init_args"]["discretization"] == "bilinear"
    assert "masked" in refused([*FIT, "--model.network.padding=kept"], capsys)


def test_the_same_class_by_another_path_keeps_its_arguments(capsys):
    network = model_of(capsys, "--model.network.layer=lra_ssm.layers.b2s6.B2S6")["network"]["init_args"]
    assert network["layer"]["init_args"]["num_blocks"] == 2


def test_a_second_file_replaces_a_class_whole(tmp_path, capsys):
    (tmp_path / "block.yaml").write_text(
        "model: {init_args: {network: {init_args: {block: {class_path: lra_ssm.layers.MambaBlock}}}}}"
    )
    network = model_of(capsys, "--config", "block.yaml")["network"]["init_args"]
    assert network["block"]["init_args"] == defaults(layers.MambaBlock)
    assert network["layer"]["init_args"]["num_blocks"] == 2  # beside it nothing changes


def test_a_list_of_layers_is_written_whole_and_read_again(tmp_path, capsys):
    (tmp_path / "several.yaml").write_text(
        "model: {init_args: {network: {init_args: {layer: [{class_path: lra_ssm.layers.S6}, lra_ssm.layers.LRU]}}}}"
    )

    def layers_of(*flags):
        return model_of(capsys, "--config", "several.yaml", *flags)["network"]["init_args"]["layer"]

    both = [
        {"class_path": f"lra_ssm.layers.{cls.__name__}", "init_args": defaults(cls)} for cls in (layers.S6, layers.LRU)
    ]
    assert layers_of() == both
    assert layers_of("--model.network.layer=S6") == both[0]


def test_a_list_replaces_a_list_and_has_no_names(tmp_path, capsys):
    """The items of the list before leave nothing in those that replace them."""
    several = "model: {init_args: {network: {init_args: {layer: [{class_path: S6, init_args: {d_state: 5}}, LRU]}}}}"
    (tmp_path / "several.yaml").write_text(several)
    (tmp_path / "other.yaml").write_text(several.replace("{class_path: S6, init_args: {d_state: 5}}, LRU", "S6, S6"))
    given = ["--config=several.yaml", "--config=other.yaml"]
    for flags in (given, [given[0], "--model.network.layer=[S6, S6]"]):
        layer = model_of(capsys, *flags)["network"]["init_args"]["layer"]
        assert [each["init_args"]["d_state"] for each in layer] == [16, 16]
    for flags, key in (
        ([given[0], "--model.network.layer.d_state=3"], "--model.network.layer is a list"),
        (["--trainer.callbacks.patience=3"], "--trainer.callbacks is a list"),
        (["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitr=a"], "takes no key 'monitr'; did you"),
    ):
        assert key in refused([*FIT, *flags], capsys)
    added = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/loss"]
    config = yaml.safe_load(printed([*FIT, *added, "--print_config"], capsys))
    assert [c["class_path"].rpartition(".")[2] for c in config["trainer"]["callbacks"]] == ["KillMe", "EarlyStopping"]


def test_a_section_may_be_a_file_and_several_items_are_added_at_once(tmp_path, capsys):
    (tmp_path / "trainer.yaml").write_text("max_steps: 7\ncallbacks: []\n")
    given = ["--trainer=trainer.yaml", "--trainer.callbacks+=[LearningRateMonitor, DeviceStatsMonitor]"]
    config = yaml.safe_load(printed([*FIT, *given, "--print_config"], capsys))["trainer"]
    names = [c["class_path"].rpartition(".")[2] for c in config["callbacks"]]
    assert config["max_steps"] == 7 and config["max_epochs"] == 2
    assert names == ["LearningRateMonitor", "DeviceStatsMonitor"]


def test_a_name_is_not_said_to_be_kept_if_it_was_given(capsys):
    new = ["--model.network=tests.helpers.Bag", "--model.network.num_classes=10"]
    code, _, errors = in_process([*FIT, *new, "--print_config"], capsys)
    assert code == 0 and errors == ["note: Bag keeps what Classifier was given: vocab_size, layer"]


def test_what_a_new_class_keeps_is_said(capsys):
    """All of a base's, of another class only what it has no default for."""
    for name, kept, dropped in (
        ("lra_ssm.models.DualEncoder", "d_model", ()),
        ("tests.helpers.Bag", "vocab_size", ("d_model",)),
    ):
        code, out, said = in_process([*FIT, f"--model.network={name}", "--print_config"], capsys)
        arguments = yaml.safe_load(out)["model"]["init_args"]["network"]["init_args"]
        assert arguments["num_classes"] == 10 and arguments["vocab_size"] == 18 and not set(dropped) & set(arguments)
        (line,) = said
        assert line.startswith(f"note: {name.rpartition('.')[2]} keeps what Classifier was given: ") and kept in line
        assert code == 0


@pytest.mark.parametrize("flag", [
    "--trainer.max_step=3", "--trainer.max_epoch=1", "--experimen=x", "--data.roo=x", "--model.network.d_mode=4",
    "--model.network.layer.num_block=2", "--model.optimizer.warmup=3", "--fres", "--strict",
])  # fmt: skip
def test_names_are_exact(flag, tmp_path, capsys):
    """The beginning of a name is not the name."""
    assert "did you mean" in refused([*FIT, flag], capsys)
    assert not list(tmp_path.iterdir())


def test_one_batch_is_not_all_in_whichever_order_typing_gives_the_types(monkeypatch, capsys):
    add = LightningArgumentParser.add_lightning_class_args

    def float_first(self, *args, **kwargs):
        added = add(self, *args, **kwargs)
        for action in self._actions:
            if action.dest == "trainer.limit_test_batches":
                action._typehint = float | int | None
        return added

    monkeypatch.setattr(LightningArgumentParser, "add_lightning_class_args", float_first)
    for text, value in (("1", 1), ("1.0", 1.0)):
        found = printed([*FIT, f"--trainer.limit_test_batches={text}", "--print_config"], capsys)
        assert repr(yaml.safe_load(found)["trainer"]["limit_test_batches"]) == repr(value)
