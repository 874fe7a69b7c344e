"""Write a saved model: whole or not at all."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import torch
from torch import Tensor

from lra_ssm.checkpoints.files import read_json
from lra_ssm.checkpoints.sources import CARD, CONFIG, INDEX, RUN_CONFIG, TOKENIZER_CONFIG, TOKENIZERS, WEIGHTS
from lra_ssm.errors import InputError
from lra_ssm.files import UNFINISHED, sha256

# Patterns of the files that a new model replaces. The card stays: a new model may come without one.
REPLACED = [CONFIG, "model*.safetensors", f"{WEIGHTS}{INDEX}", *TOKENIZERS, TOKENIZER_CONFIG, RUN_CONFIG]


class SavedTokenizer(Protocol):
    """The part of a tokenizer that is saved; the tokenizers of `lra_ssm.datamodules` have it."""

    file: str
    end_of_text: int

    def content(self) -> bytes: ...

    @property
    def end_of_text_name(self) -> str: ...


def tokenizer_files(tokenizer: SavedTokenizer | None) -> dict[str, bytes]:
    """Return the files of a tokenizer by name."""
    if tokenizer is None:
        return {}
    files = {tokenizer.file: tokenizer.content()}
    if tokenizer.file == "tokenizer.json":  # transformers needs this next to it
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokenizer.end_of_text_name}
        files[TOKENIZER_CONFIG] = f"{json.dumps(config, indent=2)}\n".encode()
    return files


def write_model(
    folder: str | Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    other_files: Mapping[str, bytes],
    digests: bool = False,
) -> None:
    """Write a saved model, whole or not at all; an older one in the folder is replaced.

    Tensors that share their memory and shape are written once, by the first name.

    Args:
        folder: created if it does not exist.
        config: the content of config.json.
        weights: the tensors by name.
        other_files: the content of the other files by name.
        digests: whether "source" of config.json gets the sha256 of the other files, for those who download them.

    Raises:
        InputError: the folder holds something else, or cannot be written.
    """
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in untied(weights).items()}
    with atomic_folder(folder) as partial:
        for name, content in other_files.items():
            (partial / name).write_bytes(content)
        save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
        if digests:
            files = {name: sha256(partial / name) for name in (WEIGHTS, *other_files) if name != CARD}
            config = {**config, "source": {**config.get("source", {}), "files": files}}
        (partial / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (partial / WEIGHTS).chmod((partial / CONFIG).stat().st_mode)  # save_file lets only the owner read it


@contextmanager
def atomic_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a temporary folder whose files become a saved model in `folder` if the block succeeds.

    An older saved model is replaced; files that do not belong to a model stay.
    Raises InputError if the folder holds something else, or cannot be written.
    """
    from safetensors import SafetensorError

    folder = Path(folder).resolve()
    if folder.exists() and not _is_replaceable(folder):
        raise InputError(f"{folder} is not empty and holds no saved model: give a new or an empty folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=UNFINISHED, dir=folder.parent) as name:
            yield Path(name)
            folder.mkdir(exist_ok=True)
            # config.json goes first and comes last: without it, a mixture of both models cannot be loaded.
            for path in [path for pattern in REPLACED for path in folder.glob(pattern)]:
                path.unlink()
            for path in sorted(Path(name).iterdir(), key=lambda path: path.name == CONFIG):
                os.replace(path, folder / path.name)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{folder}: the model cannot be saved there ({reason})") from error


def _is_replaceable(folder: Path) -> bool:
    """Return whether a folder is empty, or holds a saved model from this package or from transformers."""
    try:
        return not any(folder.iterdir()) or bool({"format", "model_type"} & read_json(folder / CONFIG, CONFIG).keys())
    except (InputError, OSError):
        return False


def check_finite(weights: Mapping[str, Tensor], where: str) -> None:
    """Raise InputError if weights are NaN or infinite, naming the first such tensor."""
    for name, x in weights.items():
        if count := int((~torch.isfinite(x)).sum()):
            raise InputError(f"{where}: {name} is NaN or infinite in {count:,} of its {x.numel():,} values")


def untied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors, each one that has several names only by its first name."""
    first_names: dict[Any, str] = {}
    for name, x in state.items():
        has_memory = x.numel() and not x.is_meta
        same = (x.data_ptr(), x.shape, x.stride(), x.dtype) if has_memory else name
        first_names.setdefault(same, name)
    return {name: state[name] for name in first_names.values()}
