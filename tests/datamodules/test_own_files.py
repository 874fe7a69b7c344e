"""A user's own files become exactly what the data module makes of its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from lra_ssm.datamodules import MNIST, SCIFAR, FirstToken, Image, ListOps, Pathfinder, Retrieval, Text
from lra_ssm.datamodules.loading.own_files import OwnExamples
from lra_ssm.errors import InputError
from tests.datamodules.image_helpers import encoded, mnist_files, pictures, write_files
from tests.datamodules.made_up_pairs import write_pairs
from tests.small_data import write_cifar10, write_imdb


def opened(data: Any) -> Any:
    """The prepared test split as batches."""
    data.prepare_data()
    data.setup("test")
    return data._datasets["test"]


def everything(own: OwnExamples) -> tuple[torch.Tensor, torch.Tensor | None]:
    return own.load(np.arange(len(own.names)))


def save(folder: Path, images: np.ndarray) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:03}.png" for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        path.write_bytes(encoded(image))
    return paths


# --- images ---

IMAGES = {
    "MNIST": lambda root: MNIST(root=root, source=f"{root}/mnist"),
    "permuted MNIST": lambda root: MNIST(root=root, source=f"{root}/mnist", permutation="random"),
    "MNIST in reversed bits": lambda root: MNIST(root=root, source=f"{root}/mnist", permutation="bitreversal"),
    "Image": lambda root: Image(root=root, source=f"{root}/cifar"),
    "Image, integers": lambda root: Image(root=root, source=f"{root}/cifar", inputs="integers"),
    "SCIFAR": lambda root: SCIFAR(root=root, source=f"{root}/cifar", augment="crop_flip"),
    "SCIFAR, gray": lambda root: SCIFAR(root=root, source=f"{root}/cifar", grayscale=True),
    "SCIFAR, 16 × 16": lambda root: SCIFAR(root=root, source=f"{root}/cifar", resolution=16),
    "Pathfinder": lambda root: Pathfinder(root=root, num_images=10),
    "Pathfinder, symmetric": lambda root: Pathfinder(root=root, num_images=10, inputs="symmetric"),
    "Pathfinder, integers": lambda root: Pathfinder(root=root, num_images=10, inputs="integers"),
    "Pathfinder, 64": lambda root: Pathfinder(root=root, num_images=10, resolution=64, difficulty="curv_baseline"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    write_files(folder / "mnist", mnist_files(pictures(60, size=28, channels=1)[..., 0], np.arange(60) % 10, 50, True))
    write_cifar10(folder)
    return folder


@pytest.mark.parametrize("name", IMAGES)
def test_images_as_they_are_stored_give_the_data_modules_inputs(name: str, root: Path, tmp_path: Path) -> None:
    dataset = opened(IMAGES[name](str(root)))
    count = len(dataset)
    paths = save(tmp_path / "images", dataset.split.images[:])
    fresh = IMAGES[name](str(tmp_path / "nothing-is-here"))  # and nothing has to be
    for given in (paths, [tmp_path / "images"]):
        own = fresh.own_examples(given)
        inputs, lengths = everything(own)
        assert own.names == [str(path) for path in paths] and not own.notes and lengths is None
        expected = dataset.batch(np.arange(count), 0).inputs
        assert inputs.dtype == expected.dtype and torch.equal(inputs, expected)
    assert torch.equal(own.load(np.arange(count)[::-1])[0], expected.flip(0))


@pytest.mark.parametrize("name", [name for name in IMAGES if name.startswith(("Image", "SCIFAR"))])
def test_published_images_are_converted_as_the_data_module_does(name: str, root: Path) -> None:
    dataset = opened(data := IMAGES[name](str(root)))
    own = data.own_examples([root / "cifar/test"])
    expected = dataset.batch(np.arange(len(dataset)), 0)
    classes = [data.class_names[label] for label in expected.labels.tolist()]
    assert [Path(name).parent.name for name in own.names] == classes  # both in the order of the sorted names
    assert torch.equal(everything(own)[0], expected.inputs)


@pytest.mark.parametrize(
    ("name", "size", "mode", "said"),
    [
        ("MNIST", (32, 32), "L", "an image of 32 x 32 pixels, gray (L); expected 28 x 28 pixels, gray (L)"),
        ("MNIST", (28, 28), "RGB", "an image of 28 x 28 pixels, RGB; expected 28 x 28 pixels, gray (L)"),
        ("MNIST", (28, 28), "1", "an image of 28 x 28 pixels, mode 1; expected"),
        ("SCIFAR", (32, 32), "RGBA", "32 x 32 pixels, mode RGBA; expected 32 x 32 pixels, RGB"),
        ("SCIFAR, 16 × 16", (8, 8), "RGB", "expected 32 x 32 pixels, RGB, or 16 x 16 pixels, RGB"),
        ("Image", (28, 28), "L", "expected 32 x 32 pixels, RGB, or 32 x 32 pixels, gray (L)"),
        ("Pathfinder", (48, 32), "L", "an image of 32 x 48 pixels, gray (L); expected 32 x 32 pixels, gray (L)"),
    ],
)
def test_other_sizes_and_modes_are_refused(
    name: str, size: tuple[int, int], mode: str, said: str, tmp_path: Path
) -> None:
    Picture.new(mode, size).save(tmp_path / "odd.png")
    own = IMAGES[name](str(tmp_path)).own_examples([tmp_path / "odd.png"])
    with pytest.raises(InputError) as error:
        everything(own)
    assert str(error.value).startswith(f"{tmp_path}/odd.png: is ") and said in str(error.value)


def test_what_else_lies_in_a_folder_is_told(tmp_path: Path) -> None:
    save(tmp_path / "images/below", np.zeros((2, 28, 28, 1), dtype=np.uint8))
    for name in ("a.gif", ".hidden", "b.txt"):
        (tmp_path / "images" / name).write_text("x")
    own = MNIST(root=str(tmp_path)).own_examples([tmp_path / "images"])
    assert own.names == [f"{tmp_path}/images/below/{number:03}.png" for number in range(2)]
    assert own.notes == [f"{tmp_path}/images: files of other types are left out, 2 such as a.gif"]


def test_jpeg_is_read_and_told(tmp_path: Path) -> None:
    Picture.new("L", (28, 28), 51).save(tmp_path / "a.jpg")
    own = MNIST(root=str(tmp_path)).own_examples([tmp_path / "a.jpg"])
    assert own.notes == ["1 of 1 images are JPEG, which keeps pixels approximately"]
    assert everything(own)[0].flatten().tolist() == pytest.approx([0.2] * 784, abs=0.01)


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "neither a PNG nor"), (b"\x89PNG\r\n", "damaged"), (b"GIF89a", "neither a PNG nor")]
)
def test_damaged_images(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(InputError, match=said):
        everything(MNIST(root=str(tmp_path)).own_examples([tmp_path / "a.png"]))


# --- features ---


def test_arrays_are_taken_as_they_are(tmp_path: Path) -> None:
    values = np.random.RandomState(0).rand(3, 784)
    np.save(tmp_path / "a.npy", values)
    np.save(tmp_path / "b.npy", values[..., None].astype(np.float16))
    np.savetxt(tmp_path / "c.csv", values, delimiter=",", fmt="%.17g")
    data = MNIST(root=str(tmp_path), permutation="random")
    inputs, lengths = everything(own := data.own_examples([tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / "c.csv"]))
    assert lengths is None and inputs.dtype == torch.float32 and inputs.shape == (9, 784, 1)
    expected = torch.from_numpy(values.astype(np.float32))[..., None]
    assert torch.equal(inputs[:3], expected) and torch.equal(inputs[6:], expected)
    assert own.names[0] == f"{tmp_path}/a.npy:1" and own.names[-1] == f"{tmp_path}/c.csv:3"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.full((2, 784), 255), "values are from 255 to 255; the network was trained on 0 to 1: scale them"),
        (np.zeros((2, 100)), "its sequences have length 100; expected 784"),
        (np.zeros((2, 784, 3)), r"its shape is (2, 784, 3); expected (sequences, 784, 1) or without the last"),
        (np.zeros(784), "its shape is (784,)"),
        (np.zeros((0, 784)), "its shape is (0, 784"),
        (np.full((1, 784), np.nan), "holds a NaN"),
        (np.array([["a"]]), "not of real numbers"),
        (np.array([[None]]), "cannot be read as an array of numbers"),
    ],
)
def test_arrays_that_do_not_fit(values: np.ndarray, said: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", values, allow_pickle=True)
    with pytest.raises(InputError) as error:
        MNIST(root=str(tmp_path)).own_examples([tmp_path / "a.npy"])
    assert str(error.value).startswith(f"{tmp_path}/a.npy: ") and said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,2\n1,x\n", "csv:2: could not convert"),
        ("1,2\n1\n", "csv:2: has 1 numbers, the first row 2"),
        ("", "is empty"),
    ],
)
def test_csv_files_that_are_none(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError) as error:
        MNIST(root=str(tmp_path)).own_examples([tmp_path / "a.csv"])
    assert said in str(error.value)


def test_features_of_any_data_module(tmp_path: Path) -> None:
    def module(d_input: int | None) -> FirstToken:
        data = FirstToken()
        data.d_input = d_input
        return data

    np.save(tmp_path / "a.npy", np.ones((4, 7, 2)))
    np.save(tmp_path / "b.npy", np.ones((4, 8, 2)))
    assert everything(module(2).own_examples([tmp_path / "a.npy"]))[0].shape == (4, 7, 2)
    with pytest.raises(InputError, match="b.npy: its sequences have length 8; expected 7"):
        module(2).own_examples([tmp_path / "a.npy", tmp_path / "b.npy"])
    with pytest.raises(InputError, match="FirstToken reads no files of your own"):
        module(None).own_examples([tmp_path / "a.npy"])


# --- sequences ---


def test_expressions(tmp_path: Path) -> None:
    data = ListOps(
        root=str(tmp_path), length_bounds=(3, 40), max_depth=4, num_train=8, num_val=8, num_test=8, max_length=40
    )
    expected = opened(data).batch(np.arange(8), 0)
    lines = [
        " ".join(data.vocabulary[token] for token in row[: length - 1])
        for row, length in zip(expected.inputs, expected.lengths, strict=True)
    ]
    (tmp_path / "a.txt").write_text("\n".join(lines[:5]) + "\n")
    (tmp_path / "b.tsv").write_text("\r\n".join(f"( {line} )" for line in lines[5:]))
    own = ListOps(root="nowhere", max_length=2048).own_examples([tmp_path / "a.txt", tmp_path / "b.tsv"])
    inputs, lengths = everything(own)
    assert torch.equal(inputs, expected.inputs) and torch.equal(lengths, expected.lengths) and not own.notes
    assert own.names[4:6] == [f"{tmp_path}/a.txt:5", f"{tmp_path}/b.tsv:1"]
    inputs, lengths = own.load(np.array([7, 2]))
    assert lengths.tolist() == expected.lengths[[7, 2]].tolist() and inputs.shape[1] == lengths.max()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[MAX 1 2 ]\n[MAX 1 eleven ]\n", "a.txt:2: token 'eleven' is none of"),
        ("[MAX 1 2 ]\n\n[MAX 1 2 ]\n", "a.txt:2: is empty; expected one sequence a line"),
        ("[MAX 1 2\n", "a.txt:1: brackets do not match"),
        ("[MAX 1 2 ]\t2\n", "a.txt:1: has a tab; expected an expression alone"),
        ("[MAX 1 2 3 4 5 6 7 8 ]\n", "a.txt:1: the expression has 10 tokens, more than max_length - 1 = 9"),
        ("\n", "a.txt: is empty"),
        (b"\xff\n", "a.txt:1: is not UTF-8 (byte 0xff)"),
    ],
)
def test_expressions_that_are_none(text: str | bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError) as error:
        ListOps(max_length=10, length_bounds=(3, 9)).own_examples([tmp_path / "a.txt"])
    assert said in str(error.value) and not str(error.value).endswith("raise max_length")


@pytest.mark.parametrize("inputs", ["characters", "bytes"])
def test_texts(inputs: Any, tmp_path: Path) -> None:
    data = Text(root=str(tmp_path), source=str(write_imdb(tmp_path)), inputs=inputs, max_length=60, min_freq=1)
    expected = opened(data).batch(np.arange(6), 0)
    vocabulary = data.manifest()["vocabulary"]
    texts = [path.read_text() for path in sorted((tmp_path / "aclImdb/test").rglob("*.txt"))]
    encoded_as = {tuple(everything(_text(inputs, vocabulary, tmp_path, [text]))[0][0].tolist()): text for text in texts}
    rows = [tuple(row[:length].tolist()) for row, length in zip(expected.inputs, expected.lengths, strict=True)]
    assert set(rows) <= set(encoded_as)
    own = _text(inputs, vocabulary, tmp_path, [encoded_as[row] for row in rows])
    found, lengths = everything(own)
    assert torch.equal(found, expected.inputs) and torch.equal(lengths, expected.lengths)


def _text(inputs: Any, vocabulary: list[str], folder: Path, texts: list[str]) -> OwnExamples:
    (folder / "own.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    data = Text(root="nowhere", inputs=inputs, max_length=60, min_freq=1)
    return data.own_examples([folder / "own.txt"], vocabulary if inputs == "characters" else None)


def test_what_is_lost_of_a_text_is_told(tmp_path: Path) -> None:
    vocabulary = ["<pad>", "<unk>", "<eos>", *"abc "]
    own = _text("characters", vocabulary, tmp_path, ["abc", "a" * 60, "a\u20acb", "b\u2028c"])
    inputs, lengths = everything(own)
    assert inputs[0, :4].tolist() == [3, 4, 5, 2] and lengths.tolist() == [4, 60, 4, 4] and inputs[2, 1] == 1
    assert own.notes == [
        f"1 texts are cut to 59 characters, as the data is; the first is {tmp_path}/own.txt:2",
        f"2 texts have characters that the data has not, which are <unk>: '€' in {tmp_path}/own.txt:3",
    ]
    own = _text("bytes", [], tmp_path, ["é" * 31, "é" * 30])
    assert everything(own)[1].tolist() == [60, 60] and len(own.notes) == 1 and "own.txt:1" in own.notes[0]
    with pytest.raises(InputError, match="the vocabulary, which was made of the training texts, is not among"):
        Text().own_examples([tmp_path / "own.txt"])
    with pytest.raises(InputError, match="the vocabulary is none of <pad>, <unk>, <eos> and characters"):
        Text().own_examples([tmp_path / "own.txt"], ["<pad>", "a", "b"])


def test_pairs(tmp_path: Path) -> None:
    source = write_pairs(tmp_path / "pairs", (8, 4, 4), median_length=40)
    data = Retrieval(root=str(tmp_path), source=str(source), max_length=64)
    expected = opened(data).batch(np.arange(4), 0)
    rows = [line.split("\t") for line in (source / "new_aan_pairs.test.tsv").read_text("utf-8").splitlines()]
    (tmp_path / "own.tsv").write_text("".join(f"{row[3]}\t{row[4]}\n" for row in rows), encoding="utf-8")
    own = Retrieval(max_length=64).own_examples([tmp_path / "own.tsv"], data.manifest()["vocabulary"])
    inputs, lengths = everything(own)
    assert torch.equal(inputs, expected.inputs) and torch.equal(lengths, expected.lengths) and inputs.shape[1] == 2
    assert own.names == [f"{tmp_path}/own.tsv:{line}" for line in range(1, 5)]
    (tmp_path / "own.tsv").write_text("a\tb\na b\n")
    with pytest.raises(InputError, match="own.tsv:2: has 0 tabs; expected a pair"):
        Retrieval().own_examples([tmp_path / "own.tsv"], data.manifest()["vocabulary"])


# --- paths, names ---


@pytest.mark.parametrize(
    ("path", "said"),
    [("missing.txt", "there is no such file"), ("a.gif", "its type is not known here; expected .txt or .tsv"),
     ("folder", "holds no .txt or .tsv")],
)  # fmt: skip
def test_paths_that_are_none(path: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.gif").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError) as error:
        ListOps().own_examples([tmp_path / path])
    assert str(error.value).startswith(f"{tmp_path / path}: ") and said in str(error.value)


@pytest.mark.parametrize("cls", [MNIST, SCIFAR, Image, ListOps, Pathfinder, Retrieval, Text])
def test_classes_have_names(cls: Any) -> None:
    assert cls.class_names is not None and len(cls.class_names) == cls.num_classes
