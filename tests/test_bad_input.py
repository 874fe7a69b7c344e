"""Bad input: one line that says what, where and what would be right; non-zero exit; nothing half-written."""

import json

import pytest

from lra_ssm.datamodules.retrieval import NAMES
from tests.datamodules.image_helpers import pictures, write_image_parquet
from tests.datamodules.synthetic_pairs import write_pairs
from tests.runner import FIT, SHORT, TINY, everything_below, fail, in_process, only_run, refused, succeed
from tests.small_data import write_cifar10, write_imdb, write_mnist

BAD = [  # options, and what is said of them
    ("--optimizer=SGD", "unknown option --optimizer"),  # it would replace the groups
    ("--trainer.max_stepz=5", "takes no key 'max_stepz'; did you mean 'max_steps'"),
    ("--model.netwrk=x", "lra_ssm.tasks.Classification takes no key 'netwrk'; did you mean 'network'"),
    ("--model.optimzer.lr=5", "model: lra_ssm.tasks.Classification takes no key 'optimzer'; did you mean 'optimizer'"),
    ("--model.network.pooling.foo=3", "MeanPooling takes no key 'foo'"),
    ("--model.network.head.foo=3", "model.network.head: no class is given here; give it"),
    ("--model.optimizer=null", "model.optimizer is null; give its settings, or leave it out"),
    ("--model.network.layer=null",
     "model.network: lra_ssm.models.Classifier needs 'layer'"),
    ("--model.network.layer=lra_ssm.layers.S4Block",
     "model.network.layer: lra_ssm.layers.S4Block needs 'layer'"),
    ("--model.network.block.layer=lra_ssm.layers.S6",
     "model.network.block: lra_ssm.layers.S4Block takes no key 'layer'; it takes norm, prenorm, dropout"),
    ("--model.network.layer=S4D|--model.network.layer.parameterization=expp",
     "model.network.layer.parameterization: expected one of [typing.Literal['exp', 'softplus', 'best', 'relu',"),
    ("--model.network.layer=S6|--model.network.layer.parameterization={name: best, b: 0.5}",
     "parameterization: eigenvalue -3 is outside the range of best (continuous, a = 1, b = 0.5), [-2, 0)"),
    ("--model.network.head=lra_ssm.models.NLIHead", "Classifier has 1 vector(s) per example, NLIHead takes 2"),
    ("--model.network.layer.num_bloks=5", "takes no key 'num_bloks'; did you mean 'num_blocks'"),
    ("--model.network.layer=lra_ssm.layers.B2S7", "no attribute 'B2S7'; did you mean 'B2S6'?"),
    ("--data=Txt", "data: no class 'Txt'; did you mean 'Text'?"),
    ("--trainer.accelerator=quantum", "quantum"),
    ("--model.optimizer.lr=-1", "lr is -1.0; it must be a number of at least 0"),
    ("--checkpoint.every_n_steps=0", "checkpoint.every_n_steps is 0"),
    ("--trainer.max_epochs=-1", "give trainer.max_epochs or trainer.max_steps"),
    ("--trainer.limit_train_batches=0", "limit_train_batches is 0: an epoch of 6 batches has none left"),
    ("--trainer.val_check_interval=0", "trainer.val_check_interval is 0; it must be at least 1 batch"),
    ("--model.optimizer.lr=fast", "Expected a float. Got value: fast"),
    ("--model.optimizer.roles.delta=3", "roles: expected the settings of RoleSettings, as {name: value}. Given"),
    ("--model.network.block.norm=foo",
     "norm: Expected a typing.Literal['batch', 'batch_padded', 'layer', 'rms']. Got value: foo"),
    ("--data.length_bounds=[5]", "data.length_bounds: Expected a tuple with 2 elements."),
    ("--model.network.layer.init_args=3", "layer: "),
    ("--trainer.gradient_clip_val=abc", "expected one of [int, float, NoneType]. Given value: abc"),
    ("--seed_everything=-5", "seed_everything is -5"),
    ("--model.network.d_model=9", "d_model 9 is not divisible by num_blocks 2"),
    ("--model.network.vocab_size=17", "model.network.vocab_size is 17, but ListOps has 18"),
    ("--model.network=lra_ssm.models.DualEncoder", "model.network is a DualEncoder, but ListOps has no pairs"),
    ("--data.root=nowhere/data", "nowhere"),
    ("--data.source=nowhere", "nowhere"),
    ("--ckpt_path=nowhere.ckpt", "nowhere.ckpt does not exist"),
    ("--data.length_bounds=[30,20]", "length_bounds"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "expected"), BAD)
def test_bad_input_is_one_line_and_leaves_nothing(flags, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert expected in refused([*FIT, *flags.split("|")], capsys)
    assert everything_below(tmp_path) == []


GOOD_LINE = "( ( ( [MAX 2 ) 9 ) ] )\t9\n"


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (None, "basic_val.tsv: is missing"),
        ("Source\tTarget\n" + GOOD_LINE + "( ( ( [MAX 2 ) 9", "basic_val.tsv:3: the label is ''"),
    ],
)
def test_bad_tsv_files_are_named_with_their_line_and_leave_nothing(broken, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "lra_release/lra_release/listops-1000"
    folder.mkdir(parents=True)
    for split in ("train", "val", "test"):
        text = broken if split == "val" else "Source\tTarget\n" + GOOD_LINE * 20
        if text is not None:
            (folder / f"basic_{split}.tsv").write_text(text)
    before = everything_below(tmp_path)
    flags = [f"--data.source={tmp_path}", "--data.max_length=32"]
    assert expected in refused([*FIT, *flags], capsys)
    assert everything_below(tmp_path) == before


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("prepare retrieval --source=absent", "source 'absent': must be one of lra, or an existing file or folder"),
        ("prepare retrieval --source=mnist-files", "mnist-files: no files of Retrieval (new_aan_pairs.train.tsv,"),
        ("prepare retrieval --source=pairs", "new_aan_pairs.eval.tsv:2: 4 columns instead of 5 (label, id1,"),
        ("prepare listops --source=cifar", "cifar: no files of ListOps (basic_train.tsv,"),
        ("prepare text --source=aclImdb", "train/neg/0_2.txt: is not UTF-8 (byte 0xe9)"),
        ("prepare text --source=cifar", "cifar: no reviews of both classes in train"),
        ("prepare image --source=cifar", "cifar-10-batches-py: data_batch_3 is missing; CIFAR-10 is"),
        ("prepare image --source=broken.tar.gz", "broken.tar.gz: cannot be unpacked"),
        (
            "prepare mnist --source=hub",
            ".parquet: row 0: is an image of 27 x 27 pixels instead of 28 x 28",
        ),
        ("prepare mnist --source=mnist-files", "train-images-idx3-ubyte.gz: cannot be read"),
        ("prepare mnist --root=absent/data", "its parent folder"),
        ("fit --config mnist/s4d", "no files of MNIST below it; `lra-ssm prepare --config mnist/s4d` downloads"),
        ("fit --config lra/text/s4d", "`lra-ssm prepare --config lra/text/s4d` downloads them"),
        ("fit --config lra/retrieval/s4d", "`lra-ssm prepare --config lra/retrieval/s4d` downloads LRA's archive"),
    ],
)
def test_wrong_files_of_data_are_one_line_and_leave_nothing(command, expected, wrong_files, monkeypatch, capsys):
    monkeypatch.chdir(wrong_files)
    monkeypatch.delenv("LRA_SSM_DATA", raising=False)
    before = everything_below(wrong_files)
    assert expected in refused(command.split(), capsys)
    assert everything_below(wrong_files) == before


@pytest.fixture(scope="module")
def wrong_files(tmp_path_factory):
    """Datasets in their published layouts, each with one mistake."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "data").mkdir()
    with open(write_pairs(folder / "pairs", (4, 1, 1), median_length=40) / NAMES["val"], "a") as file:
        file.write("1\ta\tb\tonly one text\n")
    (write_imdb(folder, 1) / "train/neg/0_2.txt").write_bytes(b"caf\xe9")
    (write_cifar10(folder) / "cifar-10-batches-py/data_batch_3").unlink()
    (folder / "broken.tar.gz").write_bytes(b"\x1f\x8b and no more")
    images = write_mnist(folder) / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-20])
    write_image_parquet(folder / "hub", "image", pictures(20, size=27, channels=1), range(20), 10)
    return folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trainer: {max_stepz: 3}", "'max_stepz'"),
        ("modle: {init_args: {optimizer: {lr: 3}}}", "modle"),
        ("model: {init_args: {network: {init_args: {d_modle: 3}}}}", "did you mean 'd_model'"),
        ("data: {class_path: lra_ssm.datamodules.ListOps, init_args: {btch_size: 3}}", "did you mean 'batch_size'"),
        ("trainer: [1", "not valid YAML"),
        ("trainer: trainer.yaml", "trainer is 'trainer.yaml'; it must be a mapping of names to settings"),
        ("checkpoint: [1]", "checkpoint is [1]; it must be a mapping of names to settings"),
        ("trainer: {logger: {class_path: 3}}", "trainer.logger: class_path is 3; it must be the name of a class"),
        ("model: {class_path: 3}", "model: class_path is 3; it must be the name of a class"),
    ],
)
def test_bad_config_files(text, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text(text)
    assert expected in refused([*FIT, "--config", "bad.yaml"], capsys)
    assert everything_below(tmp_path) == ["bad.yaml"]


def test_rows_beyond_the_data_and_its_padding_are_said_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["fit", "--config", str(TINY.with_name("language.yaml")), "--trainer.fast_dev_run=1"]
    for rows, said in {385: 1, 384: 0}.items():
        code, out, errors = in_process([*command, f"--model.network.vocab_size={rows}"], capsys)
        lines = [line for line in out.splitlines() if line.startswith("warning: ")]
        assert code == 0 and len(lines) == said, errors
        for line in lines:
            assert f"vocab_size is {rows}, but MadeUp's prepared data (" in line
            assert line.endswith(f") has 300 tokens: {rows - 300} rows are unused")
    assert "has 300 tokens; set it to 300" in refused([*command, "--model.network.vocab_size=299"], capsys)


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("val_check_interval=7", "trainer.val_check_interval is 7, but an epoch has 6 batches: give 6 at most, or"),
        ("limit_train_batches=0.1", "trainer.limit_train_batches is 0.1: an epoch of 6 batches has none left"),
    ],
)
def test_an_epoch_too_short_is_said_before_the_run_begins(flag, expected, tmp_path):
    assert expected in fail([*FIT, f"--trainer.{flag}"], tmp_path)
    assert not (tmp_path / "runs").exists()
    longer = ["--trainer.val_check_interval=7", "--trainer.check_val_every_n_epoch=null"]
    if "val" in flag:
        succeed([*FIT, *longer, "--trainer.max_steps=1"], tmp_path)


def test_a_metric_that_is_not_logged_is_said_before_training(tmp_path):
    flags = ["--checkpoint.monitor=val/acc", "--trainer.num_sanity_val_steps=1"]
    message = fail([*FIT, *flags], tmp_path)
    assert "checkpoint.monitor is 'val/acc', which validation does not log; did you mean 'val/accuracy'?" in message


def test_a_checkpoint_of_another_folder_is_scored_where_it_lies(trained, tmp_path):
    folder, _ = trained
    best = only_run(folder) / "checkpoints/best.ckpt"
    data = f"--data.root={folder / 'data'}"
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    copied = tmp_path / "run/checkpoints/best.ckpt"
    copied.write_bytes(best.read_bytes())
    succeed(["predict", *FIT[1:], data, *SHORT, f"--ckpt_path={copied}"], tmp_path)
    assert len((tmp_path / "predictions-val.csv").read_text().splitlines()) == 21
    before = (only_run(folder) / "test.json").read_text() if (only_run(folder) / "test.json").exists() else None
    (tmp_path / "run/run.json").write_text('{"status": "finished", "best": {"file": "best.ckpt", "sha256": null}}')
    succeed(["test", *FIT[1:], data, *SHORT, f"--ckpt_path={copied}"], tmp_path)
    assert json.loads((tmp_path / "run/test.json").read_text())["checkpoint"] == str(copied)
    after = (only_run(folder) / "test.json").read_text() if (only_run(folder) / "test.json").exists() else None
    assert before == after
    assert "belong to fit" in fail(["test", *FIT[1:], data, "--fresh"], tmp_path)


def test_checkpoints_that_cannot_be_read_or_are_not_there(trained, tmp_path):
    folder, _ = trained
    best = only_run(folder) / "checkpoints/best.ckpt"
    data = f"--data.root={folder / 'data'}"
    (tmp_path / "half.ckpt").write_bytes(best.read_bytes()[:5000])
    assert "half.ckpt is damaged or not a checkpoint" in fail([*FIT, data, "--ckpt_path=half.ckpt"], tmp_path)
    assert "fit it first" in fail(["test", *FIT[1:], data], tmp_path)


def test_prepare_says_what_it_made_and_makes_it_once(tmp_path):
    flags = ["--num_train=20", "--num_val=5", "--num_test=5", "--length_bounds=[3,20]", "--max_depth=3"]
    first = succeed(["prepare", "listops", "--root=data", *flags], tmp_path)
    assert str(tmp_path / "data/listops/generated-") in first.out
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert succeed(["prepare", "listops", "--root=data", *flags], tmp_path).out == first.out
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_key_within_a_key_of_the_same_name_is_named_whole(capsys):
    wrapped = ["--model.network.layer=tests.layers.test_spec.Wrapped", "--model.network.layer.layer=lra_ssm.layers.S4D"]
    said = refused([*FIT, *wrapped, "--model.network.layer.layer.d_state=x"], capsys)
    assert said.startswith("model.network.layer.layer.d_state: Expected a int")


@pytest.mark.parametrize(
    ("command", "missing"),
    {"submit": "SWEEP", "generate": "MODEL", "inspect": "CHECKPOINT"}.items(),
)
def test_what_a_command_needs_is_named(command, missing, capsys):
    said = refused([command], capsys)
    assert "the following arguments are required: " in said and missing in said
