"""Any folder of text as a LightningDataModule for language models.

Files of .txt, .jsonl and .parquet; IMDb's reviews.

Source of the reviews: Maas et al., "Learning Word Vectors for Sentiment Analysis" (2011).
"""

from typing import Any

from lra_ssm.datamodules.corpus.reader import Splits, find_at, reviews
from lra_ssm.datamodules.fetch import imdb
from lra_ssm.datamodules.fetch.sources import named_source
from lra_ssm.datamodules.language.documents import CorpusReader, Documents, EmptyDocuments, Reading
from lra_ssm.datamodules.language.module import LanguageDataModule


class Corpus(LanguageDataModule):
    """A folder of text, or one file. Batches are `batches.TokenBatch`.

    Which documents are held out depends on each document alone: files that are added or taken away move none across.

    Takes what every `LanguageDataModule` takes, and its own:

    Args:
        source: a folder of .txt, .jsonl, .jsonl.gz, .jsonl.zst and .parquet files, however deep, or such a file; or
            "imdb" for IMDb's labelled reviews, each a document (as for Text).
        documents: of .txt: the file, a line, a paragraph (between blank lines), or an article (WikiText's headings).
            In the other forms a document is a line or row.
        splits: "auto" for those that folders or files name (train*, val* or dev*, test*); where none is for validation,
            documents of train are held out. "hash": documents are held out of all files. "tail": of one .txt file the
            end is held out, to the byte (nanoGPT's way with val_fraction 0.1): train, then val, then test.
        val_fraction: of the documents, or of one text, held out for validation.
        test_fraction: the same, held out for testing; where files name splits, theirs alone is.
        split_seed: decides with each document's beginning, and nothing else, where it goes.
        text_field: of .jsonl and .parquet: the text; "a.b" is b of a.
        source_field: of .jsonl and .parquet: the name of a document's source, by which documents are counted; None for
            none.
        empty_documents: a document without text is an "error", or passed over ("skip") and counted.

    Raises:
        InputError: settings that cannot be met.
    """

    dataset = "corpus"
    sources = ("imdb",)

    tokenizer: str = "bpe:16000"
    documents: Documents = "file"
    splits: Splits = "auto"
    val_fraction: float = 0.01
    test_fraction: float = 0.0
    split_seed: int = 42
    text_field: str = "text"
    source_field: str | None = None
    empty_documents: EmptyDocuments = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.split_seed < 1 << 64, "split_seed", "must be from 0 to 2^64 - 1")
        fractions = self.val_fraction, self.test_fraction
        fields = self.text_field, self.source_field
        self.reading = Reading(self.documents, *fields, self.empty_documents, self.split_seed, *fractions)

    def reader(self) -> CorpusReader:
        if self.source not in self.sources:
            return find_at(named_source("Corpus", self.source, "imdb"), self.splits, self.reading)
        return reviews(imdb.required(self.data_root, "corpus --source=imdb"), self.splits, self.reading)

    def source_settings(self) -> dict[str, Any]:
        held_out = {"val_fraction": self.val_fraction, "seed": self.split_seed}
        test = {"test_fraction": self.test_fraction} if self.splits == "hash" else {}
        return {"splits": self.splits, "empty_documents": self.empty_documents, **held_out, **test}

    def fetch_files(self) -> None:
        if imdb.find_original(self.data_root) is None:
            imdb.fetch_original(self.data_root)
