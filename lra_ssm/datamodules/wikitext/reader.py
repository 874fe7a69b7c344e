"""Finds, fetches and reads WikiText-103 and WikiText-2; documents are articles.

    wikitext-103/wiki.{train,valid,test}.tokens       as published, in wikitext-103-v1.zip; rare words are <unk>
    wikitext-103-raw/wiki.{train,valid,test}.raw      in wikitext-103-raw-v1.zip
    {train,valid,test}.txt                            as Transformer-XL's getdata.sh and PyTorch's examples name them
    wikitext-103{,-raw}-v1/{train,validation,test}-*.parquet    Salesforce/wikitext of the Hub, a line a row

WikiText-2 the same. Lines stay as the files have them, blank ones (" \\n") too, so that `<eos>` for each makes the
published numbers of tokens. Source: Merity et al. (2016), section 4.3.
"""

import io
import logging
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from lra_ssm.datamodules.fetch.download import RemoteFile, download
from lra_ssm.datamodules.fetch.hub import HubDataset
from lra_ssm.datamodules.fetch.sources import download_folder
from lra_ssm.datamodules.language import plain_text
from lra_ssm.datamodules.language.documents import SHARD_BYTES, Buffer, Passage, Reading, Shard
from lra_ssm.datamodules.language.files import stamp
from lra_ssm.errors import InputError
from lra_ssm.files import one_reason

log = logging.getLogger(__name__)

Version = Literal["103", "2"]
Files = tuple[tuple[str, tuple[str, ...]], ...]  # of each split, in order; of an archive its members

DOWNLOADS = "wikitext/download"
PLACES = ("", "wikitext", DOWNLOADS)  # below the data root
SPLITS = {"train": "train", "val": "valid", "test": "test"}  # as files are named
HUB_SPLITS = {"train": "train", "val": "validation", "test": "test"}
_BLANK = " \n"  # what the Hub's files have as an empty row

# Sizes and digests as Hugging Face's loading script recorded them; torchtext's md5 of the two by words agree.
# The publisher's own address answers no more; the first is the first author's.
_ADDRESSES = ("https://wikitext.smerity.com/", "https://s3.amazonaws.com/research.metamind.io/wikitext/")
_DIGESTS = {
    "wikitext-103-v1.zip": (190_229_076, "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590"),
    "wikitext-103-raw-v1.zip": (191_984_949, "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794"),
    "wikitext-2-v1.zip": (4_475_746, "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"),
    "wikitext-2-raw-v1.zip": (4_721_645, "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11"),
}
ARCHIVES = {
    name: RemoteFile(tuple(address + name for address in _ADDRESSES), name, f"sha256:{digest}", size)
    for name, (size, digest) in _DIGESTS.items()
}


class Counts(NamedTuple):
    """Published numbers of a split: lines, and tokens by words with an <eos> for each line."""

    lines: int
    tokens: int


# Merity et al. (2016), table 1, with <eos> counted; lines as torchtext has them.
PUBLISHED: dict[Version, dict[str, Counts]] = {
    "103": {
        "train": Counts(1_801_350, 103_227_021),
        "val": Counts(3_760, 217_646),
        "test": Counts(4_358, 245_569),
    },
    "2": {"train": Counts(36_718, 2_088_628), "val": Counts(3_760, 217_646), "test": Counts(4_358, 245_569)},
}
_READABLE = "wiki.{train,valid,test}.tokens or .raw, {train,valid,test}.txt, the published zip or the Hub's parquet"


@dataclass(frozen=True)
class Articles:
    """WikiText's splits as articles (a `CorpusReader`), of plain files, the zip archive or the Hub's parquet.

    Args:
        source: the folder that the files' paths are told below, or the archive.
        files: of each split; the Hub's rows are lines, and an article may go on in the next file.
        reading: how documents are taken.
        ended_lines: whether end-of-text follows every line that is not blank; the others are left out then.
        shard_bytes: of text in one shard, about.
    """

    source: str
    files: Files
    reading: Reading
    ended_lines: bool = False
    shard_bytes: int = SHARD_BYTES

    def shards(self) -> list[Shard]:
        """Raises InputError: a file cannot be read."""
        found = []
        for split, paths in self.files:
            with self._data(paths) as data:
                divided = plain_text.division(paths[0], data, "article", self.shard_bytes)
            found += [Shard(split, (share,), size) for share, size in divided]
        return found

    def texts(self, shard: Shard) -> Iterator[Passage]:
        """Raises InputError: a damaged file, not UTF-8, or an article without text."""
        with self._data(dict(self.files)[shard.split or ""]) as data:
            found = plain_text.texts(data, shard.ranges[0], self.reading, shard.split)
            yield from _ended_lines(found) if self.ended_lines else found

    def content_settings(self) -> dict[str, Any]:
        """Everything that decides the documents."""
        packed = self._is_archive()
        files = [self.source] if packed else [path for _, paths in self.files for path in paths]
        # Not the same of all forms, so that what was prepared of them stays good.
        of_hub = not packed and files[0].endswith(".parquet")
        form = {"seed": self.reading.seed} if of_hub else {"splits": sorted(split for split, _ in self.files)}
        lines = {"documents": "line"} if self.ended_lines else {}
        return self.reading.settings(by_key=False) | form | stamp(files, Path(self.source)) | lines

    def _is_archive(self) -> bool:
        return Path(self.source).is_file()

    @contextmanager
    def _data(self, paths: tuple[str, ...]) -> Iterator[Buffer]:
        """The text of a split; what is packed is read whole, half a gigabyte at most."""
        if self._is_archive():
            yield _unpacked(self.source, paths[0])
        elif paths[0].endswith(".parquet"):
            yield "".join(line or _BLANK for path in paths for line in _lines(path)).encode()
        else:
            with plain_text.mapped(paths[0]) as data:
                yield data


def _unpacked(archive: str, member: str) -> bytes:
    try:
        with zipfile.ZipFile(archive) as opened:
            return opened.read(member)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise InputError(f"{archive}: {member} is broken off or damaged ({one_reason(error)})") from error


def _lines(path: str) -> list[str]:
    """Rows as the lines of the published files."""
    import pyarrow.parquet  # comes with `datasets`

    try:
        return list(pyarrow.parquet.read_table(path, columns=["text"])["text"].to_pylist())
    except Exception as error:  # of a damaged file pyarrow raises whatever it does
        raise InputError(f"{path}: has no column text, or is broken off or damaged ({one_reason(error)})") from error


def _ended_lines(texts: Iterator[Passage]) -> Iterator[Passage]:
    """Each line by itself, ended; the article begins with its first one that is not blank."""
    begins = False
    for text in texts:
        begins |= text.first
        if not text.text:
            yield text
        for line in io.StringIO(text.text):  # ended by "\n" alone, as str.splitlines' are not
            if not line.isspace():
                yield text._replace(text=line, first=begins, last=True)
                begins = False


class Edition(NamedTuple):
    """One of the four: WikiText-103 or -2, with rare words as <unk>, or raw."""

    version: Version
    raw: bool

    @property
    def folder(self) -> str:
        """The published one: wikitext-103-raw."""
        return f"wikitext-{self.version}{'-raw' if self.raw else ''}"

    @property
    def archive(self) -> str:
        return f"{self.folder}-v1.zip"

    @property
    def hub(self) -> HubDataset:
        """The Hub's parquet files, in a folder for each of the four."""
        name, revision = f"{self.folder}-v1", "b08601e04326c79dfdd32d625aee71d232d685c3"  # as others pin it
        return HubDataset("Salesforce/wikitext", revision, (f"{name}/*.parquet",), DOWNLOADS, f"{name}.json")

    def found(self, root: Path, source: str) -> Path | None:
        """The published ("original") folder or archive below the data root, or what has been fetched of the Hub
        ("huggingface"); None for none."""
        if source == "huggingface":
            fetched = self.hub.found(root)
            return fetched / f"{self.folder}-v1" if fetched else None
        paths = (root / place / name for place in PLACES for name in (self.folder, self.archive))
        return next((path for path in paths if path.exists()), None)

    def fetch(self, root: Path, source: str) -> None:
        """Downloads a source below the data root, if needed. Raises InputError: as `download`, `HubDataset.fetch`."""
        if source == "huggingface":
            self.hub.fetch(root)
        elif self.found(root, source) is None:
            with download_folder(root, DOWNLOADS) as folder:
                download(ARCHIVES[self.archive], folder)


def find_at(path: Path, edition: Edition, reading: Reading, ended_lines: bool = False) -> Articles:
    """WikiText at an existing path: a folder with its files or above one, a zip archive, or the Hub's parquet.

    Args:
        path: where to look.
        edition: decides among the folders below `path`.
        reading, ended_lines: as for `Articles`.

    Raises:
        InputError: there is nothing of the kind, or a split is missing.
    """
    if path.is_file():
        return Articles(str(path), _members(path, edition), reading, ended_lines)
    own = edition.folder
    plain = ("wiki.{}.raw", "wiki.{}.tokens", "{}.txt") if edition.raw else ("wiki.{}.tokens", "{}.txt")
    layouts = [*((pattern, SPLITS) for pattern in plain), ("{}-*.parquet", HUB_SPLITS)]
    for folder in (path, path / own, path / f"{own}-v1", path / own / f"{own}-v1"):
        for pattern, named in layouts:
            files = {split: sorted(folder.glob(pattern.format(name))) for split, name in named.items()}
            if not any(files.values()):
                continue
            for split, found in files.items():
                if not found:
                    raise InputError(f"{folder / pattern.format(named[split])}: missing; WikiText needs all splits")
            by_split = tuple((split, tuple(map(str, paths))) for split, paths in files.items())
            return Articles(str(folder), by_split, reading, ended_lines)
    raise InputError(f"{path}: holds no {own}; expected {_READABLE}")


def _members(archive: Path, edition: Edition) -> Files:
    """The three files in a published archive."""
    try:
        with zipfile.ZipFile(archive) as opened:
            there = opened.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{archive}: cannot be read as WikiText's zip archive ({error})") from error
    found = []
    for split, name in SPLITS.items():
        wanted = f"wiki.{name}.{'raw' if edition.raw else 'tokens'}"
        members = [member for member in there if PurePosixPath(member).name == wanted]
        if len(members) != 1:
            count = len(members) or "no"
            raise InputError(f"{archive}: holds {count} {wanted}; expected the archive {edition.archive}")
        found.append((split, (members[0],)))
    return tuple(found)


def check_counts(edition: Edition, counts: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether splits have the published lines and, by words, tokens; warns where not.

    counts: by split, with "lines" and "words".
    """
    same = True
    for split, published in PUBLISHED[edition.version].items():
        lines, tokens = counts[split]["lines"], counts[split]["lines"] + counts[split]["words"]
        if lines != published.lines or (not edition.raw and tokens != published.tokens):
            others = "others" if edition.raw else f"{published.tokens:,}"
            said = f"{split} has {lines:,} lines and {tokens:,} tokens; published are {published.lines:,} and {others}"
            log.warning("%s: %s", edition.folder, said)
            same = False
    return same
