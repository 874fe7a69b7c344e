"""A language model and its tokenizer by whatever names it: a run, a checkpoint, a saved folder, a name of the Hub."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lra_ssm.cli.find_checkpoint import find, is_saved, load_network
from lra_ssm.errors import InputError

if TYPE_CHECKING:
    from lra_ssm.datamodules.language.tokenizers import TextTokenizer
    from lra_ssm.models import LanguageModel


_Parts = tuple["LanguageModel", "TextTokenizer | None", bool]


class Loaded(NamedTuple):
    """`model` in eval mode, which draws none but the tokenizer's tokens.

    begins: whether it was trained as our data is: with the end-of-text token before each document's first token.
    """

    model: "LanguageModel"
    tokenizer: "TextTokenizer"
    begins: bool


def load_language_model(
    name: str, tokenizer: str | None = None, allow_pickle: bool = False, trust: Collection[str] = ()
) -> Loaded:
    """Finds and reads both.

    Args:
        name: a run's directory, a .ckpt, a saved model's folder, or a name of the Hub.
        tokenizer: another than the model's own, or of one that has none: as data modules of text take it, but for those
            that are made of a corpus.
        allow_pickle: of a saved model, as `from_pretrained` has it.
        trust: likewise.

    Raises:
        InputError: there is none, it is no language model, it has no tokenizer, or one of other tokens.
    """
    model, own, begins = _saved(name, allow_pickle, trust) if is_saved(name) else _of_a_run(find(name).file)
    if tokenizer is not None:
        own = _named(tokenizer)
    if own is None:
        said = "such as --tokenizer=EleutherAI/gpt-neox-20b for Mamba's; LanguageModel.generate needs none"
        raise InputError(f"{name}: has no tokenizer; name one, {said}")
    if own.vocab_size > model.vocab_size:
        raise InputError(f"{name}: its network knows {model.vocab_size:,} tokens, the tokenizer has {own.vocab_size:,}")
    model.vocab_size = own.vocab_size  # the network may have more, of which no text was made
    return Loaded(model, own, begins)


def _named(tokenizer: str) -> "TextTokenizer":
    from lra_ssm.datamodules.language.choosing import parse_tokenizer

    choice = parse_tokenizer(tokenizer)
    if choice.is_trained:
        raise InputError(f"--tokenizer={tokenizer} is made of a corpus; give the file of one that is made")
    choice.fetch()
    return choice.open()


def _of_a_run(file: Path) -> _Parts:
    from lra_ssm.models import LanguageModel

    network, spec, _ = load_network(file)
    if not isinstance(network, LanguageModel):
        raise InputError(f"{file}: is no language model; its network is a {spec['class_path'].rpartition('.')[2]}")
    return network.eval(), tokenizer_of(file), True


def tokenizer_of(file: Path) -> "TextTokenizer | None":
    """The tokenizer that a checkpoint brings along: that of the data it was trained on. None where it has none."""
    from lra_ssm.datamodules.language.choosing import read_tokenizer
    from lra_ssm.runs.checkpoints import load_checkpoint

    # The state of a data module of text is there under the module's name.
    states = [
        part["tokenizer"] for part in load_checkpoint(file).values() if isinstance(part, dict) and "tokenizer" in part
    ]
    if states and isinstance(states[0], dict) and isinstance(states[0].get("text"), str):
        data, end = states[0]["text"].encode(), states[0].get("end_of_text")
        return read_tokenizer(data, f"{file}, its tokenizer", end)
    return None


def _saved(name: str, allow_pickle: bool, trust: Collection[str]) -> _Parts:
    from lra_ssm.checkpoints import ModelFiles
    from lra_ssm.datamodules.language.choosing import load_tokenizer
    from lra_ssm.models import LanguageModel, load_pretrained
    from lra_ssm.models.pretrained import FORMAT

    files = ModelFiles(name)
    model = load_pretrained(files, LanguageModel, allow_pickle=allow_pickle, trust=trust)
    path = files.tokenizer()
    # Others' models have seen nothing before a text; transformers puts nothing there either.
    return model, None if path is None else load_tokenizer(path), files.config().get("format") == FORMAT
