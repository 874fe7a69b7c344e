"""Files of every dataset: each published layout gives the same data; what is missing or damaged is one line."""

import gzip
import os
import pickle
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra_ssm import datamodules as dm
from lra_ssm.datamodules import slimpajama, wikitext
from lra_ssm.datamodules.pathfinder.settings import HARD
from lra_ssm.datamodules.text import HUB
from lra_ssm.errors import InputError
from tests import small_data
from tests.datamodules.helpers import digests, prepared
from tests.small_data import WRITERS, cifar_batch, encoded, idx, pictures, write_files, write_jsonl

SETTINGS: dict[type, dict[str, Any]] = {
    dm.Text: {"min_freq": 1},
    dm.Corpus: {"tokenizer": "bytes", "val_fraction": 0.5},
    dm.WikiText: {"version": "2"},
    dm.SlimPajama: {"tokenizer": "bytes", "empty_documents": "skip"},
}


def made(cls: Any, root: Path, **settings: Any) -> Any:
    return cls(root=str(root), **{**SETTINGS.get(cls, {}), **settings})


# -- layouts -----------------------------------------------------------------------------------------------------------


def imdb_parquet(folder: Path) -> Path:
    reviews = sorted(small_data.write_imdb(folder.with_name("reviews")).rglob("*.txt"))
    for split in ("train", "test"):
        texts = [path for path in reversed(reviews) if path.parts[-3] == split]
        columns = {"text": [path.read_text() for path in texts], "label": [int("pos" in path.parts) for path in texts]}
        small_data.write_parquet(folder / f"{split}-00000-of-00001.parquet", columns)
    return folder


def cifar_archive(path: Path) -> Path:
    batches = sorted((small_data.write_cifar10(path.with_name("unpacked")) / "cifar-10-batches-py").iterdir())
    return small_data.write_tar(path, {f"cifar-10-batches-py/{batch.name}": batch.read_bytes() for batch in batches})


CIFAR_HUB = partial(small_data.write_image_parquet, column="img", images=pictures(120), num_train=100)
MNIST_HUB = partial(small_data.write_image_parquet, column="image", images=pictures(60, 1, 28, 1), num_train=40)
INNER, WIKITEXT_HUB = "lra_release/lra_release", dm.WikiText(version="2").hub.path(Path())
# By data module (source, where its files are below the root, what writes them); all give the same data.
LAYOUTS: dict[Any, list[tuple[str, str, Callable[[Path], Path]]]] = {
    dm.ListOps: [
        ("lra", place, small_data.write_listops) for place in ("lra_release/listops-1000", "listops", "")
    ],
    dm.Retrieval: [("lra", place, small_data.write_pairs) for place in (f"{INNER}/tsv_data", "aan", "retrieval")],
    dm.Pathfinder: [
        ("lra", place, small_data.write_pathfinder)
        for place in (f"{INNER}/pathfinder32/{HARD}", f"pathfinder/pathfinder32/{HARD}", HARD)
    ],
    dm.Text: [
        *(("original", f"{place}/aclImdb", small_data.write_imdb) for place in (".", "imdb", "text/download")),
        *(("original", f"{place}/aclImdb_v1.tar.gz", small_data.pack_imdb) for place in (".", "text")),
        ("huggingface", str(HUB.path(Path())), imdb_parquet),
    ],
    dm.Corpus: [("imdb", "imdb/aclImdb", small_data.write_imdb), ("imdb", "aclImdb_v1.tar.gz", small_data.pack_imdb)],
    dm.SCIFAR: [
        *(("original", place, small_data.write_cifar10) for place in ("cifar10/download", "cifar10", "cifar")),
        ("original", "cifar10", partial(small_data.write_cifar10, python2=False)),
        *(("original", f"{place}/cifar-10-python.tar.gz", cifar_archive) for place in ("cifar10", ".")),
        ("huggingface", f"{dm.SCIFAR.hub.path(Path())}/plain_text", CIFAR_HUB),
    ],
    dm.MNIST: [
        *(("original", place, small_data.write_mnist) for place in ("mnist/download", "MNIST/raw")),
        ("original", "mnist", partial(small_data.write_mnist, packed=False)),
        ("huggingface", str(dm.MNIST.hub.path(Path())), MNIST_HUB),
    ],
    dm.WikiText: [
        ("original", "wikitext-2", small_data.write_wikitext),
        ("original", "wikitext/download/wikitext-2-v1.zip", lambda path: small_data.pack_wikitext(path, "tokens")),
        ("huggingface", f"{WIKITEXT_HUB}/wikitext-2-v1", small_data.write_wikitext_parquet),
    ],
    dm.SlimPajama: [("huggingface", str(slimpajama.HUB.path(Path())), small_data.write_slimpajama)],
}  # fmt: skip


@pytest.mark.parametrize("cls", LAYOUTS)
def test_every_layout_gives_the_same_data(tmp_path: Path, cls: Any) -> None:
    """As a named source below the root, which later serves without the files, and as a path of a user."""
    found = []
    for number, (source, place, write) in enumerate(LAYOUTS[cls]):
        root = tmp_path / str(number)
        path = write(root / place)
        files = [file for file in root.rglob("*") if file.is_file()]
        named = prepared(made(cls, root, source=source))
        by_path = prepared(made(cls, tmp_path / f"{number} by path", source=str(path)))
        assert named.prepared_folder.name.startswith(f"{source}-") and by_path.prepared_folder.name.startswith("files-")
        found += [digests(named), digests(by_path)]
        for file in files:
            file.unlink()
        assert prepared(made(cls, root, source=source)).prepared_folder == named.prepared_folder
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize(
    ("cls", "write", "place", "source"),
    [
        (dm.Text, small_data.write_imdb, "aclImdb", "."),
        (dm.Retrieval, small_data.write_pairs, "tsv_data", "."),
        (dm.SCIFAR, small_data.write_cifar10, ".", "cifar-10-batches-py"),
        (dm.SCIFAR, cifar_archive, "cifar-10-python.tar.gz", "."),
        (dm.Pathfinder, small_data.write_pathfinder, f"pathfinder32/{HARD}", "."),
        (dm.Pathfinder, small_data.write_pathfinder, f"pathfinder32/{HARD}", "pathfinder32"),
        (dm.WikiText, small_data.write_wikitext, "wikitext-2", "."),
    ],
)
def test_a_user_may_name_the_folder_above_or_within(
    tmp_path: Path, cls: Any, write: Any, place: str, source: str
) -> None:
    written = write(tmp_path / "mine" / place)
    data, other = (
        made(cls, tmp_path / f"{number}", source=str(path))
        for number, path in enumerate((written, tmp_path / "mine" / source))
    )
    assert digests(prepared(data)) == digests(prepared(other))


@pytest.mark.parametrize("cls", LAYOUTS)
def test_a_changed_file_is_other_data_and_a_limit_takes_the_first_examples(tmp_path: Path, cls: Any) -> None:
    source = WRITERS[cls.__name__](tmp_path / "mine")
    before = made(cls, tmp_path / "root", source=str(source))
    folder = before.prepared_folder
    write_files(source, {".git/index": b""})
    assert made(cls, tmp_path / "root", source=str(source)).prepared_folder == folder
    if not hasattr(before, "corpus"):
        whole, some = (prepared(made(cls, tmp_path / "root", source=str(source), limit=n)) for n in (None, 3))
        for name in ("train", "val", "test"):
            count = min(len(whole.open_split(name)), 3)
            first, limited = (data.open_split(name).batch(np.arange(count), 0) for data in (whole, some))
            assert len(some.open_split(name)) == count and first.inputs.equal(limited.inputs)
            assert first.labels.equal(limited.labels)
        assert whole.manifest().get("vocabulary") == some.manifest().get("vocabulary")
    file = before.files()[0]
    if file.is_dir():
        (file / "another_9.txt").touch()
    else:
        file.write_bytes(file.read_bytes() + b"\n")
    after = made(cls, tmp_path / "root", source=str(source))
    assert after.prepared_folder != folder and not after.is_prepared()
    shutil.rmtree(source)
    assert not made(cls, tmp_path / "root", source=str(source)).is_prepared()


@pytest.mark.parametrize("module", [*LAYOUTS, dm.Image])
def test_prepare_downloads_what_each_source_names(tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the pinned address or revision; nothing for a folder of the user's."""
    asked = list[Any]()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, local_dir, **_: asked.append(local_dir.mkdir()))
    for where in ("images", "imdb", "wikitext", "download"):
        monkeypatch.setattr(f"lra_ssm.datamodules.{where}.download", lambda file, root, *_: asked.append(file) or root)
    monkeypatch.setattr("lra_ssm.datamodules.download.unpack", lambda *_: None)
    for source in module.sources:
        before = len(asked)
        made(module, tmp_path, source=source).fetch()
        assert (len(asked) > before) == (source != "generated"), source
    before = len(asked)
    made(module, tmp_path, source=str(tmp_path)).fetch()
    assert len(asked) == before
    assert all(file.digest for file in wikitext.ARCHIVES.values()) and len(wikitext.ARCHIVES) == 4


# -- missing and damaged files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [*LAYOUTS, dm.Image])
def test_a_fit_never_downloads_and_names_the_command(tmp_path: Path, cls: Any) -> None:
    for source in {*cls.sources} - {"generated"}:
        command = f"`lra-ssm prepare {cls.__name__.lower()}.* --source={source} --root={tmp_path}`"
        with pytest.raises(InputError, match=f"^{tmp_path}: no .* below it; {command} downloads") as error:
            made(cls, tmp_path, source=source).prepare_data()
        assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


def more(*lines: bytes) -> Callable[[bytes], bytes]:
    return lambda whole: b"\n".join([*whole.splitlines()[:2], *lines, b""])


META, BATCH = "metadata/0.npy", "cifar-10-batches-py/data_batch_2"
NAMES = "train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
NO_BATCH = "data_batch_2: is not a batch of CIFAR-10"
PAIRS, TSV = "new_aan_pairs.test.tsv", "basic_train.tsv"
DIGITS = pictures(40, 1, 28, 1)[..., 0]
Change = bytes | None | Callable[[bytes], bytes]  # a file's content, nothing, or what becomes of its content
DAMAGE: dict[Any, list[tuple[str, Change, str]]] = {
    dm.ListOps: [
        (TSV, more(b"[MAX 2 9 ]\t10"), ":3: the label is '10' instead of one digit 0-9, after a tab"),
        (TSV, more(b"[MAX 2 <eos> ]\t9"), ":3: token '<eos>' is not one of 0 1 2"),
        (TSV, more(b"[MAX" + b" 1" * 2048 + b" ]\t9"), ":3: .* 2050 tokens and <eos>, more than max_length 2048"),
        (TSV, b"Source,Target\n", ":1: the header is"),
        (TSV, b"", "basic_train.tsv: is empty"),
        ("basic_test.tsv", None, "basic_test.tsv: is missing; all of basic_train.tsv"),
    ],
    dm.Retrieval: [
        (PAIRS, more(b"1.0\ta\tb\ttext"), ":3: 4 columns instead of 5"),
        (PAIRS, more(b"label\tid1\tid2\ttext1\ttext2"), ":3: the label is 'label' instead of 0 or 1"),
        (PAIRS, more(b"1\ta\tb\tcaf\xe9 x\td"), r":3: is not UTF-8 \(byte 0xe9\)"),
    ],
    dm.Pathfinder: [
        (META, b"imgs/0 sample_0.png 0 2", "0.npy:1: .* is not folder, file, number and label"),
        (META, b"\xff\xfe", "0.npy: is not text; LRA's metadata has a line for each image"),
        ("metadata", None, "metadata: is missing; all of metadata, imgs are needed"),
        ("imgs/0/sample_3.png", encoded(pictures(1, size=33, channels=1)[0]), "sample_3.png: is an image of 33 x 33"),
        ("imgs/0/sample_3.png", b"nothing", "sample_3.png: is not a PNG"),
    ],
    dm.Text: [
        ("train/neg/5_1.txt", b"caf\xe9", r"train/neg/5_1.txt: is not UTF-8 \(byte 0xe9\)"),
        ("test/pos", None, "no reviews of both classes in test"),
    ],
    dm.SCIFAR: [
        (BATCH, None, "data_batch_2 is missing; CIFAR-10 is"),
        (BATCH, lambda whole: whole[:-50], NO_BATCH),
        (BATCH, pickle.dumps([1]), NO_BATCH),
        (BATCH, cifar_batch(pictures(4), [0, 1, 2]), NO_BATCH),
        (BATCH, pickle.dumps(Evil()), "it names posix.system, which does not belong in such a file"),
        ("cifar-10-batches-py/test_batch", cifar_batch(pictures(4), [0, 1, 2, 10]),
         "SCIFAR: split test, example 3: label 10 is not one"),
    ],
    dm.MNIST: [
        (NAMES[0], gzip.compress(idx(DIGITS)[:-1]), "is not an idx file of 3 dimensions, or was cut off"),
        (NAMES[0], gzip.compress(idx(DIGITS, 0x801)), "is not an idx file of 3 dimensions, or was cut off"),
        (NAMES[0], lambda whole: whole[:-9], "cannot be read"),
        (NAMES[0], None, "train-images-idx3-ubyte.gz: is missing; MNIST is the four files"),
        (NAMES[1], gzip.compress(idx(np.full(20, 10))), "split test, example 0: label 10"),
    ],
    dm.WikiText: [
        ("wiki.train.tokens", None, r"has no wiki\.train\.tokens, nor the Hub's train-\*\.parquet"),
        ("wiki.train.tokens", lambda whole: b" \n \n" + whole, "wiki.train.tokens:1: an empty document"),
    ],
    dm.SlimPajama: [
        ("validation", None, "no files of train and of validation; expected SlimPajama's train"),
        ("train/b.jsonl", b'{"text": "a"}\n', r"train/b\.jsonl:1: has no 'meta\.redpajama_set_name'; it has 'text'"),
        ("other.jsonl", b'{"text": "a"}\n', r"other\.jsonl is of no split"),
    ],
    dm.Corpus: [("train.txt", b"one\ntw\xf6\n", "train.txt:2: is not UTF-8")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("cls", "number"), [(cls, number) for cls, damages in DAMAGE.items() for number in range(len(damages))]
)
def test_a_damaged_file_is_one_line_and_leaves_nothing(here: Path, cls: Any, number: int) -> None:
    name, change, message = DAMAGE[cls][number]
    source = WRITERS[cls.__name__](here / "mine")
    path = source / name
    if change is None:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    else:
        write_files(source, {name: change if isinstance(change, bytes) else change(path.read_bytes())})
    with pytest.raises(InputError, match=message) as error:
        made(cls, here / "root", source=str(source)).prepare_data()
    assert "\n" not in str(error.value) and [entry.name for entry in here.iterdir()] == ["mine"]
    assert re.match(r"[/\w]", str(error.value))


def zip_damaged(path: Path) -> None:
    whole = small_data.pack_wikitext(path, "tokens").read_bytes()
    path.write_bytes(whole[:80] + bytes(40) + whole[120:])


@pytest.mark.parametrize(
    ("cls", "source", "write", "message"),
    [
        (dm.Image, "empty", Path.mkdir, "empty: holds no files of Image; see data/README.md"),
        (dm.Retrieval, "empty", Path.mkdir, "empty: no files of .*`lra-ssm prepare retrieval --source=lra"),
        (dm.MNIST, "small", partial(MNIST_HUB, images=pictures(60, size=20, channels=1)),
         "small/train-.*: row 0: is an image of 20 x 20 pixels instead of 28 x 28"),
        (dm.Corpus, "a.jsonl", lambda path: write_jsonl(path, ["one"]), r"corpus: no document for \w+ \(1 for"),
        (dm.WikiText, "wikitext-2-v1.zip", zip_damaged, r"wikitext-2/wiki\.train\.tokens cannot be read \("),
        (dm.WikiText, "wikitext-2-raw-v1.zip", lambda path: small_data.pack_wikitext(path, "raw"),
         r"wikitext-2-raw-v1\.zip: wikitext-2/wiki\.train\.tokens cannot be read"),
        (dm.Pathfinder, "none", lambda path: write_files(path, {"metadata/.a": b"", "imgs/a": b""}),
         "metadata: has no Pathfinder metadata files"),
        (dm.Pathfinder, f"other/{HARD.replace('14', '9')}", small_data.write_listops,
         f"is named after another difficulty than {HARD}; set it to curv_contour_length_9"),
    ],
    ids=["images", "pairs", "small", "one document", "damaged zip", "level", "no metadata", "difficulty"],
)  # fmt: skip
def test_files_of_something_else(tmp_path: Path, cls: Any, source: str, write: Any, message: str) -> None:
    write(tmp_path / source)
    with pytest.raises(InputError, match=message):
        made(cls, tmp_path / "root", source=str(tmp_path / source)).prepare_data()
    assert not (tmp_path / "root").exists()
