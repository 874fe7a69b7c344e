"""Reads image datasets of the Hugging Face Hub."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from lra_ssm.bars import Bar
from lra_ssm.datamodules.fetch.hub import loaded_splits
from lra_ssm.datamodules.images.files import ImageFiles, LabelledImages, Mode, check_labels, decode_image
from lra_ssm.errors import InputError

IMAGE_COLUMNS, LABEL_COLUMNS = ("img", "image"), ("label", "labels")


def read(folder: Path, mode: Mode, size: tuple[int, int], class_names: tuple[str, ...]) -> ImageFiles:
    """Reads splits train and test (or train alone), columns image or img, and label.

    Labels are matched by class names where the dataset has names.

    Args:
        folder: what `hub.is_hub_dataset`.
        mode: what images are converted to.
        size: height and width of all images.
        class_names: in the order of our labels.

    Raises:
        InputError: it is damaged, or has other splits, columns, classes or sizes.
    """
    parts, files, lossy = dict[str, LabelledImages](), dict[str, Any](), False
    with loaded_splits(folder) as splits:
        for split, dataset in splits.items():
            parts[split], files[split], jpeg = _read_split(dataset, mode, size, class_names, f"{folder} {split}")
            lossy |= jpeg
    if "train" not in parts:
        raise InputError(f"{folder}: has no split train; needs it, and test for a proper test set")
    entry = {"layout": "huggingface", "files": files} | ({"lossy": True} if lossy else {})
    return ImageFiles(parts["train"], parts.get("test"), entry)


def _read_split(
    dataset: Any, mode: Mode, size: tuple[int, int], class_names: tuple[str, ...], name: str
) -> tuple[LabelledImages, dict[str, Any], bool]:
    """Images, the manifest's entry, and whether one was a JPEG."""
    import datasets

    column = next((column for column in IMAGE_COLUMNS if column in dataset.features), None)
    label = next((column for column in LABEL_COLUMNS if column in dataset.features), None)
    if column is None or label is None:
        raise InputError(
            f"{name}: has the columns {', '.join(dataset.features)}; needs image or img, and label or labels"
        )
    names = getattr(dataset.features[label], "names", None) or class_names
    if sorted(names) != sorted(class_names):
        raise InputError(f"{name}: has the classes {', '.join(names)} instead of {', '.join(class_names)}")
    images, labels, digest, lossy = list[np.ndarray](), list[int](), hashlib.sha256(), False
    encoded = dataset.select_columns([column, label]).cast_column(column, datasets.Image(decode=False))
    with Bar(f"reading {len(dataset):,} images of {name}", len(dataset)) as bar:
        for batch in encoded.iter(batch_size=1000):
            labels += batch[label]
            for entry in batch[column]:
                decoded = decode_image(entry["bytes"], mode, size, f"{name}: image {len(images)}")
                digest.update(entry["bytes"])
                images.append(decoded.pixels)
                lossy |= decoded.lossy
            bar.advance(len(batch[column]))
    ours = np.array([class_names.index(each) for each in names])
    classes = ours[check_labels(np.array(labels), len(names), name)]
    entry = {"images": len(images), "sha256": digest.hexdigest(), "digest": "unknown"}
    return LabelledImages(np.stack(images), classes), entry, lossy
