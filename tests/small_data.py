"""A few examples of each dataset in its published layout, and the options with which a fit reads them."""

import gzip
from pathlib import Path

import numpy as np

from tests.datamodules.image_helpers import cifar_batches, write_files
from tests.datamodules.language.corpora import write_parquet
from tests.datamodules.synthetic_pairs import write_pairs

COUNTS = ["--data.num_train=4", "--data.num_val=4", "--data.num_test=4"]
GENERATED = [*COUNTS, "--data.length_bounds=[3,12]", "--data.max_depth=3"]
# Of tasks that are made as they are read: the shortest sequences, but for what a task asks for.
SYNTHETIC = {
    "AssociativeRecall": ["--data.length=6"],
    "CorrelatedNoise": ["--data.length=6"],
    "FirstToken": ["--data.length=6"],
    "LinearFunctional": ["--data.length=6"],
    "MQAR": [],
    "NoisyCosines": [],
    "StateTracking": ["--data.length=6"],
    "TeacherStudent": ["--data.length=6"],
}

# Of data modules of text the splits as their publishers call them.
TEXT = {"Corpus": ("train", "val", "test"), "SlimPajama": ("train", "validation", "test"),
        "WikiText": ("train", "valid", "test")}  # fmt: skip
TEXT_SETTINGS = ["--data.tokenizer=bytes", "--data.length=8", "--model.network.vocab_size=257"]


def options(cls: str, folder: Path) -> list[str]:
    """What `fit` needs to train on four small examples of a data module; writes them below the folder."""
    if cls in SYNTHETIC:
        return [*COUNTS, *SYNTHETIC[cls]]
    return [f"--data.root={folder / 'data'}", *_prepared(cls, folder)]


def _prepared(cls: str, folder: Path) -> list[str]:
    if cls == "ListOps":
        return GENERATED
    if cls == "Retrieval":
        return [f"--data.source={write_pairs(folder / 'pairs', (8, 4, 4), median_length=40)}", "--data.max_length=64"]
    if cls == "Pathfinder":
        return ["--data.num_images=10", "--data.limit=4"]
    if cls in TEXT:
        named = ["--data.splits=auto"] if cls == "Corpus" else []
        return [f"--data.source={write_corpus(folder, cls)}", *named, *TEXT_SETTINGS]
    write = {"Text": write_imdb, "Image": write_cifar10, "SCIFAR": write_cifar10, "MNIST": write_mnist}[cls]
    return [f"--data.source={write(folder)}", "--data.limit=4"]


def write_corpus(folder: Path, cls: str) -> Path:
    """A few documents in each split: text; SlimPajama's parquet; WikiText's articles."""
    target = folder / "texts"
    for split in TEXT[cls]:
        texts = [f" \n = Article {n} of {split} = \n \n Some words of it .\n" for n in range(9)]
        if cls == "SlimPajama":
            meta = [{"redpajama_set_name": "RedPajamaC4"}] * len(texts)
            write_parquet(target / f"data/{split}-00000-of-00001.parquet", {"text": texts, "meta": meta})
            continue
        target.mkdir(exist_ok=True)
        names = [f"wiki.{split}.{level}" for level in ("tokens", "raw")] if cls == "WikiText" else [f"{split}.txt"]
        for name in names:
            (target / name).write_text("".join(texts))
    return target


def write_imdb(folder: Path, per_class: int = 20) -> Path:
    """aclImdb/{train,test}/{pos,neg}/ID_RATING.txt."""
    for split in ("train", "test"):
        for label, rating in (("pos", 9), ("neg", 2)):
            part = folder / "aclImdb" / split / label
            part.mkdir(parents=True)
            for i in range(per_class):
                text = f"A {'good' if label == 'pos' else 'bad'} film, number {i}. " * (1 + i % 3)
                (part / f"{i}_{rating}.txt").write_text(text)
    return folder / "aclImdb"


def write_cifar10(folder: Path, per_batch: int = 20) -> Path:
    """Toronto's six batches, each class in a color of its own."""
    labels = np.arange(6 * per_batch) % 10
    colors = np.stack([25 * labels, 255 - 25 * labels, labels], axis=1).astype(np.uint8)
    images = np.broadcast_to(colors[:, None, None], (len(labels), 32, 32, 3))
    write_files(folder / "cifar" / "cifar-10-batches-py", cifar_batches(np.ascontiguousarray(images), per_batch))
    return folder / "cifar"


def write_mnist(folder: Path, train: int = 40, test: int = 20) -> Path:
    """The four idx files."""
    target = folder / "mnist-files"
    target.mkdir(parents=True)
    for name, count in (("train", train), ("t10k", test)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = np.repeat(25 * labels, 28 * 28).astype(np.uint8)
        header = np.array([2051, count, 28, 28], dtype=">i4").tobytes()
        with gzip.open(target / f"{name}-images-idx3-ubyte.gz", "wb") as file:
            file.write(header + images.tobytes())
        with gzip.open(target / f"{name}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(np.array([2049, count], dtype=">i4").tobytes() + labels.tobytes())
    return target
