"""WikiText-103 and WikiText-2 for language models; documents are articles.

    wikitext-103{,-raw}-v1.zip, or its folder with wiki.{train,valid,test}.{tokens,raw}
    wikitext-103{,-raw}-v1/{train,validation,test}-*.parquet    the Hub's Salesforce/wikitext, one line per row

WikiText-2 has the same layout. Lines stay as in the files, blank ones (" \\n") too, so that a line end for each gives
the published numbers of tokens. Words are as in state-spaces/s4 and transformer-xl: split at white space, a
vocabulary of the training split (267,735 of WikiText-103). Source: Merity et al., "Pointer Sentinel Mixture Models"
(2016), section 4.3.
"""

import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, cast

from lra_ssm.datamodules.download import Hub, Remote, download, read_parquet
from lra_ssm.datamodules.language.corpus import Input, ReadOptions, Segment, read_text, segments, text_documents
from lra_ssm.datamodules.language.module import LanguageDataModule
from lra_ssm.errors import InputError, describe_error

DOWNLOADS = "wikitext/download"
PLACES = ("", "wikitext", DOWNLOADS)  # below the data root
SPLITS = {"train": ("train", "train"), "val": ("valid", "validation"), "test": ("test", "test")}  # published, the Hub's
_BLANK = " \n"  # the blank line that is an empty row in the Hub's files

# The publisher's own address does not answer any more; this is the first author's. Digests as Hugging Face's loading
# script recorded them; torchtext's md5 of the two by words agree.
_ADDRESS = "https://wikitext.smerity.com/"
ARCHIVES = {
    name: Remote(_ADDRESS + name, f"sha256:{digest}")
    for name, digest in (
        ("wikitext-103-v1.zip", "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590"),
        ("wikitext-103-raw-v1.zip", "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794"),
        ("wikitext-2-v1.zip", "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"),
        ("wikitext-2-raw-v1.zip", "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11"),
    )
}


class WikiText(LanguageDataModule):
    """WikiText. Batches are `batches.TokenBatch`; documents are articles.

    A fit never downloads: `lra-ssm prepare wikitext103` does.

    Args:
        source: "original" for the published archive or its folder below the root (there, or in wikitext or
            wikitext/download); "huggingface" for the Hub's Salesforce/wikitext; or a path to either.
        version: "103", or the small "2"; both have the same validation and test splits.
        level: "word", where rare words are <unk>, or "raw". State it with a perplexity.
        documents: "article" for end-of-text after each article; "line" for one after each line that is not blank, as
            in code that takes the Hub's rows for documents. States are dropped at articles in both.
    """

    sources = ("original", "huggingface")

    source: str = "original"
    tokenizer: str = "words"
    version: Literal["103", "2"] = "103"
    level: Literal["word", "raw"] = "word"
    documents: Literal["article", "line"] = "article"

    def __post_init__(self) -> None:
        super().__post_init__()
        words = self.documents == "line" and self.spec.kind == "words"
        self.require(not words, "documents", "line is for other tokenizers: 'words' ends every line, blank ones too")
        self.dataset = f"wikitext{self.version}"
        self.folder = f"wikitext-{self.version}{'-raw' if self.level == 'raw' else ''}"  # the published name

    @property
    def is_word_level(self) -> bool:
        """True: published perplexities are per word for every tokenizer."""
        return True

    @property
    def hub(self) -> Hub:
        """The Hub's parquet files, in a folder for each of the four editions."""
        name, revision = f"{self.folder}-v1", "b08601e04326c79dfdd32d625aee71d232d685c3"  # as in other repositories
        return Hub("Salesforce/wikitext", revision, (f"{name}/*.parquet",), f"{DOWNLOADS}/{name}")

    def corpus(self) -> list[Input]:
        path = self.source_path() if self.kind == "files" else self._find_published()
        if path is None:
            raise self.missing(
                f"{self.folder}-v1.zip, its folder, or copy of the Hub's wikitext",
                f"{self.dataset} --level={self.level}",
            )
        if path.is_file():
            return [Input([path], partial(self._read_archive, path, split)) for split in SPLITS]
        inputs = []
        for split, (_, name) in SPLITS.items():
            folder = next(
                (path / below for below in (f"{self.folder}-v1", self.folder) if (path / below).is_dir()), path
            )
            files = [*folder.glob(self._file_name(split)), *sorted(folder.glob(f"{name}-*.parquet"))]
            if not files:
                raise InputError(f"{folder}: has no {self._file_name(split)}, nor the Hub's {name}-*.parquet")
            # The Hub's rows are lines, and an article may continue in the next file.
            inputs.append(Input(files, partial(self._read_files, files, split)))
        return inputs

    def fetch_files(self) -> None:
        if self.source == "huggingface":
            self.hub.fetch(self.data_root)
        elif self._find_published() is None:
            download(ARCHIVES[f"{self.folder}-v1.zip"], self.data_root, DOWNLOADS)

    def expected_splits(self) -> set[str]:
        return {*SPLITS}

    def _find_published(self) -> Path | None:
        """Return the Hub's files, or the published folder or archive, below the data root; None for none."""
        if self.source == "huggingface":
            return self.hub.path(self.data_root) if self.hub.is_complete(self.data_root) else None
        paths = (self.data_root / place / name for place in PLACES for name in (self.folder, f"{self.folder}-v1.zip"))
        return next((path for path in paths if path.exists()), None)

    def _file_name(self, split: str) -> str:
        """Return the name of a split's published file."""
        return f"wiki.{SPLITS[split][0]}.{'raw' if self.level == 'raw' else 'tokens'}"

    def _options(self) -> ReadOptions:
        return ReadOptions("article", end_lines=self.documents == "line")

    def _read_archive(self, path: Path, split: str) -> Iterator[Segment]:
        member = f"{self.folder}/{self._file_name(split)}"
        try:
            with zipfile.ZipFile(path) as archive, archive.open(member) as file:
                documents = read_text(cast(BinaryIO, file), f"{path}: {member}", "article", split)
                yield from segments(documents, self._options())
        except InputError:
            raise
        except Exception as error:  # damaged archives give errors of many kinds
            raise InputError(f"{path}: {member} cannot be read ({describe_error(error)})") from error

    def _read_files(self, files: list[Path], split: str) -> Iterator[Segment]:
        if files[0].suffix == ".parquet":
            lines = (row["text"] or _BLANK for file in files for _, row in read_parquet(file, "text"))
            yield from segments(text_documents(lines, str(files[0]), "article", split), self._options())
        else:
            with open(files[0], "rb") as file:
                yield from segments(read_text(file, str(files[0]), "article", split), self._options())
