"""Weights that a command starts from: a checkpoint's, or a saved model's by its name, whose config may come with it."""

import argparse
import importlib.util
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from lra_ssm.checkpoints import RUN_CONFIG, ModelFiles, check_shapes
from lra_ssm.errors import InputError, squeeze
from lra_ssm.files import sha256
from lra_ssm.models.pretrained import FORMAT, Pretrained, import_paths, load_pretrained
from lra_ssm.runs.checks import check_tokenizer, differing_settings, existing, load_checkpoint


def options_of(name: str, rest: list[str]) -> list[str]:
    """The options with which validate, test and predict take a saved model that brings its run's config along.

    rest: the options given, `--trust module.Class` among them. Raises InputError: it brings none along, or one that
    names something outside lra_ssm that would be imported and that nobody trusts.
    """
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    reader.add_argument("--trust", action="append", default=[])
    given, rest = reader.parse_known_args(rest)
    files = ModelFiles(name)
    config = run_config(files)
    if config is None:
        raise InputError(f"{files.name} has no {RUN_CONFIG}: give --config, and --ckpt_path={name}")
    check_trusted(files.name, config, given.trust)
    return [f"--config={files.find(RUN_CONFIG)}", f"--ckpt_path={name}", *rest]


def run_config(files: ModelFiles) -> Any:
    """The configuration of its run that a saved model brings along, as plain values; None where it has none.

    Raises InputError: it cannot be had, or is no YAML.
    """
    path = files.find(RUN_CONFIG)
    try:
        return None if path is None else yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{files.name}: {RUN_CONFIG} is no YAML ({error})") from error


def check_trusted(name: str, config: Any, trust: Collection[str]) -> None:
    """A saved model's configuration, or a part of it, names nothing outside lra_ssm that could be imported, but what is
    trusted. Raises InputError."""
    for said in import_paths(config):
        if said not in trust and _could_be_imported(said):
            raise InputError(
                f"{name}: its {RUN_CONFIG} names {said}, which is not of lra_ssm and would be imported: if it is"
                f" to be trusted, give --trust {said}"
            )


def _could_be_imported(path: str) -> bool:
    """Whether a text names what is not ours and could be imported: a file's name has the same form."""
    top = path.partition(".")[0]
    if top == "lra_ssm":
        return False
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return True


def start_from(given: str, task: Any, allow_pickle: bool) -> ModelFiles | None:
    """Gives a task the weights of a .ckpt, or its network those of a saved model: a folder, or a repository of the Hub.

    Returns the saved model's files. Raises InputError: there is no such thing, or it does not fit.
    """
    if Path(given).is_file() or given.endswith(".ckpt"):
        path = existing(given)
        state = load_checkpoint(path)
        check_shapes(task.state_dict(), state["state_dict"], str(path))
        task.load_state_dict(state["state_dict"])
        return None
    files = ModelFiles(given)
    network = getattr(task, "network", None)
    if not isinstance(network, nn.Module):
        raise InputError(f"{given}: {type(task).__name__} has no network that could have its weights")
    # What the configuration names is imported anyway.
    trust = {path for path in import_paths(dict(task.hparams)) if not path.startswith("lra_ssm.")}
    model = load_pretrained(files, nn.Module, allow_pickle=allow_pickle, trust=trust)
    check_shapes(network.state_dict(), model.state_dict(), files.name)
    network.load_state_dict(model.state_dict())
    print(f"starting from the weights of {squeeze(files.name)}")
    if isinstance(model, Pretrained):
        state = {"hyper_parameters": {"network": model.specification()}}
        if differing := differing_settings(task, state):
            print(squeeze(f"note: {files.name} was made with other settings: {differing}"))
    return files


def check_start_tokenizer(given: str, files: ModelFiles | None, data: Any) -> None:
    """The data's tokenizer is that of the weights, as far as both name theirs; data is prepared.

    Raises InputError where a checkpoint or a saved model of ours has another. Of other layouts a line says it: the same
    tokenizer may be written in more than one way there.
    """
    if files is None:
        check_tokenizer(Path(given), data)
        return
    path = files.tokenizer() if hasattr(data, "tokenizer_digest") else None
    if path is None:
        return
    theirs = sha256(path)
    if theirs == data.tokenizer_digest:
        return
    said = (
        f"{files.name}: its tokenizer ({path.name}, sha256 {theirs[:12]}…) is not the data's ({data.tokenizer_file},"
        f" sha256 {data.tokenizer_digest[:12]}…)"
    )
    if files.config().get("format") == FORMAT:
        raise InputError(f"{said}: prepare the data with the model's")
    print(squeeze(f"warning: {said}: unless they give the same tokens, the weights are of others"))
