"""Find the checkpoint or saved model that a name means, and read the network in it."""

import importlib.util
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from lra_ssm.checkpoints import RUN_CONFIG, ModelFiles, check_shapes
from lra_ssm.checkpoints.card import headline
from lra_ssm.checkpoints.files import get_nested
from lra_ssm.datamodules.language.tokenizer import TextTokenizer
from lra_ssm.datamodules.language.tokenizer_spec import load_tokenizer, parse_tokenizer, read_tokenizer
from lra_ssm.errors import InputError
from lra_ssm.layers import NetworkSpec
from lra_ssm.models import LanguageModel
from lra_ssm.models.pretrained import FORMAT, Pretrained, import_paths, is_known, load_pretrained, one_of_known, texts
from lra_ssm.runs.record import read_file, read_object


class RunCheckpoint(NamedTuple):
    """A checkpoint, the run that it belongs to, and that run's configuration."""

    file: Path
    run: Path | None
    config: dict[str, Any]


class NamedNetwork(NamedTuple):
    """A network with its weights in evaluation mode, and what its run recorded.

    Attributes:
        name: what messages call it.
        network: the network, on the CPU.
        specification: the network's specification as plain values.
        tokenizer: the tokenizer that comes with the model; None if it has none.
        config: the run's configuration; empty without a config.yaml.
        recorded: what the run recorded about its data.
        score: the metric in the model's headline, as text.
        checkpoint: the checkpoint and its run; None for a saved model.
        files: the files of a saved model; None for a checkpoint.
        step: the training step of a checkpoint.
    """

    name: str
    network: nn.Module
    specification: dict[str, Any]
    tokenizer: TextTokenizer | None = None
    config: dict[str, Any] = {}
    recorded: dict[str, Any] = {}
    score: str = ""
    checkpoint: RunCheckpoint | None = None
    files: ModelFiles | None = None
    step: int = 0

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.network.parameters())

    @property
    def hparams(self) -> dict[str, Any]:
        """The network's specification where a task has it: the checks of data read it there."""
        return {"network": self.specification}

    @property
    def data(self) -> dict[str, Any] | None:
        """The section of the configuration that names a data module; None if it names no data module."""
        section = get_nested(self.config, "data")
        return section if isinstance(section.get("class_path"), str) else None

    @property
    def is_ours(self) -> bool:
        """Whether this package has written the model, rather than transformers or mamba_ssm."""
        return self.files is None or self.files.config().get("format") == FORMAT


# --- a name ---


def is_saved(name: str) -> bool:
    """Return whether a name means a saved model, not a run's directory or a checkpoint."""
    path = Path(name)
    if path.is_dir():
        return (path / "config.json").is_file()
    return not path.is_file() and path.suffix != ".ckpt"


def find(name: str) -> RunCheckpoint:
    """Return a checkpoint by its run's directory or its file. Raises InputError if it does not exist."""
    path = Path(name)
    if path.is_dir():
        run: Path | None = (only := _only_run(path))
        files = [only / "checkpoints" / f"{kind}.ckpt" for kind in ("best", "last")]
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            raise InputError(f"{name} has no checkpoints/best.ckpt or last.ckpt: give a run's directory, or a .ckpt")
    elif path.is_file():
        file = path
        run = next((folder for folder in path.absolute().parents[:2] if (folder / RUN_CONFIG).is_file()), None)
    else:
        raise InputError(f"checkpoint {name} does not exist: give a run's directory, or a .ckpt")
    return RunCheckpoint(file, run, read_file(run / RUN_CONFIG) if run else {})


def _only_run(folder: Path) -> Path:
    """Return the only run in an experiment's folder; return any other folder unchanged."""
    runs = [] if (folder / "checkpoints").is_dir() else sorted(p.parent for p in folder.glob("*/checkpoints"))
    if len(runs) > 1:
        raise InputError(f"{folder} holds {len(runs)} runs: give one of them, such as {runs[-1]}")
    return runs[0] if runs else folder


# --- the network ---


def named_network(name: str, allow_pickle: bool = False, trust: Collection[str] = ()) -> NamedNetwork:
    """Read a network by its name.

    allow_pickle, trust: apply to a saved model, as in `from_pretrained`. Raises InputError if it cannot be read, or if
    the task of a checkpoint keeps no `network` among its hyperparameters.
    """
    if not is_saved(name):
        return _network_of_checkpoint(name, find(name))
    files = ModelFiles(name)
    network = load_pretrained(files, nn.Module, allow_pickle=allow_pickle, trust=trust)
    stated, tokenizer = files.config(), files.tokenizer()
    return NamedNetwork(
        files.name,
        network,
        specification=network.specification() if isinstance(network, Pretrained) else stated["network"],
        tokenizer=None if tokenizer is None else load_tokenizer(tokenizer),
        config=read_file(files.folder / RUN_CONFIG),  # the code that builds from it checks its classes
        recorded=get_nested(stated, "source", "data"),
        score=headline(get_nested(stated, "source", "metrics", "test")),
        files=files,
    )


def _network_of_checkpoint(name: str, checkpoint: RunCheckpoint) -> NamedNetwork:
    from lra_ssm.runs.checkpoints import load_checkpoint  # loads lightning

    file, state = checkpoint.file, load_checkpoint(checkpoint.file)
    spec = get_nested(state, "hyper_parameters", "network")
    if "class_path" not in spec:
        raise InputError(f"{file} names no network: its task keeps none among its hyperparameters")
    weights = {n.removeprefix("network."): w for n, w in state["state_dict"].items() if n.startswith("network.")}
    try:
        network = NetworkSpec.of(spec)()
    except ValueError as error:
        raise InputError(f"{file}: its network cannot be built: {error}") from error
    check_shapes(network.state_dict(), weights, str(file))
    network.load_state_dict(weights)
    tokenizer = None
    for part in state.values():  # a data module's state is stored under the module's name
        saved = get_nested(part, "tokenizer")
        if isinstance(saved.get("text"), str):
            tokenizer = read_tokenizer(saved["text"].encode(), f"{file}, its tokenizer", saved.get("end_of_text"))
    record = read_object(checkpoint.run / "run.json") if checkpoint.run else {}
    best = [f"{key} {value:.4g}" for key, value in record.get("metrics", {}).items() if key.startswith("best ")]
    return NamedNetwork(
        name,
        network.eval(),
        specification=spec,
        tokenizer=tokenizer,
        config=checkpoint.config,
        recorded=record.get("data") or {},
        score="".join(best[:1]),
        checkpoint=checkpoint,
        step=int(state.get("global_step") or 0),
    )


class LoadedLanguageModel(NamedTuple):
    """A language model in eval mode with its tokenizer; it draws only the tokenizer's tokens.

    before: tokens before a text: the end-of-text token for a model of this package, which was trained with it before
        each document; for other models what their tokenizer adds, as in transformers.
    data: the settings of the run's data module, as they were written; empty without a run.
    stop: tokens that end a text: those of the model's own configuration, else the tokenizer's.
    """

    model: LanguageModel
    tokenizer: TextTokenizer
    before: tuple[int, ...]
    data: dict[str, Any]
    stop: tuple[int, ...]


def load_language_model(
    name: str, tokenizer: str | None = None, allow_pickle: bool = False, trust: Collection[str] = ()
) -> LoadedLanguageModel:
    """Find and read a language model and its tokenizer.

    Args:
        name, allow_pickle, trust: see `named_network`.
        tokenizer: a tokenizer in place of the model's own, named as in data modules of text; one that would be trained
            on a corpus is refused.

    Raises:
        InputError: the model does not exist, is not a language model, has no tokenizer, or does not fit the given one.
    """
    named = named_network(name, allow_pickle, trust)
    model, own_tokenizer = named.network, named.tokenizer
    if not isinstance(model, LanguageModel):
        where = named.checkpoint.file if named.checkpoint else name
        raise InputError(f"{where}: is not a language model; its network is a {type(model).__name__}")
    stop = named.files.end_tokens() if named.files and not named.is_ours and tokenizer is None else ()
    if tokenizer is not None:
        tokenizer_choice = parse_tokenizer(tokenizer)
        if tokenizer_choice.is_trained:
            raise InputError(f"--tokenizer={tokenizer} is made from a corpus; give the file of an existing one")
        tokenizer_choice.fetch()
        other_tokenizer = tokenizer_choice.open()
        if named.is_ours and own_tokenizer is not None and own_tokenizer.digest != other_tokenizer.digest:
            raise InputError(f"{name}: was trained with the tokenizer that it comes with: leave --tokenizer out")
        own_tokenizer = other_tokenizer
    if own_tokenizer is None:
        raise InputError(f"{name}: has no tokenizer; give one, such as --tokenizer=EleutherAI/gpt-neox-20b for Mamba")
    if own_tokenizer.vocab_size > model.vocab_size:
        raise InputError(
            f"{name}: its network has {model.vocab_size:,} tokens, the tokenizer {own_tokenizer.vocab_size:,}"
        )
    model.vocab_size = own_tokenizer.vocab_size  # the network may have more, which no text contains
    before = (own_tokenizer.end_of_text,) if named.is_ours else own_tokenizer.prefix
    return LoadedLanguageModel(
        model, own_tokenizer, before, get_nested(named.data, "init_args"), stop or own_tokenizer.stop
    )


# --- trust ---


def check_trusted(name: str, config: Any, trust: Collection[str], folder: Path | None = None) -> None:
    """Check what a saved model's configuration names, before anything is built from it.

    Classes of lra_ssm, lightning, torch and torchmetrics that a run is made from are trusted, and those in `trust`.

    Raises:
        InputError: the configuration names something else that would be imported; or, with `folder`, it names a file in
            that folder or the working folder, from which jsonargparse would read unchecked settings.
    """
    from lightning.pytorch import Callback, LightningDataModule
    from lightning.pytorch.loggers import Logger
    from lightning.pytorch.profilers import Profiler
    from lightning.pytorch.strategies import Strategy
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    # What configurations name by class_path; LightningModules and metrics are nn.Modules.
    kinds = (nn.Module, Optimizer, LRScheduler, LightningDataModule, Callback, Logger, Profiler, Strategy)
    for path in import_paths(config):
        if path not in trust and _is_importable(path) and not is_known(path, kinds):
            raise InputError(
                f"{name}: its {RUN_CONFIG} names {path}, which is not a class that {one_of_known()} has for a run, and"
                f" would be imported: if you trust it, give --trust {path}"
            )
    if folder is not None:
        if settings := get_nested(config, "data", "init_args"):
            own_paths = ("source", "tokenizer")  # data modules read these themselves
            settings = {k: v for k, v in settings.items() if not (k in own_paths and isinstance(v, str))}
            config = {**config, "data": {**config["data"], "init_args": settings}}
        for text in texts(config):
            if os.path.isfile(folder / text) or os.path.isfile(text):
                message = f"its {RUN_CONFIG} names the file {text}: settings of another file are not read"
                raise InputError(f"{name}: {message}")


def _is_importable(path: str) -> bool:
    """Whether a text names a package that is installed here: a file's name has the same form."""
    try:
        return importlib.util.find_spec(path.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return True
