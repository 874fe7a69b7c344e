"""The fourth tokenizer: whatever a tokenizer.json of Hugging Face's `tokenizers` says, which is imported when needed.

Words are kept. Byte-level tokenizers as GPT-2 and GPT-NeoX have them divide a text into pretokens by a pattern that
looks at nothing before the place it has come to, and none of its matches goes on from a character into the white space
behind it, nor from ASCII letters, digits or marks into another of these. So a text may be cut there, and the tokens of
the parts are those of the whole; most parts were seen before. Other tokenizers are given whole texts.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from lra_ssm.datamodules.language.tokenizers import TextTokenizer, parse, read_file
from lra_ssm.datamodules.storage.arrays import IntArray
from lra_ssm.errors import InputError, hint

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
# What well-known tokenizers call the end of a text, the most particular first.
ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|eos|>", "</s>", "<eos>", "[EOS]", "[SEP]", "<|im_end|>")
# Parts of a text that GPT-2's pattern divides as it divides the whole: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|
# ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ . White space is Unicode's; Python counts four separators among it. No cut stands
# before a character that is not ASCII, for it may be a letter, or join the one before it when normalized; none behind
# an apostrophe that a letter follows, which may be a contraction's.
_SPACE, _END = r"[^\S\x1c-\x1f]", r"(?![^\x00-\x7f])"
_UNIT = re.compile(
    rf" ?[A-Za-z]++{_END}|'(?:[stmd]|re|ve|ll){_END}|{_SPACE}*(?:[A-Za-z]++{_END}|[0-9]++{_END}"
    rf"|[\x00-\x08\x0e-\x1f!-/:-@\[-`{{-\x7f]++{_END}(?:(?<!')|(?![A-Za-z]))|[\S\x1c-\x1f]+)|{_SPACE}+"
)
# One pretoken, in ASCII: the pattern, NFC and the bytes' names leave it as it is but for the space, which is called Ġ.
_PRETOKEN = re.compile(r" ?(?:[A-Za-z]+|[0-9]+|[!-/:-@\[-`{-~]+)")
_BATCH = 1 << 21  # characters given to the library at a time
_AT_ONCE = 1 << 18  # characters divided at a time: a unit takes some 70 bytes
_KEPT_BYTES = 64 << 20  # of kept words, about
_WORD_BYTES = 150  # of memory that a kept word takes beside its characters and tokens


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
        self._data, self._name = data, name
        content = parse(data, name)
        tokenizer = _read(content, name)
        vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        present = np.unique(np.fromiter(vocabulary.values(), np.int64))
        if not len(present):
            raise InputError(f"{name}: a tokenizer without tokens")
        if len(present) <= present[-1]:
            hole = int(np.argmax(present != np.arange(len(present))))
            raise InputError(
                f"{name}: its vocabulary has a hole: {len(present)} ids up to {present[-1]}, none is {hole}"
            )
        special = [t["content"] for t in content.get("added_tokens") or () if t.get("special")]
        self._end = _end_of_text(end_of_text, named, vocabulary, special, name)
        super().__init__(len(present), vocabulary[self._end])
        for token in content.get("added_tokens") or ():
            if token["id"] == self.end_of_text and not token["special"]:  # or a text could end itself
                token["special"] = True
                tokenizer = _read(content, name)
        tokenizer.encode_special_tokens = True
        self._tokenizer, self._model = tokenizer, tokenizer.model
        self.keeps_words = _divides_as_gpt2(content)
        self._kept = _Kept(self._word)
        self._code = {1: "B", 2: "H", 4: "I"}[self.dtype.itemsize]

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), (self._data, self.end_of_text, self._name)

    def _encode_all(self, texts: Sequence[str], last: Sequence[bool]) -> Iterator[Iterable[bytes]]:
        if self.keeps_words:
            yield from super()._encode_all(texts, last)
            return
        begin = 0
        while begin < len(texts):  # the library is faster with many, and takes some 100 bytes for each of theirs
            end, size = begin, 0
            while end < len(texts) and size < _BATCH:
                size += len(texts[end])
                end += 1
            yield from ([tokens] for tokens in self._ask(texts[begin:end]))
            begin = end

    def _encode(self, text: str, last: bool) -> Iterator[bytes]:
        for units in _units(text):
            if self._kept.size > _KEPT_BYTES:
                self._kept = _Kept(self._word)
            yield b"".join(map(self._kept.__getitem__, units))

    def _ask(self, texts: Sequence[str]) -> list[bytes]:
        try:
            encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        except Exception as error:  # the library raises nothing more particular
            for text in texts:
                text.encode()  # raises UnicodeEncodeError, which is why
            raise InputError(f"{self._name}: cannot encode a text ({error})") from error
        return [self._checked(encoding.ids) for encoding in encodings]

    def _word(self, unit: str) -> bytes:
        if _PRETOKEN.fullmatch(unit):  # the model alone takes half the time
            return self._checked([token.id for token in self._model.tokenize(unit.replace(" ", "Ġ"))])
        return self._ask([unit])[0]

    def _checked(self, ids: list[int]) -> bytes:
        if self.end_of_text in ids:
            raise InputError(
                f"{self._name}: makes its end-of-text token {self._end!r} of a text, whose end would not be known;"
                " give another end_of_text"
            )
        return array(self._code, ids).tobytes()

    def decode(self, ids: Iterable[int] | IntArray) -> str:
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False))

    def unknown(self, text: str) -> list[str]:
        unknown = self._tokenizer.token_to_id(getattr(self._model, "unk_token", None) or "")
        try:
            found = self._tokenizer.encode(text, add_special_tokens=False)
        except TypeError:  # half of a surrogate pair, of which `encode` above tells
            return []
        parts = [text[begin:end] for id_, (begin, end) in zip(found.ids, found.offsets, strict=True) if id_ == unknown]
        return list(dict.fromkeys(parts))

    def content(self) -> bytes:
        return self._data

    @property
    def end_of_text_name(self) -> str:
        return self._end


class _Kept(dict[str, bytes]):
    """Tokens of words; those of a new one come from `ask`. `size`: bytes of memory, about."""

    def __init__(self, ask: Callable[[str], bytes]) -> None:
        self.ask, self.size = ask, 0

    def __missing__(self, unit: str) -> bytes:
        self[unit] = tokens = self.ask(unit)
        self.size += len(unit) + len(tokens) + _WORD_BYTES
        return tokens


def find_file(folder: Path) -> Path:
    """The tokenizer.json of a folder.

    Raises:
        InputError: it has none; says what it has instead. Code, pickles and other libraries' models are never loaded.
    """
    if (folder / TOKENIZER).is_file():
        return folder / TOKENIZER
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    code = [name for name in names if name.endswith(".py")]
    with suppress(InputError):
        if CONFIG in names and (mapped := parse(read_file(folder / CONFIG), folder / CONFIG).get("auto_map")):
            code.append(f"auto_map {mapped!s:.80}")
    has = {
        "Python code": code,
        "pickles": [name for name in names if name.endswith((".pkl", ".pickle", ".bin", ".pt"))],
        "sentencepiece's": [name for name in names if name.endswith((".model", ".spm"))],
        "an older form": [name for name in names if name in ("vocab.json", "merges.txt", "vocab.txt")],
    }
    found = ", ".join(f"{kind} ({', '.join(files[:3])})" for kind, files in has.items() if files)
    found = f"it has {found}, which is not loaded" if found else f"it has {', '.join(names[:5]) or 'nothing'}"
    raise InputError(f"{folder}: has no {TOKENIZER}, the form of tokenizer that runs no code; {found}")


def named_end(path: Path) -> str | None:
    """The end-of-text token that the tokenizer_config.json beside a tokenizer.json names; None if it names none."""
    config = path.with_name(CONFIG)
    if not config.is_file():
        return None
    token = parse(read_file(config), config).get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _read(content: dict[str, Any], name: str) -> Any:
    import json

    from tokenizers import Tokenizer

    model = content.get("model")
    if isinstance(model, dict) and model.get("dropout"):
        model["dropout"] = None
    try:
        return Tokenizer.from_str(json.dumps({**content, "truncation": None, "padding": None}))
    except Exception as error:  # the library raises nothing more particular
        raise InputError(f"{name}: is no tokenizer.json that `tokenizers` reads ({error})") from error


def _end_of_text(
    given: str | int | None, named: str | None, vocabulary: dict[str, int], special: list[str], name: str
) -> str:
    if isinstance(given, int):
        token = next((token for token, id_ in vocabulary.items() if id_ == given), None)
        if token is None:
            raise InputError(f"{name}: end_of_text {given} is none of its {len(vocabulary)} tokens")
        return token
    if given is not None:
        if given not in vocabulary:
            raise InputError(f"{name}: end_of_text {given!r} is no token of it; {hint(given, special, 'special are')}")
        return given
    for token in (named, *ENDS):
        if token in vocabulary:
            return token
    raise InputError(
        f"{name}: which token ends a text is not known; give end_of_text, one of its special tokens "
        f"({', '.join(special[:20]) or 'it has none'})"
    )


def _divides_as_gpt2(content: dict[str, Any]) -> bool:
    """Whether texts may be cut as _UNIT does: GPT-2's pattern, and nothing that looks across the cuts."""
    before, normalizer = content.get("pre_tokenizer") or {}, content.get("normalizer")
    return (
        before.get("type") == "ByteLevel"
        and not before.get("add_prefix_space", True)
        and before.get("use_regex", True)
        and (normalizer is None or normalizer.get("type") == "NFC")  # which joins nothing with white space behind it
        and all(_is_space(token) or token["special"] for token in content.get("added_tokens") or ())
    )


def _is_space(token: dict[str, Any]) -> bool:
    """NeoX has tokens of several spaces."""
    whole = not (token["lstrip"] or token["rstrip"] or token["single_word"])
    return whole and re.fullmatch(f"{_SPACE}{{2,}}", token["content"]) is not None


def _units(text: str) -> Iterator[list[str]]:
    """A text divided where its tokens may be, about _AT_ONCE characters at a time."""
    begin, size = 0, _AT_ONCE
    while begin < len(text):
        end = min(begin + size, len(text))
        units = _UNIT.findall(text, begin, end)
        if end < len(text):  # the last one may go on, or be another for what follows
            end -= len(units.pop())
            size = _AT_ONCE if units else 2 * size
        begin = end
        yield units
