"""Image datasets of the Hugging Face Hub: its parquet files, or what `datasets` saved (save_to_disk)."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra_ssm.bars import Bar
from lra_ssm.datamodules.fetch.download import RemoteFile
from lra_ssm.datamodules.images.files import ImageFiles, LabelledImages, Mode, check_labels, decode_image
from lra_ssm.errors import InputError
from lra_ssm.files import one_reason

SPLITS = ("train", "test")
MARKERS = ("dataset_dict.json", "dataset_info.json")
IMAGE_COLUMNS, LABEL_COLUMNS = ("img", "image"), ("label", "labels")


class HubDataset(NamedTuple):
    """A public dataset of the Hub at one commit; of its parquet files the path there and the sha256."""

    repository: str
    revision: str
    files: dict[str, str]

    @property
    def folder_name(self) -> str:
        """Where it is kept among a dataset's downloads: a new revision is a new download."""
        return f"{self.repository.replace('/', '-')}-{self.revision[:12]}"

    def remote_files(self) -> list[RemoteFile]:
        """Where they are had."""
        from huggingface_hub import constants

        address = f"{constants.ENDPOINT}/datasets/{self.repository}/resolve/{self.revision}"  # HF_ENDPOINT: a mirror
        return [
            RemoteFile((f"{address}/{path}",), Path(path).name, f"sha256:{sha256}")
            for path, sha256 in self.files.items()
        ]


def is_hub_dataset(folder: Path) -> bool:
    """Whether a folder is a dataset of the Hub: with parquet files of both splits, or written by save_to_disk."""
    return any((folder / marker).is_file() for marker in MARKERS) or all(_parquet(folder).values())


def watched_files(folder: Path) -> list[Path]:
    """Files whose sizes and times tell whether the content of such a folder may have changed."""
    found = [path for pattern in ("*.json", "*.arrow", "*/*.arrow") for path in folder.glob(pattern)]
    found += [path for paths in _parquet(folder).values() for path in paths]
    # What `datasets` computes of a folder, by whichever program, it keeps inside as cache-<fingerprint>.arrow.
    return sorted(path for path in found if not path.name.startswith("cache-"))


def read(folder: Path, mode: Mode, size: tuple[int, int], class_names: tuple[str, ...]) -> ImageFiles:
    """Reads splits train and test (or train alone), columns image or img, and label.

    Labels are matched by class names where the dataset has names.

    Args:
        folder: what `is_hub_dataset`.
        mode: what images are converted to.
        size: height and width of all images.
        class_names: in the order of our labels.

    Raises:
        InputError: it is damaged, or has other splits, columns, classes or sizes.
    """
    parts, files, lossy = dict[str, LabelledImages](), dict[str, Any](), False
    try:
        for split, dataset in _load(folder).items():
            parts[split], files[split], jpeg = _read_split(dataset, mode, size, class_names, f"{folder} {split}")
            lossy |= jpeg
    except InputError:
        raise
    except Exception as error:  # damaged files, columns of other kinds; whatever the libraries say
        raise InputError(f"{folder}: cannot be read as a dataset of the Hub ({one_reason(error)})") from error
    if "train" not in parts:
        raise InputError(f"{folder}: has no split train; needs it, and test for a proper test set")
    entry = {"layout": "huggingface", "files": files} | ({"lossy": True} if lossy else {})
    return ImageFiles(parts["train"], parts.get("test"), entry)


def _parquet(folder: Path) -> dict[str, list[Path]]:
    """By split, as in the Hub's repositories or as they are downloaded here."""
    found = sorted([*folder.glob("*.parquet"), *folder.glob("*/*.parquet")])
    return {split: [path for path in found if path.name.startswith(f"{split}-")] for split in SPLITS}


def _load(folder: Path) -> dict[str, Any]:
    """A `datasets.Dataset` for each split; nothing is copied to the cache of `datasets`."""
    import datasets
    from datasets.table import InMemoryTable
    from pyarrow.parquet import read_table

    parquet = _parquet(folder)
    if all(parquet.values()):
        return {split: datasets.Dataset(InMemoryTable(read_table(paths))) for split, paths in parquet.items()}
    loaded = datasets.load_from_disk(str(folder))
    if not isinstance(loaded, dict):
        return {"train": loaded}
    return {split: loaded[split] for split in SPLITS if split in loaded}


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
