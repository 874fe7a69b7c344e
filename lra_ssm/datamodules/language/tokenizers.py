"""Texts of any length as tokens of one flat array, and back: bytes, characters, words; `subwords` has the fourth.

- bytes: ids 0–255 are the bytes of the UTF-8, 256 ends a text.
- characters: `<eos>` 0, `<unk>` 1, then those of the training texts, the most frequent first, equally frequent ones by
  code point; every one that they hold (min_freq 1).
- words, as state-spaces/s4 (src/dataloaders/lm.py) and transformer-xl (utils/vocabulary.py) have them: split at white
  space, case kept; `<eos>`, id 0, ends every line, blank ones too, and thereby the text; then by falling frequency in
  the training texts, equally frequent ones by first occurrence. `<unk>` is one of these words as WikiText has it; where
  the training texts do not hold it, it has the last id. A word "<eos>" of a text is unknown: no text ends lines but by
  ending them.

Needs numpy alone.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.storage.arrays import IntArray
from lra_ssm.datamodules.storage.writer import token_dtype
from lra_ssm.errors import InputError
from lra_ssm.files import replacing

VOCABULARY = "vocabulary.json"
EOS, UNK = "<eos>", "<unk>"
_CODE_POINTS = 0x110000  # Unicode has no more


class Encoded(NamedTuple):
    """Texts one after another: tokens (sum of lengths,) of the tokenizer's dtype, read-only; lengths (n,) int64."""

    tokens: IntArray
    lengths: npt.NDArray[np.int64]


class TextTokenizer(ABC):
    """Makes tokens of texts, which are whole documents or segments of them.

    Equal tokenizers have equal digests and equal end_of_text. One can be pickled.

    Attributes:
        vocab_size: tokens are 0 … vocab_size − 1.
        end_of_text: the token that ends a document. None but the ends of documents (with words, of lines) become it,
            whatever a text says.
        file: what `save` writes.
        dtype: of tokens, the smallest of uint8, uint16, uint32 that holds them.
        ends_lines: end_of_text ends every line, and thereby the text.
    """

    file: str
    ends_lines = False

    def __init__(self, vocab_size: int, end_of_text: int) -> None:
        self.vocab_size, self.end_of_text = vocab_size, end_of_text
        self.dtype = np.dtype(token_dtype(vocab_size))

    def encode(self, texts: Sequence[str], last: Sequence[bool]) -> Encoded:
        """The tokens of texts (n); last (n): whether a text ends its document, whereupon end_of_text follows.

        Raises:
            InputError: a text holds half of a surrogate pair, or something that the tokenizer has no token for.
        """
        end = np.array(self.end_of_text, self.dtype).tobytes()
        data, counts = list[bytes](), np.empty(len(texts), np.int64)
        try:
            for i, (parts, ends) in enumerate(zip(self._encode_all(texts, last), last, strict=True)):
                tokens = [*parts, *([end] if ends and not self.ends_lines else ())]
                data += tokens
                counts[i] = sum(map(len, tokens))
        except UnicodeEncodeError as error:
            half = f"U+{ord(error.object[error.start]):04X}"
            raise InputError(f"the text holds {half}, half of a surrogate pair, which is no character") from error
        return Encoded(np.frombuffer(b"".join(data), self.dtype), counts // self.dtype.itemsize)

    def _encode_all(self, texts: Sequence[str], last: Sequence[bool]) -> Iterable[Iterable[bytes]]:
        """`_encode` of each."""
        return map(self._encode, texts, last)

    @abstractmethod
    def _encode(self, text: str, last: bool) -> Iterable[bytes]:
        """The memory of the tokens of a text, of self.dtype, in order."""

    @abstractmethod
    def decode(self, ids: Iterable[int] | IntArray) -> str:
        """The text of tokens; what is no UTF-8 becomes U+FFFD."""

    def unknown(self, text: str) -> list[str]:
        """The parts of a text that no token but `<unk>` stands for, each once; none where bytes are tokens."""
        return []

    @abstractmethod
    def content(self) -> bytes:
        """What `save` writes."""

    def save(self, folder: Path) -> Path:
        """Writes `file` into a folder, whole or not at all; returns its path."""
        with replacing(folder / self.file, "wb") as file:
            file.write(self.content())
        return folder / self.file

    @property
    def digest(self) -> str:
        """sha256 of what `save` writes, in hexadecimal."""
        return hashlib.sha256(self.content()).hexdigest()

    @property
    def end_of_text_name(self) -> str:
        """The end-of-text token as text."""
        return EOS


class ByteTokenizer(TextTokenizer):
    """The bytes of the UTF-8."""

    file = VOCABULARY

    def __init__(self) -> None:
        super().__init__(257, 256)

    def _encode(self, text: str, last: bool) -> Iterable[bytes]:
        return [np.frombuffer(text.encode(), np.uint8).astype(self.dtype).tobytes()]

    def decode(self, ids: Iterable[int] | IntArray) -> str:
        parts = _array(ids, self.vocab_size).astype(np.uint16).tobytes().decode("utf-16-le")  # one character a token
        return EOS.join(part.encode("latin-1").decode("utf-8", "replace") for part in parts.split("\u0100"))

    def content(self) -> bytes:
        return _vocabulary("bytes", None)


class CharacterTokenizer(TextTokenizer):
    """Characters; others than the given ones are `<unk>`.

    Args:
        characters: distinct, in the order of their ids, which follow those of `<eos>` and `<unk>`.
    """

    file = VOCABULARY

    def __init__(self, characters: Sequence[str]) -> None:
        super().__init__(2 + len(characters), 0)
        self.characters = tuple(characters)
        self._ids = np.full(_CODE_POINTS, 1, self.dtype)
        self._ids[[ord(character) for character in characters]] = np.arange(2, self.vocab_size)
        self._shown = np.array([EOS, UNK, *characters], dtype=object)

    def _encode(self, text: str, last: bool) -> Iterable[bytes]:
        return [self._ids[np.frombuffer(text.encode("utf-32-le"), "<u4")].tobytes()]

    def decode(self, ids: Iterable[int] | IntArray) -> str:
        return "".join(self._shown[_array(ids, self.vocab_size)])

    def unknown(self, text: str) -> list[str]:
        return [character for character in dict.fromkeys(text) if self._ids[ord(character)] == 1]

    def content(self) -> bytes:
        return _vocabulary("characters", self.characters)


class WordTokenizer(TextTokenizer):
    """Words; others than the given ones are `<unk>`.

    Args:
        words: distinct, without `<eos>`, in the order of their ids, which follow `<eos>`'s; with `<unk>`.
    """

    file = VOCABULARY
    ends_lines = True

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(1 + len(words), 0)
        self.words = tuple(words)
        ids = np.arange(self.vocab_size).astype(self.dtype)
        # "\n", which no word is, stands for the end of a line
        self._ids = _Known({word: ids[i].tobytes() for i, word in enumerate(("\n", *words))})
        self._ids.unknown = self._ids[UNK]

    def _encode(self, text: str, last: bool) -> Iterable[bytes]:
        *lines, rest = text.split("\n")
        if last and (rest or not lines):  # the last line needs no "\n"
            lines, rest = [*lines, rest], ""
        words = list[str]()
        for line in lines:
            words += line.split()
            words.append("\n")
        return [b"".join(map(self._ids.__getitem__, words + rest.split()))]

    def decode(self, ids: Iterable[int] | IntArray) -> str:
        shown = np.array(["\n", *self.words], dtype=object)[_array(ids, self.vocab_size)]
        return re.sub(" ?\n ?", "\n", " ".join(shown))

    def unknown(self, text: str) -> list[str]:
        return [word for word in dict.fromkeys(text.split()) if word not in self._ids]

    def content(self) -> bytes:
        return _vocabulary("words", self.words)


class _Known(dict[str, bytes]):
    unknown: bytes

    def __missing__(self, word: str) -> bytes:
        return self.unknown


def read_file(path: Path) -> bytes:
    """Raises InputError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def parse(data: bytes, path: Path | str) -> dict[str, Any]:
    """Raises InputError where data are no JSON object."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no tokenizer: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: is no tokenizer: JSON, but no object")
    return content


def _vocabulary(kind: str, tokens: Sequence[str] | None) -> bytes:
    return (json.dumps({"kind": kind} if tokens is None else {"kind": kind, "tokens": tokens}) + "\n").encode()


def _array(ids: Iterable[int] | IntArray, vocab_size: int) -> IntArray:
    array = ids if isinstance(ids, np.ndarray) else np.fromiter(ids, np.int64)
    if array.size and (array.min() < 0 or array.max() >= vocab_size):
        raise InputError(f"token {array.max() if array.min() >= 0 else array.min()} is none of 0 to {vocab_size - 1}")
    return array
