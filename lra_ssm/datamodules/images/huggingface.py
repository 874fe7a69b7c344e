"""Image datasets of the Hugging Face Hub, as folders that `datasets` saved; it is imported where it is used."""

import hashlib
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lra_ssm.datamodules.images.decoding import decode_image
from lra_ssm.datamodules.images.files import ImageFiles, LabelledImages, check_labels
from lra_ssm.datamodules.storage.bars import image_bar
from lra_ssm.datamodules.storage.disk import check_disk_space
from lra_ssm.errors import InputError
from lra_ssm.files import locked

MARKERS = ("dataset_dict.json", "dataset_info.json")
IMAGE_COLUMNS, LABEL_COLUMNS = ("img", "image"), ("label", "labels")


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by save_to_disk."""
    return any((folder / marker).is_file() for marker in MARKERS)


def watched_files(folder: Path) -> list[Path]:
    """Files whose sizes and times tell whether the content of a saved folder may have changed."""
    found = [path for pattern in ("*.json", "*.arrow", "*/*.arrow") for path in folder.glob(pattern)]
    # What `datasets` computes of a folder, by whichever program, it keeps inside as cache-<fingerprint>.arrow.
    return sorted(path for path in found if not path.name.startswith("cache-"))


def folder_name(name: str, revision: str) -> str:
    """Of the folder that `save` writes: a new revision is a new download."""
    return f"{name.replace('/', '-')}-{revision[:12]}"


def save(name: str, revision: str, downloads: Path, size: int) -> None:
    """Downloads a dataset of the Hub (or takes it from the cache of `datasets`) and saves it as a folder, atomically.

    One process works, others wait for it.

    Args:
        name: of the repository.
        revision: its commit.
        downloads: an existing folder; `folder_name` is what is written into it.
        size: about how many bytes that takes.

    Raises:
        InputError: the disk has no room, or it cannot be had or written.
    """
    import datasets

    with locked(downloads / ".huggingface.lock", "downloads this dataset"):
        folder = downloads / folder_name(name, revision)
        if is_saved(folder):
            return
        check_disk_space(downloads, size, name)
        temporary = downloads / ".unfinished-huggingface"  # a killed process's is replaced
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            datasets.load_dataset(name, revision=revision).save_to_disk(str(temporary))
            temporary.rename(folder)
        except Exception as error:  # whatever the libraries below raise: connections, the Hub, formats, the disk
            raise InputError(f"{name}@{revision[:12]}: cannot be downloaded ({_line(error)})") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def read(folder: Path, mode: Literal["L", "RGB"], size: tuple[int, int], class_names: tuple[str, ...]) -> ImageFiles:
    """Reads a folder that save_to_disk wrote: splits train and test (or train alone), columns image or img, and label.

    Labels are matched by class names where the dataset has names.

    Args:
        folder: the folder.
        mode: L or RGB, what images are converted to.
        size: height and width of all images.
        class_names: in the order of our labels.

    Raises:
        InputError: it is damaged, or has other splits, columns, classes or sizes.
    """
    import datasets

    try:
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise InputError(f"{folder}: cannot be loaded as a saved Hugging Face dataset ({_line(error)})") from error
    if not isinstance(loaded, dict):
        loaded = {"train": loaded}
    if "train" not in loaded:
        raise InputError(f"{folder}: has the splits {', '.join(loaded)}; needs train, and test for a proper test set")
    parts: dict[str, LabelledImages] = {}
    files: dict[str, Any] = {}
    lossy = False
    for split in ("train", "test"):
        if split in loaded:
            name = f"{folder} {split}"
            try:
                parts[split], files[split], jpeg = _read_split(loaded[split], mode, size, class_names, name)
            except InputError:
                raise
            except Exception as error:  # damaged files, columns of other kinds
                raise InputError(f"{name}: cannot be read ({_line(error)})") from error
            lossy |= jpeg
    return ImageFiles(
        parts["train"],
        parts.get("test"),
        {"layout": "huggingface", "files": files} | ({"lossy": True} if lossy else {}),
    )


def _read_split(
    dataset: Any, mode: Literal["L", "RGB"], size: tuple[int, int], class_names: tuple[str, ...], name: str
) -> tuple[LabelledImages, dict[str, Any], bool]:
    import datasets

    image_column = next((column for column in IMAGE_COLUMNS if column in dataset.features), None)
    label_column = next((column for column in LABEL_COLUMNS if column in dataset.features), None)
    if image_column is None or label_column is None:
        raise InputError(
            f"{name}: has the columns {', '.join(dataset.features)}; needs image or img, and label or labels"
        )
    labels = np.asarray(dataset.with_format("numpy")[label_column][:], dtype=np.int64)
    names = getattr(dataset.features[label_column], "names", None)
    labels = check_labels(labels, len(names) if names else len(class_names), name)
    if names:
        if sorted(names) != sorted(class_names):
            raise InputError(f"{name}: has the classes {', '.join(names)} instead of {', '.join(class_names)}")
        labels = np.array([class_names.index(name) for name in names], dtype=np.int64)[labels]
    encoded = dataset.cast_column(image_column, datasets.Image(decode=False)).select_columns([image_column])
    images = np.empty((len(labels), *size, {"L": 1, "RGB": 3}[mode]), dtype=np.uint8)
    digest, lossy, number = hashlib.sha256(), False, 0
    with image_bar(f"reading {len(labels):,} images of {name}", len(labels)) as advance:
        for batch in encoded.iter(batch_size=1000):
            for entry in batch[image_column]:
                data = entry["bytes"]
                if data is None:  # the dataset holds paths of files instead
                    try:
                        data = Path(entry["path"]).read_bytes()
                    except OSError as error:
                        raise InputError(f"{name}: image {number}: {entry['path']} cannot be read") from error
                digest.update(data)
                decoded = decode_image(data, mode, size, f"{name}: image {number}")
                images[number] = decoded.pixels
                lossy |= decoded.lossy
                number += 1
            advance(len(batch[image_column]))
    entry = {"images": number, "sha256": digest.hexdigest(), "digest": "unknown", "fingerprint": dataset._fingerprint}
    return LabelledImages(images, labels), entry, lossy


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
