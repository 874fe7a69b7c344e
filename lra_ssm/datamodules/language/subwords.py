"""The fourth tokenizer: whatever a tokenizer.json of Hugging Face's `tokenizers` says.

And a byte-level BPE made of texts (Sennrich et al. 2016; the bytes as GPT-2 has them, Radford et al. 2019): without a
network, the same file for the same texts however they are cut or computed.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from lra_ssm.datamodules.language.tokenizers import TextTokenizer
from lra_ssm.datamodules.old_storage.arrays import IntArray
from lra_ssm.errors import InputError, hint

TOKENIZER = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"  # of a BPE that is made here
# What well-known tokenizers call the end of a text, the most particular first.
ENDS = (END_OF_TEXT, "<|end_of_text|>", "<|eos|>", "</s>", "<eos>", "[EOS]", "[SEP]", "<|im_end|>")


class SubwordTokenizer(TextTokenizer):
    """A tokenizer.json. Special tokens in a text are text; its own truncation, padding and dropout are switched off.

    Nothing is put before or behind a text but end_of_text.

    Args:
        data: the file's content.
        end_of_text: the token, or its id, that ends texts; None: what `named` says, else the first of ENDS there is.
        name: what messages call it: its path.
        named: the token that ends texts by a file beside it.

    Raises:
        InputError: it is no such file, tokens' ids are not 0 … n − 1, or no token is known to end texts.
    """

    file = TOKENIZER

    def __init__(self, data: bytes, end_of_text: str | int | None, name: str, named: str | None = None) -> None:
        self._data, self._name, self._tokenizer = data, name, _read(data, name)
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        ids = {*vocabulary.values()}
        if (last := max(ids, default=-1)) >= len(ids):
            hole = next(i for i in range(last) if i not in ids)
            raise InputError(f"{name}: its vocabulary has a hole: no id is {hole}")
        self.end_of_text_name = self._end_of_text(end_of_text, named, vocabulary)
        super().__init__(len(ids), vocabulary[self.end_of_text_name])
        self._tokenizer.add_special_tokens([self.end_of_text_name])  # which it may not be: a text could end itself
        self._tokenizer.encode_special_tokens = True

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), (self._data, self.end_of_text, self._name)

    @classmethod
    def made_of(cls, texts: Iterable[str], vocab_size: int) -> Self:
        """A BPE of so many tokens, or of small texts fewer: all that occur as pairs."""
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
        return cls(tokenizer.to_str().encode(), END_OF_TEXT, f"bpe:{vocab_size}")

    def _encode(self, texts: Sequence[str], last: Sequence[bool]) -> Iterator[IntArray]:
        try:
            encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        except Exception as error:  # the library raises nothing more particular
            "".join(texts).encode()  # raises UnicodeEncodeError, where that is why
            raise InputError(f"{self._name}: cannot encode a text ({error})") from error
        for encoding in encodings:
            tokens = np.array(encoding.ids, self.dtype)
            if self.end_of_text in tokens:
                end = self.end_of_text_name
                raise InputError(f"{self._name}: makes its end-of-text {end!r} of a text; give another end_of_text")
            yield tokens

    def decode(self, ids: Iterable[int] | IntArray) -> str:
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False))

    def unknown(self, text: str) -> list[str]:
        unknown = self._tokenizer.token_to_id(getattr(self._tokenizer.model, "unk_token", None) or "")
        try:
            found = self._tokenizer.encode(text, add_special_tokens=False)
        except TypeError:  # half of a surrogate pair, of which `encode` tells
            return []
        parts = [text[begin:end] for id_, (begin, end) in zip(found.ids, found.offsets, strict=True) if id_ == unknown]
        return list(dict.fromkeys(parts))

    def content(self) -> bytes:
        return self._data

    def _end_of_text(self, given: str | int | None, named: str | None, vocabulary: dict[str, int]) -> str:
        """Which token of the vocabulary ends texts."""
        by_id: dict[Any, str] = {id_: token for token, id_ in vocabulary.items()}
        wanted = (named, *ENDS) if given is None else (by_id.get(given, given),)
        if (token := next((token for token in wanted if token in vocabulary), None)) is not None:
            return str(token)
        special = [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        if given is not None:
            known = hint(str(given), special, "special are")
            raise InputError(f"{self._name}: end_of_text {given!r} is no token of it; {known}")
        known = ", ".join(special[:20]) or "it has none"
        what = f"give end_of_text, one of its special tokens ({known})"
        raise InputError(f"{self._name}: which token ends a text is not known; {what}")


def _read(data: bytes, name: str) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises nothing more particular
        raise InputError(f"{name}: is no tokenizer.json that `tokenizers` reads ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    return tokenizer
