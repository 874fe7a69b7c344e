"""Texts as tokens: the characters of the S4 code, or the bytes of the original LRA code.

"characters" (state-spaces/s4, src/dataloaders/lra.py at e757cef): a text is cut to max_length − 1 characters, `<eos>`
follows. Ids are `<pad>` 0, `<unk>` 1, `<eos>` 2, then the characters that the cut training texts hold at least min_freq
times, the most frequent first and equally frequent ones by code point: the order of torchtext's
build_vocab_from_iterator (torchtext.vocab.vocab_factory).

"bytes" (google-research/long-range-arena at cd31e5c, {text_classification,matching}/input_pipeline.py): the UTF-8 bytes
of a text, cut to max_length of them, without an end token, by TFDS' ByteTextEncoder (tensorflow_datasets/core/
deprecated/text/text_encoder.py): id = byte + 1, 0 pads, 257 ids. All read in the sources, nothing from memory. One
departure: a text without bytes is one `<pad>` here, for a sequence must not be empty (there it is nothing but padding).

Needs numpy alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.old_storage.arrays import IntArray
from lra_ssm.errors import InputError

Inputs = Literal["characters", "bytes"]
SPECIALS = ("<pad>", "<unk>", "<eos>")
PAD_ID, UNK_ID, EOS_ID = range(len(SPECIALS))
BYTE_VOCABULARY = ("<pad>", *(f"<0x{byte:02X}>" for byte in range(256)))

_CODE_POINTS = 0x110000  # Unicode has no more
_MOST_TOKENS = 1 << 16  # ids have 16 bits


class Encoded(NamedTuple):
    """Sequences one after another: tokens (sum of lengths,) of an unsigned dtype, lengths (n,) int64."""

    tokens: IntArray
    lengths: npt.NDArray[np.int64]


class CharacterCounts:
    """How often each character occurs in the texts added so far."""

    def __init__(self) -> None:
        self.counts = np.zeros(_CODE_POINTS, dtype=np.int64)

    def add(self, texts: Sequence[str]) -> None:
        """Counts the characters of texts, which the caller has cut."""
        self.counts += np.bincount(_code_points(texts), minlength=_CODE_POINTS)

    def frequent(self, min_freq: int) -> tuple[str, ...]:
        """The characters that occur at least so often: by falling frequency, then by code point."""
        codes = np.flatnonzero(self.counts >= max(min_freq, 1))
        order = np.argsort(-self.counts[codes], kind="stable")
        return tuple(chr(code) for code in codes[order])


class LraCharacters:
    """Characters as the S4 code has them; others than the given ones are `<unk>`.

    Args:
        characters: in the order of their ids, which follow those of SPECIALS.
        max_length: of a sequence, `<eos>` included.

    Raises:
        InputError: there are more characters than tokens can be stored.
    """

    def __init__(self, characters: Sequence[str], max_length: int) -> None:
        self.vocabulary = (*SPECIALS, *characters)
        self.reads = max_length - 1
        if len(self.vocabulary) > _MOST_TOKENS:
            raise InputError(f"the texts hold {len(characters):,} distinct characters; raise min_freq to keep fewer")
        self._ids = np.full(_CODE_POINTS, UNK_ID, dtype=np.uint16)
        self._ids[[ord(character) for character in characters]] = np.arange(len(SPECIALS), len(self.vocabulary))

    def encode(self, texts: Sequence[str]) -> Encoded:
        """The sequences of texts (n), each ended by `<eos>`."""
        cut = [text[: self.reads] for text in texts]
        lengths = np.fromiter(map(len, cut), np.int64, len(cut))
        return Encoded(np.insert(self._ids[_code_points(cut)], np.cumsum(lengths), EOS_ID), lengths + 1)


class LraBytes:
    """UTF-8 bytes as the original LRA code has them.

    Args:
        max_length: of a sequence, in bytes; may cut a character of several bytes in two, as there.
    """

    def __init__(self, max_length: int) -> None:
        self.vocabulary = BYTE_VOCABULARY
        self.reads = max_length

    def encode(self, texts: Sequence[str]) -> Encoded:
        """The sequences of texts (n): one `<pad>` for an empty text."""
        cut = [text[: self.reads].encode()[: self.reads] for text in texts]
        lengths = np.fromiter(map(len, cut), np.int64, len(cut))
        tokens = np.frombuffer(b"".join(cut), dtype=np.uint8) + np.uint16(1)
        return Encoded(np.insert(tokens, np.cumsum(lengths)[lengths == 0], PAD_ID), np.maximum(lengths, 1))


# With `vocabulary`, tokens in the order of their ids, and `reads`: characters of a text that it looks at.
Tokenizer = LraCharacters | LraBytes


@dataclass(frozen=True)
class TokenSettings:
    """How texts become tokens; meanings as for `Text`. Raises InputError for what cannot be."""

    inputs: Inputs
    max_length: int
    min_freq: int

    def __post_init__(self) -> None:
        if self.inputs not in get_args(Inputs):
            raise InputError(f"inputs {self.inputs!r}: must be {' or '.join(get_args(Inputs))}")
        for name, least in {"max_length": 2, "min_freq": 1}.items():
            if getattr(self, name) < least:
                raise InputError(f"{name} {getattr(self, name)!r}: must be at least {least}")

    @property
    def counts_characters(self) -> bool:
        """Whether the vocabulary is made of the training texts."""
        return self.inputs == "characters"

    @property
    def reads(self) -> int:
        """Characters of a text that are looked at: with "characters" as many as a sequence can hold."""
        return self.max_length - 1 if self.counts_characters else self.max_length

    def tokenizer(self, counts: CharacterCounts) -> Tokenizer:
        """counts: of the training texts, each cut to `reads`."""
        if self.counts_characters:
            return LraCharacters(counts.frequent(self.min_freq), self.max_length)
        return LraBytes(self.max_length)

    def saved_tokenizer(self, vocabulary: Sequence[str] | None) -> Tokenizer:
        """By a vocabulary that was made before; None of one that is not known, which characters need.

        Raises InputError: it is not known, or it is of other settings.
        """
        if not self.counts_characters:
            return LraBytes(self.max_length)
        if vocabulary is None:
            raise InputError("the vocabulary, which was made of the training texts, is not among the model's files")
        if tuple(vocabulary[: len(SPECIALS)]) != SPECIALS or any(
            len(token) != 1 for token in vocabulary[len(SPECIALS) :]
        ):
            raise InputError(f"the vocabulary is none of {', '.join(SPECIALS)} and characters")
        return LraCharacters(vocabulary[len(SPECIALS) :], self.max_length)

    def content_settings(self) -> dict[str, Any]:
        """The settings that matter: min_freq for characters alone."""
        counted = {"min_freq": self.min_freq} if self.counts_characters else {}
        return {"inputs": self.inputs, "max_length": self.max_length, **counted}


def encode_own(tokenizer: Tokenizer, names: Sequence[str], texts: Sequence[str]) -> tuple[Encoded, list[str]]:
    """Texts of a user's own by a tokenizer as the data's, and a line on each kind of thing that is lost in them.

    names: what each text is called.
    """
    encoded, notes = tokenizer.encode(texts), []
    with_bytes = isinstance(tokenizer, LraBytes)
    named = list(zip(names, texts, strict=True))
    if long := [name for name, text in named if len(text.encode() if with_bytes else text) > tokenizer.reads]:
        unit = "bytes" if with_bytes else "characters"
        notes.append(f"{len(long)} texts are cut to {tokenizer.reads:,} {unit}, as the data is; the first is {long[0]}")
    if with_bytes:
        return encoded, notes
    known = {*tokenizer.vocabulary}
    if unknown := [(name, found) for name, text in named if (found := sorted({*text[: tokenizer.reads]} - known))]:
        name, found = unknown[0]
        which = " ".join(map(repr, found[:5]))
        notes.append(f"{len(unknown)} texts have characters that the data has not, which are <unk>: {which} in {name}")
    return encoded, notes


def _code_points(texts: Sequence[str]) -> IntArray:
    return np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
