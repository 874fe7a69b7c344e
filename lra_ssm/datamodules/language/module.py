"""What the data modules of text have in common.

L length of a window.
"""

import shutil
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch

from lra_ssm.datamodules.base import DataModule, setting
from lra_ssm.datamodules.batches import TokenBatch
from lra_ssm.datamodules.language.builder import BadCorpus, Preparation, Turn
from lra_ssm.datamodules.language.choosing import parse_tokenizer
from lra_ssm.datamodules.language.documents import CorpusReader
from lra_ssm.datamodules.language.shards import TextCounts, summed
from lra_ssm.datamodules.language.windows import Streams, TokenWindows, Windows
from lra_ssm.datamodules.loader import ResumableLoader
from lra_ssm.datamodules.old_base import PreparedDataModule
from lra_ssm.datamodules.old_storage.arrays import damaged
from lra_ssm.datamodules.old_storage.format import TokenSplit
from lra_ssm.datamodules.old_storage.intact import check_intact, remember_intact
from lra_ssm.datamodules.old_storage.writer import write_manifest
from lra_ssm.datamodules.storage import ensure_root
from lra_ssm.errors import InputError
from lra_ssm.files import sha256

# Raise when the same settings would give other data than before.
READER_VERSION = 1
SHARDS = ".shards-"  # what a preparation that is not finished leaves begins with
Order = Literal["shuffled", "streams"]
Evaluation = Literal["windows", "streams", "sliding"]


class WindowedDataModule(DataModule):
    """Loads streams of tokens as `windows.Windows` or `windows.Streams`; batches are `TokenBatch`.

    A data module of text gives `text_splits` and `tokenizer_file`.

    Args:
        root: data root; None for LRA_SSM_DATA, else ./data.
        length: L, tokens of a window.
        batch_size: windows, or streams, per optimizer batch over all devices together.
        isolate: whether a document's end drops the state: the model sees nothing of the document before.
        evaluation: "windows" for one behind the other, each by itself; "streams" for states carried on over
            eval_batch_size rows of a corpus; "sliding" for windows that overlap.
        eval_stride: of "sliding": each window scores so many tokens, which have length − eval_stride before them.
    """

    # Unlike elsewhere: evaluation in streams depends on how many there are.
    eval_batch_size: int | None = setting(default=None, affects="batches")
    root: str | None = setting(default=None, affects="nothing")
    length: int = 1024
    order: Order = field(default="shuffled", init=False)
    isolate: bool = True
    evaluation: Evaluation = "windows"
    eval_stride: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.length >= 1, "length", "must be at least 1")
        for name, known in (("order", get_args(Order)), ("evaluation", get_args(Evaluation))):
            self.require(getattr(self, name) in known, name, f"must be one of {', '.join(known)}")
        stride = self.eval_stride
        if self.evaluation == "sliding":
            fits = stride is not None and 1 <= stride <= self.length
            self.require(fits, "eval_stride", f"sliding evaluation needs one from 1 to length, {self.length}")
        else:
            what = f"evaluation {self.evaluation!r} has none; it is of sliding"
            self.require(stride is None, "eval_stride", what)

    @abstractmethod
    def text_splits(self, name: str) -> list[TokenSplit]:
        """The streams of a split, one behind the other. Raises InputError: not prepared, or damaged."""

    @property
    @abstractmethod
    def tokenizer_file(self) -> Path:
        """The tokenizer of the prepared data. Raises InputError: not prepared."""

    def largest_batch(self) -> TokenBatch:
        tokens = torch.zeros(self.batch_size, self.length, dtype=torch.int64)
        return TokenBatch(tokens, tokens, torch.zeros_like(tokens, dtype=torch.bool) if self.isolate else None, None)

    # -- what a task asks for --------------------------------------------------------------------------------------

    @property
    def end_of_text_id(self) -> int:
        """The token that ends every document, once prepared."""
        return self.text_splits("train")[0].end_of_text

    @property
    def carries_state(self) -> bool:
        """Whether a training batch goes on where the one before ended, row by row, with the states of its end."""
        return self.order == "streams"

    @property
    def eval_carries_state(self) -> bool:
        """The same for batches of validation, test and prediction."""
        return self.evaluation == "streams"

    @property
    def tokenizer_digest(self) -> str:
        """The sha256 of the tokenizer's file, once prepared."""
        return sha256(self.tokenizer_file)

    def text_counts(self, name: str) -> TextCounts:
        """How much text a split holds, once prepared: bits per byte are loss · tokens / (bytes · ln 2)."""
        return summed(TextCounts.of(split.entry) for split in self.text_splits(name))

    # -- loaders ---------------------------------------------------------------------------------------------------

    @property
    def shuffles(self) -> bool:
        return self.order == "shuffled"

    def open_split(self, name: str) -> TokenWindows:
        """Raises InputError: not prepared, damaged, or too small for its streams."""
        splits = self.text_splits(name)
        if name != "train":
            return self.evaluation_windows(splits)
        if self.order == "streams":
            return Streams(splits, self.length, self.batch_size, self.isolate)
        return Windows(splits, self.length, self.isolate)

    def evaluation_windows(self, splits: list[TokenSplit]) -> TokenWindows:
        if self.evaluation == "streams":
            return Streams(splits, self.length, self.evaluation_batch_size, self.isolate)
        return Windows(splits, self.length, self.isolate, self.eval_stride)

    def predict_dataloader(self) -> ResumableLoader:
        """Every token of `predict_split` once, in the order of evaluation."""
        return self._evaluation_loader(self.evaluation_windows(self.text_splits(self.predict_split)))

    # -- what a result depends on ----------------------------------------------------------------------------------

    def batch_settings(self) -> dict[str, Any]:
        """What the model sees of the prepared data, in training and evaluation."""
        evaluation: dict[str, Any] = {"evaluation": self.evaluation}
        if self.evaluation == "sliding":
            evaluation["eval_stride"] = self.eval_stride
        if self.evaluation == "streams":
            evaluation["eval_batch_size"] = self.evaluation_batch_size
        return {"length": self.length, "isolate": self.isolate, **evaluation}

    def order_settings(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size, "shuffle_seed": self.shuffle_seed, "order": self.order}

    def state_dict(self) -> dict[str, Any]:
        """The tokenizer, which travels with checkpoints."""
        file = self.tokenizer_file
        made = {"file": file.name, "sha256": self.tokenizer_digest, "text": file.read_text(encoding="utf-8")}
        return {"tokenizer": {**made, "end_of_text": self.end_of_text_id}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Compares the tokenizer of a checkpoint.

        Raises:
            InputError: it is another one than the data's: the network knows other tokens.
        """
        stored, ours = state.get("tokenizer", {}), self.tokenizer_digest
        theirs, end = stored.get("sha256"), stored.get("end_of_text")
        if theirs not in (None, ours):
            raise InputError(
                f"the checkpoint's tokenizer (sha256 {theirs[:12]}…) is not the data's ({self.tokenizer_file}, sha256"
                f" {ours[:12]}…): prepare the data with the checkpoint's"
            )
        if end not in (None, self.end_of_text_id):
            raise InputError(
                f"the checkpoint's documents end with token {end}, the data's with {self.end_of_text_id}"
                f" ({self.tokenizer_file}): prepare the data with the checkpoint's end_of_text"
            )


class LanguageDataModule(WindowedDataModule, PreparedDataModule):
    """Text that is prepared once, as tokens in shards. Batches are `batches.TokenBatch`.

    A dataset, a dataclass too, gives `dataset`, `sources`, `reader` and `source_settings`, its own settings, and
    `fetch_files` where its files can be downloaded.

    Args:
        tokenizer: "bytes", "characters", "words" (an `<eos>` for each line), "bpe:16000" (trained on the training
            documents), a tokenizer.json or a folder with one, or a name of the Hub ("gpt2", "gpt2@revision").
        end_of_text: of a tokenizer.json: the token that ends documents; None where it is known.
        order: "shuffled" for windows in an order of (shuffle_seed, epoch), each by itself; "streams" for a split cut
            into batch_size rows, whose windows follow each other from batch to batch, so that states can be carried on.

    Raises:
        InputError: settings that cannot be met.
    """

    limit: None = field(default=None, init=False)
    processes: ClassVar[int | None] = None  # that tokenise at a time; None for one a core. Does not change the result

    tokenizer: str
    end_of_text: str | None = None
    order: Order = "shuffled"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.choice = parse_tokenizer(self.tokenizer, self.end_of_text)
        named = self.choice.kind in ("file", "hub")
        self.require(self.end_of_text is None or named, "end_of_text", "is of a tokenizer.json")

    # -- what a dataset gives --------------------------------------------------------------------------------------

    @abstractmethod
    def reader(self) -> CorpusReader:
        """Reads the documents. Raises InputError: files are missing, or not as published."""

    @abstractmethod
    def source_settings(self) -> dict[str, Any]:
        """What decides the documents where a publisher's files are the source."""

    def fetch_files(self) -> None:
        """Downloads a publisher's files below the root, if needed."""

    def published(self, splits: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """What the manifest says of splits beside what is published of them."""
        return {}

    # -- preparation -----------------------------------------------------------------------------------------------

    def content_settings(self) -> dict[str, Any]:
        return self._content

    @cached_property
    def _content(self) -> dict[str, Any]:
        # Files of the user's are looked at; a publisher's are what they are.
        documents = self._documents.content_settings() if self.kind == "files" else self.source_settings()
        end = {} if self.end_of_text is None else {"end_of_text": self.end_of_text}
        return {"version": READER_VERSION, **documents, "tokenizer": self.choice.identity(), **end}

    @cached_property
    def _documents(self) -> CorpusReader:
        """The reader, which looks at the files once."""
        return self.reader()

    def source_digests(self) -> dict[str, str]:
        own = {self.tokenizer: self.choice.identity()} if self.choice.kind == "file" else {}
        return {**super().source_digests(), **own}

    def fetch(self) -> None:
        """Downloads what is missing of the corpus and the tokenizer."""
        self.choice.fetch()
        if self.kind != "files":
            self.fetch_files()

    def build(self, folder: Path) -> None:
        preparation = self._preparation()
        try:
            preparation.tokenise()
            self._finish(folder)
        except InputError as error:
            if isinstance(error, BadCorpus) or not preparation.progress()[0]:
                shutil.rmtree(preparation.folder, ignore_errors=True)
            raise

    def prepare_data(self) -> None:
        """Tokenises the corpus, on all cores, once; other processes wait for it. A killed preparation goes on.

        Raises:
            InputError: bad input, a tokenizer that cannot be had, or the root cannot be used.
        """
        self._make(self.build)

    def tokenise(self, turn: Turn) -> str:
        """Makes the shards of a turn, so that several machines can work at a time; `merge` is the end.

        Returns:
            One line on what is there now.

        Raises:
            InputError: as `prepare_data`.
        """
        ensure_root(self.data_root)
        preparation = self._preparation()
        preparation.tokenise(turn)
        there, count = preparation.progress()
        more = "; --merge puts them together" if there == count else ""
        return f"{preparation.folder}: {turn.number}/{turn.turns} is done; {there} of {count} shards are there{more}"

    def merge(self) -> None:
        """Puts all shards together. Raises InputError: one is missing or damaged."""
        self._make(self._finish)

    def _make(self, build: Callable[[Path], None]) -> None:
        is_new = self._prepare(build)
        shutil.rmtree(self._shards, ignore_errors=True)  # whoever was killed before this left them
        if is_new:
            remember_intact(self.prepared_folder)  # last: a file's time changes with the number of its names

    def _finish(self, folder: Path) -> None:
        manifest = self._preparation().finish(folder)
        where = {} if self.source in self.sources else {"path": self.source}
        manifest["source"] |= {"kind": self.kind, **where, **self.content_settings()}
        manifest["source"] |= self.published(manifest["splits"])
        write_manifest(folder, manifest)

    def _preparation(self) -> Preparation:
        return Preparation(self._shards, self.dataset, self._documents, self.choice, self.processes)

    @property
    def _shards(self) -> Path:
        return self.data_root / self.dataset / f"{SHARDS}{self.prepared_folder.name}"

    def text_splits(self, name: str) -> list[TokenSplit]:
        split = self._open().split(name)
        assert isinstance(split, TokenSplit)
        return [split]

    def open_split(self, name: str) -> TokenWindows:
        self.check_intact(name)
        return super().open_split(name)

    def check_intact(self, name: str) -> None:
        """Raises InputError: files are not what was prepared."""
        for split in self.text_splits(name):
            check_intact(split)
        if self.tokenizer_digest != self._open().manifest["tokenizer"]["sha256"]:
            raise damaged(self.tokenizer_file, "does not have its recorded sha256: it is not what was prepared")

    @property
    def tokenizer_file(self) -> Path:
        prepared = self._open()
        return prepared.folder / prepared.manifest["tokenizer"]["file"]

    def provenance(self) -> dict[str, Any]:
        manifest = self.manifest()
        tokens = {name: split["tokens"] for name, split in manifest["splits"].items()}
        return {**super().provenance(), "tokens": tokens, "tokenizer": manifest["tokenizer"]}

    def describe(self) -> str:
        return f"{super().describe()}; {self.order} in windows of {self.length:,}"
