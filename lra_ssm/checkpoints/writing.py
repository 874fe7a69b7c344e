"""A saved model as it is written: whole or not at all."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from lra_ssm.checkpoints.files import read_json
from lra_ssm.checkpoints.layout import CARD, CONFIG, REPLACED, TOKENIZER_CONFIG, TOKENIZERS, WEIGHTS
from lra_ssm.errors import InputError
from lra_ssm.files import UNFINISHED, sha256


class SavedTokenizer(Protocol):
    """What is saved of a tokenizer; those of `lra_ssm.datamodules` are such."""

    file: str

    def content(self) -> bytes: ...

    @property
    def end_of_text_name(self) -> str: ...


def tokenizer_files(tokenizer: SavedTokenizer | str | Path | None) -> tuple[dict[str, bytes], str | None]:
    """What is written of a tokenizer, given as an object, or as its file or the folder of it.

    Returns the contents by file name, and the token that ends a text, where it is known.
    Raises InputError: there is no such file, or it is called otherwise.
    """
    if tokenizer is None:
        return {}, None
    if isinstance(tokenizer, (str, Path)):
        return _of_path(Path(tokenizer))
    end = tokenizer.end_of_text_name
    files = {tokenizer.file: tokenizer.content()}
    if tokenizer.file == "tokenizer.json":  # transformers needs this beside it
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
        files[TOKENIZER_CONFIG] = f"{json.dumps(config, indent=2)}\n".encode()
    return files, end


def _of_path(given: Path) -> tuple[dict[str, bytes], str | None]:
    candidates = [given / name for name in TOKENIZERS] if given.is_dir() else [given]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None or path.name not in TOKENIZERS:
        raise InputError(f"{given}: is no {' or '.join(TOKENIZERS)}, nor a folder with one")
    files = {path.name: path.read_bytes()}
    config = path.with_name(TOKENIZER_CONFIG)
    if path.name != "tokenizer.json" or not config.is_file():
        return files, None
    files[config.name] = config.read_bytes()
    token = read_json(config, str(config)).get("eos_token")
    if isinstance(token, dict):
        token = token.get("content")
    return files, token if isinstance(token, str) else None


def write_model(
    folder: str | Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    beside: Mapping[str, bytes],
    digests: bool = False,
) -> None:
    """Writes a saved model, whole or not at all; an older one in the folder is replaced.

    Tensors that share their memory and shape are written once, by the first name.

    Args:
        folder: created where it is missing.
        config: of config.json.
        beside: other files, by name.
        digests: whether "source" of config.json has the sha256 of the other files, for whoever fetches them.

    Raises:
        InputError: the folder holds something else, or the disk does not take it.
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in untied(weights).items()}
    with placing(folder) as partial:
        for name, content in beside.items():
            (partial / name).write_bytes(content)
        save_file(kept, partial / WEIGHTS, metadata={"format": "pt"})
        if digests:
            files = {name: sha256(partial / name) for name in (WEIGHTS, *beside) if name != CARD}
            config = {**config, "source": {**config.get("source", {}), "files": files}}
        try:
            (partial / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        except (TypeError, ValueError) as error:
            raise InputError(f"{folder}: {CONFIG} cannot be saved: {error}") from error
        # save_file makes a file for its owner alone.
        (partial / WEIGHTS).chmod((partial / CONFIG).stat().st_mode)


@contextmanager
def placing(folder: str | Path) -> Iterator[Path]:
    """A folder beside `folder` that takes its place when the block ends well: a saved model whole, or nothing.

    An older saved model is replaced; files that are none of a model stay.
    Raises InputError: the folder holds something else, or the disk does not take it.
    """
    from safetensors import SafetensorError

    folder = Path(folder).resolve()
    if folder.exists() and not _replaceable(folder):
        raise InputError(f"{folder} is not empty and holds no saved model: give a new or an empty folder")
    partial = folder.with_name(f"{UNFINISHED}{folder.name}-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        yield partial
        for path in partial.iterdir():
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        if not folder.exists() or not any(folder.iterdir()):
            os.replace(partial, folder)
            return
        new = [path.name for path in partial.iterdir()]
        # Without its config.json the older one is no model any more, nor is a mixture of both.
        (folder / CONFIG).unlink()
        for path in {path for pattern in REPLACED for path in folder.glob(pattern)}:
            if path.name not in new:
                path.unlink()
        for name in sorted(new, key=lambda name: name == CONFIG):  # config.json last
            os.replace(partial / name, folder / name)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{folder}: the model cannot be saved there ({reason})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_finite(weights: Mapping[str, Tensor], where: str) -> None:
    """Raises InputError where weights are NaN or infinite, naming the first tensor that has such."""
    wrong = []
    for name, x in weights.items():
        count = int((~torch.isfinite(x)).sum())
        if count:
            wrong.append(f"{name} is NaN or infinite in {count:,} of its {x.numel():,} values")
    if wrong:
        more = f", and {len(wrong) - 1} more tensors" if len(wrong) > 1 else ""
        raise InputError(f"{where}: {wrong[0]}{more}: such a model is of no use to anyone")


def _replaceable(folder: Path) -> bool:
    """Whether a folder is empty, or a saved model of ours or of transformers'."""
    try:
        if not any(folder.iterdir()):
            return True
        config = read_json(folder / CONFIG, CONFIG)
    except (InputError, OSError):
        return False
    return "format" in config or "model_type" in config


def untied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without tensors that are another one by a later name."""
    kept: dict[Any, str] = {}
    for name, x in state.items():
        has_memory = x.numel() and not x.is_meta
        same = (x.data_ptr(), x.shape, x.stride(), x.dtype) if has_memory else name
        kept.setdefault(same, name)
    return {name: state[name] for name in kept.values()}
