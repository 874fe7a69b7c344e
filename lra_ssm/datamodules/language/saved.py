"""A tokenizer read again from what `save` wrote, or from any tokenizer.json. Code is never run."""

from pathlib import Path
from typing import Any

from lra_ssm.datamodules.language import subwords
from lra_ssm.datamodules.language.tokenizers import (
    EOS,
    UNK,
    VOCABULARY,
    ByteTokenizer,
    CharacterTokenizer,
    TextTokenizer,
    WordTokenizer,
    parse,
    read_file,
)
from lra_ssm.errors import InputError


def load_tokenizer(path: Path, end_of_text: str | int | None = None) -> TextTokenizer:
    """A tokenizer from a saved file, or from the folder that holds it: vocabulary.json or else tokenizer.json.

    Args:
        path: the file or folder.
        end_of_text: of a tokenizer.json: the token, or its id, that ends texts; as `SubwordTokenizer` has it.

    Raises:
        InputError: there is no such file, or it is no tokenizer that this package reads.
    """
    if path.is_dir():
        saved = path / VOCABULARY
        path = saved if saved.is_file() else subwords.find_file(path)
    return read_tokenizer(read_file(path), str(path), end_of_text, subwords.named_end(path))


def read_tokenizer(
    data: bytes, name: str, end_of_text: str | int | None = None, named_end: str | None = None
) -> TextTokenizer:
    """A tokenizer from the content of its file, which messages call `name`; the rest as `SubwordTokenizer` has it.

    Raises InputError: it is no tokenizer that this package reads.
    """
    content = parse(data, name)
    if "kind" not in content:
        return subwords.SubwordTokenizer(data, end_of_text, name, named_end)
    tokens: Any = content.get("tokens")
    valid = isinstance(tokens, list) and all(isinstance(t, str) and t for t in tokens) and len({*tokens}) == len(tokens)
    if content["kind"] == "bytes":
        return ByteTokenizer()
    if content["kind"] == "characters" and valid and all(len(token) == 1 for token in tokens):
        return CharacterTokenizer(tokens)
    if content["kind"] == "words" and valid and UNK in tokens and EOS not in tokens and "\n" not in tokens:
        return WordTokenizer(tokens)
    raise InputError(f"{name}: is no saved vocabulary of bytes, characters or words")
