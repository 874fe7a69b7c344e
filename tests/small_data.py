"""A few examples of each dataset in its published layout, and the options with which a fit reads them."""

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from lra_ssm import datamodules
from lra_ssm.datamodules.cifar10 import BATCHES
from lra_ssm.datamodules.synthetic.base import SyntheticData

COUNTS = ["--data.num_train=4", "--data.num_val=4", "--data.num_test=4"]
GENERATED = [*COUNTS, "--data.length_bounds=[3,12]", "--data.max_depth=3"]
TEXT_SETTINGS = ["--data.tokenizer=bytes", "--data.length=8", "--model.network.vocab_size=257"]


def options(cls: str, folder: Path) -> list[str]:
    """What `fit` needs to train on four small examples of a data module; writes them below the folder."""
    if issubclass(getattr(datamodules, cls), SyntheticData):
        return [*COUNTS, *([] if cls in ("MQAR", "NoisyCosines") else ["--data.length=6"])]  # which ask for more
    root = f"--data.root={folder / 'data'}"
    if cls == "ListOps":
        return [root, *GENERATED]
    if cls == "Pathfinder":
        return [root, "--data.num_images=10", "--data.limit=4"]
    source = f"--data.source={WRITERS[cls](folder / 'files')}"
    if cls in ("Corpus", "SlimPajama", "WikiText"):
        return [root, source, *(["--data.splits=auto"] if cls == "Corpus" else []), *TEXT_SETTINGS]
    return [root, source, "--data.limit=4", *(["--data.max_length=64"] if cls == "Retrieval" else [])]


# -- files of any kind -------------------------------------------------------------------------------------------------


def write_files(folder: Path, files: Mapping[str, bytes | str]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return folder


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def write_parquet(path: Path, columns: dict[str, Any], rows: int = 3) -> Path:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=rows)
    return path


def write_jsonl(path: Path, texts: list[str], **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text, **more}) + "\n" for text in texts))
    return path


def words(random: Random, count: int) -> str:
    """Return synthetic words in sentences and lines, the same on every machine."""
    syllables = ("ka", "to", "mi", "ßu", "ren", "lo", "x", "qui")
    parts = []
    for _ in range(count):
        parts.append("".join(syllables[int(random.random() * 8)] for _ in range(1 + int(random.random() * 3))))
        parts.append((" ", " ", " ", " ", ", ", ". ", ".\n", "\n\n")[int(random.random() * 8)])
    return "".join(parts).strip()


# -- the Long Range Arena ----------------------------------------------------------------------------------------------

# Expressions as LRA writes them, with their values.
LISTOPS = {
    "train": ["( ( ( [MAX 2 ) 9 ) ] )\t9", "( ( ( [SM 7 ) ( ( ( [MIN 5 ) 8 ) ] ) ) ] )\t2"],
    "val": ["( ( ( ( [MED 1 ) 4 ) 5 ) ] )\t4"],
    "test": ["( ( ( [MED 3 ) 6 ) ] )\t4"],
}


def write_listops(folder: Path) -> Path:
    rows = {split: "\n".join(["Source\tTarget", *lines, ""]) for split, lines in LISTOPS.items()}
    return write_files(folder, {f"basic_{split}.tsv": text for split, text in rows.items()})


def write_imdb(folder: Path, train: int = 20, test: int = 20) -> Path:
    """{train,test}/{neg,pos}/ID_RATING.txt, as below aclImdb; so many of each class."""
    random, files = Random(7), {}
    for split, count in (("train", train), ("test", test)):
        for label, rating in (("neg", 1), ("pos", 10)):
            for number in range(count):
                text = f"{label} {words(random, 5 + int(random.random() * 90))}"
                files[f"{split}/{label}/{number}_{rating}.txt"] = text.encode()
    return write_files(folder, files)


def pack_imdb(path: Path) -> Path:
    """Stanford's archive of such a folder, in a random order, with what else archives hold."""
    folder = write_imdb(path.with_name("unpacked"))
    members = {f"aclImdb/{file.relative_to(folder)}": file.read_bytes() for file in sorted(folder.rglob("*.txt"))}
    members |= {
        "aclImdb/README": b"about",
        "aclImdb/train/unsup/0_0.txt": b"without a label",
        "aclImdb/train/pos/._0_9.txt": b"\xff\xfe of macOS",
        "aclImdb/train/urls_pos.txt": b"http",
    }
    return write_tar(path, {name: members[name] for name in Random(1).sample([*members], len(members))})


def write_pairs(folder: Path, counts: tuple[int, int, int] = (90, 30, 31)) -> Path:
    """new_aan_pairs.{train,eval,test}.tsv with words that say nothing of the label, and quotes that never close."""
    random, files = Random(0), {}
    for split, count in zip(("train", "eval", "test"), counts, strict=True):
        lines = []
        for number in range(count):
            pair = [" ".join(words(random, 5 + int(random.random() * 150)).split()) for _ in range(2)]
            pair[0] += ' "' * (number % 3)
            lines.append("\t".join([f"{int(random.random() * 2)}.0", f"a{number}", f"b{number}", *pair]) + "\n")
        files[f"new_aan_pairs.{split}.tsv"] = "".join(lines).encode()
    return write_files(folder, files)


def write_pathfinder(folder: Path, images: np.ndarray | None = None) -> Path:
    """Images (n, size, size, 1), by default nineteen, and their metadata: a file for ten of them."""
    images = pictures(19, channels=1) if images is None else images
    files: dict[str, bytes] = {}
    for number, start in enumerate(range(0, len(images), 10)):
        part = images[start : start + 10]
        rows = [f"imgs/{number} sample_{i}.png {i} {(i + number) % 2} 1.0 14 4 2 0.5 1 1\n" for i in range(len(part))]
        files[f"metadata/{number}.npy"] = "".join(rows).encode()
        files |= {f"imgs/{number}/sample_{i}.png": encoded(image) for i, image in enumerate(part)}
    return write_files(folder, files)


# -- images ------------------------------------------------------------------------------------------------------------


def pictures(count: int, seed: int = 0, size: int = 32, channels: int = 3) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, (count, size, size, channels)).astype(np.uint8)


def encoded(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(file, "PNG")
    return file.getvalue()


class _Python2Pickler(pickle._Pickler):  # type: ignore[name-defined, misc]
    """Writes str and bytes as Python 2 wrote its str, which the published files are made of."""

    dispatch = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, value: str | bytes) -> None:
        data = value.encode("latin1") if isinstance(value, str) else value
        self.write(b"T" + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string


def cifar_batch(images: np.ndarray, labels: list[int], python2: bool = True) -> bytes:
    """A batch file as Python 2 and its numpy wrote it, or as this Python does."""
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), 3072)
    values = {"batch_label": "batch", "labels": labels, "data": rows, "filenames": ["a.png"] * len(rows)}
    if not python2:
        return pickle.dumps(values, protocol=2)
    file = io.BytesIO()
    _Python2Pickler(file, protocol=2).dump(values)
    return file.getvalue().replace(b"numpy._core.", b"numpy.core.")


def write_cifar10(folder: Path, count: int = 120, python2: bool = True) -> Path:
    """Toronto's six batches; labels count up."""
    parts = zip(BATCHES, np.array_split(np.arange(count), 6), strict=True)
    images = pictures(count)
    files = {name: cifar_batch(images[part], [int(i) % 10 for i in part], python2) for name, part in parts}
    write_files(folder / "cifar-10-batches-py", {**files, "readme.html": b"x"})
    return folder


def idx(array: np.ndarray, magic: int | None = None) -> bytes:
    header = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim if magic is None else magic, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, train: int = 40, test: int = 20, packed: bool = True) -> Path:
    """The four idx files; labels count up."""
    images, labels, files = pictures(train + test, 1, 28, 1)[..., 0], np.arange(train + test) % 10, {}
    for name, part in (("train", slice(train)), ("t10k", slice(train, None))):
        for key, array in (("images-idx3", images[part]), ("labels-idx1", labels[part])):
            data = idx(array)
            files[f"{name}-{key}-ubyte" + (".gz" if packed else "")] = gzip.compress(data) if packed else data
    return write_files(folder, files)


def write_image_parquet(folder: Path, column: str, images: np.ndarray, num_train: int) -> Path:
    """The Hub's two files, with PNG images in a column; labels count up."""
    for split, part in (("train", slice(num_train)), ("test", slice(num_train, None))):
        entries = [{"bytes": encoded(image), "path": None} for image in images[part]]
        labels = (np.arange(len(images)) % 10)[part].tolist()
        write_parquet(folder / f"{split}-00000-of-00001.parquet", {column: entries, "label": labels}, 1000)
    return folder


# -- text --------------------------------------------------------------------------------------------------------------

ARTICLE = " = Title {0} = \n \n Text of <unk> {0} . \n \n = = Section = = \n \n More ü text = here = . \n \n"
WIKITEXT = {
    split: " \n" + "".join(ARTICLE.format(f"{split} {n}") for n in range(count))
    for split, count in (("train", 12), ("valid", 2), ("test", 3))
}


def write_wikitext(folder: Path) -> Path:
    """Merity et al.'s files of both levels."""
    levels = "tokens", "raw"
    return write_files(folder, {f"wiki.{split}.{level}": WIKITEXT[split] for split in WIKITEXT for level in levels})


def pack_wikitext(path: Path, suffix: str) -> Path:
    """Their archive of one level."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for split, text in WIKITEXT.items():
            archive.writestr(f"{path.stem.removesuffix('-v1')}/wiki.{split}.{suffix}", text)
    return path


def write_wikitext_parquet(folder: Path) -> Path:
    """The Hub's: a line a row, blank ones empty, an article in two files."""
    for split, text in WIKITEXT.items():
        lines = [line if line.strip() else "" for line in text.splitlines(keepends=True)]
        middle = len(lines) // 2 if split == "train" else len(lines)
        for number, part in enumerate(filter(None, (lines[:middle], lines[middle:]))):
            name = "validation" if split == "valid" else split
            write_parquet(folder / f"{name}-{number:05}-of-00002.parquet", {"text": part}, 4)
    return folder


def write_texts(folder: Path) -> Path:
    """A corpus with a file per split."""
    return write_files(folder, {f"{split}.txt": text for split, text in WIKITEXT.items()})


def write_slimpajama(folder: Path, form: str = "parquet", count: int = 30) -> Path:
    """Files of so many documents of two sources and very different lengths; of thirty one is empty, one a megabyte."""
    random = Random(0)
    for split, files in (("train", 3), ("validation", 1), ("test", 1)):
        for number in range(files):
            rows = []
            for _ in range(count):
                origin = ("RedPajamaC4", "RedPajamaBook")[int(random.random() * 2)]
                text = words(random, 1 + int(random.random() ** 4 * 900))
                rows.append({"text": text, "meta": {"redpajama_set_name": origin}})
            if (split, number, count) == ("train", 1, 30):
                rows[5]["text"], rows[9]["text"] = "", words(random, 3000) * 50
            if form == "parquet":
                columns = {name: [row[name] for row in rows] for name in ("text", "meta")}
                write_parquet(folder / f"data/{split}-{number:05}-of-{files:05}.parquet", columns, 7)
            else:
                lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
                write_files(folder, {f"{split}/chunk1/example_{number}.jsonl.zst": zstd(lines.encode())})
    return folder


def zstd(data: bytes) -> bytes:
    import pyarrow

    return pyarrow.compress(data, codec="zstd", asbytes=True)


# By data module, in the layout that its tests damage.
WRITERS: dict[str, Callable[[Path], Path]] = {
    "ListOps": write_listops,
    "Retrieval": write_pairs,
    "Pathfinder": write_pathfinder,
    "Text": write_imdb,
    "Image": write_cifar10,
    "SCIFAR": write_cifar10,
    "MNIST": write_mnist,
    "Corpus": write_texts,
    "WikiText": write_wikitext,
    "SlimPajama": partial(write_slimpajama, form="jsonl.zst", count=3),
}
