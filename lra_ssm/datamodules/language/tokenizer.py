"""Tokenizers: encode texts as one flat array of tokens, and decode tokens.

- bytes: ids 0–255 are the bytes of the UTF-8, 256 ends a text.
- characters: `<eos>` 0, `<unk>` 1, then those of the training texts, the most frequent first, equally frequent ones by
  code point; every one that they hold (min_freq 1).
- words, as in state-spaces/s4 (src/dataloaders/lm.py) and transformer-xl (utils/vocabulary.py): split at white space,
  with their case. Id 0 is the end of a line, which ends every line, blank ones too, and thereby the text. Words follow
  by falling frequency in the training texts, equally frequent ones by first occurrence. `<unk>` is one of them, as
  in WikiText; if the training texts do not have it, it gets the last id. A tokenizer.json of the model WordLevel.
- bpe: a byte-level BPE trained on the training texts (Sennrich et al. 2016; the bytes as GPT-2 has them, Radford et al.
  2019): the same file for the same texts however they are cut or computed.
- any tokenizer.json of Hugging Face's `tokenizers`, a file or from the Hub.
"""

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra_ssm.datamodules.storage import Array, IntArray, token_dtype
from lra_ssm.errors import InputError, hint
from lra_ssm.files import replacing

VOCABULARY, TOKENIZER = "vocabulary.json", "tokenizer.json"
EOS, UNK, LINE_END = "<eos>", "<unk>", "\n"
END_OF_TEXT = "<|endoftext|>"  # of a BPE that is made here
# End-of-text tokens of well-known tokenizers, the most specific first.
KNOWN_END_TOKENS = (END_OF_TEXT, "<|end_of_text|>", "<|eos|>", "</s>", "<eos>", "[EOS]", "[SEP]", "<|im_end|>")
_CODE_POINTS = 0x110000  # Unicode has no more


class Encoded(NamedTuple):
    """The tokens of all texts, one text after another (all,), and the number of tokens of each text (texts,) int64."""

    tokens: Array
    lengths: IntArray


class TextTokenizer(ABC):
    """Encodes texts, which are whole documents or segments of them.

    Equal tokenizers have equal digests and equal end_of_text.

    Attributes:
        vocab_size: tokens are 0 … vocab_size − 1.
        end_of_text: the token that ends a document. Only ends of documents (with words, of lines) become this token; a
            text that spells it out does not.
        end_of_text_name: the same as text.
        file: what `save` writes.
        dtype: of tokens, the smallest of uint8, uint16, uint32 that holds them.
        ends_lines: end_of_text ends every line, and thereby the text.
        prefix: tokens that transformers puts before every text (Llama's <s>); documents of a corpus have none of them.
    """

    file = VOCABULARY
    end_of_text_name = EOS
    ends_lines = False
    prefix: tuple[int, ...] = ()

    def __init__(self, vocab_size: int, end_of_text: int) -> None:
        self.vocab_size, self.end_of_text = vocab_size, end_of_text
        self.dtype = np.dtype(token_dtype(vocab_size))

    def encode(self, texts: Sequence[str], last: Sequence[bool]) -> Encoded:
        """Return the tokens of texts (n); last (n): whether a text ends its document, so that end_of_text follows.

        Raises:
            InputError: a text holds half of a surrogate pair, or something that the tokenizer has no token for.
        """
        try:
            arrays = list(self._encode(texts, last))
        except UnicodeEncodeError as error:
            half = f"U+{ord(error.object[error.start]):04X}"
            raise InputError(f"the text holds {half}, half of a surrogate pair, which is not a character") from error
        lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
        tokens = np.concatenate([np.empty(0, self.dtype), *arrays])
        if not self.ends_lines:
            is_last = np.array(last, dtype=bool)
            tokens = np.insert(tokens, np.cumsum(lengths)[is_last], self.end_of_text)
            lengths += is_last
        return Encoded(tokens, lengths)

    @abstractmethod
    def _encode(self, texts: Sequence[str], last: Sequence[bool]) -> Iterable[Array]:
        """Return the tokens of each text, without the end of a document."""

    @abstractmethod
    def decode(self, ids: Iterable[int] | Array) -> str:
        """Return the text of tokens; what is not UTF-8 becomes U+FFFD."""

    def unknown(self, text: str) -> list[str]:
        """Return the distinct parts of a text that become `<unk>`; none where bytes are tokens."""
        return []

    @abstractmethod
    def content(self) -> bytes:
        """Return the bytes that `save` writes."""

    def save(self, folder: Path) -> Path:
        """Write `file` into a folder, whole or not at all; return its path."""
        with replacing(folder / self.file, "wb") as file:
            file.write(self.content())
        return folder / self.file

    @property
    def digest(self) -> str:
        """The sha256 of the saved file, in hexadecimal."""
        return hashlib.sha256(self.content()).hexdigest()

    @property
    def stop(self) -> tuple[int, ...]:
        """The tokens after which a generated text ends."""
        return () if self.ends_lines else (self.end_of_text,)


class CharacterTokenizer(TextTokenizer):
    """Characters; all except the listed ones are `<unk>`. (numpy: forty times as fast as `tokenizers`.)

    Args:
        characters: distinct, in the order of their ids, which follow those of `<eos>` and `<unk>`.
    """

    def __init__(self, characters: Sequence[str]) -> None:
        super().__init__(2 + len(characters), 0)
        self.characters = tuple(characters)
        self._names = EOS, UNK, *characters
        self._ids = np.full(_CODE_POINTS, 1, self.dtype)
        self._ids[[ord(character) for character in characters]] = np.arange(2, self.vocab_size)

    def _encode(self, texts: Sequence[str], last: Sequence[bool]) -> Iterator[Array]:
        return (self._ids[np.frombuffer(text.encode("utf-32-le"), "<u4")] for text in texts)

    def decode(self, ids: Iterable[int] | Array) -> str:
        return "".join(self._names[i] for i in ids)

    def unknown(self, text: str) -> list[str]:
        return [character for character in dict.fromkeys(text) if self._ids[ord(character)] == 1]

    def content(self) -> bytes:
        return (json.dumps({"kind": "characters", "tokens": self.characters}) + "\n").encode()


class ByteTokenizer(TextTokenizer):
    """Bytes of UTF-8."""

    def __init__(self) -> None:
        super().__init__(257, 256)

    def _encode(self, texts: Sequence[str], last: Sequence[bool]) -> Iterator[Array]:
        return (np.frombuffer(text.encode(), np.uint8) for text in texts)

    def decode(self, ids: Iterable[int] | Array) -> str:
        parts = "".join(map(chr, ids)).split(chr(self.end_of_text))
        return EOS.join(part.encode("latin-1").decode("utf-8", "replace") for part in parts)

    def content(self) -> bytes:
        return b'{"kind": "bytes"}\n'


class SubwordTokenizer(TextTokenizer):
    """A tokenizer.json. Special tokens in a text are text; truncation, padding and dropout are switched off.

    Only end_of_text is added to a text. A vocabulary of whole words with the token "\\n" ends every line with it, and
    thereby the text.

    Args:
        data: the file's content.
        end_of_text: the token, or its id, that ends texts; None for `named`, or the first known one in the vocabulary.
        name: its name in messages: the path.
        named: the token that ends texts, as a file next to it names it.

    Raises:
        InputError: it is not such a file, or no token is known to end texts.
    """

    file = TOKENIZER

    def __init__(self, data: bytes, end_of_text: str | int | None, name: str, named: str | None = None) -> None:
        self._data, self._name, self._tokenizer = data, name, _open_tokenizer_json(data, name)
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        model = json.loads(data)["model"]
        self.ends_lines = model.get("type") == "WordLevel" and LINE_END in vocabulary
        self.end_of_text_name = LINE_END if self.ends_lines else self._find_end_of_text(end_of_text, named, vocabulary)
        super().__init__(max(vocabulary.values()) + 1, vocabulary[self.end_of_text_name])
        unknown = model.get("unk_token"), model.get("unk_id")  # by name, or in a Unigram model by id
        self._unknown = vocabulary.get(unknown[0] or "", unknown[1])
        first = self._tokenizer.encode("a")
        special = takewhile(lambda pair: pair[1], zip(first.ids, first.special_tokens_mask, strict=True))
        self.prefix = tuple(id_ for id_, _ in special)
        if not self.ends_lines:
            self._tokenizer.add_special_tokens(
                [self.end_of_text_name]
            )  # else a text that spells it out could end itself
        self._tokenizer.encode_special_tokens = True

    def _encode(self, texts: Sequence[str], last: Sequence[bool]) -> Iterator[Array]:
        if self.ends_lines:
            ends = zip(texts, last, strict=True)
            texts = [text + LINE_END if ends and not text.endswith(LINE_END) else text for text, ends in ends]
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # the library raises nothing more particular
            "".join(texts).encode()  # raises UnicodeEncodeError if that is the cause
            raise InputError(f"{self._name}: cannot encode a text ({error})") from error
        for encoding in encodings:
            tokens = np.array(encoding.ids, self.dtype)
            if not self.ends_lines and self.end_of_text in tokens:
                end = self.end_of_text_name
                raise InputError(f"{self._name}: turns a text into its end-of-text {end!r}; give another end_of_text")
            yield tokens

    def decode(self, ids: Iterable[int] | Array) -> str:
        text = str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False))
        return re.sub(" ?\n ?", "\n", text) if self.ends_lines else text

    def unknown(self, text: str) -> list[str]:
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        except TypeError:  # half of a surrogate pair, which `encode` reports
            return []
        places = zip(encoding.ids, encoding.offsets, strict=True)
        parts = (text[begin:end] for id_, (begin, end) in places if id_ == self._unknown)
        return [part for part in dict.fromkeys(parts) if not (self.ends_lines and part == UNK)]

    def content(self) -> bytes:
        return self._data

    def _find_end_of_text(self, end_of_text: str | int | None, named: str | None, vocabulary: dict[str, int]) -> str:
        """Return the token of the vocabulary that ends texts."""
        by_id: dict[Any, str] = {id_: token for token, id_ in vocabulary.items()}
        candidates = (named, *KNOWN_END_TOKENS) if end_of_text is None else (by_id.get(end_of_text, end_of_text),)
        for token in candidates:
            if token in vocabulary:
                return str(token)
        special = [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        message = f"end_of_text {end_of_text!r} is not one of its tokens"
        message = "which token ends a text is not known; give end_of_text" if end_of_text is None else message
        raise InputError(f"{self._name}: {message}; {hint(str(end_of_text), special, 'special are')}")


def _open_tokenizer_json(data: bytes, name: str) -> Any:
    from tokenizers import Tokenizer

    # Otherwise the library warns when a loader forks its workers, which have no texts to encode.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises nothing more particular
        raise InputError(f"{name}: is not a tokenizer.json that `tokenizers` reads ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    return tokenizer


# -- trained on texts --------------------------------------------------------------------------------------------------


def words_of(words: Sequence[str]) -> SubwordTokenizer:
    """Return the tokenizer of distinct words, `<unk>` among them, in the order of their ids, which begin at 1."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate([LINE_END, *words])}, UNK))
    # White space as Python's str.split has it; the end of a line is a word.
    pattern = Regex(r"\n|[^\s\x1c-\x1f\x85]+")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, "removed", invert=True)
    return SubwordTokenizer(tokenizer.to_str().encode(), LINE_END, "words")


def train_bpe(texts: Iterable[str], vocab_size: int) -> SubwordTokenizer:
    """Return a BPE of `vocab_size` tokens, or fewer for small texts, which have too few pairs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return SubwordTokenizer(tokenizer.to_str().encode(), END_OF_TEXT, f"bpe:{vocab_size}")
