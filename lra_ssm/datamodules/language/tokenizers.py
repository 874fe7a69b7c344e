"""Texts as tokens of one flat array, and back: bytes, characters, words; `subwords` has the fourth.

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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from lra_ssm.datamodules.old_storage.arrays import IntArray
from lra_ssm.datamodules.old_storage.vocabulary import Encoded
from lra_ssm.datamodules.old_storage.writer import token_dtype
from lra_ssm.errors import InputError
from lra_ssm.files import replacing

VOCABULARY = "vocabulary.json"
EOS, UNK = "<eos>", "<unk>"
_CODE_POINTS = 0x110000  # Unicode has no more
_REPLACEMENT = "\ufffd"  # what `decode` gives for bytes that are no whole character


class TextTokenizer(ABC):
    """Makes tokens of texts, which are whole documents or segments of them.

    Equal tokenizers have equal digests and equal end_of_text. One can be pickled.

    Attributes:
        vocab_size: tokens are 0 … vocab_size − 1.
        end_of_text: the token that ends a document. None but the ends of documents (with words, of lines) become it,
            whatever a text says.
        end_of_text_name: the same as text.
        file: what `save` writes.
        dtype: of tokens, the smallest of uint8, uint16, uint32 that holds them.
        ends_lines: end_of_text ends every line, and thereby the text.
    """

    file = VOCABULARY
    end_of_text_name = EOS
    ends_lines = False

    def __init__(self, vocab_size: int, end_of_text: int) -> None:
        self.vocab_size, self.end_of_text = vocab_size, end_of_text
        self.dtype = np.dtype(token_dtype(vocab_size))

    def encode(self, texts: Sequence[str], last: Sequence[bool]) -> Encoded:
        """The tokens of texts (n); last (n): whether a text ends its document, whereupon end_of_text follows.

        Raises:
            InputError: a text holds half of a surrogate pair, or something that the tokenizer has no token for.
        """
        try:
            arrays = list(self._encode(texts, last))
        except UnicodeEncodeError as error:
            half = f"U+{ord(error.object[error.start]):04X}"
            raise InputError(f"the text holds {half}, half of a surrogate pair, which is no character") from error
        lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
        tokens = np.concatenate([np.empty(0, self.dtype), *arrays])
        if not self.ends_lines:
            is_last = np.array(last, dtype=bool)
            tokens = np.insert(tokens, np.cumsum(lengths)[is_last], self.end_of_text)
            lengths += is_last
        return Encoded(tokens, lengths)

    @abstractmethod
    def _encode(self, texts: Sequence[str], last: Sequence[bool]) -> Iterable[IntArray]:
        """The tokens of each text, without the end of a document."""

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

    def _within(self, ids: Iterable[int] | IntArray) -> list[int]:
        """The ids. Raises InputError where one is no token."""
        found = [int(i) for i in ids]
        if wrong := [i for i in found if not 0 <= i < self.vocab_size]:
            raise InputError(f"token {wrong[0]} is none of 0 to {self.vocab_size - 1}")
        return found


class ByteTokenizer(TextTokenizer):
    """The bytes of the UTF-8."""

    def __init__(self) -> None:
        super().__init__(257, 256)

    def _encode(self, texts: Sequence[str], last: Sequence[bool]) -> Iterator[IntArray]:
        return (np.frombuffer(text.encode(), np.uint8) for text in texts)

    def decode(self, ids: Iterable[int] | IntArray) -> str:
        parts = "".join(map(chr, self._within(ids))).split(chr(self.end_of_text))
        return EOS.join(part.encode("latin-1").decode("utf-8", "replace") for part in parts)

    def content(self) -> bytes:
        return _vocabulary(kind="bytes")


class CharacterTokenizer(TextTokenizer):
    """Characters; others than the given ones are `<unk>`.

    Args:
        characters: distinct, in the order of their ids, which follow those of `<eos>` and `<unk>`.
    """

    def __init__(self, characters: Sequence[str]) -> None:
        super().__init__(2 + len(characters), 0)
        self.characters = tuple(characters)
        self._shown = EOS, UNK, *characters
        self._ids = np.full(_CODE_POINTS, 1, self.dtype)
        self._ids[[ord(character) for character in characters]] = np.arange(2, self.vocab_size)

    @classmethod
    def made_of(cls, texts: Iterable[str]) -> Self:
        """With the characters of texts, by how often they occur."""
        counts = Counter[str]()
        for text in texts:
            counts.update(text)
        return cls(sorted(counts, key=lambda character: (-counts[character], character)))

    def _encode(self, texts: Sequence[str], last: Sequence[bool]) -> Iterator[IntArray]:
        return (self._ids[np.frombuffer(text.encode("utf-32-le"), "<u4")] for text in texts)

    def decode(self, ids: Iterable[int] | IntArray) -> str:
        return "".join(self._shown[i] for i in self._within(ids))

    def unknown(self, text: str) -> list[str]:
        return [character for character in dict.fromkeys(text) if self._ids[ord(character)] == 1]

    def content(self) -> bytes:
        return _vocabulary(kind="characters", tokens=self.characters)


class WordTokenizer(TextTokenizer):
    """Words; others than the given ones are `<unk>`.

    Args:
        words: distinct, without `<eos>`, in the order of their ids, which follow `<eos>`'s; with `<unk>`.
    """

    ends_lines = True

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(1 + len(words), 0)
        self.words = tuple(words)
        self._shown = "\n", *words  # "\n", which no word is, stands for the end of a line
        self._ids = {word: i for i, word in enumerate(self._shown)}

    @classmethod
    def made_of(cls, texts: Iterable[str]) -> Self:
        """With the words of texts, by how often they occur."""
        counts = Counter[str]()
        for text in texts:
            counts.update(text.split())
        counts.pop(EOS, None)
        ranked = [word for word, _ in counts.most_common()]
        return cls(ranked if UNK in counts else [*ranked, UNK])

    def _encode(self, texts: Sequence[str], last: Sequence[bool]) -> Iterator[IntArray]:
        for text, is_last in zip(texts, last, strict=True):
            lines = text.split("\n")
            if is_last and (lines[-1] or len(lines) == 1):  # the last line of a document needs no "\n"
                lines.append("")
            words = [word for line in lines for word in (*line.split(), "\n")][:-1]
            yield np.array([self._ids.get(word, self._ids[UNK]) for word in words], self.dtype)

    def decode(self, ids: Iterable[int] | IntArray) -> str:
        return re.sub(" ?\n ?", "\n", " ".join(self._shown[i] for i in self._within(ids)))

    def unknown(self, text: str) -> list[str]:
        return [word for word in dict.fromkeys(text.split()) if word not in self._ids]

    def content(self) -> bytes:
        return _vocabulary(kind="words", tokens=self.words)


def _vocabulary(**content: str | Sequence[str]) -> bytes:
    return (json.dumps(content) + "\n").encode()


class TextStream:
    """The text of tokens, one by one.

    A character whose bytes are divided between tokens is held back until it is whole. What a token costs does not grow
    with the text.

    Args:
        before: tokens that the text goes on from; what they say is not repeated.
    """

    def __init__(self, tokenizer: TextTokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        # A token may read otherwise at the beginning of a text (without its space): the ones before are decoded again.
        self._before, self._held = list(before), list[int]()

    def add(self, token: int) -> str:
        """The text that is certain with this token; empty where the next one decides."""
        self._held.append(token)
        text = self._text()
        return "" if text.endswith(_REPLACEMENT) else self._given(text)

    def rest(self) -> str:
        """What was held back, where no further token comes."""
        return self._given(self._text()) if self._held else ""

    def _text(self) -> str:
        return self._tokenizer.decode(self._before + self._held)[len(self._tokenizer.decode(self._before)) :]

    def _given(self, text: str) -> str:
        self._before, self._held = self._held, []
        return text
