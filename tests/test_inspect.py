"""`lra-ssm inspect`, as its user meets it."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from lra_ssm.checkpoints.sources import SHIPPED
from lra_ssm.cli.inspect import examples_of
from lra_ssm.cli.trained import find, load_network
from lra_ssm.datamodules import TeacherStudent
from lra_ssm.layers import S4D, LayerSpec
from lra_ssm.models import Regressor
from tests.runner import everything_below, fail, in_process, only_run, refused, succeed


def test_a_run_is_inspected_on_its_own_data(trained):
    folder, _ = trained
    run = only_run(folder)
    result = succeed(["inspect", str(run), "--out=."], folder)
    assert result.out.splitlines() == ["inspect.html", "inspect.png"]
    text = (folder / "inspect.html").read_text()
    assert f"tiny {run.name}" in text and "2 validation example(s) of ListOps" in text
    assert "1 B2S6, both directions" in text and (folder / "inspect.png").read_bytes().startswith(b"\x89PNG")


def test_two_side_by_side_beside_the_first(trained, tmp_path, capsys):
    run = only_run(trained[0])
    other, mine = tmp_path / "other", tmp_path / "mine"
    shutil.copytree(run, other)
    shutil.copytree(run, mine)
    data = ["--root", str(trained[0] / "data"), "--examples=1"]
    code, out, errors = in_process(["inspect", str(mine), f"--against={other}/checkpoints/last.ckpt", *data], capsys)
    assert code == 0, errors
    text = (mine / "inspect.html").read_text()
    assert "tiny mine and tiny other" in text and "last.ckpt" in text and "best.ckpt" in text
    assert text.count("measured on 1 validation example(s) of ListOps") == 2


def test_data_that_is_not_prepared_is_replaced_by_random_inputs(trained, tmp_path):
    found = find(str(only_run(trained[0])))
    network, spec, _ = load_network(found.file)
    (example,), source = examples_of(found.config, network, spec, str(tmp_path / "nowhere"), 1)
    assert source.startswith("measured on 1 random input(s) with random labels, as ListOps is not prepared below")
    assert network(example.inputs, example.lengths).shape == (1, 10) and not (tmp_path / "nowhere").exists()


def test_a_checkpoint_alone_has_random_inputs(trained, tmp_path):
    file = tmp_path / "some.ckpt"
    shutil.copy(only_run(trained[0]) / "checkpoints" / "best.ckpt", file)
    found = find(str(file))
    assert found.run is None and found.config == {}
    network, spec, step = load_network(file)
    assert step > 0
    examples, source = examples_of(found.config, network, spec, None, 3)
    assert len(examples) == 3 and "no config.yaml says" in source
    assert examples[0].inputs.dtype == torch.int64 and 0 < examples[0].inputs.min() < examples[0].inputs.max() < 18


def test_data_that_needs_no_preparation_is_the_runs_own():
    config = {"data": {"class_path": "lra_ssm.datamodules.TeacherStudent", "init_args": {"length": 6, "num_val": 3}}}
    network = Regressor(LayerSpec(S4D, d_state=4), num_outputs=1, d_input=1, d_model=4, n_layers=1, pooling=None)
    examples, source = examples_of(config, network, {}, "elsewhere", 2)
    assert source == "measured on 2 validation example(s) of TeacherStudent"
    data = TeacherStudent(length=6, num_val=3)
    data.setup("validate")
    (batch,) = data.val_dataloader()
    for i, example in enumerate(examples):
        assert torch.equal(example.inputs, batch.inputs[i : i + 1]) and torch.equal(
            example.labels, batch.labels[i : i + 1]
        )


def test_data_of_another_kind_is_named():
    config = {"data": {"class_path": "lightning.LightningDataModule"}}
    spec = {"init_args": {"vocab_size": 5, "num_classes": 2}}
    _, source = examples_of(config, torch.nn.Identity(), spec, None, 1)
    assert source.endswith("as LightningDataModule is a data module of another kind than ours")


def test_a_saved_model_by_its_name_or_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LRA_SSM_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = str(Path(shutil.copytree(SHIPPED / "mnist-b2s6", "mine")))
    code, out, errors = in_process(["inspect", "mnist-b2s6", f"--against={folder}", "--examples=1"], capsys)
    assert code == 0 and out.split() == ["inspect.html", "inspect.png"], errors
    text = Path("inspect.html").read_text()
    assert "mnist-b2s6 and mine" in text and text.count("test/accuracy 98.89 %") == 2
    assert "random input(s)" in text and "MNIST is not prepared below" in text
    config = Path("mine/config.yaml")
    config.write_text(config.read_text().replace("lra_ssm.datamodules.MNIST", "tests.helpers.KillMe"))
    stated = json.loads(Path("mine/config.json").read_text())
    del stated["source"]["files"]
    Path("mine/config.json").write_text(json.dumps(stated))
    assert "names tests.helpers.KillMe, which is no class that" in refused(["inspect", "mine"], capsys)


def test_what_cannot_be_inspected_is_one_line(trained, tmp_path):
    run = only_run(trained[0])
    before = everything_below(tmp_path)
    assert "nowhere.ckpt does not exist: give a run's directory, or a .ckpt" in fail(
        ["inspect", "nowhere.ckpt"], tmp_path
    )
    assert "there is no such folder, and no repository" in fail(["inspect", "runs/no/where"], tmp_path)
    assert "has no checkpoints/best.ckpt" in fail(["inspect", "."], tmp_path)
    assert "is no existing folder" in fail(["inspect", str(run), "--out=missing"], tmp_path)
    assert "must be at least 1" in fail(["inspect", str(run), "--examples=0"], tmp_path)
    assert "CHECKPOINT" in fail(["inspect"], tmp_path)
    assert everything_below(tmp_path) == before


LINEAR = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 2}}


@pytest.mark.parametrize(
    "state, says",
    [
        ([1], "is no checkpoint"),
        ({"state_dict": {}}, "says no network"),
        ({"state_dict": {}, "hyper_parameters": {"network": {"class_path": "no.such.Class"}}}, "cannot be built"),
        ({"state_dict": {}, "hyper_parameters": {"network": LINEAR}}, "of another network"),
    ],
)
def test_a_checkpoint_of_something_else(state, says, tmp_path, capsys):
    torch.save(state, tmp_path / "x.ckpt")
    code, _, errors = in_process(["inspect", str(tmp_path / "x.ckpt")], capsys)
    assert code == 2 and len(errors) == 1 and says in errors[0], errors


def test_help_has_an_example(tmp_path):
    out = succeed(["inspect", "--help"], tmp_path).out
    assert "lra-ssm inspect runs/" in out and "--against" in out
