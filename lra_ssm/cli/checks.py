"""What must fit together before a run starts: checkpoint and model, model and data. One line where it does not."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule

from lra_ssm.errors import InputError


def existing(path: str) -> Path:
    file = Path(path)
    if not file.is_file():
        raise InputError(f"checkpoint {path} does not exist")
    return file


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The checkpoint on the CPU, its tensors mapped from the file."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise InputError(f"checkpoint {path} cannot be read: {squeeze(str(error))[:200]}") from error


def differing_settings(model: LightningModule, state: dict[str, Any]) -> str:
    """The hyperparameters that are others in the checkpoint than in the model, as text; empty if none is."""
    ours, theirs = dict(model.hparams), state.get("hyper_parameters") or {}
    keys = sorted(key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key])
    return ", ".join(f"{key} {theirs[key]!r} there, {ours[key]!r} here" for key in keys)


def check_shapes(model: LightningModule, state: dict[str, Any], path: Path) -> None:
    ours = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    theirs = {name: tuple(value.shape) for name, value in state.get("state_dict", {}).items()}
    wrong = [
        f"{name} is {theirs.get(name, 'missing')} in the checkpoint, {ours.get(name, 'missing')} in the model"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InputError(f"checkpoint {path} is of another shape: {wrong[0]}{more}")


def check_data(model: LightningModule, datamodule: Any) -> None:
    """The classes, and the vocabulary or the features, that the model was told are the data's."""
    name = type(datamodule).__name__
    for key in ("vocab_size", "d_input", "num_classes"):
        ours, theirs = model.hparams.get(key), getattr(datamodule, key, None)
        if theirs is not None and key in model.hparams and ours != theirs:
            raise InputError(f"model.{key} is {ours}, but {name} has {theirs}")
    if hasattr(datamodule, "d_input") and datamodule.d_input is None and model.hparams.get("d_input") is not None:
        raise InputError(f"model.d_input is {model.hparams['d_input']}, but {name} has tokens: set vocab_size instead")
    if hasattr(datamodule, "per_example") and "pair_head" in model.hparams:
        pairs, head = datamodule.per_example == 2, model.hparams["pair_head"]
        if pairs != (head is not None):
            needed = "pairs, which need nli or lra" if pairs else "no pairs, so it must be null"
            raise InputError(f"model.pair_head is {head or 'null'}, but {name} has {needed}")


def check_vocabulary(model: LightningModule, datamodule: Any) -> None:
    """The model has a row for every token of prepared data whose vocabulary was not known before."""
    if not hasattr(datamodule, "manifest") or not (vocabulary := datamodule.manifest().get("vocabulary")):
        return
    rows = model.hparams.get("vocab_size")
    if rows is not None and rows < len(vocabulary):
        raise InputError(
            f"model.vocab_size is {rows}, but {type(datamodule).__name__}'s prepared data"
            f" ({datamodule.prepared_folder}) has {len(vocabulary)} tokens; set it to {len(vocabulary)}"
        )


def check_same_data(run: Path, recorded: dict[str, Any], manifest: dict[str, Any]) -> None:
    """A run that goes on does so with the data that it was begun with."""
    before, now = _digests(recorded), _digests(manifest)
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if before and changed:
        raise InputError(f"{run} was begun with other data ({', '.join(changed)} differ); --fresh starts it anew")


def _digests(manifest: dict[str, Any]) -> dict[str, str]:
    splits = manifest.get("splits") or {}
    return {entry["file"]: entry["sha256"] for split in splits.values() for entry in split["arrays"].values()}


def squeeze(text: str) -> str:
    """One line of many."""
    return " ".join(text.split())


def cause(error: BaseException) -> BaseException:
    """The first error of the chain that this package raised, else the innermost: libraries wrap what a user did."""
    chain = [error]
    while before := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(before)
    return next((e for e in chain if _raised_here(e)), chain[-1])


def _raised_here(error: BaseException) -> bool:
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    return where is not None and where.tb_frame.f_globals.get("__name__", "").startswith("lra_ssm.")
