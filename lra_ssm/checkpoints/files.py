"""A saved model: a folder, here or as a repository of the Hub.

    config.json          {"format": "lra_ssm/1", "network": {class_path, init_args}, "lra_ssm_version", "source": {…}}
    model.safetensors    the weights by the names of the state_dict, tied ones once
    vocabulary.json or tokenizer.json (with tokenizer_config.json), where there is one
    config.yaml          of a model that was pushed: the configuration of its run
    README.md            likewise: its card (card.py)

Files of other layouts are found and read here too; what they mean is told in models/. Nothing that lies in such a
folder is run: pickles are refused unless asked for (models/pretrained.py has the same of classes).
"""

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from lra_ssm.checkpoints.layout import (
    CARD,
    CONFIG,
    INDEX,
    PICKLE,
    RUN_CONFIG,
    TOKENIZER_CONFIG,
    TOKENIZERS,
    WEIGHTS,
    check_stated,
)
from lra_ssm.checkpoints.sources import source_of
from lra_ssm.errors import InputError, squeeze

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class ModelFiles:
    """The files of a saved model, found by its name (checkpoints/sources.py); of a repository those asked for alone are
    fetched.

    Args:
        name: a folder, a model that comes with lra_ssm, "owner/name" or "owner/name@revision" of the Hub,
            "wandb:entity/project/artifact:version", or "https://…#sha256=…".
        revision: a branch, tag or commit of a repository; None for its main branch.
        sha256: of the file at an address.

    Raises:
        InputError: there is no such thing, it cannot be had, or it has no such revision.
    """

    def __init__(self, name: str | Path, revision: str | None = None, sha256: str | None = None) -> None:
        self.source = source_of(name, revision, sha256)

    @property
    def name(self) -> str:
        """What messages call it; of a repository with the commit, once it is known."""
        return self.source.name

    @property
    def commit(self) -> str | None:
        """Of a repository, once it is known."""
        return self.source.commit

    @property
    def folder(self) -> Path | None:
        """Where all of its files lie; None where they are fetched one by one."""
        return self.source.folder

    def find(self, file: str) -> Path | None:
        """A file of the model; None where it has no such. Raises InputError: it cannot be had."""
        return self.source.find(file)

    def config(self) -> dict[str, Any]:
        """config.json. Raises InputError: there is none, or it is no JSON object."""
        path = self.find(CONFIG)
        if path is None:
            raise InputError(f"{self.name}: has no {CONFIG}: it is no saved model{self.source.missing()}")
        return read_json(path, f"{self.name}: {CONFIG}")

    def tokenizer(self) -> Path | None:
        """The file of its tokenizer, as `load_tokenizer` of the data modules reads it; None where it has none."""
        for name in TOKENIZERS:
            if path := self.find(name):
                if name == "tokenizer.json":
                    self.find(TOKENIZER_CONFIG)  # it is read beside the other: which token ends a text
                return path
        return None

    def fetch(self, allow_pickle: bool = False) -> dict[str, Path]:
        """All its files that are known here, by name, with the digests that are stated of them; the card among them.

        Raises InputError: one is missing or damaged, or the weights are a pickle and allow_pickle is false.
        """
        self.config()
        names = [CONFIG, *(path.name for path in self.weight_files(allow_pickle))]
        names += [INDEX, *TOKENIZERS, TOKENIZER_CONFIG, RUN_CONFIG, CARD]
        found = {name: path for name in names if (path := self.find(name))}
        for path in found.values():
            self.source.check(path)
        try:
            check_stated(found[CONFIG], self.find, self.name)
        except InputError as error:
            raise InputError(f"{error}{self.source.forget()}") from error
        return found

    def weights(self, allow_pickle: bool = False) -> dict[str, Tensor]:
        """The tensors by name, mapped from the files where they can be: model.safetensors, one or in parts, else a
        pickle.

        Raises:
            InputError: there are none, they are damaged, or they are a pickle and allow_pickle is false. A pickle is
                read with torch.load(weights_only=True), which builds tensors and nothing else.
        """
        paths = self.weight_files(allow_pickle)
        if paths[0].suffix != ".safetensors":
            return self._pickle(paths[0])
        found: dict[str, Tensor] = {}
        for path in paths:
            part = self._safetensors(path)
            if twice := found.keys() & part.keys():
                raise InputError(f"{self.name}: {path.name} holds {min(twice)}, and so does another part")
            found |= part
        if paths[0].name != WEIGHTS:
            placed = self._placed()
            if lost := placed.keys() - found.keys():
                file = placed[min(lost)]
                raise InputError(f"{self.name}: {INDEX} says that {file} holds {min(lost)}, which it does not")
        return found

    def weight_files(self, allow_pickle: bool) -> list[Path]:
        """One or several, all .safetensors, or one pickle. Raises InputError: there are none, or they are a pickle and
        allow_pickle is false."""
        if path := self.find(WEIGHTS):
            return [path]
        if self.find(INDEX):
            found = []
            for file in sorted({*self._placed().values()}):
                path = self.find(file)
                if path is None:
                    raise InputError(f"{self.name}: {INDEX} names {file}, which is missing")
                found.append(path)
            return found
        name = PICKLE if self.source.has(PICKLE) else None
        if name is None and self.folder is not None:
            others = [each.name for each in sorted(self.folder.iterdir()) if each.suffix in _PICKLES]
            name = others[0] if len(others) == 1 else None
        if name is None:
            raise InputError(f"{self.name}: has no {WEIGHTS}{self.source.missing()}")
        if not allow_pickle:  # and before it is fetched
            raise InputError(
                f"{self.name}: {name} is a pickle, which can run code where it is read: give allow_pickle=True"
                " (--allow-pickle) to read it, tensors alone, or a model.safetensors"
            )
        path = self.find(name)
        if path is None:
            raise InputError(f"{self.name}: {name} is gone")
        return [path]

    def _placed(self) -> dict[str, str]:
        """The file of every tensor, of weights in parts: each a .safetensors beside the index."""
        path = self.find(INDEX)
        assert path is not None
        where = f"{self.name}: {INDEX}"
        placed = read_json(path, where).get("weight_map")
        if not isinstance(placed, dict) or not placed or not all(isinstance(file, str) for file in placed.values()):
            raise InputError(f"{where} has no weight_map, the file of every tensor")
        for file in sorted({*placed.values()}):
            if PurePosixPath(file).name != file or "\\" in file or not file.endswith(".safetensors"):
                raise InputError(f"{where} names a file {file!r}, which is no .safetensors beside it")
        return placed

    def _pickle(self, path: Path) -> dict[str, Tensor]:
        where = f"{self.name}: {path.name}"
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # torch raises several
            raise InputError(f"{where} cannot be read as tensors: {squeeze(str(error))[:200]}") from error
        if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
            raise InputError(f"{where} holds no tensors by name, but a {type(state).__name__}")
        return state

    def _safetensors(self, path: Path) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, ValueError, KeyError) as error:  # KeyError: a dtype that torch has not
            raise InputError(f"{self.name}: {path.name} is damaged or no safetensors file ({error})") from error


def read_json(path: Path, where: str) -> dict[str, Any]:
    """A JSON object. Raises InputError: it is none."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{where} is JSON, but no object")
    return content


def check_shapes(ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str) -> None:
    """The tensors of a checkpoint are those of the model, by name and shape. Raises InputError naming one that is not
    and how many more."""
    kinds = [
        {name: tuple(value.shape) if isinstance(value, Tensor) else f"a {type(value).__name__}" for name, value in s}
        for s in (ours.items(), theirs.items())
    ]
    wrong = [
        f"{name} is {kinds[1].get(name, 'missing')} in the checkpoint, {kinds[0].get(name, 'missing')} in the model"
        for name in sorted(ours.keys() | theirs.keys())
        if kinds[0].get(name) != kinds[1].get(name)
    ]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InputError(f"checkpoint {where} is of another shape: {wrong[0]}{more}")
