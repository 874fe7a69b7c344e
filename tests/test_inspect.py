"""`lra-ssm inspect` and `coordcheck`, as their users meet them; wrong arguments: test_bad_input.py."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image

from lra_ssm.analysis.inputs import part_of_batch
from lra_ssm.checkpoints.sources import SHIPPED
from lra_ssm.cli.config import read_fit_options
from lra_ssm.cli.find_model import NamedNetwork
from lra_ssm.cli.inspect import check_fits, open_data, validation_examples
from lra_ssm.datamodules.batches import Batch
from lra_ssm.datamodules.language.tokenizer import CharacterTokenizer
from lra_ssm.errors import InputError
from lra_ssm.layers import S4D, S6, LayerSpec
from lra_ssm.models import LanguageModel, Regressor
from tests.runner import TINY, everything_below, printed, refused

pytestmark = pytest.mark.usefixtures("here")

# --- inspect ---


@pytest.fixture
def reported(monkeypatch, capsys):
    """The file that a command would draw, and the facts of each network; nothing is drawn."""

    def of(*arguments):
        found = []
        with monkeypatch.context() as patch:
            patch.setattr("lra_ssm.cli.inspect._write", lambda *written: found.append(written))
            printed(["inspect", *map(str, arguments)], capsys)
        ((file, networks),) = found
        return file, [f"{network.title}: {'; '.join(network.facts)}" for network in networks]

    return of


def opened(network, config=None, **more):
    return NamedNetwork("it", network, network.specification() if network else {}, config=config or {}, **more)


def test_a_run_is_inspected_on_its_own_data(finished, capsys):
    file = "of/a run/memory.pdf"  # whose folder is made
    facts, columns, *rows, _, last = printed(["inspect", str(finished), f"--out={file}"], capsys).splitlines()
    assert facts.startswith(f"tiny {finished.name}: ") and facts.endswith("2 validation example(s) of ListOps")
    assert columns.startswith("layer ") and rows[0].startswith("1 B2S6, both directions ")
    assert last == file and Path(file).read_bytes().startswith(b"%PDF") and len(everything_below(Path("of"))) == 2


def test_two_are_measured_on_the_data_of_the_first_or_refused(finished, reported, capsys):
    for name in ("first", "second"):
        shutil.copytree(finished, name)
    config = yaml.safe_load(Path("second/config.yaml").read_text())
    config["data"]["init_args"] |= {"num_val": 777, "root": "none"}  # its own is not prepared
    Path("second/config.yaml").write_text(yaml.safe_dump(config))
    file, texts = reported("first", "--against=second/checkpoints/last.ckpt", "--examples=1")
    assert file == Path("first/inspect.png")
    assert [one.partition(":")[0] for one in texts] == ["tiny first", "tiny second"]
    assert "best.ckpt" in texts[0] and "last.ckpt" in texts[1]
    assert all(text.endswith("; measured on 1 validation example(s) of ListOps") for text in texts)
    line = refused(["inspect", "first", "--against=mnist-lru"], capsys)
    assert line == "mnist-lru: model.network.vocab_size is None, but ListOps has 18"
    words = opened(None, config, recorded={"vocabulary": ["a", "b"]})
    data = open_data([words], ["--data.num_val=20", "--data.root=data"])
    with pytest.raises(InputError, match="it: was trained on another vocabulary than ListOps has here"):
        check_fits(words, data)


def test_data_that_needs_no_preparation_is_the_runs_own_and_so_is_its_pretraining():
    settings = {"group": "S3", "length": 6, "num_val": 3, "pretrain": {"share": 0.3}}
    config = {"data": {"class_path": "lra_ssm.datamodules.StateTracking", "init_args": settings}}
    sizes = {"num_outputs": 6, "vocab_size": 6, "d_model": 4, "n_layers": 1}
    one = opened(Regressor(LayerSpec(S4D, d_state=4), pooling=None, **sizes), config)
    data = open_data([one._replace(config={}), one], [])
    check_fits(one, data)
    examples = validation_examples(data, 2)
    data.setup("validate")
    batch = next(iter(data.val_dataloader()))
    assert len(examples) == 2
    for i, each in enumerate(examples):
        assert torch.equal(each.inputs[0], batch.inputs[i]) and torch.equal(each.labels[0], batch.targets[i])
    assert (examples[0].labels == -100).any()


def test_text_is_opened_and_another_tokenizer_or_vocabulary_refused(tmp_path):
    settings = {"root": str(tmp_path / "data"), "length": 8}
    config = {"data": {"class_path": "tests.datamodules.language.helpers.MadeUp", "init_args": settings}}
    one = opened(LanguageModel(LayerSpec(S6, d_state=4), vocab_size=300, d_model=8, n_layers=1), config)
    data = open_data([one], [])
    assert validation_examples(data, 1)[0].inputs.shape == (1, 8)
    check_fits(one, data)
    with pytest.raises(InputError, match="it: its tokenizer is not the data's"):
        check_fits(one._replace(tokenizer=CharacterTokenizer("abc")), data)


def test_a_saved_model_by_its_name_or_folder(tmp_path, monkeypatch, reported, capsys):
    monkeypatch.setenv("LRA_SSM_DATA", str(tmp_path))
    folder = str(Path(shutil.copytree(SHIPPED / "mnist-b2s6", "mine")))
    assert "`lra-ssm prepare mnist --source=" in refused(["inspect", "mnist-b2s6", f"--against={folder}"], capsys)
    data = ["--data=TeacherStudent", "--data.length=16", "--data.num_val=2"]
    monkeypatch.setattr("lra_ssm.cli.inspect.check_fits", lambda *_: None)  # real targets for a classifier
    out, texts = reported("mnist-b2s6", f"--against={folder}", "--examples=1", *data)
    assert out == Path("inspect.png") and [text.partition(":")[0] for text in texts] == ["mnist-b2s6", "mine"]
    assert all("test/accuracy 98.89 %" in text for text in texts)


# --- coordcheck ---

CHECK = ["coordcheck", str(TINY), "--widths", "8", "16", "32", "--steps=1", "--examples=2", "--length=8", "--layers=1"]
DIVERGING = ["--model.optimizer.lr=1e30"]
MUP = ["--model.width.parameterization=mup", "--model.width.base_d_model=8"]


@pytest.mark.filterwarnings("error::UserWarning:matplotlib")
@pytest.mark.parametrize("flags", [[], MUP, DIVERGING, ["--data.root=nowhere"]])
def test_a_check_prints_slopes_and_writes_a_table_and_a_picture(flags, capsys, monkeypatch, data):
    monkeypatch.setenv("COLUMNS", "100")
    read_fit_options([f"--config={TINY}", f"--data.root={data}"]).data().prepare_data()
    out = printed([*CHECK, f"--data.root={data}", *flags, "--out=checks"], capsys)
    assert ("random, as the data is not prepared here" in out) == ("--data.root=nowhere" in flags)
    assert ("tiny, mup: d_model 8, 16, 32" if flags == MUP else "without a width parameterization") in out
    assert "backbone.blocks.0.glu" in out and "head.weight" in out and "logits" in out
    rows = pd.read_csv("checks/coordcheck.csv")
    assert set(rows["width"]) == {8, 16, 32} and set(rows["what"]) == {"activation", "update", "gradient"}
    assert rows.groupby("width").size().nunique() == 1
    with Image.open("checks/coordcheck.png") as picture:
        assert picture.width > 500
    diverges = flags == DIVERGING
    assert diverges == ("diverge: a value is NaN or infinite at some width" in out)
    assert np.isfinite(rows["rms"]).all() != diverges and (diverges or (rows["rms"] >= 0).all())


def test_batches_are_shortened():
    pairs = Batch(torch.zeros(4, 2, 6, dtype=torch.int64), torch.full((4, 2), 6), torch.arange(4))
    found = part_of_batch(pairs, slice(3), 4)
    assert found.inputs.shape == (3, 2, 4) and found.lengths.tolist() == [[4, 4]] * 3 and len(found.labels) == 3
