"""LRA's Retrieval as a LightningDataModule: pairs of papers character by character; class 1 if linked
by a citation.

Sources: Radev et al., "The ACL Anthology Network corpus" (2013); Tay et al., "Long Range Arena" (2021); the default
inputs are those of the S4 code (state-spaces/s4, src/dataloaders/lra.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lra_ssm.datamodules.base import SequenceDataModule, file_stats
from lra_ssm.datamodules.fetch.download_note import read_note
from lra_ssm.datamodules.loading.own_files import TEXTS, OwnExamples, own_files, own_sequences, read_lines
from lra_ssm.datamodules.retrieval.builder import DATASET, NUM_CLASSES, READER_VERSION, build
from lra_ssm.datamodules.retrieval.reader import FILES
from lra_ssm.datamodules.storage.selection import LIMIT_SEED
from lra_ssm.datamodules.storage.vocabulary import TokenSettings, encode_own
from lra_ssm.errors import InputError


@dataclass(kw_only=True, eq=False, repr=False)
class Retrieval(SequenceDataModule):
    """AAN pairs. Batches are `batches.Batch`: inputs (B, 2, L) int64, lengths (B, 2) int64, labels (B,) int64.

    Pairs keep the order of their files; one line warns of files that begin with a long run of one class. A fit never
    downloads: `lra-ssm prepare retrieval` does. With bucket_batches a pair is as long as its longer document.

    Takes what every `SequenceDataModule` takes, and its own:

    Args:
        source: "lra" for LRA's files below the root (layouts: data/README.md), or a folder with them.
        inputs: "characters" and `<eos>`, as in the S4 code; "bytes", as in the original LRA code. The
            two are different tasks: never put their numbers in one table.
        max_length: a longer document is cut to it, `<eos>` included. 4000 in both codes.
        min_freq: characters that occur less often in the training documents, each cut to max_length − 1, are `<unk>`
            ("characters" alone).
        limit: at most this many pairs in each split, for trying out: a random choice, always the same, with as many of
            each class. None for all. The files are read whole all the same.

    Raises:
        InputError: settings that cannot be met.
    """

    dataset = DATASET
    sources = ("lra",)
    per_example = 2
    num_classes = NUM_CLASSES
    class_names = ("not linked", "linked")

    source: str = "lra"
    batch_size: int = 64
    inputs: Literal["characters", "bytes"] = "characters"
    max_length: int = 4000
    min_freq: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tokens = TokenSettings(self.inputs, self.max_length, self.min_freq)

    def content_settings(self) -> dict[str, Any]:
        files = {"files": file_stats(list(self._files().values()))} if self.kind() == "files" else {}
        return {"version": READER_VERSION, **self._settings(), **files}

    def _settings(self) -> dict[str, Any]:
        limit = {} if self.limit is None else {"limit": self.limit, "limit_seed": LIMIT_SEED}
        return {**self.tokens.content_settings(), **limit}

    def build(self, folder: Path) -> None:
        files = self._files()
        archive = read_note(files["train"].parent)
        source = {"kind": self.kind(), **({"archive": archive} if archive else {}), **self._settings()}
        build(folder, files, self.tokens, self.limit, source)

    def own_examples(self, paths: Sequence[Path], vocabulary: Sequence[str] | None = None) -> OwnExamples:
        """Pairs of texts, one pair a line, with a tab between them."""
        tokenizer = self.tokens.saved_tokenizer(vocabulary)
        files, others = own_files(paths, TEXTS, " or ".join(TEXTS))
        names, texts = list[str](), list[str]()
        for where, line in read_lines(files):
            pair = line.split("\t")
            if len(pair) != 2:
                raise InputError(f"{where}: has {len(pair) - 1} tabs; expected a pair: a text, a tab, a text")
            names.append(where)
            texts += pair
        encoded, notes = encode_own(tokenizer, [name for name in names for _ in range(2)], texts)
        return own_sequences(names, encoded.tokens, encoded.lengths, others + notes, per_example=2)

    def fetch(self) -> None:
        """Downloads LRA's archive and unpacks its pairs, if needed."""
        if self.source == "lra":
            FILES.fetch(self.data_root)

    def _files(self) -> dict[str, Path]:
        return FILES.of(self.data_root, self.source, "lra")
