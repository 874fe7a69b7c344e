"""The same batches as before: what a change within the data modules must not change.

Each case is compared with the digests of what it gave when this was written: of the first two epochs' batches, of
validation and of test. Public names alone: data modules, loaders, a Trainer. A case whose batches are meant to change
gets new digests, and says so in its commit.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from lra_ssm.datamodules import Corpus, Mixture, Retrieval, SlimPajama, WikiText

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
        (folder / f"{name}.txt").write_text("".join(lines[:LINES]), encoding="utf-8")
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


# -- a mixture, and a run that is broken off ---------------------------------------------------------------------------


def write_texts(folder: Path) -> Path:
    """Files of text in folders, without names of splits."""
    random = Random(3)
    for number in range(6):
        path = folder / "some"[: number % 3 + 1] / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(words(random, 2000), encoding="utf-8")
    return folder


MIXTURE = {"train": (19, "0308511b5a5f"), "second epoch": (19, "6b767c2350d2"),
           "val": (10, "bb7d1eb73632"), "test": (9, "c688398125f8")}  # fmt: skip


def test_a_mixture_of_corpora(tmp_path):
    texts = partial(Corpus, source=str(write_texts(tmp_path / "texts")), tokenizer="bytes", documents="paragraph",
                    splits="hash", val_fraction=0.1, test_fraction=0.1)  # fmt: skip
    pajama = partial(SlimPajama, source=str(write_slimpajama(tmp_path / "pajama", "parquet")), tokenizer="bytes",
                     empty_documents="skip")  # fmt: skip
    data = Mixture([texts, pajama], weights=[1, 3], root=str(tmp_path), epoch_windows=301, length=256, batch_size=16,
                   shuffle_seed=4)  # fmt: skip
    assert seen(data) == MIXTURE


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
