"""Texts as tokens for LRA's Text and Retrieval: the characters of the S4 code, or the bytes of the original LRA code.

"characters" (state-spaces/s4, src/dataloaders/lra.py at e757cef): a text is cut to max_length − 1 characters, `<eos>`
follows. Ids are `<pad>` 0, `<unk>` 1, `<eos>` 2, then the characters that occur at least min_freq times in the cut
training texts, the most frequent first and equally frequent ones by code point: the order of torchtext's
build_vocab_from_iterator (torchtext.vocab.vocab_factory).

"bytes" (google-research/long-range-arena at cd31e5c, {text_classification,matching}/input_pipeline.py): the UTF-8 bytes
of a text, cut to max_length of them, without an end token, by TFDS' ByteTextEncoder (tensorflow_datasets/core/
deprecated/text/text_encoder.py): id = byte + 1, 0 pads, 257 ids. One departure: a text without bytes is one `<pad>`
here, because a sequence must not be empty (there it is nothing but padding).
"""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.sequences import SequenceData

SPECIALS = ("<pad>", "<unk>", "<eos>")
PAD_ID, UNK_ID, EOS_ID = range(len(SPECIALS))
BYTE_VOCABULARY = ("<pad>", *(f"<0x{byte:02X}>" for byte in range(256)))

_CODE_POINTS = 0x110000  # Unicode has no more


class Characters:
    """Characters as in the S4 code; characters that are not in the vocabulary are `<unk>`.

    Args:
        texts: training texts, from which the vocabulary is made.
        min_freq: rarer characters are `<unk>`.
        max_length: longest sequence, `<eos>` included.
    """

    def __init__(self, texts: Iterable[str], min_freq: int, max_length: int) -> None:
        self.max_length = max_length
        counts = Counter[str]()
        for text in texts:
            counts.update(text[: max_length - 1])
        frequent = sorted((c for c in counts if counts[c] >= min_freq), key=lambda c: (-counts[c], c))
        self.vocabulary = (*SPECIALS, *frequent)
        self._ids = np.full(_CODE_POINTS, UNK_ID, dtype=np.uint32)
        self._ids[[ord(character) for character in frequent]] = np.arange(len(SPECIALS), len(self.vocabulary))

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        """Return the tokens of a text (at most max_length,), ended by `<eos>`."""
        codes = np.frombuffer(text[: self.max_length - 1].encode("utf-32-le"), dtype="<u4")
        return np.append(self._ids[codes], np.uint32(EOS_ID))


class Bytes:
    """UTF-8 bytes as the original LRA code has them; max_length may cut a character of several bytes in two."""

    vocabulary = BYTE_VOCABULARY

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length

    def encode(self, text: str) -> npt.NDArray[np.uint16]:
        """Return the tokens of a text (at most max_length,): one `<pad>` for an empty text."""
        data = np.frombuffer(text[: self.max_length].encode()[: self.max_length], dtype=np.uint8)
        return data + np.uint16(1) if len(data) else np.array([PAD_ID], np.uint16)


class CharacterData(SequenceData):
    """Base of Text and Retrieval: texts as characters or bytes. Their docstrings describe the settings."""

    inputs: Literal["characters", "bytes"] = "characters"
    max_length: int
    min_freq: int

    def encoder(self, texts: Iterable[str]) -> Characters | Bytes:
        """Return the encoder of texts, and set `vocabulary`; training texts are read only for "characters"."""
        if self.inputs == "characters":
            encoder: Characters | Bytes = Characters(texts, self.min_freq, self.max_length)
        else:
            encoder = Bytes(self.max_length)
        self.vocabulary = encoder.vocabulary
        return encoder
