"""Load the weights that a command starts from: from a checkpoint, or from a saved model, maybe with its config."""

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from lra_ssm.checkpoints import RUN_CONFIG, ModelFiles, check_shapes
from lra_ssm.checkpoints.files import get_nested
from lra_ssm.cli.find_model import check_trusted, find, is_saved
from lra_ssm.errors import InputError, hint, to_one_line
from lra_ssm.files import sha256
from lra_ssm.models.pretrained import FORMAT, Pretrained, import_paths, load_pretrained
from lra_ssm.runs.checks import check_tokenizer, differing_settings, existing, load_checkpoint
from lra_ssm.runs.record import read_file


def options_of(name: str, trust: Collection[str], settings: Sequence[str] = ()) -> list[str]:
    """Return the options with which validate, test and predict take a run, or a saved model with its config.

    trust: classes that a saved model's config may name; settings: the options that follow. Raises InputError if the
    model does not exist, or if its config names other classes (`check_trusted`).
    """
    if not is_saved(name):
        checkpoint = find(name)
        if not checkpoint.config:
            raise InputError(f"{name} has no run's config.yaml: give --config, and --ckpt_path={checkpoint.file}")
        return [f"--config={checkpoint.run}/config.yaml", f"--ckpt_path={checkpoint.file}"]
    files = ModelFiles(name)
    path = files.find(RUN_CONFIG)
    if path is None:
        raise InputError(f"{files.name} has no {RUN_CONFIG}: give --config, and --ckpt_path={name}")
    config = read_file(path)
    check_trusted(files.name, config, trust, path.parent)
    # The model's tokenizer replaces a file of the training machine, and one that other text would be used to train.
    configured, file = get_nested(config, "data", "init_args").get("tokenizer"), files.tokenizer()
    other_text = any(option.startswith("--data.source=") for option in settings)
    takes_own = file and (str(configured).endswith(".json") or other_text)
    return [f"--config={path}", f"--ckpt_path={name}", *([f"--data.tokenizer={file}"] if takes_own else [])]


def find_weights(name: str) -> str:
    """Return the best or last checkpoint if --init_from names a run's directory, else the name itself."""
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
            state = self.select_weights(task.state_dict(), load_checkpoint(path)["state_dict"])
            check_shapes(task.state_dict(), state, str(path))
            task.load_state_dict(state)
            return
        network = getattr(task, "network", None)
        if not isinstance(network, nn.Module):
            raise InputError(f"{self.name}: {type(task).__name__} has no network that could have its weights")
        named = import_paths(dict(task.hparams))  # these are imported anyway
        trust = {path for path in named if not path.startswith("lra_ssm.")}
        model = load_pretrained(self.files, nn.Module, allow_pickle=self.allow_pickle, trust=trust)
        weights = self.select_weights(network.state_dict(), model.state_dict())
        check_shapes(network.state_dict(), weights, self.files.name)
        network.load_state_dict(weights)
        print(f"starting from the weights of {to_one_line(self.files.name)}")
        if isinstance(model, Pretrained):
            made_with = {"hyper_parameters": {"network": model.specification()}}
            if differing := differing_settings(task, made_with):
                print(to_one_line(f"note: {self.files.name} was made with other settings: {differing}"))

    def select_weights(self, task_weights: dict[str, Any], loaded_weights: dict[str, Any]) -> dict[str, Any]:
        """Return the loaded weights, but the task's own for modules in `without`; print which these are.

        A pretrained embedding may have one more input channel, which marks hidden inputs: it is left out. Raises
        InputError if a name in `without` matches no parameter.
        """
        if not self.without:
            return loaded_weights
        initial: set[str] = set()
        for module in self.without:
            names = {name for name in task_weights.keys() | loaded_weights.keys() if _is_below(name, module)}
            if not names:
                modules = sorted({name.removeprefix("network.").partition(".")[0] for name in task_weights})
                raise InputError(f"--init_from_without: no parameter below {module!r}; {hint(module, modules)}")
            initial |= names
        selected = {name: value for name, value in loaded_weights.items() if name not in initial}
        not_loaded = [*self.without]
        for name, value in selected.items():
            target = task_weights.get(name)
            if target is not None and _is_below(name, "backbone.embedding") and value.dim() == target.dim() == 2:
                if value.shape == (target.shape[0], target.shape[1] + 1):
                    selected[name] = value[:, :-1].clone()
                    not_loaded.append("the mask's input channel, which is left out")
        tensors = f"{len(selected.keys() & task_weights.keys())} of {len(task_weights)} tensors"
        print(to_one_line(f"starting from {self.name}: {tensors} taken; starting fresh: {', '.join(not_loaded)}"))
        return selected | {name: value for name, value in task_weights.items() if name in initial}

    def check_tokenizer(self, data: Any) -> None:
        """Check that the data's tokenizer is the model's, if both have one.

        Raises InputError if a model of this package has another tokenizer. Other layouts may write the same tokenizer
        differently: for these it prints a warning.
        """
        if self.files is None:
            check_tokenizer(Path(self.name), data)
            return
        path = self.files.tokenizer() if hasattr(data, "tokenizer_digest") else None
        if path is None or sha256(path) == data.tokenizer_digest:
            return
        model_digest, data_digest = (f"{digest[:12]}…" for digest in (sha256(path), data.tokenizer_digest))
        expected = f"({data.tokenizer_file}, sha256 {data_digest})"
        problem = f"its tokenizer ({path.name}, sha256 {model_digest}) is not the data's {expected}"
        if self.files.config().get("format") == FORMAT:
            raise InputError(f"{self.files.name}: {problem}: prepare the data with the model's")
        print(to_one_line(f"warning: {self.files.name}: {problem}: the weights fit only if both give the same tokens"))


def _is_below(name: str, module: str) -> bool:
    return f"{name.removeprefix('network.')}.".startswith(f"{module}.")
