"""Specifications of tokenizers: parse a setting, then train, load or download the tokenizer.

Only vocabulary.json and tokenizer.json are read from folders and repositories, never code.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lra_ssm.datamodules.language.tokenizer import (
    TOKENIZER,
    UNK,
    VOCABULARY,
    ByteTokenizer,
    CharacterTokenizer,
    SubwordTokenizer,
    TextTokenizer,
    train_bpe,
    words_of,
)
from lra_ssm.errors import InputError, describe_error, hint

KINDS = ("bytes", "characters", "words", "bpe:16000")
MIN_BPE = 257  # all bytes, and the end of text
MAX_BPE = 1 << 24
_CONFIG = "tokenizer_config.json"  # next to a tokenizer.json
_HUB = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(@[\w./-]+)?", re.ASCII)


@dataclass(frozen=True)
class TokenizerSpec:
    """A checked specification.

    Attributes:
        text: the setting.
        size: number of tokens of a bpe.
        path: path of the file, for "file".
        end_of_text: of a tokenizer.json: the token that ends texts; None if it is known or named next to it.
    """

    text: str
    kind: Literal["bytes", "characters", "words", "bpe", "file", "hub"]
    size: int = 0
    path: Path = Path()
    end_of_text: str | None = None

    @property
    def is_trained(self) -> bool:
        """Whether it is trained on the corpus: see `train_tokenizer`."""
        return self.kind in ("characters", "words", "bpe")

    def identity(self) -> str:
        """Return a text that is equal for equal tokenizers: a file's sha256 with the end-of-text token that the file
        next to it names; else the specification. Raises OSError if the file cannot be read."""
        if self.kind == "file":
            end = _read_named_end(self.path)
            return f"sha256:{hashlib.sha256(self.path.read_bytes()).hexdigest()}" + (f" {end}" if end else "")
        return f"bpe:{self.size}" if self.kind == "bpe" else self.text

    def open(self) -> TextTokenizer:
        """Return a tokenizer that is not trained on the corpus; the Hub's tokenizers are in the cache.

        Raises:
            InputError: it is missing, or not a tokenizer.
        """
        assert not self.is_trained
        if self.kind == "bytes":
            return ByteTokenizer()
        path = self.path if self.kind == "file" else _find_on_hub(self.text, cached=True)
        return load_tokenizer(path, self.end_of_text)

    def fetch(self) -> None:
        """Download a tokenizer from the Hub to the cache. Raises InputError if that fails."""
        if self.kind == "hub":
            _find_on_hub(self.text, cached=False)


def parse_tokenizer(text: str, end_of_text: str | None = None) -> TokenizerSpec:
    """Check a specification: a word of KINDS, else an existing path, else a name of the Hub (not looked up).

    Raises:
        InputError: it is not one of these, or a folder has no tokenizer.json.
    """
    if text in ("bytes", "characters", "words"):
        return TokenizerSpec(text, text)  # type: ignore[arg-type]
    if text == "bpe" or text.startswith("bpe:"):
        number = text[4:]
        if not re.fullmatch("[0-9]{1,9}", number) or not MIN_BPE <= int(number) <= MAX_BPE:
            raise InputError(f"tokenizer {text!r}: bpe:N has {MIN_BPE} (all bytes, end of text) to {MAX_BPE} tokens")
        return TokenizerSpec(text, "bpe", int(number))
    path = Path(os.path.expanduser(text))
    if text and path.exists():
        return TokenizerSpec(text, "file", path=_tokenizer_file(path).absolute(), end_of_text=end_of_text)
    if not _HUB.fullmatch(text) or text.endswith(".json"):
        valid = f"{', '.join(KINDS)}, a tokenizer.json, a folder with one, or a name of the hub"
        raise InputError(f"tokenizer {text!r}: there is no such path; it must be {valid}")
    if (suggestion := hint(text, KINDS)).startswith("did you mean"):
        raise InputError(f"tokenizer {text!r}: {suggestion}")
    return TokenizerSpec(text, "hub", end_of_text=end_of_text)


def train_tokenizer(spec: TokenizerSpec, texts: Iterable[str]) -> TextTokenizer:
    """Return a tokenizer (words, characters or bpe) made from the training documents, or their segments, in order.

    Memory is bounded by the distinct words (characters), not by the texts.
    """
    if spec.kind == "bpe":
        return train_bpe(texts, spec.size)
    counts = Counter[str]()
    for text in texts:
        counts.update(text.split() if spec.kind == "words" else text)
    if spec.kind == "characters":
        return CharacterTokenizer(sorted(counts, key=lambda character: (-counts[character], character)))
    ranked = [word for word, _ in counts.most_common()]
    return words_of(ranked if UNK in counts else [*ranked, UNK])


def load_tokenizer(path: Path, end_of_text: str | int | None = None) -> TextTokenizer:
    """Return a tokenizer from a saved file, or from the folder that holds it: vocabulary.json or else tokenizer.json.

    Args:
        path: the file or folder.
        end_of_text: of a tokenizer.json: the token, or its id, that ends texts; see `SubwordTokenizer`.

    Raises:
        InputError: it is not a tokenizer that this package reads, or the folder has none.
        OSError: the file cannot be read.
    """
    path = _tokenizer_file(path)
    return read_tokenizer(path.read_bytes(), str(path), end_of_text, _read_named_end(path))


def read_tokenizer(
    data: bytes, name: str, end_of_text: str | int | None = None, named_end: str | None = None
) -> TextTokenizer:
    """Return a tokenizer from the content of its file, which messages call `name`; for the rest see `SubwordTokenizer`.

    Raises InputError if it is not a tokenizer that this package reads.
    """
    content = _parse_json(data, name)
    if "kind" not in content:
        return SubwordTokenizer(data, end_of_text, name, named_end)
    try:
        return ByteTokenizer() if content["kind"] == "bytes" else CharacterTokenizer(content["tokens"])
    except (KeyError, TypeError) as error:  # no tokens, or not characters
        raise InputError(f"{name}: is not a saved vocabulary of bytes or characters") from error


def _tokenizer_file(path: Path) -> Path:
    """Return the file of a tokenizer. Raises InputError if the folder has none."""
    if not path.is_dir():
        return path
    for name in (VOCABULARY, TOKENIZER):
        if (path / name).is_file():
            return path / name
    raise InputError(f"{path}: has no {TOKENIZER}, the form of tokenizer that runs no code")


def _read_named_end(path: Path) -> str | None:
    """Return the end-of-text token that the tokenizer_config.json next to it names; None for none."""
    config = path.with_name(_CONFIG)
    if not config.is_file():
        return None
    token = _parse_json(config.read_bytes(), config).get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _parse_json(data: bytes, path: Path | str) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not a tokenizer: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: is not a tokenizer: JSON, but not an object")
    return content


def _find_on_hub(name: str, cached: bool) -> Path:
    """Return a repository's tokenizer.json in the Hub's cache, next to its tokenizer_config.json if it has one.

    `cached` uses no network.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    download = partial(hf_hub_download, repository, revision=revision or None, local_files_only=cached)
    try:
        file = download(TOKENIZER)
        with suppress(EntryNotFoundError):  # also raised for a file that the cache lacks
            download(_CONFIG)
        return Path(file)
    except Exception as error:  # of the Hub, the network or the disk
        reason = f"its {TOKENIZER} cannot be downloaded from the hub ({describe_error(error)})"
        if cached and isinstance(error, LocalEntryNotFoundError):
            reason = (
                f"the hub's cache has no {TOKENIZER} of it; `lra-ssm prepare` downloads it where there is a network"
            )
        raise InputError(f"tokenizer {name}: {reason}; or give a path, or one of {', '.join(KINDS)}") from error
