"""WikiText-103 and WikiText-2 for language models; documents are articles.

    wikitext-103{,-raw}-v1.zip, or its folder with wiki.{train,valid,test}.{tokens,raw} (or {train,valid,test}.txt)
    wikitext-103{,-raw}-v1/{train,validation,test}-*.parquet    the Hub's Salesforce/wikitext, one line per row

WikiText-2 the same. Lines stay as the files have them, blank ones (" \\n") too, so that a line end for each makes
the published numbers of tokens. By words as state-spaces/s4 and transformer-xl have it: split at white space, a
vocabulary of the training split (267,735 of WikiText-103). Source: Merity et al., "Pointer Sentinel Mixture Models"
(2016), section 4.3.
"""

import logging
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, cast

from lra_ssm.datamodules.download import Hub, Remote, download, read_parquet
from lra_ssm.datamodules.language.corpus import (
    EmptyDocuments,
    Input,
    ReadOptions,
    Segment,
    read_text,
    segments,
    text_documents,
)
from lra_ssm.datamodules.language.module import LanguageDataModule
from lra_ssm.errors import InputError
from lra_ssm.files import one_reason

log = logging.getLogger(__name__)

DOWNLOADS = "wikitext/download"
PLACES = ("", "wikitext", DOWNLOADS)  # below the data root
SPLITS = {"train": ("train", "train"), "val": ("valid", "validation"), "test": ("test", "test")}  # published, the Hub's
_BLANK = " \n"  # what the Hub's files have as an empty row

# The publisher's own address does not answer any more; this is the first author's. Sizes and digests as Hugging Face's
# loading script recorded them; torchtext's md5 of the two by words agree.
_ADDRESS = "https://wikitext.smerity.com/"
ARCHIVES = {
    name: Remote(_ADDRESS + name, name, f"sha256:{digest}", size)
    for name, size, digest in (
        ("wikitext-103-v1.zip", 190_229_076, "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590"),
        ("wikitext-103-raw-v1.zip", 191_984_949, "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794"),
        ("wikitext-2-v1.zip", 4_475_746, "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"),
        ("wikitext-2-raw-v1.zip", 4_721_645, "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11"),
    )
}
# Lines, as torchtext has them, and tokens by words with one for each line's end: Merity et al. (2016), table 1.
_SMALL = {"val": (3_760, 217_646), "test": (4_358, 245_569)}
PUBLISHED = {
    "103": {"train": (1_801_350, 103_227_021), **_SMALL},
    "2": {"train": (36_718, 2_088_628), **_SMALL},
}


class WikiText(LanguageDataModule):
    """WikiText. Batches are `batches.TokenBatch`; documents are articles.

    A fit never downloads: `lra-ssm prepare wikitext103` does.

    Takes what every `LanguageDataModule` takes, and its own:

    Args:
        source: "original" for the published archive or its folder below the root (there, or in wikitext or
            wikitext/download); "huggingface" for the Hub's Salesforce/wikitext; or a path to either.
        version: "103", or the small "2"; both have the same validation and test splits.
        level: "word", where rare words are <unk>, or "raw". A perplexity says which.
        documents: "article" for end-of-text after each article; "line" for one after each line that is not blank, as
            in code that takes the Hub's rows for documents. States are dropped at articles in both.
        empty_documents: blank lines that no article has are an "error", or passed over ("skip") and counted.

    Raises:
        InputError: invalid settings.
    """

    sources = ("original", "huggingface")

    source: str = "original"
    tokenizer: str = "words"
    version: Literal["103", "2"] = "103"
    level: Literal["word", "raw"] = "word"
    documents: Literal["article", "line"] = "article"
    empty_documents: EmptyDocuments = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.version in ("103", "2"), "version", "must be 103 or 2")
        self.require(self.level in ("word", "raw"), "level", "must be word or raw")
        self.require(self.documents in ("article", "line"), "documents", "must be article or line")
        words = self.documents == "line" and self.spec.kind == "words"
        self.require(not words, "documents", "line is for other tokenizers: 'words' ends every line, blank ones too")
        self.dataset = f"wikitext{self.version}"
        self.folder = f"wikitext-{self.version}{'-raw' if self.level == 'raw' else ''}"  # the published name

    @property
    def is_word_level(self) -> bool:
        """Its published perplexities are per word, whatever the tokenizer."""
        return True

    @property
    def hub(self) -> Hub:
        """The Hub's parquet files, in a folder for each of the four editions."""
        name, revision = f"{self.folder}-v1", "b08601e04326c79dfdd32d625aee71d232d685c3"  # as others pin it
        return Hub("Salesforce/wikitext", revision, (f"{name}/*.parquet",), f"{DOWNLOADS}/{name}")

    def corpus(self) -> list[Input]:
        path = self.source_path() if self.kind == "files" else self._found()
        if path is None:
            options = "".join(
                f" --{name}={value}" for name, value, usual in
                (("level", self.level, "word"), ("source", self.source, "original"), ("root", self.root, None))
                if value != usual
            )  # fmt: skip
            what = f"{self.folder}/ or {self.folder}-v1.zip"
            what = "copy of the Hub's wikitext" if self.source == "huggingface" else what
            raise InputError(
                f"{self.data_root}: no {what} below it; `lra-ssm prepare {self.dataset}{options}` downloads it"
            )
        return self._of_archive(path) if path.is_file() else self._of_folder(path)

    def fetch_files(self) -> None:
        if self.source == "huggingface":
            self.hub.fetch(self.data_root)
        elif self._found() is None:
            download(ARCHIVES[f"{self.folder}-v1.zip"], self.data_root, DOWNLOADS)

    def expected_splits(self) -> set[str]:
        return {*SPLITS}

    def compare_published(self, splits: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        if self.documents == "line":  # published are counts with blank lines
            return {}
        same = True
        for split, (lines, tokens) in PUBLISHED[self.version].items():
            has = splits[split]["lines"], splits[split]["lines"] + splits[split]["words"]
            if has[0] != lines or (self.level == "word" and has[1] != tokens):
                others = "others" if self.level == "raw" else f"{tokens:,}"
                what = f"{split} has {has[0]:,} lines and {has[1]:,} tokens; published are {lines:,} and {others}"
                log.warning("%s: %s", self.folder, what)
                same = False
        return {"published_counts": same}

    def _found(self) -> Path | None:
        """The Hub's files, or the published folder or archive, below the data root; None for none."""
        if self.source == "huggingface":
            return self.hub.path(self.data_root) if self.hub.is_complete(self.data_root) else None
        paths = (self.data_root / place / name for place in PLACES for name in (self.folder, f"{self.folder}-v1.zip"))
        return next((path for path in paths if path.exists()), None)

    def _of_archive(self, path: Path) -> list[Input]:
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.namelist()
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"{path}: cannot be read as WikiText's zip archive ({error})") from error
        inputs = []
        for split, (name, _) in SPLITS.items():
            wanted = f"wiki.{name}.{'raw' if self.level == 'raw' else 'tokens'}"
            found = [member for member in members if PurePosixPath(member).name == wanted]
            if len(found) != 1:
                has = len(found) or "no"
                raise InputError(f"{path}: holds {has} {wanted}; expected the archive {self.folder}-v1.zip")
            inputs.append(Input([path], partial(self._read, path, split, found[0])))
        return inputs

    def _of_folder(self, path: Path) -> list[Input]:
        suffixes = ("wiki.{}.raw", "wiki.{}.tokens", "{}.txt")[self.level == "word" :]
        layouts = [*((pattern, 0) for pattern in suffixes), ("{}-*.parquet", 1)]
        own = self.folder
        for folder in (path, path / own, path / f"{own}-v1", path / own / f"{own}-v1"):
            for pattern, of in layouts:
                files = {split: sorted(folder.glob(pattern.format(names[of]))) for split, names in SPLITS.items()}
                if not any(files.values()):
                    continue
                for split, found in files.items():
                    if not found:
                        name = folder / pattern.format(SPLITS[split][of])
                        raise InputError(f"{name}: missing; WikiText needs all splits")
                # The Hub's rows are lines, and an article may go on in the next file.
                return [Input(found, partial(self._read, found, split)) for split, found in files.items()]
        names = "wiki.{train,valid,test}.tokens or .raw, {train,valid,test}.txt, the published zip or the Hub's parquet"
        raise InputError(f"{path}: holds no {own}; expected {names}")

    def _read(self, source: Path | list[Path], split: str, member: str = "") -> Iterator[Segment]:
        options = ReadOptions("article", empty_documents=self.empty_documents, end_lines=self.documents == "line")
        if isinstance(source, Path):
            try:
                with zipfile.ZipFile(source) as archive, archive.open(member) as file:
                    yield from segments(read_text(cast(BinaryIO, file), str(source), "article", split), options)
            except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
                raise InputError(f"{source}: {member} is broken off or damaged ({one_reason(error)})") from error
        elif source[0].suffix == ".parquet":
            lines = (line or _BLANK for (line,) in read_parquet(source, "text"))
            yield from segments(text_documents(lines, str(source[0]), "article", split), options)
        else:
            with open(source[0], "rb") as file:
                yield from segments(read_text(file, str(source[0]), "article", split), options)
