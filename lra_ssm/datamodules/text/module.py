"""LRA's Text as a LightningDataModule: IMDb reviews, negative (0) or positive (1), character by character.

Sources: Maas et al., "Learning Word Vectors for Sentiment Analysis" (2011); Tay et al., "Long Range Arena" (2021); the
default inputs are those of the S4 code (state-spaces/s4, src/dataloaders/lra.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lra_ssm.datamodules.base import SequenceDataModule, file_stats
from lra_ssm.datamodules.fetch.imdb import fetch_original, find_original, required
from lra_ssm.datamodules.fetch.sources import named_source
from lra_ssm.datamodules.loading.own_files import TEXTS, OwnExamples, own_files, own_sequences, read_lines
from lra_ssm.datamodules.storage.selection import LIMIT_SEED
from lra_ssm.datamodules.storage.vocabulary import TokenSettings, encode_own
from lra_ssm.datamodules.text.builder import DATASET, READER_VERSION, HeldOut, build
from lra_ssm.datamodules.text.reader import CLASSES, HUB, describe, find_at, find_huggingface, read, watched_files
from lra_ssm.errors import InputError


@dataclass(kw_only=True, eq=False, repr=False)
class Text(SequenceDataModule):
    """IMDb reviews. Batches are `batches.Batch`: inputs (B, L), lengths (B,) and labels (B,), all int64.

    A fit never downloads: `lra-ssm prepare text` does. Splits are stored in a random order that the texts alone decide.
    A review that is edited in place in a folder is not noticed: delete the prepared folder then.

    Takes what every `SequenceDataModule` takes, and its own:

    Args:
        source: "original" for Stanford's archive or its folder aclImdb below the root (there, or in imdb, text or
            text/download); "huggingface" for the Hub's stanfordnlp/imdb; or a path to either, or to what `datasets`
            saved.
        inputs: "characters" and `<eos>`, as in the S4 code; "bytes", as in the original LRA code: another task, whose
            numbers never belong in one table.
        max_length: a longer review is cut to it, `<eos>` included. 4096 is the S4 code's; the base configuration of
            the original LRA code has 1000.
        min_freq: rarer characters are `<unk>` ("characters" alone; 15 as in the S4 code). Counted in all training
            reviews, held out or not, each cut to max_length − 1: 131 and 3 special tokens. (How the S4 code came to its
            135 is not known.)
        validation: "held_out" for a part of the training reviews; "test" for the test reviews, as both public codes
            have it: what is selected by it is selected on the test set.
        val_fraction: of the training reviews, held out, half of each class.
        split_seed: decides with the reviews' texts, and nothing else, which ones are held out.
        limit: at most this many examples in each split: a random choice, with as many of each class. None for all.

    Raises:
        InputError: settings that cannot be met.
    """

    dataset = DATASET
    sources = ("original", "huggingface")
    num_classes = len(CLASSES)
    class_names = ("negative", "positive")

    source: str = "original"
    batch_size: int = 16
    inputs: Literal["characters", "bytes"] = "characters"
    max_length: int = 4096
    min_freq: int = 15
    validation: Literal["held_out", "test"] = "held_out"
    val_fraction: float = 0.1
    split_seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tokens = TokenSettings(self.inputs, self.max_length, self.min_freq)
        self.require(self.validation in ("held_out", "test"), "validation", "must be held_out or test")
        self.require(0 < self.val_fraction < 1, "val_fraction", "must be between 0 and 1")
        self.require(0 <= self.split_seed < 1 << 64, "split_seed", "must be from 0 to 2^64 - 1")

    def content_settings(self) -> dict[str, Any]:
        files = {"files": file_stats(watched_files(self._found()))} if self.kind() == "files" else {}
        return {"version": READER_VERSION, **self._settings(), **files}

    def _settings(self) -> dict[str, Any]:
        """Those that matter: fraction and seed where reviews are held out."""
        held_out = {"val_fraction": self.val_fraction, "split_seed": self.split_seed}
        return {
            "validation": self.validation,
            **self.tokens.content_settings(),
            **(held_out if self.validation == "held_out" else {}),
            **({} if self.limit is None else {"limit": self.limit, "limit_seed": LIMIT_SEED}),
        }

    def build(self, folder: Path) -> None:
        found = self._found()
        origin = describe(found) | (HUB.origin if self.source == "huggingface" else {})
        held_out = HeldOut(self.val_fraction, self.split_seed) if self.validation == "held_out" else None
        source = {"kind": self.kind(), **origin, **self._settings()}
        build(folder, read(found), self.tokens, held_out, self.limit, source)

    def own_examples(self, paths: Sequence[Path], vocabulary: Sequence[str] | None = None) -> OwnExamples:
        """Texts, one a line."""
        tokenizer = self.tokens.saved_tokenizer(vocabulary)
        files, others = own_files(paths, TEXTS, " or ".join(TEXTS))
        names, texts = zip(*read_lines(files), strict=True)
        encoded, notes = encode_own(tokenizer, names, texts)
        return own_sequences(list(names), encoded.tokens, encoded.lengths, others + notes)

    def fetch(self) -> None:
        """Downloads the reviews to text/download below the root, if needed."""
        if self.source == "original" and find_original(self.data_root) is None:
            fetch_original(self.data_root)
        if self.source == "huggingface" and find_huggingface(self.data_root) is None:
            HUB.fetch(self.data_root)

    def _found(self) -> Path:
        if self.kind() == "files":
            return find_at(named_source("Text", self.source, "original, huggingface"))
        if self.source == "original":
            return required(self.data_root, "text")
        found = find_huggingface(self.data_root)
        if found is None:
            command = f"lra-ssm prepare text --root={self.data_root} --source=huggingface"
            raise InputError(f"{self.data_root}: no copy of the Hub's {HUB.repository} below it; `{command}` gets it")
        return found
