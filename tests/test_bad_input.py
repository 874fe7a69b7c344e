"""Bad input: one line that says what, where and what would be right; non-zero exit; nothing half-written."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from lra_ssm.datamodules.language.tokenizer import ByteTokenizer
from tests.runner import FIT, SHORT, TINY, everything_below, fail, in_process, only_run, printed, refused, succeed
from tests.test_text import CHARACTERS, WORDS, checkpoint

OPTIONS = [  # and what is said of them
    ("--experimen=x", "did you mean '--experiment'"),
    ("--fres", "did you mean '--fresh'"),  # the beginning of a name is not the name
    ("--seed_everything", "--seed_everything: a value is missing"),
    ("--trainer.max_stepz=5", "takes no key 'max_stepz'; did you mean 'max_steps'"),
    ("--model.netwrk=x", "lra_ssm.tasks.Classification takes no key 'netwrk'; did you mean 'network'"),
    ("--model.optimizer.warmup=3", "did you mean 'warmup_steps'"),
    ("--model.network.head.foo=3", "model.network.head: no class is given here; give it"),
    ("--model.network.layer=null", "model.network: lra_ssm.models.Classifier needs 'layer'"),
    ("--model.network.block.layer=lra_ssm.layers.S6",
     "model.network.block: lra_ssm.layers.S4Block takes no key 'layer'; it takes norm, prenorm, dropout"),
    ("--model.network.layer=S4D|--model.network.layer.parameterization=expp",
     "model.network.layer.parameterization: expected one of [typing.Literal['exp', 'softplus', 'best', 'relu',"),
    ("--model.network.head=lra_ssm.models.NLIHead", "Classifier has 1 vector(s) per example, NLIHead takes 2"),
    ("--model.network.layer=lra_ssm.layers.B2S7", "no attribute 'B2S7'; did you mean 'B2S6'?"),
    ("--data=Txt", "data: no class 'Txt'; did you mean 'Text'?"),
    ("--model.optimizer.lr=-1", "lr is -1.0; it must be a number of at least 0"),
    ("--checkpoint.every_n_steps=0", "checkpoint.every_n_steps is 0"),
    ("--trainer.limit_train_batches=0", "limit_train_batches is 0: nothing would be trained"),
    ("--model.optimizer.lr=fast", "Expected a float. Got value: fast"),
    ("--model.network.block.norm=foo",
     "norm: Expected a typing.Literal['batch', 'batch_padded', 'layer', 'rms']. Got value: foo"),
    ("--data.length_bounds=[5]", "data.length_bounds: Expected a tuple with 2 elements."),
    ("--data.length_bounds=[5", "--data.length_bounds: [5: this is not valid YAML"),
    ("--seed_everything=-5", "seed_everything is -5"),
    ("--seed_everything=null", "seed_everything"),
    ("--trainer.max_epochs=-2", "max_epochs"),
    *((f"--trainer.{name}=0", f"trainer.{name} is 0; it must be at least 1")
      for name in ("val_check_interval", "accumulate_grad_batches", "check_val_every_n_epoch")),
    ("--model.network.vocab_size=17", "model.network.vocab_size is 17, but ListOps has 18"),
    ("--model.network=lra_ssm.models.DualEncoder", "model.network is a DualEncoder, but ListOps has no pairs"),
    ("--config=lra/listops/b2s", "no config lra/listops/b2s: not a file and not one of ours; did you mean"),
    ("--config=none.yaml", "`lra-ssm configs` lists ours"),
    ("--ckpt_path=nowhere.ckpt", "nowhere.ckpt does not exist"),
    ("--estimate=A10", "--estimate=A10: did you mean 'A100'?"),
    ("--init_from_without=head", "--init_from_without needs --init_from"),
    # A list has no names, but for the item that was just added.
    ("--model.network.layer=[S6, LRU]|--model.network.layer.d_state=3", "--model.network.layer is a list"),
    ("--trainer.callbacks+=EarlyStopping|--trainer.callbacks.monitr=a", "takes no key 'monitr'; did you"),
    *((f"--trainer.callbacks+={name}", f"trainer.callbacks: {name.split('|')[0]} sets other rates, groups or batches")
      for name in ("LearningRateFinder", "BatchSizeFinder", "BackboneFinetuning",
                   "StochasticWeightAveraging|--trainer.callbacks.swa_lrs=0.1",
                   "GradientAccumulationScheduler|--trainer.callbacks.scheduling={4: 2}")),
    # A key within a key of the same name is named whole.
    ("--model.network.layer=tests.layers.test_spec.Wrapped|--model.network.layer.layer=lra_ssm.layers.S4D"
     "|--model.network.layer.layer.d_state=x", "model.network.layer.layer.d_state: Expected a int"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "expected"), OPTIONS)
def test_bad_options_are_one_line_and_leave_nothing(flags, expected, here, capsys):
    assert expected in refused([*FIT, *flags.split("|")], capsys)
    assert everything_below(here) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("modle: {init_args: {optimizer: {lr: 3}}}", "modle"),
        ("data: {class_path: lra_ssm.datamodules.ListOps, init_args: {btch_size: 3}}", "did you mean 'batch_size'"),
        ("trainer: [1", "bad.yaml: this is not valid YAML"),
        ("experiment: x\nmodel: [1,\n  b: c: d\n", "bad.yaml, line 3: this is not valid YAML: "),
        ("[1]", "a config is a mapping of names to settings, not a list"),
        ("trainer: trainer.yaml", "trainer is 'trainer.yaml'; it must be a mapping of names to settings"),
        ("model: {init_args: hello}", "model.init_args is 'hello'; it must be a mapping of names to settings"),
    ],
)
def test_bad_config_files(text, expected, here, capsys):
    Path("bad.yaml").write_text(text)
    assert expected in refused([*FIT, "--config", "bad.yaml"], capsys)
    assert everything_below(here) == ["bad.yaml"]


COMMANDS = [  # in the folder `workplace`
    ("fit", "no model is given: give --config CONFIG (`lra-ssm configs`"),
    ("test --config tiny", "fit it first"),
    ("fit --config tiny --ckpt_path=half.ckpt", "half.ckpt is damaged or not a checkpoint"),
    ("test alone.ckpt", "alone.ckpt has no run's config.yaml: give --config, and --ckpt_path=alone.ckpt"),
    ("test empty", "empty has no checkpoints/best.ckpt or last.ckpt"),
    ("test saved", "saved has no config.yaml: give --config, and --ckpt_path=saved"),
    ("configs --resolved", "--resolved prints one config"),
    ("submit", "the following arguments are required: SWEEP"),
    ("submit none --dry-run", "our sweeps are ablation-scifar, "),
    ("inspect alone.ckpt", "alone.ckpt: no config.yaml names its training data: give --data=CLASS"),
    ("inspect run --out=x.yaml", "x.yaml: give a file that ends in .png, .pdf, .svg, such as inspect.png"),
    ("inspect run --data=lightning.LightningDataModule", "is not a data module of this package"),
    ("inspect bare.pt", "names no network"),
    ("inspect classless.ckpt", "cannot be built"),
    ("inspect linear.ckpt", "has other shapes"),
    ("coordcheck tiny b", "unknown argument b; it takes --help, --widths, "),
    ("coordcheck tiny --widths 8", "a slope needs at least two"),
    ("pull", "give the name of a model, or --list, which shows the known names"),
    ("export run", "the following arguments are required: --to"),
    ("export --to x", "give a run's directory or a .ckpt, or several and --average"),
    ("push alone.ckpt ./x", "is not a run's directory"),
    ("push without-best ./x", "has no best.ckpt: --last pushes its last.ckpt"),
    ("push run wandb:tiny", "give wandb:entity/project/name"),
    ("push run ./x --private", "--private is for a repository"),
    ("generate run", "run/checkpoints/best.ckpt: is not a language model; its network is a Classifier"),
    ("generate several", "several holds 2 runs: give one of them, such as several/two"),
    ("generate no.ckpt", "checkpoint no.ckpt does not exist"),
    ("generate bare.ckpt", "bare.ckpt: has no tokenizer; give one, such as --tokenizer="),
    ("generate small.ckpt", "small.ckpt: its network has 3 tokens, the tokenizer 7"),
    ("generate characters.ckpt --tokenizer=words", "--tokenizer=words is made from a corpus"),
    ("generate characters.ckpt --tokenizer=bytes", "the tokenizer that it comes with: leave --tokenizer out"),
    ("generate characters.ckpt --prompt= --prompt=xyzaxuvw",
     "prompt 2: the model's vocabulary has no 'x', 'y', 'z', 'u', 'v' and 1 more"),
    ("generate words.ckpt --prompt 'the dog <unk> the dog'", "prompt 1: the model's vocabulary has no 'dog'"),
    # before a model is read
    ("generate no.ckpt --temperature=-1", "--temperature is -1.0; it must be at least 0"),
    ("results --format=tex", "--format: expected one of [typing.Literal['text', 'markdown', 'latex', 'csv'],"),
    ("results nowhere", "nowhere: no runs there"),
    ("results run --by=droput", "no run has a setting 'droput'; did you mean 'dropout'?"),
    ("results run --plot=x.png", "--plot draws over one setting or two"),
    ("results run --by=lr --plot=x.png", "nothing to draw"),  # it was not tested
    ("results run --out=table.pdf", "--out table.pdf: end it with .md, .csv, .tex, .txt"),
    ("results run --out=no/such/table.md", "no/such/table.md"),
    ("generate no.ckpt --stop=", "--stop is empty"),
    ("generate no.ckpt --device=nonsense", "--device=nonsense: there is no such device here"),
    ("score no.ckpt", "give files with text, or - for standard input"),
    ("score no.ckpt texts/good none.txt", "none.txt: cannot be read or written (No such file or directory)"),
    ("score no.ckpt texts/good texts/empty", "texts/empty: is empty; give a text"),
    ("score no.ckpt texts/blank", "texts/blank: holds only white space; give a text"),
    ("score bytes.ckpt texts/good texts/picture", "texts/picture:2: is not UTF-8 (byte 0x89)"),
    # every dataset's damaged and missing files: datamodules/test_sources.py
    ("prepare retrieval --source=absent", "source 'absent': must be one of lra, or an existing file or folder"),
    ("prepare mnist --root=absent/data", "its parent folder"),
    ("prepare text --limt=3", "takes no key 'limt'; did you mean 'limit'?"),
    ("prepare pathx --resolution=48", "resolution"),
    ("prepare listops --picture=x.png", "--picture: ListOps has no images"),
    ("prepare mnist --picture=absent/x.png", "give a file in an existing folder that can be written"),
    ("prepare mnist --merge", "MNIST is prepared as a whole"),
    ("prepare txet", "unknown dataset 'txet'; did you mean 'text'?"),
    ("prepare", "a dataset, --config CONFIG, or --summary"),
    ("fit --config mnist/s4d", "no files of MNIST below it; `lra-ssm prepare --config=mnist/s4d` downloads"),
]  # fmt: skip


@pytest.fixture(scope="module")
def workplace(trained, tmp_path_factory):
    """A finished run and what is like one, language models, texts, and settings."""
    folder = tmp_path_factory.mktemp("workplace")
    shutil.copytree(only_run(trained[0]), folder / "run")
    shutil.copytree(folder / "run", folder / "without-best", ignore=shutil.ignore_patterns("best.ckpt"))
    shutil.copy(folder / "run/checkpoints/best.ckpt", folder / "alone.ckpt")
    (folder / "half.ckpt").write_bytes((folder / "alone.ckpt").read_bytes()[:5000])
    succeed(["export", "run", "--to", "saved"], folder)
    for name in ("data", "empty", "texts", "several/one/checkpoints", "several/two/checkpoints"):
        (folder / name).mkdir(parents=True)
    for name, tokenizer in {"bytes": ByteTokenizer(), "characters": CHARACTERS, "words": WORDS, "bare": None}.items():
        Path(checkpoint(folder, tokenizer)).rename(folder / f"{name}.ckpt")
    Path(checkpoint(folder, CHARACTERS, vocab_size=3)).rename(folder / "small.ckpt")
    linear = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 2}}
    states = {"classless": {"hyper_parameters": {"network": {"class_path": "no.such.Class"}}}, "bare": {},
              "linear": {"hyper_parameters": {"network": linear}}}  # fmt: skip
    for name, state in states.items():
        torch.save({"state_dict": {}, **state}, folder / f"{name}.ckpt" if state else folder / "bare.pt")
    texts = {"empty": b"", "blank": b" \n\t", "picture": b"text\n\x89PNG", "good": b"good"}
    for name, content in texts.items():
        (folder / "texts" / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(("command", "expected"), COMMANDS)
def test_wrong_arguments_of_a_command_are_one_line_and_leave_nothing(command, expected, workplace, monkeypatch, capsys):
    monkeypatch.chdir(workplace)
    monkeypatch.delenv("LRA_SSM_DATA", raising=False)
    before = everything_below(workplace)
    assert expected in refused(shlex.split(command.replace(" tiny", f" {TINY}")), capsys)
    assert everything_below(workplace) == before


def test_what_a_language_model_and_its_data_do_not_have_in_common_is_one_line(here, capsys):
    command = ["fit", "--config", str(TINY.with_name("language.yaml")), "--trainer.fast_dev_run=1"]
    for rows, warnings in {385: 1, 384: 0}.items():
        code, out, errors = in_process([*command, f"--model.network.vocab_size={rows}"], capsys)
        lines = [line for line in out.splitlines() if line.startswith("warning: ")]
        assert code == 0 and len(lines) == warnings, errors
        for line in lines:
            assert f"vocab_size is {rows}, but MadeUp's prepared data (" in line
            assert line.endswith(f") has 300 tokens: {rows - 300} rows are unused")
    assert "has 300 tokens; set it to 300" in refused([*command, "--model.network.vocab_size=299"], capsys)
    layer = "--model.network.layer=tests.helpers.Smooth"
    assert "Smooth.forward takes no `reset`: documents cannot be packed" in refused([*command, layer], capsys)
    line = refused([*command, layer, "--data.isolate=false"], capsys)
    assert "(Smooth) looks ahead: its outputs change with the future; --check_layer=false trains it" in line
    for dry_run in ("1", "false"):
        told = ["--check_layer=false", f"--trainer.fast_dev_run={dry_run}", "--trainer.max_epochs=1"]
        printed([*command, layer, "--data.isolate=false", *told], capsys)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--trainer.val_check_interval=7"], "trainer.val_check_interval is 7, but an epoch has 6 batches: give 6 at"),
        (["--trainer.limit_train_batches=0.1"], "trainer.limit_train_batches is 0.1: an epoch of 6 batches has none"),
        (["--checkpoint.monitor=val/acc"], "which validation does not log; did you mean 'val/accuracy'?"),
        (["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/lss"], "did you mean 'val/loss'?"),
    ],
)
def test_what_only_the_data_or_a_validation_tells_is_said_before_training(flags, expected, data, tmp_path):
    assert expected in fail([*FIT, f"--data.root={data}", "--trainer.num_sanity_val_steps=1", *flags], tmp_path)
    assert not list(tmp_path.glob("runs/*/*/checkpoints/*"))


def test_a_checkpoint_of_another_folder_is_scored_where_it_lies(trained, tmp_path):
    folder, _ = trained
    best = only_run(folder) / "checkpoints/best.ckpt"
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    copied = Path(shutil.copy(best, tmp_path / "run/checkpoints"))
    before = everything_below(only_run(folder))
    (tmp_path / "run/run.json").write_text('{"status": "finished", "best": {"file": "best.ckpt", "sha256": null}}')
    succeed(["test", *FIT[1:], f"--data.root={folder / 'data'}", *SHORT, f"--ckpt_path={copied}"], tmp_path)
    assert json.loads((tmp_path / "run/test.json").read_text())["checkpoint"] == str(copied)
    assert everything_below(only_run(folder)) == before
