import gzip
import hashlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lra_ssm.cli.batch_picture import draw_batch
from lra_ssm.datamodules.fetch.download import RemoteFile
from lra_ssm.datamodules.images.transforms import bitreversal_permutation, random_permutation
from lra_ssm.datamodules.mnist import reader
from lra_ssm.datamodules.mnist.module import MNIST
from lra_ssm.errors import InputError
from tests.datamodules.image_helpers import encoded, idx, mnist_files, pictures, prepared, real_data, write_files
from tests.datamodules.server import serving

IMAGES = pictures(60, size=28, channels=1)[..., 0]
LABELS = np.arange(60) % 10
NAME = "train-images-idx3-ubyte.gz"


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("place", ["mnist/download", "mnist", "MNIST/raw"])
def test_idx(tmp_path: Path, packed: bool, place: str) -> None:
    write_files(tmp_path / place, mnist_files(IMAGES, LABELS, 50, packed))
    data = MNIST(root=str(tmp_path))
    files = reader.read(data._path())
    assert np.array_equal(files.train.images[..., 0], IMAGES[:50]) and files.train.labels.tolist() == list(LABELS[:50])
    assert np.array_equal(files.test.images[..., 0], IMAGES[50:]) and files.test.labels.tolist() == list(LABELS[50:])
    assert {entry["digest"] for entry in files.manifest_entry["files"].values()} == {"unknown"}
    assert MNIST(root="x", source=str(tmp_path / place))._path() == data._path()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (NAME, gzip.compress(idx(IMAGES[:50], 0x801)), "begins with 0x0801 instead of 0x0803"),
        (NAME, gzip.compress(idx(IMAGES[:50])[:-1]), r"holds 39199 bytes of values instead of 39200 for its shape"),
        (NAME, gzip.compress(idx(IMAGES[:49])), "holds 50 labels for 49 images"),
        (NAME, gzip.compress(idx(IMAGES[:50, :27])), r"holds images of \(27, 28\) pixels"),
        (NAME, gzip.compress(b"abc"), "has 3 bytes"),
        (NAME, gzip.compress(idx(IMAGES[:50]))[:-9], "is broken off or damaged"),
        ("t10k-labels-idx1-ubyte.gz", gzip.compress(idx(np.full(10, 10))), "label 10 of image 0"),
    ],
    # Names of their own: pytest's would hold the time that gzip notes, and differ between workers.
    ids=["magic", "values", "labels", "size", "header", "broken-off", "class"],
)
def test_damaged(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    folder = write_files(tmp_path, mnist_files(IMAGES, LABELS, 50) | {name: content})
    with pytest.raises(InputError, match=message) as error:
        MNIST(root=str(tmp_path / "root"), source=str(folder)).prepare_data()
    assert "\n" not in str(error.value) and name in str(error.value).replace("train-labels-idx1", "train-images-idx3")
    assert not (tmp_path / "root").exists()


def test_a_broken_off_download_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = mnist_files(IMAGES, LABELS, 50)
    folder = write_files(tmp_path / "mnist" / "download", {NAME: published[NAME]})
    data = MNIST(root=str(tmp_path))
    with pytest.raises(InputError, match="`lra-ssm prepare mnist --source=original --root=") as error:
        data.prepare_data()
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="train-labels-idx1-ubyte.gz: is missing; MNIST is the four files"):
        MNIST(root=str(tmp_path), source=str(folder)).prepare_data()
    with ExitStack() as stack:
        sites = {name: stack.enter_context(serving(content)) for name, content in published.items()}
        monkeypatch.setattr(MNIST, "downloads", tuple(
            RemoteFile((f"{site.url}/{name}",), name, f"md5:{hashlib.md5(published[name]).hexdigest()}")
            for name, site in sites.items()
        ))  # fmt: skip
        data.fetch()
        assert [len(site.requests) for site in sites.values()] == [int(name != NAME) for name in sites]
    assert np.array_equal(reader.read(data._path()).train.images[..., 0], IMAGES[:50])


def test_half_a_set_does_not_hide_a_whole_one(tmp_path: Path) -> None:
    write_files(tmp_path / "mnist", {NAME: b"x"})
    write_files(tmp_path / "MNIST" / "raw", mnist_files(IMAGES, LABELS, 50))
    assert MNIST(root=str(tmp_path))._path() == tmp_path / "MNIST" / "raw"
    write_files(tmp_path / "MNIST", {NAME: b"x"})
    assert MNIST(root="x", source=str(tmp_path / "MNIST"))._path() == tmp_path / "MNIST" / "raw"


def test_a_failed_download_leaves_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise InputError("no network")

    monkeypatch.setattr("lra_ssm.datamodules.images.published.download", fail)
    for root in (tmp_path / "root", tmp_path):
        with pytest.raises(InputError, match="no network"):
            MNIST(root=str(root)).fetch()
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("limit", [None, 5])
def test_a_class_without_images(tmp_path: Path, limit: int | None) -> None:
    write_files(tmp_path / "mnist", mnist_files(IMAGES, np.where(LABELS == 7, 6, LABELS), 50))
    with pytest.raises(InputError, match="mnist: gives no image for training of the class '7'") as error:
        MNIST(root=str(tmp_path), limit=limit).prepare_data()
    assert "\n" not in str(error.value)


def test_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    names = [str(digit) for digit in range(10)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})

    def part(chosen: slice) -> Any:
        entries = [{"bytes": encoded(image[..., None]), "path": None} for image in IMAGES[chosen]]
        return datasets.Dataset.from_dict({"image": entries, "label": LABELS[chosen].tolist()}, features=features)

    saved = datasets.DatasetDict({"train": part(slice(50)), "test": part(slice(50, None))})
    saved.save_to_disk(str(tmp_path / "mnist" / "huggingface"))
    data = prepared(MNIST(root=str(tmp_path), source="huggingface"))
    batch = next(iter(data.test_dataloader()))
    assert torch.allclose(batch.inputs[..., 0] * 255, torch.from_numpy(IMAGES[50:].reshape(10, 784)).float())
    source = data.manifest()["source"]
    assert source["kind"] == source["layout"] == "huggingface"
    assert source["revision"] == "unknown" and "repository" not in source  # a user has put it there
    before = data.content_settings(), reader.watched_files(data._path())
    (tmp_path / "mnist" / "huggingface" / "train" / "cache-0123.arrow").write_bytes(b"x")
    assert (data.content_settings(), reader.watched_files(data._path())) == before


def test_what_models_get(tmp_path: Path) -> None:
    write_files(tmp_path / "mnist", mnist_files(IMAGES, LABELS, 50))
    plain = prepared(MNIST(root=str(tmp_path)))
    assert [split["examples"] for split in plain.manifest()["splits"].values()] == [45, 5, 10]
    inputs = next(iter(plain.test_dataloader())).inputs
    pixels = torch.from_numpy(IMAGES[50:].reshape(10, 784, 1)).float() / 255
    assert inputs.dtype == torch.float32 and torch.equal(inputs, pixels)
    for settings, permutation in (
        ({"permutation": "bitreversal"}, bitreversal_permutation(784)),
        ({"permutation": "random"}, random_permutation(784, 92916)),
        ({"permutation": "random", "permutation_seed": 3}, random_permutation(784, 3)),
    ):
        permuted = prepared(MNIST(root=str(tmp_path), **settings))  # type: ignore[arg-type]
        assert permuted.prepared_folder == plain.prepared_folder
        said = {"permutation_seed": 92916} if settings["permutation"] == "random" else {}
        assert permuted.manifest()["batches"] == said | settings
        assert torch.equal(next(iter(permuted.test_dataloader())).inputs, pixels[:, permutation])
    assert plain.manifest()["batches"] == {"permutation": "none"}
    scaled = prepared(MNIST(root=str(tmp_path), mean=0.1307, std=0.3081))
    assert scaled.prepared_folder == plain.prepared_folder
    told = [scaled.manifest()[key] for key in ("inputs", "batches")]
    assert told == ["normalized", {"permutation": "none", "mean": 0.1307, "std": 0.3081}]
    torch.testing.assert_close(next(iter(scaled.test_dataloader())).inputs, (pixels - 0.1307) / 0.3081)
    limited = prepared(MNIST(root=str(tmp_path), limit=10))
    assert limited.manifest()["splits"]["test"]["class_counts"] == [1] * 10
    assert prepared(MNIST(root=str(tmp_path), split_seed=1)).prepared_folder != plain.prepared_folder


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_files(tmp_path / "mnist", mnist_files(IMAGES, LABELS, 50))
    data = prepared(MNIST(root=str(tmp_path), permutation="bitreversal", batch_size=7))
    draw_batch(data, tmp_path / "batch.png")
    assert (tmp_path / "batch.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(FileNotFoundError, match="x.png"):
        draw_batch(data, tmp_path / "absent" / "x.png")
    assert not list(tmp_path.glob(".unfinished*"))


@pytest.mark.slow
def test_real(tmp_path: Path) -> None:
    data = prepared(MNIST(root=str(tmp_path), source=str(real_data("mnist"))))
    splits = data.manifest()["splits"]
    assert [split["examples"] for split in splits.values()] == [54_000, 6_000, 10_000]
    assert data.manifest()["source"]["published_counts"] is True
    total = np.add(splits["train"]["class_counts"], splits["val"]["class_counts"])
    assert total.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    pixels = np.concatenate([data._datasets[name].split.images for name in ("train", "val")]) / 255
    assert abs(pixels.mean() - 0.1307) < 5e-5 and abs(pixels.std() - 0.3081) < 5e-5
