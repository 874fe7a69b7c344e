"""Weights that a command starts from: a checkpoint's, or a saved model's, whose config may come with it."""

import dataclasses
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from lra_ssm.checkpoints import RUN_CONFIG, ModelFiles, check_shapes
from lra_ssm.checkpoints.files import get_nested
from lra_ssm.cli.find_model import check_trusted, find, is_saved, read_config, tokenizer_of
from lra_ssm.datamodules.language.module import LanguageDataModule
from lra_ssm.datamodules.language.tokenizer import TOKENIZER
from lra_ssm.errors import InputError, hint, to_one_line
from lra_ssm.files import sha256
from lra_ssm.models.pretrained import FORMAT, Pretrained, import_paths, load_pretrained
from lra_ssm.runs.checks import check_tokenizer, differing_settings, existing, load_checkpoint


def options_of(name: str, trust: Collection[str]) -> list[str]:
    """Return the options with which validate, test and predict take a run, or a saved model with its config.

    trust: classes that a saved model's config may name. Raises InputError if the model does not exist, or if its config
    names others (`check_trusted`).
    """
    if not is_saved(name):
        found = find(name)
        if not found.config:
            raise InputError(f"{name} has no run's config.yaml: give --config, and --ckpt_path={found.file}")
        return [f"--config={found.run}/config.yaml", f"--ckpt_path={found.file}"]
    files = ModelFiles(name)
    path = files.find(RUN_CONFIG)
    if path is None:
        raise InputError(f"{files.name} has no {RUN_CONFIG}: give --config, and --ckpt_path={name}")
    config = read_config(path)
    check_trusted(files.name, config, trust, path.parent)
    # A tokenizer that was a file on the machine of the training is the one that was saved with the model.
    stated, own = get_nested(config, "data", "init_args").get("tokenizer"), files.tokenizer()
    tokenizer = [f"--data.tokenizer={own}"] if own and str(stated).endswith(".json") else []
    return [f"--config={path}", f"--ckpt_path={name}", *tokenizer]


def find_weights(name: str) -> str:
    """Return what --init_from names: for a run's directory its best or last checkpoint, else the name itself."""
    return str(find(name).file) if Path(name).is_dir() and not is_saved(name) else name


class StartingWeights:
    """The weights that --init_from names, or the saved model of a command's --ckpt_path.

    Args:
        name: a checkpoint, a saved model's folder, or its name on the Hub.
        allow_pickle: read a saved model's weights from a pickle.
        without: modules whose parameters keep the task's own initial values, such as "head".
    """

    def __init__(self, name: str, allow_pickle: bool, without: Sequence[str] = ()) -> None:
        self.name, self.allow_pickle, self.without = name, allow_pickle, tuple(without)

    @cached_property
    def files(self) -> ModelFiles | None:
        """The files of a saved model, which are downloaded here; None for a checkpoint."""
        is_checkpoint = Path(self.name).is_file() or self.name.endswith(".ckpt")
        return None if is_checkpoint else ModelFiles(self.name)

    def load(self, task: Any) -> None:
        """Load the weights into a task. Raises InputError if they do not exist or do not fit."""
        if self.files is None:
            path = existing(self.name)
            state = self._fitted(task.state_dict(), load_checkpoint(path)["state_dict"])
            check_shapes(task.state_dict(), state, str(path))
            task.load_state_dict(state)
            return
        network = getattr(task, "network", None)
        if not isinstance(network, nn.Module):
            raise InputError(f"{self.name}: {type(task).__name__} has no network that could have its weights")
        named = import_paths(dict(task.hparams))  # these are imported anyway
        trust = {path for path in named if not path.startswith("lra_ssm.")}
        model = load_pretrained(self.files, nn.Module, allow_pickle=self.allow_pickle, trust=trust)
        weights = self._fitted(network.state_dict(), model.state_dict())
        check_shapes(network.state_dict(), weights, self.files.name)
        network.load_state_dict(weights)
        print(f"starting from the weights of {to_one_line(self.files.name)}")
        if isinstance(model, Pretrained):
            made_with = {"hyper_parameters": {"network": model.specification()}}
            if differing := differing_settings(task, made_with):
                print(to_one_line(f"note: {self.files.name} was made with other settings: {differing}"))

    def _fitted(self, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
        """Return their weights, with the task's own where these are to start fresh, and say which they are.

        An embedding with one more input channel than the task's is a pretraining's, whose last channel says what is
        hidden: it is left out. Raises InputError if `without` names nothing.
        """
        if not self.without:
            return theirs
        fresh: set[str] = set()
        for module in self.without:
            names = {name for name in ours.keys() | theirs.keys() if _is_below(name, module)}
            if not names:
                there = sorted({name.removeprefix("network.").partition(".")[0] for name in ours})
                raise InputError(f"--init_from_without: no parameter below {module!r}; {hint(module, there)}")
            fresh |= names
        kept = {name: value for name, value in theirs.items() if name not in fresh}
        parts = [*self.without]
        for name, value in kept.items():
            own = ours.get(name)
            if own is not None and _is_below(name, "backbone.embedding") and value.dim() == own.dim() == 2:
                if value.shape == (own.shape[0], own.shape[1] + 1):
                    kept[name] = value[:, :-1].clone()
                    parts.append("the mask's input channel, which is left out")
        taken = len(kept.keys() & ours.keys())
        print(to_one_line(f"from {self.name}: {taken} of {len(ours)} tensors; not from there: {', '.join(parts)}"))
        return kept | {name: value for name, value in ours.items() if name in fresh}

    def check_tokenizer(self, data: Any) -> None:
        """Check that the data's tokenizer is that of the weights, as far as both name theirs.

        Raises InputError if a model of ours has another one. Other layouts may write the same tokenizer differently:
        there it is a warning.
        """
        if self.files is None:
            check_tokenizer(Path(self.name), data)
            return
        path = self.files.tokenizer() if hasattr(data, "tokenizer_digest") else None
        if path is None or sha256(path) == data.tokenizer_digest:
            return
        theirs, ours = (f"{digest[:12]}…" for digest in (sha256(path), data.tokenizer_digest))
        its = f"its tokenizer ({path.name}, sha256 {theirs}) is not the data's ({data.tokenizer_file}, sha256 {ours})"
        if self.files.config().get("format") == FORMAT:
            raise InputError(f"{self.files.name}: {its}: prepare the data with the model's")
        print(to_one_line(f"warning: {self.files.name}: {its}: the weights fit only if both give the same tokens"))


def _is_below(name: str, module: str) -> bool:
    return f"{name.removeprefix('network.')}.".startswith(f"{module}.")


def with_own_tokenizer(data: Any, model: ModelFiles | Path, folder: Path) -> Any:
    """Return data for a model to be scored on, with the model's own tokenizer if the data would train another one.

    Prints that it does so. folder: takes the tokenizer's file, which is read until the data is prepared.
    """
    if not isinstance(data, LanguageDataModule) or not data.spec.is_trained:
        return data
    own = tokenizer_of(model)
    if own is None or (data.is_prepared() and data.tokenizer_digest == own.digest):
        return data
    tokens = f"{data.tokenizer}, {own.vocab_size:,} tokens"
    print(to_one_line(f"the text of {data.source} in the model's own tokens: {tokens}"))
    end = own.end_of_text_name if own.file == TOKENIZER and not own.ends_lines else None
    made = dataclasses.replace(data, tokenizer=str(own.save(folder)), end_of_text=end)
    made.spec = dataclasses.replace(made.spec, text="the model's own")  # what is recorded of it
    return made
