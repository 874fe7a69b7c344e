"""Any folder of .txt, .jsonl and .parquet files for language models; IMDb's reviews."""

import io
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from lra_ssm.datamodules.imdb import CLASSES, REVIEWS, fetch_reviews, find_reviews, is_reviews, read_published
from lra_ssm.datamodules.language.corpus import (
    Document,
    Documents,
    EmptyDocuments,
    Input,
    ReadOptions,
    Segment,
    read_text,
    segments,
)
from lra_ssm.datamodules.language.files import FORMS, file_inputs, find_files, split_of
from lra_ssm.datamodules.language.module import LanguageDataModule
from lra_ssm.errors import InputError

Splits = Literal["auto", "hash", "tail"]


class Corpus(LanguageDataModule):
    """A folder of text, or one file. Batches are `batches.TokenBatch`.

    Whether a document is held out depends only on its text: adding or removing files moves no other document.

    Args:
        source: a folder with .txt, .jsonl, .jsonl.gz, .jsonl.zst and .parquet files at any depth, or one such file; or
            "imdb" for IMDb's labelled reviews, each a document (as for Text).
        documents: what a document of .txt files is: the file, a line, a paragraph (between blank lines), an article
            (WikiText's headings), or the text up to <|endoftext|> (TinyStories). In other forms it is a line or row.
        splits: "auto" for the splits that folders or files name (train, valid, test, … anywhere in the name, as in
            Hugging Face's datasets); without validation files, documents of train are held out. "hash" holds documents
            out of all files. "tail" holds out the end of one .txt file, to the byte (as nanoGPT does with val_fraction
            0.1): train, then val, then test.
        val_fraction: share of the documents, or of one text, that is held out for validation.
        test_fraction: share that is held out for testing; not used where files name splits.
        split_seed: decides, together with each document's beginning, which documents are held out.
        text_field: field with the text in .jsonl and .parquet; "a.b" is field b of field a.
        source_field: field in .jsonl and .parquet with the name of a document's source, by which documents are counted;
            None for none.
        empty_documents: a document without text is an "error", or is passed over ("skip").
    """

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
        fields = self.text_field, self.source_field, self.empty_documents
        self._options = ReadOptions(self.documents, *fields, self.split_seed, self.val_fraction, self.test_fraction)

    def corpus(self) -> list[Input]:
        path = self.source_path() if self.kind == "files" else find_reviews(self.data_root)
        if path is None:
            raise self.missing(REVIEWS)
        reviews = next((place for place in (path, path / "aclImdb") if is_reviews(place)), None)
        if self.splits == "tail":
            return self._head_and_tail(path, reviews)
        if reviews is not None:
            review_files = (path for label in CLASSES for path in sorted(reviews.glob(f"t*/{label}/*.txt")))
            files = [reviews] if reviews.is_file() else [*review_files]
            return [Input(files, partial(self._reviews, reviews))]
        if path.is_file():
            if not path.name.endswith(FORMS):
                raise InputError(f"{path}: is not in one of the forms {', '.join(FORMS)}")
            return self._with_splits(path, [(path, None)])
        return self._with_splits(path, [(file, split_of(file, path)) for file in find_files(path)])

    def expected_splits(self) -> set[str]:
        return {"train"} | ({"val"} if self.val_fraction else set())

    def fetch_files(self) -> None:
        fetch_reviews(self.data_root)

    def _with_splits(self, folder: Path, files: list[tuple[Path, str | None]]) -> list[Input]:
        """Return the inputs of files and the splits that their names state; splits="hash" ignores names."""
        options, stated = self._options, {split for _, split in files}
        if self.splits == "hash" or stated == {None}:
            files = [(name, None) for name, _ in files]
        else:
            advice = 'splits="hash" ignores names'
            if None in stated:
                unnamed = next(name for name, split in files if split is None)
                named_file = next(name for name, split in files if split is not None)
                raise InputError(
                    f"{unnamed}: names no split (train, val or test), but {named_file.name} does; {advice}"
                )
            if "train" not in stated:
                named_splits = " and ".join(sorted(filter(None, stated)))
                raise InputError(f"{folder}: its files name the splits {named_splits} but not train; {advice}")
            if "val" not in stated:  # held out from train
                files = [(name, None if split == "train" else split) for name, split in files]
            options = replace(options, test_fraction=0.0)
        undecided = [name for name, split in files if split is None]
        one_document = len(undecided) == 1 and undecided[0].suffix == ".txt" and self.documents == "file"
        if one_document and (options.val_fraction or options.test_fraction):
            raise InputError(
                f"{undecided[0]}: is one document, which cannot be divided among splits: make several of it"
                " (documents=paragraph, or line), hold out its end (splits=tail), or give files of their own (train*,"
                " val*, test*)"
            )
        return file_inputs(files, options)

    def _head_and_tail(self, path: Path, reviews: Path | None) -> list[Input]:
        """Divide one text: its beginning for training, then validation, its end for testing.

        The text is cut where the shares of its bytes end, or after the character there; for ASCII as in nanoGPT, to the
        byte. A document that is cut becomes a document on both sides.
        """
        files = [path] if path.is_file() or reviews else find_files(path)
        if len(files) != 1 or files[0].suffix != ".txt":
            content = "IMDb's reviews" if reviews else files[0].name if len(files) == 1 else f"{len(files)} files"
            raise InputError(f"{path}: splits=tail holds out the end of one text, a .txt file; this is {content}")
        return [Input(files, partial(self._cut_text, files[0]))]

    def _cut_text(self, path: Path) -> Iterator[Segment]:
        data, begin = path.read_bytes(), 0
        val, test = self.val_fraction, self.test_fraction
        ends = {"train": 1 - val - test, "val": 1 - test if val else 0.0, "test": 1.0 if test else 0.0}
        for split, share in ends.items():
            if not share:
                continue
            end = int(share * len(data))
            while end < len(data) and data[end] & 0xC0 == 0x80:  # within a character
                end += 1
            documents = read_text(io.BytesIO(data[begin:end]), f"{path} ({split})", self.documents, split)
            yield from segments(documents, self._options)
            begin = end

    def _reviews(self, path: Path) -> Iterator[Segment]:
        """Yield IMDb's reviews, each as a document. Validation is held out from the train split; with splits="hash",
        validation and test are held out from all reviews."""
        keeps_test = self.splits == "auto"
        options = replace(self._options, test_fraction=0.0) if keeps_test else self._options
        for split, reviews in read_published(path).items():
            published_split = "test" if keeps_test and split == "test" else None
            yield from segments((Document(text, str(path), published_split) for text, _ in reviews), options)
