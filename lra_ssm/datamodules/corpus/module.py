"""Any corpus of text as a LightningDataModule for language models: a folder of .txt, .jsonl, .parquet; IMDb's reviews.

Source of the reviews: Maas et al., "Learning Word Vectors for Sentiment Analysis" (2011).
"""

from typing import Any

from lra_ssm.datamodules.corpus.reader import Splits, find_at, reviews
from lra_ssm.datamodules.fetch import imdb
from lra_ssm.datamodules.fetch.sources import named_source
from lra_ssm.datamodules.language.documents import CorpusReader, Documents, EmptyDocuments, HeldOut, Reading
from lra_ssm.datamodules.language.module import Evaluation, LanguageDataModule, Order
from lra_ssm.errors import InputError


class Corpus(LanguageDataModule):
    """A folder of text, or one file. Batches are `batches.TokenBatch`.

    Which documents are held out depends on each document alone: files that are added or taken away move none across.

    Args:
        root: data root; None for LRA_SSM_DATA, else ./data.
        source: a folder of .txt, .jsonl, .jsonl.gz, .jsonl.zst and .parquet files, however deep, or such a file; or
            "imdb" for IMDb's labelled reviews, each a document (below the root, as for Text; a path to them will do).
        tokenizer: "bytes", "characters", "words" (an `<eos>` for each line), "bpe:16000" (trained on the training
            documents), a tokenizer.json or a folder with one, or a name of the Hub ("gpt2", "gpt2@revision").
        end_of_text: of a tokenizer.json: the token that ends documents; None where it is known.
        documents: what a document is in .txt: the file, a line, a paragraph (between blank lines), or an article
            (WikiText's headings). In the other forms it is a line or row.
        splits: "auto" for those that folders or files name (train*, val* or dev*, test*), where they do; documents of
            train are held out if none is for validation. "hash": documents are held out of all files.
        val_fraction: of the documents, held out for validation.
        test_fraction: of the documents, held out for testing; where files name splits, theirs alone is.
        split_seed: decides with each document's beginning, and nothing else, where it goes.
        text_field: of .jsonl and .parquet: the text; "a.b" is b of a.
        source_field: of .jsonl and .parquet: the name of a document's source, by which documents are counted; None for
            none.
        empty_documents: a document without text is an "error", or passed over ("skip") and counted.
        length: L, tokens of a window.
        batch_size: windows, or streams, per optimizer batch over all devices together.
        eval_batch_size: the same for validation, test and prediction; None for batch_size.
        order: "shuffled" for windows in an order of (shuffle_seed, epoch), each by itself; "streams" for a split cut
            into batch_size rows, whose windows follow each other from batch to batch, so that states can be carried on.
        isolate: whether a document's end drops the state: the model sees nothing of the document before.
        evaluation: "windows" for one behind the other, each by itself; "streams" for states carried on over
            eval_batch_size rows; "sliding" for windows that overlap.
        eval_stride: of "sliding": each window scores so many tokens, which have length − eval_stride before them.
        shuffle_seed: of the order of training windows; None for the run's seed (PL_GLOBAL_SEED, which seed_everything
            sets), else 0.
        num_workers: processes that load ahead. Loading costs little: 0 is enough for most models.
        pin_memory: copy batches to pinned memory; None where there is a CUDA device.

    Raises:
        InputError: settings that cannot be met.
    """

    dataset = "corpus"
    sources = ("imdb",)

    def __init__(
        self,
        source: str,
        root: str | None = None,
        tokenizer: str = "bpe:16000",
        end_of_text: str | None = None,
        documents: Documents = "file",
        splits: Splits = "auto",
        val_fraction: float = 0.01,
        test_fraction: float = 0.0,
        split_seed: int = 42,
        text_field: str = "text",
        source_field: str | None = None,
        empty_documents: EmptyDocuments = "error",
        length: int = 1024,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        order: Order = "shuffled",
        isolate: bool = True,
        evaluation: Evaluation = "windows",
        eval_stride: int | None = None,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
        pin_memory: bool | None = None,
    ) -> None:
        super().__init__(
            root, source, tokenizer, end_of_text, length, batch_size, eval_batch_size, order, isolate, evaluation,
            eval_stride, shuffle_seed, num_workers, pin_memory,
        )  # fmt: skip
        self.require(0 <= split_seed < 1 << 64, "split_seed", "must be from 0 to 2^64 - 1")
        self.reading = Reading(documents, text_field, source_field, empty_documents, split_seed)
        self.splits, self.held_out = splits, HeldOut(val_fraction, test_fraction)

    def reader(self) -> CorpusReader:
        if self.source not in self.sources:
            path = named_source("Corpus", self.source, "imdb")
            return find_at(path, self.splits, self.reading, self.held_out)
        found = imdb.find_original(self.root)
        if found is None:
            places = ", ".join(place for place in imdb.PLACES if place)
            raise InputError(
                f"{self.root}: no IMDb reviews (aclImdb/ or aclImdb*.tar.gz) here or in {places} below it; `lra-ssm"
                f" prepare corpus --source=imdb --root={self.root}` downloads them"
            )
        return reviews(found, self.splits, self.reading, self.held_out)

    def source_settings(self) -> dict[str, Any]:
        held_out = {"val_fraction": self.held_out.val_fraction, "seed": self.reading.seed}
        test = {"test_fraction": self.held_out.test_fraction} if self.splits == "hash" else {}
        return {"splits": self.splits, "empty_documents": self.reading.empty_documents, **held_out, **test}

    def fetch_files(self) -> None:
        if imdb.find_original(self.root) is None:
            imdb.fetch_original(self.root)
