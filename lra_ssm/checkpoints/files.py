"""A saved model: a folder, local or a repository of the Hub.

    config.json          {"format": "lra_ssm/1", "network": {class_path, init_args}, "lra_ssm_version", "source": {…}}
    model.safetensors    the weights by their names in the state_dict, tied ones once
    vocabulary.json or tokenizer.json (with tokenizer_config.json), if the model has a tokenizer
    config.yaml          the run's configuration, if the model was pushed
    README.md            the model card, if the model was pushed

This module also finds and reads the files of other layouts; models/ interprets them. Nothing in such a folder is run:
pickles are refused unless they are allowed (models/pretrained.py does the same for classes).
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from lra_ssm.checkpoints.sources import (
    CARD,
    CONFIG,
    GENERATION_CONFIG,
    INDEX,
    PICKLE,
    RUN_CONFIG,
    TOKENIZER_CONFIG,
    TOKENIZERS,
    WEIGHTS,
    source_of,
)
from lra_ssm.errors import InputError, to_one_line
from lra_ssm.files import sha256


class ModelFiles:
    """The files of a saved model with this name (see checkpoints/sources.py).

    Attributes:
        folder: where they are.
        name: what messages call the model; a repository with its commit.

    Args:
        name: a folder, a model that comes with lra_ssm, "owner/name" or "owner/name@revision" on the Hub, or
            "wandb:entity/project/artifact:version".
        revision: a branch, tag or commit of a repository; None for its main branch.

    Raises:
        InputError: there is no such model or revision, or it cannot be downloaded.
    """

    def __init__(self, name: str | Path, revision: str | None = None) -> None:
        self._source = source_of(name, revision)
        self.folder, self.name = self._source.folder, self._source.name

    def find(self, file: str) -> Path | None:
        """Return a file's path; None if the model has no such file."""
        path = self.folder / file
        return path if path.is_file() else None

    def config(self) -> dict[str, Any]:
        """Return config.json. Raises InputError if it does not exist, or is not a JSON object."""
        path = self.find(CONFIG)
        if path is None:
            raise InputError(f"{self.name}: has no {CONFIG}: it is not a saved model")
        return read_json(path, f"{self.name}: {CONFIG}")

    def tokenizer(self) -> Path | None:
        """Return its tokenizer's file, as `load_tokenizer` of the data modules reads it; None if it has none."""
        return next((path for name in TOKENIZERS if (path := self.find(name))), None)

    def end_tokens(self) -> tuple[int, ...]:
        """Return the tokens that end a text by transformers' configuration of the model; empty if it names none."""
        stated = self.config().get("eos_token_id")
        if path := self.find(GENERATION_CONFIG):
            stated = read_json(path, f"{self.name}: {GENERATION_CONFIG}").get("eos_token_id", stated)
        return tuple(id_ for id_ in (stated if isinstance(stated, list) else [stated]) if isinstance(id_, int))

    def verify(self, allow_pickle: bool = False) -> dict[str, Path]:
        """Return all files of the model by name, after comparing their digests.

        Raises InputError if one is missing or damaged, or if the weights are a pickle and pickles are not allowed.
        """
        stated = get_nested(self.config(), "source", "files")
        paths = {path.name: path for path in self.weight_files(allow_pickle)}
        for name in (CONFIG, f"{WEIGHTS}{INDEX}", f"{PICKLE}{INDEX}", *TOKENIZERS, TOKENIZER_CONFIG, RUN_CONFIG, CARD):
            if path := self.find(name):
                paths[name] = path
            elif name in stated:
                raise InputError(f"{self.name}: has no {name}, which its {CONFIG} names")
        for name, path in paths.items():
            digest = stated.get(name) or _hub_digest(path)
            if isinstance(digest, str) and sha256(path) != digest:
                raise InputError(
                    f"{self.name}: {name} does not have the published sha256 {digest[:12]}…: it is damaged, or was"
                    f" changed afterwards; if it was downloaded, delete {path} and its target to download it again"
                )
        return paths

    def weights(self, allow_pickle: bool = False) -> dict[str, Tensor]:
        """Return the tensors by name, mapped from the files if possible.

        Raises:
            InputError: there are none, they are damaged, or they are a pickle and pickles are not allowed. A pickle is
                read with torch.load(weights_only=True), which builds only tensors.
        """
        tensors: dict[str, Tensor] = {}
        for path in self.weight_files(allow_pickle):
            tensors |= _read_tensors(path, f"{self.name}: {path.name}")
        return tensors

    def weight_files(self, allow_pickle: bool) -> list[Path]:
        """Return the files of the weights: safetensors, whole or in parts, else a pickle, whole or in parts.

        Raises InputError if the folder has no weights, or if they are a pickle and pickles are not allowed.
        """
        paths = self._whole_or_parts(WEIGHTS)
        if not paths and allow_pickle:
            self._source.fetch_pickles()
            paths = self._whole_or_parts(PICKLE)
        if not paths:
            needed = f"; weights in {PICKLE} are a pickle, which can run code when it is read: allow_pickle=True"
            needed = "" if allow_pickle else f"{needed} (--allow-pickle) reads only its tensors"
            raise InputError(f"{self.name}: has no {WEIGHTS}{needed}")
        return paths

    def _whole_or_parts(self, name: str) -> list[Path]:
        if path := self.find(name):
            return [path]
        index = self.find(f"{name}{INDEX}")
        return [] if index is None else self._parts(index, Path(name).suffix)

    def _parts(self, index: Path, suffix: str) -> list[Path]:
        """Return the files that an index names; all of them are in its folder."""
        where = f"{self.name}: {index.name}"
        names = {*get_nested(read_json(index, where), "weight_map").values()}
        if not names or not all(isinstance(name, str) for name in names):
            raise InputError(f"{where} has no weight_map, the file of every tensor")
        for name in names:
            if PurePosixPath(name).name != name or "\\" in name or not name.endswith(suffix):
                raise InputError(f"{where} names the file {name!r}, which is not a {suffix} next to it")
            if self.find(name) is None:
                raise InputError(f"{self.name}: has no {name}")
        return [self.folder / name for name in sorted(names)]


def _hub_digest(path: Path) -> str | None:
    """Return a large file's sha256, its name in the Hub's cache (its ETag). huggingface_hub compares only sizes."""
    name = path.readlink().name if path.is_symlink() else ""
    return name if re.fullmatch("[0-9a-f]{64}", name) else None


def _read_tensors(path: Path, where: str) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    safe = path.suffix == ".safetensors"
    try:
        state = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # both loaders raise several kinds
        wrong = "is damaged or not a safetensors file" if safe else "cannot be read as tensors"
        raise InputError(f"{where} {wrong}: {to_one_line(str(error))[:200]}") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"{where} holds a {type(state).__name__}, not tensors by name")
    return state


def get_nested(stated: Any, *keys: str) -> dict[str, Any]:
    """Return the dict under these keys in a file that may not be ours; empty if there is no such dict."""
    for key in keys:
        stated = stated.get(key) if isinstance(stated, dict) else None
    return stated if isinstance(stated, dict) else {}


def read_json(path: Path, where: str) -> dict[str, Any]:
    """Return a JSON object. Raises InputError, naming `where`, if the file does not hold one."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{where} is not a JSON object")
    return content


def check_shapes(model: Mapping[str, Any], checkpoint: Mapping[str, Any], where: str) -> None:
    """Raise InputError if the tensors of a checkpoint are not those of the model, by name and shape."""

    def shape(state: Mapping[str, Any], name: str) -> str:
        value = state.get(name, "missing")
        return str(tuple(value.shape)) if isinstance(value, Tensor) else str(value)

    names = sorted(model.keys() | checkpoint.keys())
    wrong = [name for name in names if shape(model, name) != shape(checkpoint, name)]
    if wrong:
        first = f"{wrong[0]} is {shape(checkpoint, wrong[0])} in the checkpoint, {shape(model, wrong[0])} in the model"
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InputError(f"checkpoint {where} has other shapes: {first}{more}")
