"""ListOps as a LightningDataModule: nested operators on digits, ten classes.

Sources: Nangia and Bowman, "ListOps" (2018); Tay et al., "Long Range Arena" (2021), whose settings are the defaults.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lra_ssm.datamodules.base import SequenceDataModule, file_stats
from lra_ssm.datamodules.listops.builder import (
    DATASET,
    NUM_CLASSES,
    READER_VERSION,
    build_from_files,
    build_generated,
    generator_settings,
)
from lra_ssm.datamodules.listops.generator import check_settings
from lra_ssm.datamodules.listops.reader import FILES, parse_expression
from lra_ssm.datamodules.listops.trees import DIGITS, VOCABULARY, TreeSettings
from lra_ssm.datamodules.loading.own_files import TEXTS, OwnExamples, own_files, own_sequences, read_lines
from lra_ssm.errors import InputError


@dataclass(kw_only=True, eq=False, repr=False)
class ListOps(SequenceDataModule):
    """ListOps, generated or from LRA's files. Batches are `batches.Batch`; every sequence ends with `<eos>`.

    Takes what every `SequenceDataModule` takes, and its own:

    Args:
        source: "generated"; "lra" for LRA's files below the root (layouts: data/README.md), which
            `lra-ssm prepare` can download; or a folder with them.
        max_length: longest permitted sequence, `<eos>` included. Nothing is cut: a longer one is an error.
        length_bounds: generated expressions are strictly longer than the first and shorter than the second
            (tokens without parentheses and `<eos>`). Like the following six for source "generated" alone.
        max_depth: deepest level of a generated tree; its root is level 1.
        max_args: most arguments of a generated operator; at least 2 are drawn.
        num_train: generated training examples.
        num_val: generated validation examples.
        num_test: generated test examples. No expression occurs twice, within a split or across.
        generator_seed: of the generated data.
        limit: at most this many examples in each split, for trying out: the first ones of each file, in its order, or
            only so many generated (which are others than the first ones of a larger split: val follows train). Classes
            are as they come, not balanced. None for all.

    Raises:
        InputError: settings that cannot be met.
    """

    dataset = DATASET
    sources = ("generated", "lra")
    vocabulary: ClassVar[tuple[str, ...]] = VOCABULARY
    vocab_size = len(VOCABULARY)
    num_classes = NUM_CLASSES
    class_names = DIGITS

    source: str = "generated"
    max_length: int = 2048
    length_bounds: tuple[int, int] = (500, 2000)
    max_depth: int = 10
    max_args: int = 10
    num_train: int = 96_000
    num_val: int = 2_000
    num_test: int = 2_000
    generator_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        shortest, longest = self.length_bounds
        self.trees = TreeSettings(shortest, longest, self.max_depth, self.max_args)
        counts = {"train": self.num_train, "val": self.num_val, "test": self.num_test}
        self.counts = {name: count if self.limit is None else min(count, self.limit) for name, count in counts.items()}
        if self.source == "generated":
            self._check()

    def _check(self) -> None:
        check_settings(self.trees)
        for split, count in self.counts.items():
            if count < 1:
                raise InputError(f"ListOps num_{split} {count}: must be at least 1")
        if self.trees.max_length > self.max_length:
            raise InputError(
                f"ListOps length_bounds {self.trees[:2]}: the longest expression and its <eos> have"
                f" {self.trees.max_length} tokens, more than max_length {self.max_length}; nothing is cut silently"
            )

    def content_settings(self) -> dict[str, Any]:
        if self.source == "generated":
            return generator_settings(self.trees, self.generator_seed, self.counts)
        files = {"files": file_stats(list(self._files().values()))} if self.kind() == "files" else {}
        return {"version": READER_VERSION, "max_length": self.max_length, "limit": self.limit, **files}

    def build(self, folder: Path) -> None:
        if self.source == "generated":
            build_generated(folder, self.trees, self.generator_seed, self.counts)
        else:
            build_from_files(folder, self._files(), self.kind(), self.max_length, self.limit)

    def own_examples(self, paths: Sequence[Path], vocabulary: Sequence[str] | None = None) -> OwnExamples:
        """Expressions, one a line, with parentheses or without, without values."""
        files, notes = own_files(paths, TEXTS, " or ".join(TEXTS))
        found = []
        for where, text in (lines := read_lines(files)):
            if "\t" in text:
                raise InputError(f"{where}: has a tab; expected an expression alone, without its value")
            found.append(parse_expression(text.encode(), self.max_length, where))
        lengths = np.array([len(sequence) for sequence in found])
        return own_sequences([where for where, _ in lines], np.concatenate(found), lengths, notes)

    def fetch(self) -> None:
        """Downloads LRA's archive and unpacks its expressions, if needed."""
        if self.source == "lra":
            FILES.fetch(self.data_root)

    def _files(self) -> dict[str, Path]:
        return FILES.of(self.data_root, self.source, "generated, lra")
