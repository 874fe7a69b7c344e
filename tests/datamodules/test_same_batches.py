"""The same batches as before: what a change within the data modules must not change.

Each case is compared with the digests of what it gave when this was written: of the first two epochs' batches, of
validation and of test; where the table has more columns also of two ranks, and resumed in the middle of an epoch. It
uses public names only: data modules, loaders, a Trainer. A case whose batches are meant to change gets new digests, and
says so in its commit.
"""

import hashlib
from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lra_ssm import datamodules as dm
from tests.datamodules.helpers import fit, prepared, real_data
from tests.small_data import write_cifar10, write_imdb, write_mnist, write_pairs, write_slimpajama

LINES = 700  # of a file of WikiText-2 that are read
MAX_BATCHES = 40  # of a loader that are compared

COLUMNS = ("train", "second epoch", "val", "test", "rank 0", "rank 1", "resumed")
# By case the number of batches and their digest for each column. "rank 0" and "rank 1" share two epochs, "resumed" are
# two epochs and a half.
TABLE = Path(__file__).with_name("same_batches.txt").read_text()
EXPECTED = {
    name.strip(): dict(zip(COLUMNS, cells.split(), strict=False))
    for name, cells in (line.split("|") for line in TABLE.splitlines())
}


def digest(batches: Iterable[Any]) -> str:
    """Return a digest of the values (of floats four digits), the shapes, and what is None."""
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


def loaded(data: Any) -> dict[str, str]:
    """Read each loader; a pass over a training loader is the next epoch."""
    prepared(data, "fit", "test")
    train, val, test = data.train_dataloader(), data.val_dataloader(), data.test_dataloader()
    loaders = {"train": train, "second epoch": train, "val": val, "test": test}
    return {name: f"{len(loader)}:{digest(islice(loader, MAX_BATCHES))}" for name, loader in loaders.items()}


# -- the cases ---------------------------------------------------------------------------------------------------------


def wikitext(folder: Path, **settings: Any) -> dm.WikiText:
    """The beginnings of WikiText-2's validation and test files; test stands for train, too."""
    for name, source in (("train", "test"), ("valid", "valid"), ("test", "test")):
        lines = real_data(f"wikitext-2/{source}.txt").read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / f"wiki.{name}.tokens").write_text("".join(lines[:LINES]), encoding="utf-8")
    given = {"batch_size": 8, "shuffle_seed": 0, **settings}
    return dm.WikiText(root=str(folder), source=str(folder), version="2", **given)


def slimpajama(folder: Path, form: str = "parquet", **settings: Any) -> dm.SlimPajama:
    given = {"tokenizer": "bytes", "length": 512, "batch_size": 24, "shuffle_seed": 1, **settings}
    source = write_slimpajama(folder / form, form)
    return dm.SlimPajama(root=str(folder), source=str(source), empty_documents="skip", **given)


def of_files(cls: Any, write: Any, folder: Path, **settings: Any) -> Any:
    return cls(root=str(folder), source=str(write(folder / "files")), **{"shuffle_seed": 1, **settings})


def generated(cls: Any, folder: Path, **settings: Any) -> Any:
    return cls(root=str(folder), batch_size=16, shuffle_seed=1, **settings)


def teacher(folder: Path, **settings: Any) -> dm.TeacherStudent:
    counts = {"num_train": 100, "num_val": 20, "num_test": 20}
    return dm.TeacherStudent(length=20, batch_size=16, shuffle_seed=1, **counts, **settings)


retrieval = partial(of_files, dm.Retrieval, write_pairs, batch_size=8, shuffle_seed=2)
text = partial(of_files, dm.Text, partial(write_imdb, train=20, test=15), batch_size=6, max_length=200)
image = partial(of_files, dm.Image, partial(write_cifar10, count=240), batch_size=16)
scifar = partial(of_files, dm.SCIFAR, partial(write_cifar10, count=240), batch_size=16)
mnist = partial(of_files, dm.MNIST, partial(write_mnist, train=110, test=40), batch_size=16)
listops = partial(generated, dm.ListOps, num_train=150, num_val=31, num_test=30, length_bounds=(20, 90), max_length=100)
pathfinder = partial(generated, dm.Pathfinder, num_images=150)

STREAMS: dict[str, Any] = {"order": "streams", "evaluation": "streams"}
SLIDING: dict[str, Any] = {"evaluation": "sliding", "eval_stride": 300, "eval_batch_size": 8}
CASES: dict[str, Any] = {
    "wikitext by words, isolated": partial(wikitext, tokenizer="words"),
    "wikitext by words, not isolated": partial(wikitext, tokenizer="words", isolate=False),
    "wikitext by words, streams": partial(wikitext, tokenizer="words", batch_size=6, length=700, **STREAMS),
    "wikitext by words, sliding": partial(wikitext, tokenizer="words", **SLIDING),
    "wikitext by bpe:1000, isolated": partial(wikitext, tokenizer="bpe:1000"),
    "wikitext by bpe:1000, not isolated": partial(wikitext, tokenizer="bpe:1000", isolate=False),
    "wikitext by bpe:1000, streams": partial(wikitext, tokenizer="bpe:1000", batch_size=6, length=700, **STREAMS),
    "slimpajama": slimpajama,
    "slimpajama in streams": partial(slimpajama, order="streams"),
    "slimpajama in jsonl.zst": partial(slimpajama, form="jsonl.zst", tokenizer="bpe:400"),
    "retrieval": retrieval,
    "retrieval as bytes": partial(retrieval, inputs="bytes", bucket_batches=3, max_length=300),
    "listops": listops,
    "listops in buckets": partial(listops, bucket_batches=3),
    "text": partial(text, min_freq=3),
    "text as bytes, on the test reviews": partial(text, inputs="bytes", validation="test", bucket_batches=4),
    "image": image,
    "image as integers": partial(image, inputs="integers"),
    "scifar": partial(scifar, std=(0.2023, 0.1994, 0.2010)),
    "scifar, gray and small": partial(scifar, grayscale=True, resolution=16, split_seed=3),
    "mnist": mnist,
    "mnist permuted": partial(mnist, permutation="random", mean=0.1307, std=0.3081),
    "mnist in bits reversed": partial(mnist, permutation="bitreversal"),
    "teacher, other examples in every epoch": teacher,
    "pathfinder": pathfinder,
    "pathfinder in file order": partial(pathfinder, split="file_order", inputs="symmetric", difficulty="curv_baseline"),
}


# -- what they give ----------------------------------------------------------------------------------------------------


def trained(data: Any, steps: int, folder: Path, from_file: Path | None = None) -> list[Any]:
    """Return the batches of a run up to so many steps, and write its checkpoint to folder/<steps>.ckpt."""
    model = fit(data, from_file, max_steps=steps, limit_val_batches=0, default_root_dir=folder)
    model.trainer.save_checkpoint(folder / f"{steps}.ckpt")
    return model.batches


def ranks(new: Any) -> dict[str, str]:
    found = {}
    for rank in range(2):
        data = prepared(new(), "fit")
        data.trainer = SimpleNamespace(global_rank=rank, world_size=2, training=False, overfit_batches=0)
        loader = data.train_dataloader()
        found[f"rank {rank}"] = f"{len(loader)}:{digest([*loader, *loader])}"
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_dataset(case, tmp_path):
    new, expected = partial(CASES[case], tmp_path), EXPECTED[case]
    found = loaded(new())
    if len(expected) == len(COLUMNS):
        whole = int(found["train"].partition(":")[0]) * 5 // 2
        first = trained(new(), whole * 3 // 5, tmp_path)
        rest = trained(new(), whole, tmp_path, tmp_path / f"{len(first)}.ckpt")
        found |= {**ranks(new), "resumed": f"{len(first) + len(rest)}:{digest([*first, *rest])}"}
    assert found == expected


@pytest.mark.parametrize(
    "case", ["listops in buckets", "text", "image as integers", "teacher, other examples in every epoch"]
)
def test_workers_change_no_batch(case, tmp_path):
    assert loaded(CASES[case](tmp_path, num_workers=2)).items() <= EXPECTED[case].items()
