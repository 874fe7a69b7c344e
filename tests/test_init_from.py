"""fit --init_from a saved model: the weights that it starts from, and what does not fit."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lra_ssm.cli.starting_weights import StartingWeights
from lra_ssm.datamodules.language.tokenizer import ByteTokenizer, CharacterTokenizer
from lra_ssm.layers import B2S6, S4D, S6, LayerSpec, NetworkSpec
from lra_ssm.models import Classifier, LanguageModel, Regressor
from lra_ssm.tasks import Classification
from tests.models.public_mamba import hf_folder, sizes, state_spaces_folder
from tests.runner import TINY, only_run, printed, refused

pytestmark = pytest.mark.usefixtures("read_once")
BYTES = {"vocabulary": 257}
# Fits two steps on a few bytes, with a rate that moves nothing.
START = [
    "fit", f"--config={TINY.with_name('language.yaml')}", "--trainer.max_epochs=-1", "--trainer.max_steps=2",
    "--trainer.logger=false", "--model.network.vocab_size=257", "--model.network.d_model=12",
    "--model.network.pad_vocab_size_multiple=1", "--model.network.layer=S6", "--model.network.layer.d_state=4",
    "--model.network.layer.delta_rank=1", "--model.optimizer.lr=1e-30", "--model.optimizer.roles.recurrent.lr=0",
    "--model.optimizer.weight_decay=0", "--data=Corpus", "--data.source=text", "--data.tokenizer=bytes",
    "--data.root=data", "--data.length=16", "--data.batch_size=2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _texts(here):
    (here / "text").mkdir()
    for split in ("train", "val"):
        (here / f"text/{split}.txt").write_text("some text\n" * 8)


def language_model(**settings) -> LanguageModel:
    layer = LayerSpec(S6, d_state=4, delta_rank=1)
    sizes = {"vocab_size": 257, "d_model": 12, "n_layers": 2, "pad_vocab_size_multiple": 1}
    return LanguageModel(**{"layer": layer, **sizes, **settings})


def assert_started_from(model: LanguageModel, *without: str, experiment: str = "tiny") -> None:
    state = torch.load(only_run(Path(), experiment) / "checkpoints/last.ckpt", weights_only=True)
    assert state["global_step"] == 2
    ours = {name.removeprefix("network."): value for name, value in state["state_dict"].items()}
    theirs = {name: value for name, value in model.state_dict().items() if name not in without}
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-12) for name in ours)


def test_a_folder_of_transformers_is_fine_tuned(capsys):
    hf_folder(Path("hf"), sizes(**BYTES), torch.bfloat16)
    out = printed([*START, "--init_from=hf"], capsys)
    assert "starting from the weights of hf\n" in out and "note: hf was made" not in out and "warning" not in out
    assert_started_from(LanguageModel.from_pretrained("hf"))
    for by in ([*START[1:], "--init_from=hf"], [str(only_run(Path()))]):  # it is found, and scored
        printed(["validate", *by], capsys)
    assert (only_run(Path()) / "validate.json").is_file()
    state_spaces_folder(Path("mamba"), sizes(**BYTES))
    pickled = [*START, "--init_from=mamba", "--model.network.pad_vocab_size_multiple=8", "--experiment=pickled"]
    assert "weights in pytorch_model.bin are a pickle" in refused(pickled, capsys)
    printed([*pickled, "--allow-pickle"], capsys)
    assert_started_from(LanguageModel.from_pretrained("mamba", allow_pickle=True), experiment="pickled")
    assert "allow_pickle" not in (only_run(Path(), "pickled") / "config.yaml").read_text()


def test_other_settings_are_a_note_and_other_shapes_an_error(capsys):
    hf_folder(Path("hf"), sizes(**BYTES))
    flags = [*START, "--init_from=hf"]
    out = printed([*flags, "--model.network.residual_in_float32=false"], capsys)
    assert "note: hf was made with other settings: network.residual_in_float32 True there, False" in out
    layers = "backbone.blocks.1.conv1d.bias is (24,) in the checkpoint, missing in the model (and 11 more)"
    assert refused([*flags, "--model.network.n_layers=1"], capsys) == f"checkpoint hf has other shapes: {layers}"
    assert "A_log is (24, 4) in the checkpoint" in refused([*flags, "--model.network.layer.d_state=6"], capsys)
    assert refused([*START, "--init_from=runs/no.ckpt"], capsys) == "checkpoint runs/no.ckpt does not exist"
    LanguageModel(LayerSpec(B2S6, num_blocks=2, d_state=4), 257, 12, 1).save_pretrained("b2s6")
    config = json.loads(Path("b2s6/config.json").read_text())
    config["network"]["init_args"]["block"] = "theirs.Block"
    Path("b2s6/config.json").write_text(json.dumps(config))
    assert "its network is built with theirs.Block" in refused([*START, "--init_from=b2s6"], capsys)
    assert len(list(Path("runs/tiny").iterdir())) == 1


def test_the_tokenizer_is_compared(capsys):
    model = language_model()
    model.save_pretrained("other", tokenizer=CharacterTokenizer("a"))
    message = refused([*START, "--init_from=other"], capsys)
    assert message.startswith("other: its tokenizer (vocabulary.json, sha256 ") and "is not the data's (" in message
    assert not Path("runs").exists()
    model.save_pretrained("same", tokenizer=ByteTokenizer())
    printed([*START, "--init_from=same"], capsys)
    assert_started_from(model)
    # in other layouts the same tokenizer may be written otherwise
    hf_folder(Path("hf"), sizes(**BYTES))
    Path("hf/tokenizer.json").write_text("{}")
    assert "warning: hf: its tokenizer (tokenizer.json, sha256 " in printed([*START, "--init_from=hf"], capsys)


def test_modules_that_start_fresh_are_named(capsys):
    """Weights of an untied language model start a tied one, and the other way round."""
    model = language_model(tie_embeddings=False)
    model.save_pretrained("untied")
    start = [*START, "--init_from=untied"]
    assert "head.weight is (257, 12) in the checkpoint, missing in the model" in refused(start, capsys)
    out = printed([*start, "--init_from_without=head"], capsys)
    assert re.search(r"from untied: (\d+) of \1 tensors taken; starting fresh: head$", out, re.MULTILINE)
    assert_started_from(model, "head.weight")
    run = only_run(Path())  # a run's directory is its best checkpoint, here its last
    options = ["--experiment=again", "--model.network.tie_embeddings=false", f"--init_from={run}"]
    assert "starting fresh: head" in printed([*START, *options, "--init_from_without=head"], capsys)
    message = refused([*start, "--init_from_without=heat"], capsys)
    assert message == "--init_from_without: no parameter below 'heat'; there are backbone"


def test_a_pretrained_embedding_loses_the_masks_channel():
    sizes = {"layer": LayerSpec(S4D, d_state=4), "d_model": 8, "n_layers": 1}
    pretrained = Regressor(num_outputs=1, d_input=2, pooling=None, **sizes)
    task = Classification(NetworkSpec(Classifier, num_classes=3, d_input=1, **sizes))
    head = task.network.head.weight.clone()
    weights = StartingWeights("pre", allow_pickle=False, without=["head"])
    state = {f"network.{name}": value for name, value in pretrained.state_dict().items()}
    task.load_state_dict(weights.select_weights(task.state_dict(), state))
    ours, theirs = task.network.backbone.state_dict(), pretrained.backbone.state_dict()
    assert torch.equal(ours.pop("embedding.weight"), theirs.pop("embedding.weight")[:, :1])
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert torch.equal(task.network.head.weight, head)


def test_a_finished_run_and_a_resume_say_that_the_weights_have_changed(capsys):
    hf_folder(Path("hf"), sizes(**BYTES))
    start = [*START, "--init_from=hf"]
    printed(start, capsys)
    os.utime("hf/model.safetensors")
    assert "is finished" in printed(start, capsys)  # the same
    save_file({name: 2 * tensor for name, tensor in load_file("hf/model.safetensors").items()}, "hf/model.safetensors")
    message = "was trained with other weights: hf/model.safetensors has changed; --fresh trains with the current ones"
    assert message in printed(start, capsys)
    record = only_run(Path()) / "run.json"
    before = json.loads(record.read_text())
    record.write_text(json.dumps({**before, "status": "interrupted"}))
    out = printed(start, capsys)
    message = "began with other weights: hf/model.safetensors has changed: it goes on from its own"
    assert out.count("warning: ") == 1 and f"warning: {record.parent} {message}" in out
    assert json.loads(record.read_text())["weights"] == before["weights"]  # of what it began with
