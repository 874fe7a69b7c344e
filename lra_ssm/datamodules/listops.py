"""ListOps as a LightningDataModule: nested operators on digits, the value (0 to 9) is the class.

Sources: Nangia and Bowman, "ListOps" (2018); Tay et al., "Long Range Arena" (2021), whose settings are the defaults.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from lightning import LightningDataModule

from lra_ssm.datamodules.listops_build import (
    DATASET,
    NUM_CLASSES,
    READER_VERSION,
    build_from_files,
    build_generated,
    generator_record,
)
from lra_ssm.datamodules.listops_files import find_files
from lra_ssm.datamodules.listops_generator import check_settings
from lra_ssm.datamodules.listops_trees import VOCABULARY, TreeSettings
from lra_ssm.datamodules.loader import EpochBatches, ResumableLoader, SequenceDataset
from lra_ssm.datamodules.prepare import prepare
from lra_ssm.datamodules.root import resolve_root
from lra_ssm.datamodules.storage import PreparedDataset, open_prepared
from lra_ssm.errors import InputError


class ListOps(LightningDataModule):
    """ListOps, generated or from LRA's files. Batches are `loader.Batch`; every sequence ends with `<eos>`.

    Args:
        root: data root; None for LRA_SSM_DATA, else ./data.
        source: "generated"; "lra" for LRA's files below the root (layouts: data/README.md); or a folder with them.
        batch_size: examples per optimizer batch over all devices together.
        eval_batch_size: the same for validation, test and prediction; None for batch_size.
        max_length: longest permitted sequence, `<eos>` included. Nothing is cut: a longer one is an error.
        length_bounds: generated expressions are strictly longer than the first and shorter than the second
            (tokens without parentheses and `<eos>`). Like the following six for source "generated" alone.
        max_depth: deepest level of a generated tree; its root is level 1.
        max_args: most arguments of a generated operator; at least 2 are drawn.
        num_train: generated training examples.
        num_val: generated validation examples.
        num_test: generated test examples. No expression occurs twice, within a split or across.
        generator_seed: of the generated data.
        shuffle_seed: of the order of training examples; None for the run's seed (PL_GLOBAL_SEED, which
            seed_everything sets), else 0.
        num_workers: processes that load ahead. Loading costs little: 0 is enough for most models.
        pin_memory: copy batches to pinned memory.

    Raises:
        InputError: settings that cannot be met.
    """

    vocabulary: tuple[str, ...] = VOCABULARY
    vocab_size: int = len(VOCABULARY)
    num_classes: int = NUM_CLASSES

    def __init__(
        self,
        root: str | None = None,
        source: str = "generated",
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        max_length: int = 2048,
        length_bounds: tuple[int, int] = (500, 2000),
        max_depth: int = 10,
        max_args: int = 10,
        num_train: int = 96_000,
        num_val: int = 2_000,
        num_test: int = 2_000,
        generator_seed: int = 0,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        super().__init__()
        self.root = resolve_root(root)
        self.source = source
        self.batch_size = batch_size
        self.eval_batch_size = batch_size if eval_batch_size is None else eval_batch_size
        self.max_length = max_length
        self.trees = TreeSettings(*length_bounds, max_depth, max_args)
        self.counts = {"train": num_train, "val": num_val, "test": num_test}
        self.generator_seed = generator_seed
        self.shuffle_seed = shuffle_seed
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self._splits: dict[str, SequenceDataset] = {}
        self._prepared: PreparedDataset | None = None
        self._check()

    def _check(self) -> None:
        for name, size in (("batch_size", self.batch_size), ("eval_batch_size", self.eval_batch_size)):
            if size < 1:
                raise InputError(f"ListOps {name} {size}: must be at least 1")
        if self.num_workers < 0:
            raise InputError(f"ListOps num_workers {self.num_workers}: must be at least 0")
        if self.source != "generated":
            return
        check_settings(self.trees)
        for split, count in self.counts.items():
            if count < 1:
                raise InputError(f"ListOps num_{split} {count}: must be at least 1")
        if self.trees.max_length > self.max_length:
            raise InputError(
                f"ListOps length_bounds {self.trees[:2]}: the longest expression and its <eos> have"
                f" {self.trees.max_length} tokens, more than max_length {self.max_length}; nothing is cut silently"
            )

    # -- preparation ---------------------------------------------------------------------------------------------

    def prepare_data(self) -> None:
        """Generates or reads the data into `<root>/listops/<name>`, once; other processes wait for it.

        Raises:
            InputError: the root cannot be used, files are missing or not as published, or settings cannot be met.
        """
        if self.source == "generated":

            def build(folder: Path) -> None:
                build_generated(folder, self.trees, self.generator_seed, self.counts)
        else:
            files = self._files()

            def build(folder: Path) -> None:
                build_from_files(folder, files, self._kind(), self.max_length)

        prepare(self.root, DATASET, self._name(), build)

    def setup(self, stage: str | None = None) -> None:
        """Opens the splits that a stage needs: fit train and val, validate and predict val, test test; None all.

        Raises:
            InputError: not prepared, or damaged.
        """
        needed = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("val",)}
        prepared = self._open()
        for split in needed[stage] if stage is not None else ("train", "val", "test"):
            if split not in self._splits:
                self._splits[split] = SequenceDataset(prepared.split(split))

    def manifest(self) -> dict[str, Any]:
        """The prepared folder's manifest: source, counts, lengths, classes, vocabulary and digests."""
        return self._open().manifest

    def describe(self) -> str:
        """One line on the prepared data."""
        return self._open().summary()

    def _open(self) -> PreparedDataset:
        if self._prepared is None:
            self._prepared = open_prepared(self.prepared_folder)
        return self._prepared

    @property
    def prepared_folder(self) -> Path:
        """Where the prepared data is, or will be.

        Raises:
            InputError: the source's files are missing.
        """
        return self.root / DATASET / self._name()

    def _files(self) -> dict[str, Path]:
        folder = self.root if self.source == "lra" else Path(self.source).expanduser().absolute()
        if self.source != "lra" and not folder.is_dir():
            raise InputError(f"ListOps source {self.source!r}: is neither generated, lra nor an existing folder")
        return find_files(folder)

    def _kind(self) -> str:
        return self.source if self.source in ("generated", "lra") else "files"

    def _name(self) -> str:
        """The source and a short hash of everything that decides what the prepared data is."""
        settings: dict[str, Any]
        if self.source == "generated":
            settings = generator_record(self.trees, self.generator_seed, self.counts)
        else:
            # A changed file gives another name. Size and time stand for its content, which takes long to hash.
            stats = {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in self._files().values()}
            settings = {"version": READER_VERSION, "max_length": self.max_length, "files": stats}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        return f"{self._kind()}-{digest[:12]}"

    # -- loaders -------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> ResumableLoader:
        """Shuffled by (shuffle_seed, epoch), every example once per epoch, resumable at every batch."""
        # Overfitting means the same batches in every epoch, and in the same order.
        shuffle = not getattr(self.trainer, "overfit_batches", 0)
        return self._loader("train", self.batch_size, self._resolved_shuffle_seed() if shuffle else None)

    def val_dataloader(self) -> ResumableLoader:
        """Every validation example once, in order."""
        return self._loader("val", self.eval_batch_size, None)

    def test_dataloader(self) -> ResumableLoader:
        """Every test example once, in order."""
        return self._loader("test", self.eval_batch_size, None)

    def predict_dataloader(self) -> ResumableLoader:
        """Every validation example once, in order: the test split is for `test` alone."""
        return self.val_dataloader()

    def _loader(self, split: str, batch_size: int, seed: int | None) -> ResumableLoader:
        dataset, trainer = self._splits[split], self.trainer
        rank, world_size = (trainer.global_rank, trainer.world_size) if trainer is not None else (0, 1)
        batches = EpochBatches(len(dataset), batch_size, seed, rank, world_size)
        trained = self._batches_trained if split == "train" and trainer is not None else None
        return ResumableLoader(dataset, batches, self.num_workers, self.pin_memory, trained)

    def _batches_trained(self) -> int:
        assert self.trainer is not None
        trained = self.trainer.fit_loop.epoch_loop.batch_progress.total.completed
        if getattr(self.trainer, "overfit_batches", 0):
            return trained % int(self.trainer.num_training_batches)
        return trained

    def _resolved_shuffle_seed(self) -> int:
        if self.shuffle_seed is not None:
            return self.shuffle_seed
        return int(os.environ.get("PL_GLOBAL_SEED", 0))
