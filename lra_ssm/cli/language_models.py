"""A language model and its tokenizer by whatever names it: a run, a checkpoint, a saved folder, a name of the Hub."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lra_ssm.cli.inspect import find, load_network
from lra_ssm.errors import InputError

if TYPE_CHECKING:
    from lra_ssm.datamodules.language.tokenizers import TextTokenizer
    from lra_ssm.models import LanguageModel


class Loaded(NamedTuple):
    """`model` in eval mode, which draws none but the tokenizer's tokens.

    begins: whether it was trained as our data is: with the end-of-text token before each document's first token.
    """

    model: "LanguageModel"
    tokenizer: "TextTokenizer"
    begins: bool


def load_language_model(name: str, allow_pickle: bool = False) -> Loaded:
    """Args: name: a run's directory, a .ckpt, a saved model's folder, or a name of the Hub; allow_pickle: of the last
    two.

    Raises:
        InputError: there is none, it is no language model, it has no tokenizer, or one of other tokens.
    """
    path = Path(name)
    saved = not path.is_file() and path.suffix != ".ckpt" and (not path.is_dir() or (path / "config.json").is_file())
    loaded = _saved(name, allow_pickle) if saved else _of_a_run(find(name).file)
    known, tokens = loaded.model.vocab_size, loaded.tokenizer.vocab_size
    if tokens > known:
        raise InputError(f"{name}: its tokenizer has {tokens:,} tokens, its network knows {known:,}")
    loaded.model.vocab_size = tokens  # the network may have more, of which no text was made
    return loaded


def _of_a_run(file: Path) -> Loaded:
    from lra_ssm.datamodules.language.saved import read_tokenizer
    from lra_ssm.models import LanguageModel
    from lra_ssm.runs.checkpoints import load_checkpoint

    network, spec, _ = load_network(file)
    if not isinstance(network, LanguageModel):
        raise InputError(f"{file}: is no language model; its network is a {spec['class_path'].rpartition('.')[2]}")
    states = [part for part in load_checkpoint(file).values() if isinstance(part, dict)]
    made: dict[str, Any] = next((part["tokenizer"] for part in states if isinstance(part.get("tokenizer"), dict)), {})
    if not isinstance(made.get("text"), str):
        raise InputError(
            f"{file}: holds no tokenizer, as runs on our data of text do; LanguageModel.generate needs none"
        )
    tokenizer = read_tokenizer(made["text"].encode(), f"{file}, its tokenizer", made.get("end_of_text"))
    return Loaded(network.eval(), tokenizer, begins=True)


def _saved(name: str, allow_pickle: bool) -> Loaded:
    from lra_ssm.checkpoints import ModelFiles
    from lra_ssm.datamodules.language.saved import load_tokenizer
    from lra_ssm.models import LanguageModel, load_pretrained
    from lra_ssm.models.pretrained import FORMAT

    files = ModelFiles(name)
    model = load_pretrained(files, LanguageModel, allow_pickle=allow_pickle)
    tokenizer = files.tokenizer()
    if tokenizer is None:
        raise InputError(f"{files.name}: has no tokenizer.json or vocabulary.json; LanguageModel.generate needs none")
    # Others' models have seen nothing before a text; transformers puts nothing there either.
    return Loaded(model, load_tokenizer(tokenizer), begins=files.config().get("format") == FORMAT)
