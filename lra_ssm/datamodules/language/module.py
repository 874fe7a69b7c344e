"""Base of the data modules of text for language models: tokens prepared once, windows, a tokenizer.

L length of a window.
"""

import shutil
from abc import abstractmethod
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from lra_ssm.datamodules.base import PreparedData
from lra_ssm.datamodules.batches import TokenBatch
from lra_ssm.datamodules.language.corpus import Input
from lra_ssm.datamodules.language.prepare import Preparation, TextCounts
from lra_ssm.datamodules.language.tokenizer_spec import parse_tokenizer
from lra_ssm.datamodules.language.windows import Streams, TokenWindows, Windows
from lra_ssm.datamodules.loader import ResumableLoader
from lra_ssm.datamodules.settings import setting
from lra_ssm.datamodules.storage import Split, ensure_root, prepare, write_manifest
from lra_ssm.errors import InputError


class LanguageDataModule(PreparedData):
    """Text that is prepared once, as tokens. Batches are `batches.TokenBatch` of `windows.Windows` or `Streams`.

    A dataset defines `sources`, `corpus`, and `fetch_files` where its files can be downloaded.

    Args:
        tokenizer: "bytes", "characters", "words" (the end of a line is a token), "bpe:16000" (trained on the training
            documents), a tokenizer.json or a folder with one, or a name on the Hub ("gpt2", "gpt2@revision").
        end_of_text: token of a tokenizer.json that ends documents; None if the file names it or has a well-known one.
        length: L, tokens in a window.
        batch_size: windows, or streams, per optimizer batch over all devices together.
        order: "shuffled" for independent windows in an order of (shuffle_seed, epoch); "streams" for a split cut into
            batch_size rows, whose windows follow each other from batch to batch, so that states are carried on.
        isolate: whether the end of a document drops the state: the model sees nothing of the document before.
        evaluation: "windows" for independent windows in order; "streams" for states that are carried on over
            eval_batch_size rows; "sliding" for windows that overlap.
        eval_stride: tokens that each window scores in "sliding" evaluation; length − eval_stride tokens precede them.
    """

    limit: None = field(default=None, init=False)

    tokenizer: str
    end_of_text: str | None = None
    # Here it affects the batches: evaluation in streams depends on the number of streams.
    eval_batch_size: int | None = setting(default=None, affects="batches")
    length: int = setting(default=1024, affects="batches")
    order: Literal["shuffled", "streams"] = setting(default="shuffled", affects="order")
    isolate: bool = setting(default=True, affects="batches")
    evaluation: Literal["windows", "streams", "sliding"] = setting(default="windows", affects="batches")
    eval_stride: int | None = setting(default=None, affects="batches")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.length >= 1, "length", "must be at least 1")
        stride = self.eval_stride
        if self.evaluation == "sliding":
            fits = stride is not None and 1 <= stride <= self.length
            self.require(fits, "eval_stride", f"sliding evaluation needs one from 1 to length, {self.length}")
        else:
            self.require(stride is None, "eval_stride", f"is only for sliding evaluation, not {self.evaluation!r}")
        self.shuffles = self.order == "shuffled"
        self.spec = parse_tokenizer(self.tokenizer, self.end_of_text)
        has_file = self.spec.kind in ("file", "hub")
        self.require(self.end_of_text is None or has_file, "end_of_text", "is only for a tokenizer.json")

    # -- what a dataset defines ------------------------------------------------------------------------------------

    @abstractmethod
    def corpus(self) -> list[Input]:
        """Return the inputs of the corpus in order. Raises InputError if files are missing or not as published."""

    def expected_splits(self) -> set[str]:
        """Return the splits that must not be empty."""
        return {"train", "val"}

    def fetch_files(self) -> None:
        """Download a publisher's files below the root, if needed."""

    # -- preparation -----------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        record = super().record()
        record["data"]["tokenizer"] = self._identity
        return record

    @cached_property
    def _identity(self) -> str:
        """The identity of the tokenizer; for a file its digest."""
        return self.spec.identity()

    @cached_property
    def _corpus(self) -> list[Input]:
        return self.corpus()

    @cached_property
    def _digests(self) -> dict[str, str]:
        tokenizer = {self.tokenizer: self._identity} if self.spec.kind == "file" else {}
        return {**super().source_digests(), **tokenizer}

    def source_digests(self) -> dict[str, str]:
        return self._digests  # computed once: there may be many files

    def files(self) -> list[Path]:
        return [path for each in self._corpus for path in each.paths]

    def fetch(self) -> None:
        """Download the missing files of the corpus and the tokenizer."""
        self.spec.fetch()
        if self.kind != "files":
            self.fetch_files()

    def build(self, folder: Path) -> None:
        preparation = self._preparation()
        try:
            preparation.tokenize()
            self._finish(folder)
        except InputError:  # the next preparation will use another corpus or tokenizer: these parts are useless
            shutil.rmtree(self.parts_folder, ignore_errors=True)
            raise

    def tokenize(self, shard: tuple[int, int]) -> str:
        """Make the parts of shard i/n, so that several machines can work at a time; `merge` comes last.

        Returns:
            One line about the finished parts.

        Raises:
            InputError: see `prepare_data`.
        """
        ensure_root(self.data_root)
        preparation = self._preparation()
        preparation.tokenize(shard)
        return preparation.progress()

    def merge(self) -> None:
        """Join all parts. Raises InputError if one is missing."""
        prepare(self.data_root, self.dataset, self.prepared_folder.name, self._finish)
        self.prepare_data()  # removes the parts

    def _finish(self, folder: Path) -> None:
        entries = self._preparation().finish(folder)
        splits = entries["splits"]
        if missing := sorted(self.expected_splits() - splits.keys()):
            counts = ", ".join(f"{entry['documents']:,} for {name}" for name, entry in splits.items())
            raise InputError(
                f"{self.dataset}: no document for {missing[0]} ({counts or 'none at all'}): hold out more"
                " (val_fraction, test_fraction), make smaller documents (documents=line), or give files (train*, val*,"
                " test*)"
            )
        write_manifest(folder, {"dataset": self.dataset, **self.facts(), **entries})

    def _preparation(self) -> Preparation:
        return Preparation(self.parts_folder, self.dataset, self._corpus, self.spec)

    # -- properties for tasks ---------------------------------------------------------------------------------------

    @property
    def end_of_text_id(self) -> int:
        """The token that ends every document of the prepared data."""
        return int(self.prepared.manifest["end_of_text"])

    @property
    def carries_state(self) -> bool:
        """Whether a training batch continues the rows of the one before, with its last states."""
        return self.order == "streams"

    @property
    def eval_carries_state(self) -> bool:
        """The same for batches of validation, test and prediction."""
        return self.evaluation == "streams"

    @property
    def tokenizer_file(self) -> Path:
        """The tokenizer of the prepared data. Raises InputError if it is not prepared."""
        return self.prepared.folder / self.prepared.manifest["tokenizer"]["file"]

    @property
    def tokenizer_digest(self) -> str:
        """The sha256 of the tokenizer's file, once prepared."""
        return str(self.prepared.manifest["tokenizer"]["sha256"])

    @property
    def is_word_level(self) -> bool:
        """Whether results on this data are stated per word: a vocabulary of words, or a benchmark of words."""
        return self.spec.kind == "words"

    def text_counts(self, name: str) -> TextCounts:
        """Return how much text a split holds, once prepared: bits per byte are loss · tokens / (bytes · ln 2)."""
        return TextCounts.of(self.prepared.split(name).entry)

    # -- loaders ---------------------------------------------------------------------------------------------------

    def largest_batch(self) -> TokenBatch:
        tokens = torch.zeros(self.batch_size, self.length, dtype=torch.int64)
        return TokenBatch(tokens, tokens, torch.zeros_like(tokens, dtype=torch.bool) if self.isolate else None, None)

    def make_dataset(self, split: Split, name: str) -> TokenWindows:
        """Return the batches of a split. Raises InputError if the split is too small for its streams."""
        if name != "train":
            return self.evaluation_windows(split)
        if self.order == "streams":
            return Streams(split, self.end_of_text_id, self.length, self.batch_size, self.isolate)
        return Windows(split, self.end_of_text_id, self.length, self.isolate)

    def evaluation_windows(self, split: Split) -> TokenWindows:
        """Return the windows of a split that `evaluation` chooses."""
        if self.evaluation == "streams":
            return Streams(split, self.end_of_text_id, self.length, self.evaluation_batch_size, self.isolate)
        return Windows(split, self.end_of_text_id, self.length, self.isolate, self.eval_stride)

    def predict_dataloader(self) -> ResumableLoader:
        """Load every token of `predict_split` once, in the order of evaluation."""
        windows = self.evaluation_windows(self.prepared.split(self.predict_split))
        return self._loader(self.for_pretraining(windows, self.predict_split), self.evaluation_batch_size)

    # -- what a result depends on ----------------------------------------------------------------------------------

    def provenance(self) -> dict[str, Any]:
        manifest = self.manifest()
        tokens = {name: split["tokens"] for name, split in manifest["splits"].items()}
        return {**super().provenance(), "tokens": tokens, "tokenizer": manifest["tokenizer"]}

    def details(self) -> list[str]:
        manifest = self.prepared.manifest
        splits = manifest["splits"]
        tokens = ", ".join(f"{entry['tokens']:,} {name}" for name, entry in splits.items())
        size = sum(entry["bytes"] for entry in splits.values()) / sum(entry["tokens"] for entry in splits.values())
        vocabulary = f"vocabulary of {manifest['vocab_size']:,}, {size:.2f} bytes a token"
        return [f"{tokens} tokens", vocabulary, f"{self.order} in windows of {self.length:,}"]

    def state_dict(self) -> dict[str, Any]:
        """Return the tokenizer, which is stored in checkpoints."""
        file = self.tokenizer_file
        entry = {"file": file.name, "sha256": self.tokenizer_digest, "text": file.read_text(encoding="utf-8")}
        return {"tokenizer": {**entry, "end_of_text": self.end_of_text_id}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check that a checkpoint has the data's tokenizer.

        Raises:
            InputError: it has another one: the network was trained on other tokens.
        """
        if not (stored := state.get("tokenizer")):
            return
        expected, actual = stored["sha256"], self.tokenizer_digest
        if (expected, stored["end_of_text"]) != (actual, self.end_of_text_id):
            raise InputError(
                f"the checkpoint's tokenizer (sha256 {expected[:12]}…, end of text {stored['end_of_text']}) is"
                f" not the data's ({self.tokenizer_file}, sha256 {actual[:12]}…, end of text {self.end_of_text_id}):"
                " prepare the data with the checkpoint's"
            )
