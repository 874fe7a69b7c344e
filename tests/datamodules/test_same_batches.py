"""The same batches as before: what a change within the data modules must not change.

Each case is compared with the digests of what it gave when this was written: of the first two epochs' batches, of
validation and of test; where it is made for several datasets also with workers, of two ranks, and resumed in the middle
of an epoch. It uses public names only: data modules, loaders, a Trainer. A case whose batches are meant to change gets
new digests, and says so in its commit.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from lra_ssm.datamodules import (
    MNIST,
    SCIFAR,
    Image,
    ListOps,
    Pathfinder,
    Retrieval,
    SlimPajama,
    Text,
    WikiText,
)
from tests.datamodules.image_helpers import cifar_batches, mnist_files, pictures, write_files

REAL = Path(os.environ.get("LRA_SSM_TEST_DATA", "/nowhere")) / "wikitext-2"
needs_wikitext = pytest.mark.skipif(
    not (REAL / "valid.txt").is_file(), reason="LRA_SSM_TEST_DATA does not name a folder with wikitext-2/valid.txt"
)
LINES = 700  # of a file of WikiText-2 that are read
MOST = 40  # batches of a loader that are looked at


def digest(batches: Iterable[Any]) -> str:
    """Of integers the values, of floats four digits; shapes, and what is None, too."""
    found = hashlib.sha256()

    def put(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(repr(tuple(value.shape)).encode())
            if value.is_floating_point():
                found.update(" ".join(f"{number:.4g}" for number in value.flatten().tolist()).encode())
            else:
                found.update(np.ascontiguousarray(value.numpy().astype("<i8")).tobytes())
        elif isinstance(value, (tuple, list)):
            for part in value:
                put(part)
        else:
            found.update(repr(value).encode())

    for batch in batches:
        put(batch)
    return found.hexdigest()[:12]


def seen(data: Any) -> dict[str, tuple[int, str]]:
    """Of each loader how many batches it has and what they are: a pass over a training loader is the next epoch."""
    data.prepare_data()
    data.setup("fit")
    data.setup("test")
    train, val, test = data.train_dataloader(), data.val_dataloader(), data.test_dataloader()
    loaders = {"train": train, "second epoch": train, "val": val, "test": test}
    return {name: (len(loader), digest(islice(loader, MOST))) for name, loader in loaders.items()}


def words(random: Random, count: int) -> str:
    """Made-up words in sentences and lines, the same on every machine."""
    syllables = ("ka", "to", "mi", "ßu", "ren", "lo", "x", "qui")
    parts = []
    for _ in range(count):
        parts.append("".join(syllables[int(random.random() * 8)] for _ in range(1 + int(random.random() * 3))))
        parts.append((" ", " ", " ", " ", ", ", ". ", ".\n", "\n\n")[int(random.random() * 8)])
    return "".join(parts).strip()


# -- WikiText-2's files: only validation and test are there, and test stands for train, too ----------------------------


@pytest.fixture(scope="module")
def wikitext(tmp_path_factory):
    """(the folder of its files, which are their beginnings, a data root)."""
    folder = tmp_path_factory.mktemp("wikitext")
    for name, source in (("train", "test"), ("valid", "valid"), ("test", "test")):
        lines = (REAL / f"{source}.txt").read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / f"wiki.{name}.tokens").write_text("".join(lines[:LINES]), encoding="utf-8")
    return folder, tmp_path_factory.mktemp("root")


WIKITEXT = {
    ("words", "isolated"): {"train": (6, "338826433a9f"), "second epoch": (6, "65d78376826a"),
                            "val": (5, "828b5bbaca19"), "test": (6, "68b65adc354f")},
    ("words", "not isolated"): {"train": (6, "1aaa6ac118be"), "second epoch": (6, "7f33fa6f49a0"),
                                "val": (5, "c75598c836dd"), "test": (6, "8c84d121e619")},
    ("words", "streams"): {"train": (11, "ceb55d728247"), "second epoch": (11, "ceb55d728247"),
                           "val": (9, "685ce36558f0"), "test": (11, "ceb55d728247")},
    ("words", "sliding"): {"train": (6, "338826433a9f"), "second epoch": (6, "65d78376826a"),
                           "val": (14, "996774b92a51"), "test": (18, "98b58204995f")},
    ("bpe:1000", "isolated"): {"train": (10, "b27b899cc38d"), "second epoch": (10, "391e1ed470c0"),
                               "val": (9, "5ae61d01376e"), "test": (10, "4d6867053b3c")},
    ("bpe:1000", "not isolated"): {"train": (10, "af87eef19d82"), "second epoch": (10, "c4a10d2f6782"),
                                   "val": (9, "166b069f42a8"), "test": (10, "a6da84c8dd9b")},
    ("bpe:1000", "streams"): {"train": (20, "78d828f5ff12"), "second epoch": (20, "78d828f5ff12"),
                              "val": (17, "f31f7bde7f87"), "test": (20, "78d828f5ff12")},
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "isolated": {},
    "not isolated": {"isolate": False},
    "streams": {"order": "streams", "evaluation": "streams", "batch_size": 6, "length": 700},
    "sliding": {"evaluation": "sliding", "eval_stride": 300, "eval_batch_size": 8},
}


@needs_wikitext
@pytest.mark.parametrize("tokenizer", ["words", "bpe:1000"])
def test_wikitext_2(tokenizer, wikitext):
    source, root = wikitext
    for (of, settings), expected in WIKITEXT.items():
        if of == tokenizer:
            data = WikiText(root=str(root), source=str(source), version="2", tokenizer=tokenizer, shuffle_seed=0,
                            **{"batch_size": 8} | SETTINGS[settings])  # fmt: skip
            assert seen(data) == expected, settings


# -- SlimPajama, made up -----------------------------------------------------------------------------------------------


def write_slimpajama(folder: Path, form: str) -> Path:
    """Three files of train and one each of validation and test, with documents of very different lengths: an empty
    one, and one of more than a megabyte."""
    import pyarrow
    import pyarrow.parquet

    random = Random(0)
    for split, files in (("train", 3), ("validation", 1), ("test", 1)):
        for number in range(files):
            rows = []
            for _ in range(30):
                source = ("RedPajamaC4", "RedPajamaBook")[int(random.random() * 2)]
                text = words(random, 1 + int(random.random() ** 4 * 900))
                rows.append({"text": text, "meta": {"redpajama_set_name": source}})
            if (split, number) == ("train", 1):
                rows[5]["text"], rows[9]["text"] = "", words(random, 3000) * 50
            if form == "parquet":
                path = folder / "data" / f"{split}-{number:05}-of-{files:05}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=7)
            else:
                path = folder / split / "chunk1" / f"example_{number}.jsonl.zst"
                path.parent.mkdir(parents=True, exist_ok=True)
                with pyarrow.output_stream(str(path), compression="zstd") as file:
                    file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    return folder


SLIMPAJAMA = {
    "bytes": {"train": (79, "ada3e25309d5"), "second epoch": (79, "9411b08c16f8"),
              "val": (3, "629595c32599"), "test": (3, "b881d8afc61c")},
    "bpe:400": {"train": (28, "1b0c2dee665f"), "second epoch": (28, "b66ac5e2880e"),
                "val": (1, "b40c2e4ae161"), "test": (1, "f5d3c48ad143")},
}  # fmt: skip


def slimpajama(folder: Path, form: str = "parquet", **settings: Any) -> SlimPajama:
    source = write_slimpajama(folder / form, form)
    return SlimPajama(root=str(folder), source=str(source), empty_documents="skip", shuffle_seed=1, **settings)


OTHERS = [("bytes", "jsonl.zst"), ("bpe:400", "parquet")]


@pytest.mark.parametrize(
    "tokenizer, form",
    [("bytes", "parquet"), ("bpe:400", "jsonl.zst"), *(pytest.param(*o, marks=pytest.mark.slow) for o in OTHERS)],
)
def test_slimpajama_from_either_form(tokenizer, form, tmp_path):
    data = slimpajama(tmp_path, form, tokenizer=tokenizer, length=512, batch_size=24)
    assert seen(data) == SLIMPAJAMA[tokenizer]


# -- Retrieval, made up ------------------------------------------------------------------------------------------------

RETRIEVAL = {
    "characters": {"train": (12, "201f97f1bad3"), "second epoch": (12, "079c29ce7e58"),
                   "val": (4, "053a1713f12b"), "test": (4, "554113ef8d23")},
    "bytes": {"train": (12, "7ce5ddc351f4"), "second epoch": (12, "a6c8309b2c71"),
              "val": (4, "951e7c1e4a2e"), "test": (4, "f7f6f96bce3d")},
}  # fmt: skip


@pytest.mark.parametrize("inputs", RETRIEVAL)
def test_retrieval(inputs, tmp_path):
    random = Random(0)
    for split, count in (("train", 90), ("eval", 30), ("test", 31)):
        lines = []
        for number in range(count):
            pair = [" ".join(words(random, 5 + int(random.random() * 150)).split()) for _ in range(2)]
            pair[0] += ' "' * (number % 3)
            lines.append("\t".join([f"{int(random.random() * 2)}.0", f"a{number}", f"b{number}", *pair]) + "\n")
        (tmp_path / f"new_aan_pairs.{split}.tsv").write_text("".join(lines), encoding="utf-8")
    buckets = {"bucket_batches": 3, "max_length": 300} if inputs == "bytes" else {}
    data = Retrieval(
        root=str(tmp_path / "root"), source=str(tmp_path), batch_size=8, inputs=inputs, shuffle_seed=2, **buckets
    )
    assert seen(data) == RETRIEVAL[inputs]


# -- a run that is broken off ------------------------------------------------------------------------------------------


class Keeps(LightningModule):
    """Keeps the batches that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.batches = torch.nn.Parameter(torch.zeros(())), list[Any]()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.batches.append(batch)
        return self.weight * 1.0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


RESUMED = {"shuffled": "4898352cd43a", "streams": "3684f8bd445e"}


def trained(data: Any, steps: int, folder: Path, from_file: Path | None = None) -> list[Any]:
    """The batches of a run up to so many steps, and its checkpoint at folder/<steps>.ckpt."""
    model = Keeps()
    trainer = Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, limit_val_batches=0, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(model, datamodule=data, ckpt_path=from_file, weights_only=False)
    trainer.save_checkpoint(folder / f"{steps}.ckpt")
    return model.batches


@pytest.mark.parametrize("order", RESUMED)
@pytest.mark.filterwarnings("ignore")  # Lightning's, of a run without validation
def test_a_run_broken_off_in_the_middle_of_an_epoch_goes_on_with_the_next_batch(order, tmp_path):
    def new() -> SlimPajama:
        return slimpajama(tmp_path, tokenizer="bytes", length=512, batch_size=24, order=order)

    data = new()
    data.prepare_data()
    data.setup("fit")
    epoch = len(data.train_dataloader())
    whole = epoch * 5 // 2
    first = trained(new(), whole - epoch * 3 // 4, tmp_path)  # in the second epoch; the rest goes on into the third
    rest = trained(new(), whole, tmp_path, tmp_path / f"{len(first)}.ckpt")
    assert epoch > 4 and len(first) + len(rest) == whole
    assert digest([*first, *rest]) == digest(trained(new(), whole, tmp_path)) == RESUMED[order]


# -- every kind of dataset: epochs, workers, two ranks, resumed --------------------------------------------------------


def write_reviews(folder: Path) -> Path:
    """aclImdb with 20 reviews of each class in train, 15 in test."""
    random = Random(7)
    for split, count in (("train", 20), ("test", 15)):
        for label in ("neg", "pos"):
            for number in range(count):
                path = folder / "aclImdb" / split / label / f"{number}_{1 + 9 * (label == 'pos')}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{label} {words(random, 5 + int(random.random() * 90))}", encoding="utf-8")
    return folder


def write_cifar(folder: Path) -> Path:
    write_files(folder / "cifar-10-batches-py", cifar_batches(pictures(240), 40))
    return folder


def write_mnist(folder: Path) -> Path:
    images = pictures(150, 1, 28, 1)[..., 0]
    return write_files(folder, mnist_files(images, np.arange(150) % 10, 110))


def listops(folder: Path, **settings: Any) -> ListOps:
    return ListOps(root=str(folder), num_train=150, num_val=31, num_test=30, length_bounds=(20, 90), max_length=100,
                   batch_size=16, shuffle_seed=1, **settings)  # fmt: skip


def text(folder: Path, **settings: Any) -> Text:
    source = write_reviews(folder / "reviews")
    return Text(root=str(folder), source=str(source), batch_size=6, max_length=200, shuffle_seed=1, **settings)


def cifar(cls: type, folder: Path, **settings: Any) -> Any:
    return cls(root=str(folder), source=str(write_cifar(folder / "cifar")), batch_size=16, shuffle_seed=1, **settings)


def mnist(folder: Path, **settings: Any) -> MNIST:
    source = write_mnist(folder / "mnist-files")
    return MNIST(root=str(folder), source=str(source), batch_size=16, shuffle_seed=1, **settings)


def pathfinder(folder: Path, **settings: Any) -> Pathfinder:
    return Pathfinder(root=str(folder), num_images=150, batch_size=16, shuffle_seed=1, **settings)


CASES: dict[str, Any] = {
    "listops": listops,
    "listops in buckets": partial(listops, bucket_batches=3),
    "text": partial(text, min_freq=3),
    "text as bytes, on the test reviews": partial(text, inputs="bytes", validation="test", bucket_batches=4),
    "image": partial(cifar, Image),
    "image as integers": partial(cifar, Image, inputs="integers"),
    "scifar": partial(cifar, SCIFAR, std=(0.2023, 0.1994, 0.2010)),
    "scifar, gray and small": partial(cifar, SCIFAR, grayscale=True, resolution=16, split_seed=3),
    "mnist": mnist,
    "mnist permuted": partial(mnist, permutation="random", mean=0.1307, std=0.3081),
    "mnist in bits reversed": partial(mnist, permutation="bitreversal"),
    "pathfinder": pathfinder,
    "pathfinder in file order": partial(pathfinder, split="file_order", inputs="symmetric", difficulty="curv_baseline"),
}
# "resumed": all batches of two epochs and a half. "rank 0" and "rank 1" share the batches of two epochs.
SEEN: dict[str, dict[str, Any]] = {
    "listops": {
        "train": (10, "d235a473c6fa"), "second epoch": (10, "4b7c571a4816"),
        "val": (2, "784befb786a7"), "test": (2, "af01816ec5ba"),
        "rank 0": (10, "10647cc4eed7"), "rank 1": (10, "b8cc94778668"),
        "resumed": (25, "40eadc4bb96f"),
    },
    "listops in buckets": {
        "train": (10, "0050fc6b7772"), "second epoch": (10, "1b75666d1c22"),
        "val": (2, "4ec9a1f95103"), "test": (2, "666b45d631be"),
        "rank 0": (10, "e420c9ebe9fd"), "rank 1": (10, "1e634663aea0"),
        "resumed": (25, "e1c79970d0bd"),
    },
    "text": {
        "train": (6, "79bb8eb71597"), "second epoch": (6, "6b738e07e365"),
        "val": (1, "c3f84b5e28d0"), "test": (5, "7dbd1d439bc8"),
        "rank 0": (6, "e12fec6d301b"), "rank 1": (6, "a619f31c21ec"),
        "resumed": (15, "893090ec8b03"),
    },
    "text as bytes, on the test reviews": {
        "train": (7, "9bbce1fe77fe"), "second epoch": (7, "b6173dcb1574"),
        "val": (5, "c45a65b6127c"), "test": (5, "c45a65b6127c"),
        "rank 0": (7, "af7410eed31c"), "rank 1": (7, "4f18b401820b"),
        "resumed": (17, "a592238c4d9f"),
    },
    "image": {
        "train": (12, "06617a866746"), "second epoch": (12, "1a616fabc64a"),
        "val": (2, "540554a492e9"), "test": (3, "acc968274da1"),
        "rank 0": (12, "fac06fbdc049"), "rank 1": (12, "b88fd90fe3d9"),
        "resumed": (30, "a014da293c78"),
    },
    "image as integers": {
        "train": (12, "a032d668db98"), "second epoch": (12, "f3992ff2552f"),
        "val": (2, "6c7070b3ecda"), "test": (3, "56a270ebe06e"),
        "rank 0": (12, "fa72e231d1de"), "rank 1": (12, "54871c1bcdfe"),
        "resumed": (30, "4cf01f6087dd"),
    },
    "scifar": {
        "train": (12, "a73a3483edc5"), "second epoch": (12, "f51028cb9cc2"),
        "val": (2, "10f10b83789c"), "test": (3, "a7b1f9ec40ba"),
        "rank 0": (12, "ad212b12cfc7"), "rank 1": (12, "43739caec1fb"),
        "resumed": (30, "8b84b82b853b"),
    },
    "scifar, gray and small": {
        "train": (12, "a8668d549bbc"), "second epoch": (12, "80270c1a7b23"),
        "val": (2, "67fbc63b1016"), "test": (3, "a08788341614"),
        "rank 0": (12, "22ca8b6c17d3"), "rank 1": (12, "66d6c921a080"),
        "resumed": (30, "49a2e1409b4a"),
    },
    "mnist": {
        "train": (7, "5f53ff1d64bd"), "second epoch": (7, "8badb7c4baad"),
        "val": (1, "ca48fdbbf69d"), "test": (3, "11a9c36c5435"),
        "rank 0": (7, "3b5fb50c1e86"), "rank 1": (7, "c69b7fa90ffe"),
        "resumed": (17, "0706c2da3160"),
    },
    "mnist permuted": {
        "train": (7, "57c486f4e5b9"), "second epoch": (7, "d4367fa78a65"),
        "val": (1, "8f21eaefe79b"), "test": (3, "245f6c1a8a2a"),
        "rank 0": (7, "1076540458fa"), "rank 1": (7, "6cbeca2dfe63"),
        "resumed": (17, "daa37d5b96f3"),
    },
    "mnist in bits reversed": {
        "train": (7, "d40920e79f41"), "second epoch": (7, "41a29b3525f0"),
        "val": (1, "0f09563767e5"), "test": (3, "a23b34c4c399"),
        "rank 0": (7, "77a54b2882fd"), "rank 1": (7, "aa9b6dc27d51"),
        "resumed": (17, "b37a3b3f6560"),
    },
    "pathfinder": {
        "train": (8, "d9872a101111"), "second epoch": (8, "97cc3dd48a52"),
        "val": (1, "3c9e01411be8"), "test": (1, "5270156eee4f"),
        "rank 0": (8, "67a241a455d7"), "rank 1": (8, "32af504ef870"),
        "resumed": (20, "9298d5e84b44"),
    },
    "pathfinder in file order": {
        "train": (8, "cc549397d153"), "second epoch": (8, "fb5a5bbb08fa"),
        "val": (1, "221ebe1f5cf5"), "test": (1, "175f439a74f3"),
        "rank 0": (8, "5341902b3b00"), "rank 1": (8, "4f7571f56a72"),
        "resumed": (20, "e0539732b0b1"),
    },
}  # fmt: skip


def ranks(new: Any) -> dict[str, tuple[int, str]]:
    found = {}
    for rank in range(2):
        data = new()
        data.prepare_data()
        data.setup("fit")
        data.trainer = SimpleNamespace(global_rank=rank, world_size=2, training=False, overfit_batches=0)
        loader = data.train_dataloader()
        found[f"rank {rank}"] = (len(loader), digest([*loader, *loader]))
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore")  # Lightning's, of a run without validation
def test_every_kind_of_dataset(case, tmp_path):
    new = partial(CASES[case], tmp_path)
    found: dict[str, Any] = seen(new())
    whole = found["train"][0] * 5 // 2
    first = trained(new(), whole * 3 // 5, tmp_path)
    rest = trained(new(), whole, tmp_path, tmp_path / f"{len(first)}.ckpt")
    found |= {**ranks(new), "resumed": (len(first) + len(rest), digest([*first, *rest]))}
    assert found == SEEN[case]
    in_one = trained(new(), whole, tmp_path / "other")
    assert (whole, digest(in_one)) == found["resumed"] and digest(in_one[: found["train"][0]]) == found["train"][1]


@pytest.mark.parametrize("case", ["listops in buckets", "text", "image as integers"])
def test_workers_change_no_batch(case, tmp_path):
    assert seen(CASES[case](tmp_path, num_workers=2)).items() <= SEEN[case].items()


class Writes(Keeps):
    """Writes the digest of what a rank is trained on."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def on_train_end(self) -> None:
        (self.folder / f"rank {self.global_rank}").write_text(f"{len(self.batches)} {digest(self.batches)}")


@pytest.mark.filterwarnings("ignore")
def test_two_processes_share_the_batches(tmp_path):
    Trainer(
        max_epochs=2, accelerator="cpu", devices=2, strategy="ddp_fork", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0, default_root_dir=tmp_path,
    ).fit(Writes(tmp_path), datamodule=listops(tmp_path))  # fmt: skip
    for rank in ("rank 0", "rank 1"):
        batches, expected = SEEN["listops"][rank]
        assert (tmp_path / rank).read_text() == f"{2 * batches} {expected}"
