"""WikiText-103 and WikiText-2 as a LightningDataModule for language models.

Source: Merity et al., "Pointer Sentinel Mixture Models" (2016). By words as state-spaces/s4 and transformer-xl have it:
split at white space, `<eos>` for each line, a vocabulary of the training split (267,735 of WikiText-103).
"""

from collections.abc import Mapping
from typing import Any, Literal

from lra_ssm.datamodules.fetch.sources import named_source
from lra_ssm.datamodules.language.documents import CorpusReader, EmptyDocuments, Reading
from lra_ssm.datamodules.language.module import LanguageDataModule
from lra_ssm.datamodules.wikitext.reader import Edition, Version, check_counts, find_at
from lra_ssm.errors import InputError


class WikiText(LanguageDataModule):
    """WikiText. Batches are `batches.TokenBatch`; documents are articles.

    A fit never downloads: `lra-ssm prepare wikitext103` does.

    Takes what every `LanguageDataModule` takes, and its own:

    Args:
        source: "original" for the published archive or its folder below the root (there, or in wikitext or
            wikitext/download); "huggingface" for the Hub's Salesforce/wikitext; or a path to either
            ({train,valid,test}.txt will do).
        version: "103", or the small "2"; both have the same validation and test splits.
        level: "word", where rare words are <unk>, or "raw". A perplexity says which.
        documents: "article" for end-of-text after each article; "line" for one after each line that is not blank, as
            in code that takes the Hub's rows for documents. States are dropped at articles in both.
        empty_documents: blank lines that no article has are an "error", or passed over ("skip") and counted.

    Raises:
        InputError: settings that cannot be met.
    """

    sources = ("original", "huggingface")

    source: str = "original"
    tokenizer: str = "words"
    version: Version = "103"
    level: Literal["word", "raw"] = "word"
    documents: Literal["article", "line"] = "article"
    empty_documents: EmptyDocuments = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.version in ("103", "2"), "version", "must be 103 or 2")
        self.require(self.level in ("word", "raw"), "level", "must be word or raw")
        self.require(self.documents in ("article", "line"), "documents", "must be article or line")
        words = self.documents == "line" and self.choice.kind == "words"
        self.require(not words, "documents", "line is for other tokenizers: 'words' ends every line, blank ones too")
        self.dataset = f"wikitext{self.version}"
        self.edition = Edition(self.version, self.level == "raw")

    def reader(self) -> CorpusReader:
        if self.source in self.sources:
            found = self.edition.found(self.data_root, self.source)
        else:
            found = named_source("WikiText", self.source, "original, huggingface")
        if found is None:
            options = "".join(
                f" --{name}={value}" for name, value, usual in
                (("level", self.level, "word"), ("source", self.source, "original"), ("root", self.root, None))
                if value != usual
            )  # fmt: skip
            what = f"{self.edition.folder}/ or {self.edition.archive}"
            if self.source == "huggingface":
                what = "copy of the Hub's wikitext"
            raise InputError(
                f"{self.data_root}: no {what} below it; `lra-ssm prepare {self.dataset}{options}` downloads it"
            )
        reading = Reading("article", empty_documents=self.empty_documents)
        return find_at(found, self.edition, reading, self.documents == "line")

    def source_settings(self) -> dict[str, Any]:
        origin = self.edition.hub.origin if self.source == "huggingface" else {}
        lines = {"documents": self.documents} if self.documents == "line" else {}  # what was prepared before stays good
        known = {"version": self.version, "level": self.level, "empty_documents": self.empty_documents}
        return {**known, **lines, **origin}

    def content_settings(self) -> dict[str, Any]:
        return {**super().content_settings(), "level": self.level}

    def fetch_files(self) -> None:
        self.edition.fetch(self.data_root, self.source)

    def published(self, splits: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        if self.documents == "line":  # published are counts with blank lines
            return {}
        return {"published_counts": check_counts(self.edition, splits)}
