"""fit --init_from: the weights that a run starts from: a checkpoint's, or a saved model's."""

import hashlib
from pathlib import Path
from typing import Any

from torch import nn

from lra_ssm.checkpoints import ModelFiles, check_shapes
from lra_ssm.errors import InputError, squeeze
from lra_ssm.models.pretrained import FORMAT, Pretrained, import_paths, load_pretrained
from lra_ssm.runs.checks import check_tokenizer, differing_settings, existing, load_checkpoint


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
        raise InputError(f"--init_from={given}: {type(task).__name__} has no network that could have its weights")
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
    theirs = hashlib.sha256(path.read_bytes()).hexdigest()
    if theirs == data.tokenizer_digest:
        return
    said = (
        f"{files.name}: its tokenizer ({path.name}, sha256 {theirs[:12]}…) is not the data's ({data.tokenizer_file},"
        f" sha256 {data.tokenizer_digest[:12]}…)"
    )
    if files.config().get("format") == FORMAT:
        raise InputError(f"{said}: prepare the data with the model's")
    print(squeeze(f"warning: {said}: unless they give the same tokens, the weights are of others"))
