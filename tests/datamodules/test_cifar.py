import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from lra_ssm.datamodules.cifar10 import reader as cifar_files
from lra_ssm.datamodules.cifar10.image import Image
from lra_ssm.datamodules.cifar10.scifar import SCIFAR
from lra_ssm.datamodules.images.transforms import luma
from lra_ssm.datamodules.storage.format import open_prepared
from lra_ssm.errors import InputError
from tests.datamodules.image_helpers import (
    CLASSES,
    cifar_batch,
    cifar_batches,
    encoded,
    pictures,
    prepared,
    real_data,
    write_files,
    write_tar,
)
from tests.datamodules.language.hub_server import serving_hub

IMAGES = pictures(60)  # 50 for training, 10 for test; labels count up


def batches(folder: Path, **replaced: bytes) -> Path:
    return write_files(folder / "cifar-10-batches-py", cifar_batches(IMAGES, 10) | replaced)


def class_files(kind: str = "PNG") -> dict[str, bytes]:
    names = [("train", i) for i in range(50)] + [("test", i) for i in range(10)]
    suffix = {"PNG": "png", "JPEG": "jpg"}[kind]
    return {
        f"{split}/{CLASSES[i % 10]}/{i:04}.{suffix}": encoded(image, kind)
        for (split, i), image in zip(names, IMAGES, strict=True)
    }


def check_published(files: Any, order: np.ndarray = np.arange(50)) -> None:  # noqa: B008
    assert np.array_equal(files.train.images, IMAGES[order]) and np.array_equal(files.test.images, IMAGES[50:])
    assert files.train.labels.tolist() == (order % 10).tolist() and files.test.labels.tolist() == list(range(10))
    assert files.train.images.dtype == np.uint8 and files.train.labels.dtype == np.int64


# -- layouts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["python2", "python3"])
def test_python_batches(tmp_path: Path, writer: str) -> None:
    write_files(tmp_path / "cifar-10-batches-py", cifar_batches(IMAGES, 10, writer) | {"readme.html": b"x"})
    files = cifar_files.read(cifar_files.locate(tmp_path))
    check_published(files)
    assert (
        files.manifest_entry["layout"] == "python"
        and files.manifest_entry["files"]["data_batch_3"]["digest"] == "unknown"
    )


def test_archives_in_any_order(tmp_path: Path) -> None:
    members = {f"cifar-10-batches-py/{name}": data for name, data in cifar_batches(IMAGES, 10).items()}
    path = write_tar(tmp_path / "cifar-10-python.tar.gz", dict(reversed(members.items())))
    files = cifar_files.read(cifar_files.locate(path))
    check_published(files)
    assert (
        files.manifest_entry["archive"]["digest"] == "unknown" and len(files.manifest_entry["archive"]["sha256"]) == 64
    )


def test_binary_batches(tmp_path: Path) -> None:
    rows = IMAGES.transpose(0, 3, 1, 2).reshape(6, 10, 3072)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    data = {name: b"".join(bytes([i]) + row.tobytes() for i, row in enumerate(part)) for name, part in zip(names, rows)}  # noqa: B905
    folder = write_files(tmp_path / "cifar-10-batches-bin", data)
    check_published(cifar_files.read(cifar_files.locate(tmp_path)))
    (folder / "test_batch.bin").write_bytes(b"x" * 3072)
    with pytest.raises(InputError, match=r"test_batch.bin: has 3072 bytes"):
        cifar_files.read(folder)


def test_class_folders_and_archives_of_them(tmp_path: Path) -> None:
    by_class = np.argsort(np.arange(50) % 10, kind="stable")
    folder = write_files(tmp_path / "images", class_files())
    check_published(cifar_files.read(cifar_files.locate(folder)), by_class)
    archive = write_tar(tmp_path / "images.tar.gz", {f"CIFAR/{n}": d for n, d in reversed(class_files().items())})
    files = cifar_files.read(archive)
    check_published(files, by_class)
    assert "lossy" not in files.manifest_entry
    lossy = cifar_files.read(write_tar(tmp_path / "jpeg.tar.gz", class_files() | class_files("JPEG"))).manifest_entry
    assert lossy["lossy"] is True


def test_training_images_alone(tmp_path: Path) -> None:
    names = [f"train/{CLASSES[i % 10]}/{i + 1}.png" for i in range(60)]
    write_files(tmp_path / "images", {name: encoded(image) for name, image in zip(names, IMAGES, strict=True)})
    data = prepared(SCIFAR(root=str(tmp_path / "root"), source=str(tmp_path / "images")))
    assert [split["examples"] for split in data.manifest()["splits"].values()] == [45, 5, 10]
    assert data.manifest()["source"]["published_test"] is False
    # By numbers, not by letters: 1, 11, 21, …; 2, 12, ….
    order = np.argsort(np.arange(60) % 10, kind="stable")
    assert np.array_equal(cifar_files.read(tmp_path / "images").train.images, IMAGES[order])


# -- the Hub -----------------------------------------------------------------------------------------------------------


def hub_dataset(images: np.ndarray, column: str = "img", names: list[str] = CLASSES, kind: str = "PNG") -> Any:
    """As the Hub has it, with classes in any order."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({column: datasets.Image(), "label": datasets.ClassLabel(names=names)})
    entries = [{"bytes": encoded(image, kind), "path": None} for image in images]
    labels = [names.index(CLASSES[i % 10]) for i in range(len(images))]
    return datasets.Dataset.from_dict({column: entries, "label": labels}, features=features)


def write_hub(folder: Path, form: str, **parts: Any) -> Path:
    """Parquet files as they are in a repository, or what save_to_disk writes."""
    if form == "saved":
        pytest.importorskip("datasets").DatasetDict(parts).save_to_disk(str(folder))
        return folder
    (folder / "plain_text").mkdir(parents=True)
    for split, part in parts.items():
        part.to_parquet(str(folder / "plain_text" / f"{split}-00000-of-00001.parquet"))
    return folder


@pytest.mark.parametrize("form", ["saved", "parquet"])
@pytest.mark.parametrize("column", ["img", "image"])
def test_hugging_face(tmp_path: Path, column: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    train, test = (hub_dataset(images, column, CLASSES[::-1]) for images in (IMAGES[:50], IMAGES[50:]))
    folder = write_hub(tmp_path / "cifar10" / "huggingface", form, train=train, test=test)
    data = SCIFAR(root=str(tmp_path), source="huggingface")
    files = cifar_files.read(data._path())
    check_published(files)
    assert files.manifest_entry["layout"] == "huggingface" and "lossy" not in files.manifest_entry
    assert cifar_files.locate(folder) == data._path() == folder
    assert not (tmp_path / "cache").exists()  # no second copy
    file = next(folder.glob("*/*.arrow" if form == "saved" else "*/*.parquet"))
    data = SCIFAR(root=str(tmp_path), source=str(folder))
    before = data.prepared_folder
    os.utime(file, ns=(1, 1))
    assert data.prepared_folder != before
    file.write_bytes(b"x")
    with pytest.raises(InputError, match="huggingface: cannot be read as a dataset of the Hub") as error:
        cifar_files.read(folder)
    assert "\n" not in str(error.value)


def test_hugging_face_is_fetched_by_prepare_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = hub_dataset(np.repeat(IMAGES[:10], 4, 0), kind="JPEG")
    content = next(write_hub(tmp_path / "hub", "parquet", train=part).rglob("*.parquet")).read_bytes()
    names = [f"plain_text/{split}-00000-of-00001.parquet" for split in ("train", "test")]
    data = Image(root=str(tmp_path / "root"), source="huggingface")
    with pytest.raises(InputError, match="lra-ssm prepare image --source=huggingface"):
        data.prepare_data()
    folder = tmp_path / "root" / "cifar10" / "download" / "uoft-cs-cifar10-0b2714987fa4"
    with serving_hub(dict.fromkeys(names, content), monkeypatch, cifar_files.HUB) as hub:
        data.fetch()
        data.fetch()
        assert hub.asked == ["listing", *sorted(names)]
        # A download that was killed between the two files goes on, and a damaged file is seen and fetched again.
        (folder / names[1]).unlink()
        (folder / names[0]).write_bytes(b"x")
        with pytest.raises(InputError, match="lra-ssm prepare image --source=huggingface"):
            data.prepare_data()
        with pytest.raises(InputError, match="train-00000-of-00001.parquet has the sha256 .* is removed"):
            data.fetch()
        data.fetch()
        assert {*hub.asked[3:]} == {"listing", *names} and len(list(folder.glob("*/*.parquet"))) == 2
    source = prepared(data).manifest()["source"]
    assert source["lossy"] is True and source["revision"] == cifar_files.HUB.revision
    assert source["repository"] == "uoft-cs/cifar10"


def test_what_datasets_saved_of_the_hub_before_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "cifar10" / "download" / "uoft-cs-cifar10-0b2714987fa4"
    write_hub(folder, "saved", train=hub_dataset(IMAGES[:50]), test=hub_dataset(IMAGES[50:]))
    data = Image(root=str(tmp_path), source="huggingface")
    data.fetch()  # nothing to do
    assert prepared(data).manifest()["source"]["repository"] == "uoft-cs/cifar10"


@pytest.mark.parametrize(
    ("column", "names", "message"),
    [
        ("picture", CLASSES, "has the columns picture, label; needs image or img"),
        ("img", [*CLASSES[:9], "cow"], "has the classes airplane, .* cow instead of"),
    ],
)
def test_other_hugging_face_datasets(tmp_path: Path, column: str, names: list[str], message: str) -> None:
    hub_dataset(IMAGES[:3], column, names).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(InputError, match=message):
        cifar_files.read(tmp_path / "saved")


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_2", b"", "data_batch_2: is no pickle of arrays, or damaged"),
        ("data_batch_2", b"nonsense", "data_batch_2: "),
        ("data_batch_2", cifar_batch(IMAGES[:2], [0, 10]), "label 10 of image 1 is not one of 0 to 9"),
        ("data_batch_2", cifar_batch(IMAGES[:2], [0]), "labels is not a list of 2 integers"),
        ("data_batch_2", pickle.dumps([1]), "holds a list instead of a dict"),
        ("data_batch_2", pickle.dumps({"data": np.zeros((2, 3071), np.uint8), "labels": [0, 1]}), r"\(n, 3072\)"),
        ("test_batch", None, "test_batch is missing"),
    ],
)
def test_damaged_batches(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    folder = batches(tmp_path)
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        cifar_files.read(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train/cow/0.png", encoded(IMAGES[0]), "'cow' is no class"),
        ("train/cat/9.png", encoded(pictures(1, size=31)[0]), r"cat/9.png: is an image of 31 x 31 pixels instead of"),
        ("train/cat/9.png", b"", "cat/9.png: is neither a PNG nor a JPEG image, or is damaged"),
        ("train/cat/9.png", encoded(IMAGES[0])[:100], "cat/9.png: is neither"),
    ],
)
def test_damaged_images(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    folder = write_files(tmp_path, class_files() | {name: content})
    with pytest.raises(InputError, match=message):
        cifar_files.read(folder)


def test_nothing_there_names_the_command(tmp_path: Path) -> None:
    for data, name in ((Image, "image"), (SCIFAR, "scifar")):
        for source in ("original", "huggingface"):
            with pytest.raises(InputError, match=f"`lra-ssm prepare {name} --source={source} --root=") as error:
                data(root=str(tmp_path), source=source).prepare_data()
            assert "\n" not in str(error.value)
    (tmp_path / "empty").mkdir()
    for source, message in (("empty", "holds no CIFAR-10 that is known"), ("absent", "is neither original")):
        with pytest.raises(InputError, match=message):
            Image(root=str(tmp_path), source=str(tmp_path / source)).prepare_data()
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_fit_never_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr("lra_ssm.datamodules.images.published.download", lambda *a: called.append(a))
    data = Image(root=str(tmp_path))
    with pytest.raises(InputError):
        data.prepare_data()
    assert not called
    data.fetch()  # what `lra-ssm prepare` calls
    assert called == [(cifar_files.ARCHIVE, tmp_path / "cifar10" / "download")]
    batches(tmp_path)
    called.clear()
    data.fetch()
    assert not called


def test_a_broken_off_unpacking_is_no_cifar(tmp_path: Path) -> None:
    (batches(tmp_path) / "data_batch_4").unlink()
    with pytest.raises(InputError, match="`lra-ssm prepare image --source=original"):
        Image(root=str(tmp_path)).prepare_data()
    with pytest.raises(InputError, match="data_batch_4 is missing"):
        Image(root=str(tmp_path), source=str(tmp_path)).prepare_data()


# -- what models get ---------------------------------------------------------------------------------------------------


def test_image_and_scifar(tmp_path: Path) -> None:
    batches(tmp_path)
    root = str(tmp_path)
    image = prepared(Image(root=root, eval_batch_size=4))
    assert image.prepared_folder.parent == tmp_path / "cifar10" and image.manifest()["source"]["published_test"]
    assert [split["examples"] for split in image.manifest()["splits"].values()] == [45, 5, 10]
    got = list(image.test_dataloader())
    assert [tuple(batch.inputs.shape) for batch in got] == [(4, 1024, 1), (4, 1024, 1), (2, 1024, 1)]
    assert got[0].lengths is None and torch.cat([batch.labels for batch in got]).tolist() == list(range(10))
    gray = luma(IMAGES[50:]).reshape(10, 1024, 1)
    expected = (torch.from_numpy(gray).float() / 255 - 122.6 / 255) / (61 / 255)
    assert torch.allclose(torch.cat([batch.inputs for batch in got]), expected, atol=1e-6)
    assert (image.d_input, image.vocab_size, image.num_classes) == (1, None, 10)

    tokens = prepared(Image(root=root, inputs="integers"))
    assert (tokens.d_input, tokens.vocab_size) == (None, 256) and tokens.manifest()["source"]["vocab_size"] == 256
    batch = next(iter(tokens.val_dataloader()))
    assert batch.inputs.shape == (5, 1024) and batch.inputs.dtype == torch.int64

    colors = prepared(SCIFAR(root=root))
    batch = next(iter(colors.val_dataloader()))
    train, val = torch.utils.data.random_split(range(50), [45, 5], torch.Generator().manual_seed(42))  # type: ignore
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.247, 0.243, 0.261])
    expected = (torch.from_numpy(IMAGES[list(val)].reshape(5, 1024, 3)).float() / 255 - mean) / std
    assert torch.allclose(batch.inputs, expected, atol=1e-6) and colors.d_input == 3
    assert colors.batch_settings() == {"augment": "none"}
    scaled = prepared(SCIFAR(root=root, std=(0.2023, 0.1994, 0.201)))
    assert scaled.batch_settings() == {"augment": "none", "std": [0.2023, 0.1994, 0.201]}
    other = next(iter(scaled.val_dataloader())).inputs * torch.tensor([0.2023, 0.1994, 0.201]) / std
    assert torch.allclose(other, expected, atol=1e-6) and scaled.prepared_folder == colors.prepared_folder
    for wrong, many in (((0.2, 0.2), "3 finite numbers"), ((0.2, 0.2, -1.0), "3 finite numbers"), ((), "3 finite")):
        with pytest.raises(InputError, match=f"SCIFAR std .*: must be {many}"):
            SCIFAR(root=root, std=wrong)
    with pytest.raises(InputError, match=r"SCIFAR std .*: must be 1 finite number greater than 0"):
        SCIFAR(root=root, grayscale=True, std=(0.2, 0.2, 0.2))
    gray_scifar = prepared(SCIFAR(root=root, grayscale=True))
    assert gray_scifar.prepared_folder == image.prepared_folder and gray_scifar.d_input == 1
    assert tokens.prepared_folder != image.prepared_folder != colors.prepared_folder
    open_prepared(image.prepared_folder, verify=True)

    small = prepared(SCIFAR(root=root, resolution=16))
    batch = next(iter(small.val_dataloader()))
    quarters = IMAGES[list(val)].reshape(5, 16, 2, 16, 2, 3).astype(float).mean((2, 4)).reshape(5, 256, 3)
    expected = (torch.from_numpy(np.floor(quarters + 0.5)).float() / 255 - mean) / std
    assert torch.allclose(batch.inputs, expected, atol=1e-6) and small.prepared_folder != colors.prepared_folder
    with pytest.raises(InputError, match="SCIFAR resolution 20: must be 32, 16 or 8"):
        SCIFAR(root=root, resolution=20)


def test_augmentation_is_in_training_alone_and_the_same_with_workers(tmp_path: Path) -> None:
    batches(tmp_path)

    def load(workers: int, batch_size: int, epoch: int, augment: Any = "crop_flip") -> dict[int, torch.Tensor]:
        data = prepared(
            SCIFAR(root=str(tmp_path), augment=augment, num_workers=workers, batch_size=batch_size, shuffle_seed=1)
        )
        loader = data.train_dataloader()
        loader.batch_sampler.set_epoch(epoch)
        examples = [number for batch in loader.batch_sampler.batches(epoch) for number in batch]
        return dict(zip(examples, torch.cat([batch.inputs for batch in loader]), strict=True))

    first, again, next_epoch, plain = load(0, 8, 0), load(2, 5, 0), load(0, 8, 1), load(0, 8, 0, "none")
    assert all(torch.equal(first[i], again[i]) for i in range(45))
    assert sum(torch.equal(first[i], next_epoch[i]) for i in range(45)) < 5
    assert sum(torch.equal(first[i], plain[i]) for i in range(45)) < 5
    assert SCIFAR(root=str(tmp_path), augment="crop_flip").batch_settings() == {"augment": "crop_flip"}
    augmented, not_ = (prepared(SCIFAR(root=str(tmp_path), augment=a)) for a in ("crop_flip", "none"))
    for name in ("val_dataloader", "test_dataloader", "predict_dataloader"):
        for one, other in zip(getattr(augmented, name)(), getattr(not_, name)(), strict=True):
            assert torch.equal(one.inputs, other.inputs)


# -- the real ones -----------------------------------------------------------------------------------------------------


@pytest.mark.trials
def test_real_jpegs(tmp_path: Path) -> None:
    data = prepared(Image(root=str(tmp_path), source=str(real_data("cifar10-jpeg.tar.gz"))))
    manifest = data.manifest()
    assert [split["examples"] for split in manifest["splits"].values()] == [45_000, 5_000, 10_000]
    assert manifest["splits"]["test"]["class_counts"] == [1000] * 10 and manifest["source"]["lossy"] is True
    both = np.add(*(manifest["splits"][name]["class_counts"] for name in ("train", "val")))
    assert both.tolist() == [5000] * 10 and manifest["source"]["published_counts"] is True
    pixels = open_prepared(data.prepared_folder).split("train").images  # type: ignore[union-attr]
    assert abs(pixels.mean() - 122.6) < 1.0 and abs(pixels.std() - 61) < 2.0


def test_real_pngs_are_exact(tmp_path: Path) -> None:
    folder = real_data("cifar10-png-200")
    rows = [row.split(",") for row in (folder / "trainLabels.csv").read_text().replace(".png", "").split()]
    for number, label in rows:
        (tmp_path / "train" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / label / f"{number}.png").symlink_to(folder / "train" / f"{number}.png")
    files = cifar_files.read(cifar_files.locate(tmp_path))
    assert files.test is None and files.train.images.shape == (200, 32, 32, 3) and "lossy" not in files.manifest_entry
    by_class = sorted((CLASSES.index(label), int(number)) for number, label in rows)
    assert files.train.labels.tolist() == [label for label, _ in by_class]
    for position in (0, 1, 100, 199):
        with PILImage.open(folder / "train" / f"{by_class[position][1]}.png") as image:
            assert np.array_equal(files.train.images[position], np.asarray(image.convert("RGB")))
