"""`lra-ssm predict NAME_OR_RUN FILE…`: files of the user's own, with class names in the output."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from lra_ssm.cli.predict import _examples
from lra_ssm.datamodules import MNIST, SCIFAR, FirstToken
from lra_ssm.errors import InputError
from lra_ssm.layers import S6, LayerSpec
from lra_ssm.models import Classifier, LanguageModel, Regressor
from lra_ssm.models.pretrained import save_network
from tests.datamodules.image_helpers import encoded, mnist_files, pictures, write_files
from tests.runner import FIT, everything_below, in_process, only_run, printed, refused, succeed

OPTIONS = [
    *FIT[1:], "--data=MNIST", "--data.root=data", "--data.source=mnist", "--data.batch_size=8",
    "--data.eval_batch_size=3", "--data.permutation=random", "--model.network.vocab_size=null",
    "--model.network.d_input=1", "--trainer.max_epochs=1", "--trainer.callbacks=null",
]  # fmt: skip


def rows_of(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    """A folder with a run on permuted MNIST that was pushed to `model`, and its predictions of the test split."""
    folder = tmp_path_factory.mktemp("pushed")
    write_files(folder / "mnist", mnist_files(pictures(60, size=28, channels=1)[..., 0], np.arange(60) % 10, 50, True))
    succeed(["prepare", "mnist", "--root=data", "--source=mnist"], folder)
    for command in (["fit"], ["test"], ["predict", "--split=test"]):
        succeed([command[0], *OPTIONS, *command[1:]], folder)
    succeed(["push", str(only_run(folder)), "model"], folder)
    data = MNIST(root=str(folder / "data"), source=str(folder / "mnist"))
    data.setup("test")
    (folder / "digits").mkdir()
    for number, image in enumerate(data._datasets["test"].split.images[:]):
        (folder / f"digits/{number:02}.png").write_bytes(encoded(image))
    return folder


@pytest.fixture
def at_pushed(pushed, tmp_path, monkeypatch):
    """The same from an empty working folder, in which there is no data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRA_SSM_DATA", raising=False)
    return pushed


def test_images_are_predicted_as_the_split_that_they_are_of(at_pushed, tmp_path, capsys):
    split = rows_of(only_run(at_pushed) / "predictions-test.csv")
    for name in (at_pushed / "model", only_run(at_pushed), only_run(at_pushed) / "checkpoints/best.ckpt"):
        code, out, _ = in_process(["predict", str(name), str(at_pushed / "digits")], capsys)
        output = at_pushed / "digits.predictions.csv"  # beside the folder
        rows = rows_of(output)
        assert code == 0 and out.endswith(f"10 predictions in {output}\n") and len(rows) == len(split) == 10
        output.unlink()
        columns = [f"p_{digit}" for digit in range(10)]
        assert list(rows[0]) == ["input", "prediction", "probability", *columns]
        for number, (row, expected) in enumerate(zip(rows, split, strict=True)):
            assert row["input"] == f"{at_pushed}/digits/{number:02}.png"
            assert [row[name] for name in (*columns, "prediction")] == [expected[n] for n in (*columns, "prediction")]
            assert row["probability"] == row[f"p_{row['prediction']}"] == max((row[c] for c in columns), key=float)
        assert everything_below(tmp_path) == []


def test_the_table_shows_the_best_class_and_the_next(at_pushed, tmp_path, capsys):
    image = Path(shutil.copy(at_pushed / "digits/03.png", tmp_path)).name
    _, out, _ = in_process(["predict", str(at_pushed / "model"), image], capsys)
    head, row, last = out.splitlines()
    assert head.split() == ["input", "prediction", "probability", "runner-up"]
    assert last == "1 predictions in 03.predictions.csv"
    (written,) = rows_of(tmp_path / "03.predictions.csv")
    ranked = sorted(range(10), key=lambda digit: -float(written[f"p_{digit}"]))
    shown = [float(written[f"p_{digit}"]) for digit in ranked]
    assert row.split() == ["03.png", str(ranked[0]), f"{shown[0]:.4f}", str(ranked[1]), f"({shown[1]:.4f})"]
    many = [f"{at_pushed}/digits"] * 3
    _, out, _ = in_process(["predict", str(at_pushed / "model"), *many, "--output=all.csv", "--batch_size=7"], capsys)
    assert "… and 10 more" in out and len(out.splitlines()) == 23 and len(rows_of(tmp_path / "all.csv")) == 30


def test_no_file_of_another_call_is_replaced_unless_it_is_named(at_pushed, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for name in ("a.png", "b.png", "in/c.png"):
        shutil.copy(at_pushed / "digits/03.png", tmp_path / name)
    said = []
    for files in (["a.png"], ["a.png"], ["a.png", "b.png"], ["in/c.png"], ["in"], ["a.png", "in/c.png"]):
        code, out, _ = in_process(["predict", str(at_pushed / "model"), *files], capsys)
        said.append(out.splitlines()[-1].partition(" in ")[2])
        assert code == 0
    own = ["a.predictions.csv", "a.predictions-2.csv", "predictions.csv", "in/c.predictions.csv", "in.predictions.csv"]
    assert said == [*own, "predictions-2.csv"] and all((tmp_path / name).is_file() for name in said)
    for more in ("", ", in place of the one before"):
        out = in_process(["predict", str(at_pushed / "model"), "a.png", "--output=here.csv"], capsys)[1]
        assert out.splitlines()[-1] == f"1 predictions in here.csv{more}"


def test_a_file_that_cannot_be_read_is_left_out(at_pushed, tmp_path, capsys):
    shutil.copytree(at_pushed / "digits", tmp_path / "digits")
    Image.new("L", (40, 28)).save(tmp_path / "digits/00-wide.png")
    command = ["predict", str(at_pushed / "model"), "digits", "gone.png", "--output=out.csv"]
    code, out, said = in_process(command, capsys)
    rows = rows_of(tmp_path / "out.csv")
    assert code == 1 and len(rows) == 10 and [row["input"] for row in rows] == sorted(row["input"] for row in rows)
    gone, wide = said
    assert gone == "warning: gone.png: there is no such file or folder: left out"
    assert wide.startswith("warning: digits/00-wide.png: is an image of 28 x 40 pixels") and wide.endswith(": left out")


def test_images_of_another_size_are_resized_where_it_is_asked(at_pushed, tmp_path, capsys):
    with Image.open(at_pushed / "digits/03.png") as image:
        image.resize((56, 56), Image.Resampling.NEAREST).save(tmp_path / "large.png")
        image.save(tmp_path / "as-it-is.png")
    code, out, _ = in_process(["predict", str(at_pushed / "model"), "large.png", "as-it-is.png", "--resize"], capsys)
    assert code == 0 and "note: images of another size are resized" in out
    large, same = (
        torch.tensor([float(row[f"p_{digit}"]) for digit in range(10)]) for row in rows_of(tmp_path / "predictions.csv")
    )
    expected = rows_of(only_run(at_pushed) / "predictions-test.csv")[3]
    assert same.tolist() == pytest.approx([float(expected[f"p_{digit}"]) for digit in range(10)], abs=1e-6)
    torch.testing.assert_close(large, same, atol=0.02, rtol=0)
    Image.new("RGB", (56, 56)).save(tmp_path / "colored.png")
    assert "colored.png: is an image of 56 x 56 pixels, RGB; expected 28 x 28 pixels, gray (L)" in refused(
        ["predict", str(at_pushed / "model"), "colored.png", "--resize"], capsys
    )


def test_the_class_names_travel_with_the_model(at_pushed):
    source = json.loads((at_pushed / "model/config.json").read_text())["source"]
    assert source["data"]["class_names"] == [str(digit) for digit in range(10)]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["missing.png"], "missing.png: there is no such file or folder"),
        (["wide.png"], "28 x 40 pixels, gray (L); expected 28 x 28 pixels, gray (L) (--resize makes it so)"),
        (["notes.txt", "wide.png", "gone.png"], "notes.txt: its type is not known here"),
        (["notes.txt"], "notes.txt: its type is not known here; expected .png, .jpg, .jpeg, .npy, .csv"),
        (["fine.png", "--split=test"], "--split is a part of the model's own data: leave it out, or the files"),
        (["fine.png", "--output=no/where.csv"], "--output no/where.csv: its folder does not exist"),
        (["fine.png", "--output=folder"], "--output folder: is a folder"),
    ],
)
def test_what_cannot_be_predicted_is_one_line_and_leaves_nothing(files, said, at_pushed, tmp_path, capsys):
    Image.new("L", (28, 28)).save(tmp_path / "fine.png")
    Image.new("L", (40, 28)).save(tmp_path / "wide.png")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "folder").mkdir()
    before = everything_below(tmp_path)
    assert said in refused(["predict", str(at_pushed / "model"), *files], capsys)
    assert everything_below(tmp_path) == before


# --- models of other kinds, saved without a run ---


def save(folder: Path, network, config=None, **data) -> None:
    """A saved model, its network drawn at random; data: of its source in config.json."""
    beside = {"config.yaml": yaml.safe_dump(config).encode()} if config is not None else {}
    source = {"data": data} if data else {}
    save_network(folder, network.specification(), network.state_dict(), source=source, beside=beside)


def classifier(classes: int, **inputs) -> Classifier:
    return Classifier(LayerSpec(S6, d_state=2), num_classes=classes, d_model=4, n_layers=1, **inputs)


def data_of(name: str, **settings) -> dict:
    return {"data": {"class_path": f"lra_ssm.datamodules.{name}", "init_args": settings}}


def test_texts_by_the_vocabulary_in_the_models_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    vocabulary = ["<pad>", "<unk>", "<eos>", *"abcdefgh "]
    network = classifier(2, vocab_size=len(vocabulary))
    save(tmp_path / "model", network, data_of("Text", max_length=10), vocabulary=vocabulary)
    (tmp_path / "texts.txt").write_text("a bad cab\nhead\nfédé\nbeach beach beach\n")
    code, out, _ = in_process(["predict", "model", "texts.txt"], capsys)
    rows = rows_of(tmp_path / "texts.predictions.csv")
    assert code == 0 and list(rows[0]) == ["input", "prediction", "probability", "p_negative", "p_positive"]
    assert [row["input"] for row in rows] == [f"texts.txt:{line}" for line in range(1, 5)]
    assert {row["prediction"] for row in rows} <= {"negative", "positive"}
    ids = torch.tensor([[vocabulary.index(letter) for letter in "head"] + [2]])
    expected = network.eval()(ids, torch.tensor([5])).softmax(-1)[0]
    assert float(rows[1]["p_negative"]) == pytest.approx(expected[0].item(), abs=1e-5)
    assert "note: 1 texts are cut to 9 characters, as the data is; the first is texts.txt:4" in out
    assert "which are <unk>: 'é' in texts.txt:3" in out


def test_classes_of_cifar_have_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "model", classifier(10, d_input=3), data_of("SCIFAR", resolution=16))
    Image.new("RGB", (32, 32), (9, 200, 30)).save(tmp_path / "a.png")
    in_process(["predict", "model", "a.png"], capsys)
    (row,) = rows_of(tmp_path / "a.predictions.csv")
    assert row["prediction"] in SCIFAR.class_names and list(row)[3:] == [f"p_{name}" for name in SCIFAR.class_names]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("language", "is a language model: `lra-ssm generate` continues texts, `lra-ssm score` rates them"),
        ("values", "predicts values, not classes"),
        ("bare", "has no config.yaml with a data module, which says how inputs are made"),
        ("no names", "neither it nor its data module says what its classes are: FirstToken.class_names"),
        ("other count", "its network has 3 classes, its data names 10"),
        ("no vocabulary", "the vocabulary, which was made of the training texts, is not among the model's files"),
        ("foreign", "its config.yaml names tests.helpers.Smooth, which is no class that"),
        ("no reader", "has no own_examples, which reads files of your own"),
        ("other settings", "its data module lra_ssm.datamodules.MNIST cannot be made: "),
    ],
)
def test_models_that_cannot(what, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder, layer = tmp_path / "model", LayerSpec(S6, d_state=2)
    np.save(tmp_path / "a.npy", np.zeros((1, 784)))
    (tmp_path / "a.txt").write_text("abc\n")
    foreign = {"data": {"class_path": "tests.helpers.Smooth", "init_args": {"d_model": 2}}}
    of = {
        "language": (LanguageModel(layer, vocab_size=9, d_model=4, n_layers=1), None),
        "values": (Regressor(layer, num_outputs=1, d_input=1, d_model=4, n_layers=1), None),
        "bare": (classifier(10, d_input=1), None),
        "no names": (classifier(2, d_input=1), data_of("FirstToken")),
        "other count": (classifier(3, d_input=1), data_of("MNIST")),
        "no vocabulary": (classifier(2, vocab_size=9), data_of("Text")),
        "other settings": (classifier(10, d_input=1), data_of("MNIST", colour="red")),
        "foreign": (classifier(10, d_input=1), foreign),
        "no reader": (classifier(10, d_input=1), foreign),
    }
    save(folder, *of[what])
    given = "a.txt" if what == "no vocabulary" else "a.npy"
    more = ["--trust=tests.helpers.Smooth"] if what == "no reader" else []
    assert said in refused(["predict", "model", given, *more], capsys)
    assert not list(tmp_path.glob("*.csv"))


def test_what_has_no_images_is_not_resized():
    with pytest.raises(InputError, match="--resize: FirstToken has no images"):
        _examples(FirstToken(), [], None, resize=True)


def test_help_says_both_forms(capsys):
    own = printed(["predict", "model", "file.png", "--help"], capsys)
    assert "lra-ssm predict ./models/lru-mnist digits/*.png" in own
    both = printed(["predict", "--help"], capsys)
    assert both.startswith(own.rstrip())
    assert "files of your own: lra-ssm predict NAME_OR_RUN FILE…" in " ".join(both.split())
