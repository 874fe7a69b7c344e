"""A language model and its tokenizer by whatever names it."""

import dataclasses
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from lra_ssm.checkpoints import ModelFiles
from lra_ssm.checkpoints.files import within
from lra_ssm.cli.named_network import named_network
from lra_ssm.datamodules.language.tokenizer import TOKENIZER, TextTokenizer
from lra_ssm.datamodules.language.tokenizer_spec import load_tokenizer, parse_tokenizer, read_tokenizer
from lra_ssm.errors import InputError, squeeze
from lra_ssm.models import LanguageModel
from lra_ssm.models.pretrained import FORMAT


class Loaded(NamedTuple):
    """`model` in eval mode, which draws only the tokenizer's tokens.

    before: tokens before a text: the end-of-text token where the model was trained with it before each document; for
        others' models what their tokenizer puts there, as transformers does.
    data: the settings of its run's data module, as they were written; empty where it has none.
    stop: tokens that end a text: what the model's own configuration says, else the tokenizer's.
    """

    model: LanguageModel
    tokenizer: TextTokenizer
    before: tuple[int, ...]
    data: dict[str, Any]
    stop: tuple[int, ...]


def load_language_model(
    name: str, tokenizer: str | None = None, allow_pickle: bool = False, trust: Collection[str] = ()
) -> Loaded:
    """Finds and reads both.

    Args:
        name, allow_pickle, trust: see `named_network`.
        tokenizer: another than the model's own, as data modules of text take it, but for those made of a corpus.

    Raises:
        InputError: there is none, it is no language model, it has no tokenizer, or one of other tokens.
    """
    named = named_network(name, allow_pickle, trust)
    model = named.network
    if not isinstance(model, LanguageModel):
        where = named.found.file if named.found else name
        raise InputError(f"{where}: is no language model; its network is a {type(model).__name__}")
    is_ours = named.files is None or named.files.config().get("format") == FORMAT
    own = tokenizer_of(named.source) if tokenizer is None else _named(tokenizer)
    if own is None:
        said = "such as --tokenizer=EleutherAI/gpt-neox-20b for Mamba's; LanguageModel.generate needs none"
        raise InputError(f"{name}: has no tokenizer; name one, {said}")
    if own.vocab_size > model.vocab_size:
        raise InputError(f"{name}: its network knows {model.vocab_size:,} tokens, the tokenizer has {own.vocab_size:,}")
    model.vocab_size = own.vocab_size  # the network may have more, of which no text was made
    before = (own.end_of_text,) if is_ours else own.prefix
    stop = () if is_ours or named.files is None or tokenizer is not None else named.files.end_tokens()
    return Loaded(model, own, before, within(named.config, "data", "init_args"), stop or own.stop)


def _named(tokenizer: str) -> TextTokenizer:
    choice = parse_tokenizer(tokenizer)
    if choice.is_trained:
        raise InputError(f"--tokenizer={tokenizer} is made of a corpus; give the file of one that is made")
    choice.fetch()
    return choice.open()


def tokenizer_of(model: ModelFiles | Path) -> TextTokenizer | None:
    """The tokenizer that a saved model, or a checkpoint, brings along; None where it has none."""
    if not isinstance(model, Path):
        path = model.tokenizer()
        return None if path is None else load_tokenizer(path)
    from lra_ssm.runs.checkpoints import load_checkpoint  # loads lightning

    # The state of a data module of text is there under the module's name.
    for part in load_checkpoint(model).values():
        state = part.get("tokenizer") if isinstance(part, dict) else None
        if isinstance(state, dict) and isinstance(state.get("text"), str):
            return read_tokenizer(state["text"].encode(), f"{model}, its tokenizer", state.get("end_of_text"))
    return None


def not_known(texts: Iterable[str], tokenizer: TextTokenizer) -> str:
    """The words or characters of texts that a tokenizer does not know, the first of them; empty where it knows all."""
    unknown = list(dict.fromkeys(word for text in texts for word in tokenizer.unknown(text)))
    more = f" and {len(unknown) - 5:,} more" if len(unknown) > 5 else ""
    return ", ".join(map(repr, unknown[:5])) + more


def with_own_tokenizer(data: Any, model: ModelFiles | Path, folder: Path) -> Any:
    """Data for a model to be scored on, with the model's own tokenizer, where the data would make another of its text.

    Says so where it is another. folder: takes the tokenizer's file, which is read until the data is prepared.
    """
    from lra_ssm.datamodules.language.module import LanguageDataModule  # loads lightning

    if not isinstance(data, LanguageDataModule) or not data.spec.is_trained:
        return data
    own = tokenizer_of(model)
    if own is None or (data.is_prepared() and data.tokenizer_digest == own.digest):
        return data
    print(squeeze(f"the text of {data.source} in the model's own tokens: {data.tokenizer}, {own.vocab_size:,} tokens"))
    end = own.end_of_text_name if own.file == TOKENIZER and not own.ends_lines else None
    made = dataclasses.replace(data, tokenizer=str(own.save(folder)), end_of_text=end)
    made.spec = dataclasses.replace(made.spec, text="the model's own")  # what is recorded of it
    return made
