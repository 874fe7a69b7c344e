"""`lra-ssm inspect`, as its user meets it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from lra_ssm.checkpoints import ModelFiles
from lra_ssm.checkpoints.sources import SHIPPED
from lra_ssm.cli.find_model import NamedNetwork, load_network, named_network
from lra_ssm.cli.inspect import check_fits, open_data, other_data, random_examples, validation_examples
from lra_ssm.datamodules import MNIST, TeacherStudent
from lra_ssm.datamodules.language.tokenizer import CharacterTokenizer
from lra_ssm.errors import InputError
from lra_ssm.layers import S4D, S6, LayerSpec
from lra_ssm.models import LanguageModel, Regressor
from tests.datamodules.language.helpers import MadeUp
from tests.runner import TINY, everything_below, in_process, only_run, refused


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def reported(monkeypatch, capsys):
    """The file that a command would draw, and the facts of each network; nothing is drawn."""

    def of(*arguments):
        found = []
        with monkeypatch.context() as patch:
            patch.setattr("lra_ssm.cli.inspect._write", lambda *written: found.append(written))
            code, _, errors = in_process(["inspect", *map(str, arguments)], capsys)
        assert code == 0, errors
        ((file, networks),) = found
        return file, [f"{network.title}: {'; '.join(network.facts)}" for network in networks]

    return of


def opened(network, spec=None, config=None, **more):
    return NamedNetwork("it", network, spec or {}, config or {}, **more)


def test_a_run_is_inspected_on_its_own_data(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(trained[0])
    run, file = only_run(trained[0]), tmp_path / "of/a run/memory.pdf"  # whose folder is made
    code, out, errors = in_process(["inspect", str(run), f"--out={file}"], capsys)
    assert code == 0, errors
    facts, columns, *rows, _, last = out.splitlines()
    assert facts.startswith(f"tiny {run.name}: ") and facts.endswith("2 validation example(s) of ListOps")
    assert columns.startswith("layer ") and rows[0].startswith("1 B2S6, both directions ")
    assert last == str(file) and file.read_bytes().startswith(b"%PDF")
    assert everything_below(tmp_path) == ["of", "of/a run", "of/a run/memory.pdf"]


def test_two_are_measured_on_the_same_inputs_or_refused(trained, tmp_path, reported, capsys):
    shutil.copytree(only_run(trained[0]), "first")
    shutil.copytree("first", "second")
    config = yaml.safe_load(Path("second/config.yaml").read_text())
    config["data"]["init_args"] |= {"num_val": 777, "root": str(tmp_path / "none")}  # its own is not prepared
    Path("second/config.yaml").write_text(yaml.safe_dump(config))
    options = [f"--data.root={trained[0] / 'data'}", "--examples=1"]
    file, texts = reported("first", "--against=second/checkpoints/last.ckpt", *options)
    text = "\n".join(texts)
    assert file == Path("first/inspect.png")
    assert [one.partition(":")[0] for one in texts] == ["tiny first", "tiny second"]
    assert "best.ckpt" in texts[0] and "last.ckpt" in texts[1]
    assert text.count("measured on 1 validation example(s) of ListOps") == 2 and "random" not in text
    assert text.count("trained with other settings of data: num_val 777") == 1
    for more, name in ((options, "ListOps"), (["--random"], "random input for first")):
        line = refused(["inspect", "first", "--against=mnist-lru", *more], capsys)
        assert line == f"mnist-lru: its d_input is 1, but {name} has None"
    words = opened(None, config=config, recorded={"vocabulary": ["a", "b"]})
    data = open_data([words], ["--data.num_val=20", options[0]])
    with pytest.raises(InputError, match="it: was trained on another vocabulary than ListOps has here"):
        check_fits(words, data)


def test_data_that_is_not_prepared_is_one_line_whose_command_prepares_it(trained, tmp_path, reported, capsys):
    run, nowhere = shutil.copytree(only_run(trained[0]), tmp_path / "run"), tmp_path / "nowhere"
    smaller = [f"--data.root={nowhere}", "--data.num_val=3", "--data.batch_size=5"]
    line = refused(["inspect", str(run), *smaller], capsys)
    assert line == (
        f"ListOps is not prepared below {nowhere} with these settings: `lra-ssm prepare --config {run}/config.yaml"
        f" {' '.join(smaller)}` prepares it, --random takes random inputs"
    )
    assert not nowhere.exists() and not Path(run, "inspect.png").exists()
    nowhere.mkdir()
    assert in_process(line.partition("`")[2].partition("`")[0].split()[1:], capsys)[0] == 0
    _, (text,) = reported(run, *smaller, "--examples=4")
    assert text.endswith(
        "measured on 3 validation example(s) of ListOps; trained with other settings of data: num_val 20"
    )


def test_a_checkpoint_without_a_run_needs_data_or_random(trained, tmp_path, capsys):
    file = Path(shutil.copy(only_run(trained[0]) / "checkpoints" / "best.ckpt", tmp_path / "some.ckpt"))
    line = refused(["inspect", str(file)], capsys)
    assert line.startswith(f"{file}: no config.yaml names its training data: give --data=CLASS and its")
    network, spec, step = load_network(file)
    examples = random_examples(opened(network, spec), 3)
    assert step > 0 and len(examples) == 3
    assert examples[0].inputs.dtype == torch.int64 and 0 < examples[0].inputs.min() < examples[0].inputs.max() < 18
    assert network(examples[0].inputs, examples[0].lengths).shape == (1, 10)
    settings = ["--data=ListOps", "--data.length_bounds=[3,20]", "--data.max_depth=3", "--data.num_train=16",
                "--data.num_val=20", "--data.num_test=20", f"--data.root={trained[0] / 'data'}"]  # fmt: skip
    data = open_data([opened(network, spec)], settings)
    check_fits(opened(network, spec), data)
    assert len(validation_examples(data, 3)) == 3


def test_data_that_needs_no_preparation_is_the_runs_own():
    config = {"data": {"class_path": "lra_ssm.datamodules.TeacherStudent", "init_args": {"length": 6, "num_val": 3}}}
    network = Regressor(LayerSpec(S4D, d_state=4), num_outputs=1, d_input=1, d_model=4, n_layers=1, pooling=None)
    one = opened(network, network.specification(), config)
    data = open_data([opened(network), one], [])
    check_fits(one, data)
    assert other_data(one, data) == []
    examples = validation_examples(data, 2)
    data = TeacherStudent(length=6, num_val=3)
    data.setup("validate")
    (batch,) = data.val_dataloader()
    for i, example in enumerate(examples):
        assert torch.equal(example.inputs, batch.inputs[i : i + 1])
        assert torch.equal(example.labels, batch.labels[i : i + 1])
    assert len(examples) == 2
    other = {"data": {"class_path": "lightning.LightningDataModule"}}
    with pytest.raises(InputError, match="LightningDataModule is a data module of another kind: --random"):
        open_data([opened(torch.nn.Identity(), config=other)], [])


def test_a_pretraining_is_inspected_on_its_own_data():
    settings = {"group": "S3", "length": 6, "num_val": 3, "pretrain": {"share": 0.3}}
    config = {"data": {"class_path": "lra_ssm.datamodules.StateTracking", "init_args": settings}}
    network = Regressor(LayerSpec(S4D, d_state=4), num_outputs=6, vocab_size=6, d_model=4, n_layers=1, pooling=None)
    one = opened(network, network.specification(), config)
    data = open_data([one], [])
    check_fits(one, data)
    assert data.pretrain.share == 0.3 and other_data(one, data) == []
    assert (validation_examples(data, 1)[0].labels == -100).any()


def test_text_is_opened_and_another_tokenizer_or_vocabulary_refused(tmp_path):
    settings = {"root": str(tmp_path / "data"), "length": 8}
    config = {"data": {"class_path": "tests.datamodules.language.helpers.MadeUp", "init_args": settings}}
    network = LanguageModel(LayerSpec(S6, d_state=4), vocab_size=300, d_model=8, n_layers=1)
    network.save_pretrained(tmp_path / "lm", tokenizer=CharacterTokenizer("abc"))
    network.save_pretrained(tmp_path / "bare")
    one = opened(network, network.specification(), config)
    (tmp_path / "data").mkdir()
    MadeUp(**settings).prepare_data()
    data = open_data([one], [])
    (example,) = validation_examples(data, 1)
    assert example.inputs.shape == (1, 8)
    check_fits(one._replace(files=ModelFiles(tmp_path / "bare")), data)
    with pytest.raises(InputError, match="its tokenizer is not the data's"):
        check_fits(one._replace(files=ModelFiles(tmp_path / "lm")), data)
    small = LanguageModel(LayerSpec(S6, d_state=4), vocab_size=299, d_model=8, n_layers=1)
    with pytest.raises(InputError, match=r"^it: its vocab_size is 299, but MadeUp has 3"):
        check_fits(opened(small, small.specification()), data)


def test_a_saved_model_by_its_name_or_folder(tmp_path, monkeypatch, reported, capsys):
    monkeypatch.setenv("LRA_SSM_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = str(Path(shutil.copytree(SHIPPED / "mnist-b2s6", "mine")))
    line = refused(["inspect", "mnist-b2s6", f"--against={folder}"], capsys)
    assert "MNIST is not prepared below" in line
    assert f"`lra-ssm prepare --config {SHIPPED / 'mnist-b2s6' / 'config.yaml'}` prepares it" in line
    (example,) = random_examples(named_network("mnist-b2s6"), 1)
    assert example.inputs.shape == (1, 28 * 28, 1)
    monkeypatch.setattr(MNIST, "image_size", (4, 4))
    out, texts = reported("mnist-b2s6", f"--against={folder}", "--examples=1", "--random")
    assert out == Path("inspect.png") and [text.partition(":")[0] for text in texts] == ["mnist-b2s6", "mine"]
    for text in texts:
        assert "test/accuracy 98.89 %" in text and "measured on 1 random input(s) with random labels" in text
    config = Path("mine/config.yaml")
    config.write_text(config.read_text().replace("lra_ssm.datamodules.MNIST", "tests.helpers.KillMe"))
    stated = json.loads(Path("mine/config.json").read_text())
    del stated["source"]["files"]
    Path("mine/config.json").write_text(json.dumps(stated))
    assert "names tests.helpers.KillMe, which is not a class that" in refused(["inspect", "mine"], capsys)


LINEAR = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 2}}


def test_what_cannot_be_inspected_is_one_line(trained, tmp_path, capsys):
    run, root = str(only_run(trained[0])), f"--data.root={trained[0] / 'data'}"
    for arguments, expected in (
        (["nowhere.ckpt"], "nowhere.ckpt does not exist: give a run's directory, or a .ckpt"),
        ([run, f"--out={TINY}"], "tiny.yaml: give a file that ends in .png, .pdf, .svg, such as inspect.png"),
        ([run, "--examples=0"], "--examples: "),
        ([run, "--random", "--data.num_val", "3"], "--random takes no data: leave it out, or --data.num_val=3"),
        ([run, root, "--data.num_vall=3"], "did you mean 'num_val'?"),
        ([run, root, "--data.batch_size=0"], "must be at least 1"),
        ([run, "--trainer.max_steps=3"], "unknown option --trainer"),
    ):
        assert expected in refused(["inspect", *arguments], capsys)
    assert everything_below(tmp_path) == []
    for state, expected in (
        ([1], "checkpoint"),
        ({"state_dict": {}}, "names no network"),
        ({"state_dict": {}, "hyper_parameters": {"network": {"class_path": "no.such.Class"}}}, "cannot be built"),
        ({"state_dict": {}, "hyper_parameters": {"network": LINEAR}}, "has other shapes"),
    ):
        torch.save(state, "x.ckpt")
        assert expected in refused(["inspect", "x.ckpt"], capsys)
