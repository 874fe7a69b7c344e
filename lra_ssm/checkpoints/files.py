"""A saved model: a folder, here or as a repository of the Hub.

    config.json          {"format": "lra_ssm/1", "network": {class_path, init_args}, "lra_ssm_version", "source": {…}}
    model.safetensors    the weights by the names of the state_dict, tied ones once
    vocabulary.json or tokenizer.json (with tokenizer_config.json), where there is one
    config.yaml          of a model that was pushed: the configuration of its run
    README.md            likewise: its card (card.py)

Files of other layouts are found and read here too; what they mean is told in models/. Nothing that lies in such a
folder is run: pickles are refused unless asked for (models/pretrained.py has the same of classes).
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import torch
from torch import Tensor

from lra_ssm.checkpoints.layout import CARD, CONFIG, INDEX, RUN_CONFIG, TOKENIZER_CONFIG, TOKENIZERS, WEIGHTS
from lra_ssm.checkpoints.sources import source_of
from lra_ssm.errors import InputError, squeeze
from lra_ssm.files import sha256

_Content = TypeVar("_Content")


class ModelFiles:
    """The files of a saved model, found by its name (checkpoints/sources.py); of a repository those asked for alone are
    fetched, and one that is damaged is fetched anew, once.

    Args:
        name: a folder, a model that comes with lra_ssm, "owner/name" or "owner/name@revision" of the Hub, or
            "wandb:entity/project/artifact:version".
        revision: a branch, tag or commit of a repository; None for its main branch.

    Raises:
        InputError: there is no such thing, it cannot be had, or it has no such revision.
    """

    def __init__(self, name: str | Path, revision: str | None = None) -> None:
        self._source = source_of(name, revision)

    @property
    def name(self) -> str:
        """What messages call it; of a repository with the commit, once it is known."""
        return self._source.name

    def find(self, file: str) -> Path | None:
        """A file of the model; None where it has no such. Raises InputError: it cannot be had."""
        return self._source.find(file)

    def _read(self, file: str, read: Callable[[Path], _Content]) -> _Content | None:
        """A file by what reads it, which raises InputError where it is damaged; None where the model has no such."""
        if (path := self.find(file)) is None:
            return None
        try:
            return read(path)
        except InputError:
            if not self._source.fetch_anew(file):
                raise
        try:
            return read(path)
        except InputError:  # neither it nor what may say wrong digests of it is left in the cache
            for cached in (path, path.with_name(CONFIG)):
                cached.resolve().unlink(missing_ok=True)
                cached.unlink(missing_ok=True)
            raise

    def config(self) -> dict[str, Any]:
        """config.json. Raises InputError: there is none, or it is no JSON object."""
        config = self._read(CONFIG, lambda path: read_json(path, f"{self.name}: {CONFIG}"))
        if config is None:
            raise InputError(f"{self.name}: has no {CONFIG}: it is no saved model{self._source.missing()}")
        return config

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
        source = self.config().get("source")
        stated = source.get("files") if isinstance(source, dict) else None
        stated = stated if isinstance(stated, dict) else {}
        weights = [path.name for path in self.weight_files(allow_pickle)]
        found = {}
        for name in (CONFIG, *weights, INDEX, *TOKENIZERS, TOKENIZER_CONFIG, RUN_CONFIG, CARD):
            if path := self._read(name, lambda path: self._checked(path, stated.get(path.name))):
                found[name] = path
            elif name in stated:
                raise InputError(f"{self.name}: has no {name}, which its {CONFIG} names")
        return found

    def _checked(self, path: Path, stated: Any) -> Path:
        """The file, which has the digests that the Hub and config.json say it has. Raises InputError: it has not."""
        for who, digest in (("the Hub", self._source.digest(path)), (f"its {CONFIG}", stated)):
            if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", digest):
                continue
            found = sha256(path) if len(digest) == 64 else _git_digest(path)
            if found != digest:
                raise InputError(
                    f"{self.name}: {path.name} has the digest {found[:12]}…, {who} says {digest[:12]}…: it is damaged,"
                    " or was changed afterwards"
                )
        return path

    def weights(self, allow_pickle: bool = False) -> dict[str, Tensor]:
        """The tensors by name, mapped from the files where they can be: model.safetensors, one or in parts, else a
        pickle.

        Raises:
            InputError: there are none, they are damaged, or they are a pickle and allow_pickle is false. A pickle is
                read with torch.load(weights_only=True), which builds tensors and nothing else.
        """
        found: dict[str, Tensor] = {}
        for path in self.weight_files(allow_pickle):
            # A pickle that torch refuses is as its owner wrote it: `fetch` compares its digest.
            safe = path.suffix == ".safetensors"
            found |= (self._read(path.name, self._tensors) if safe else self._tensors(path)) or {}
        return found

    def weight_files(self, allow_pickle: bool) -> list[Path]:
        """One or several, all .safetensors, or one pickle. Raises InputError: there are none, or they are a pickle and
        allow_pickle is false."""
        names = self._read(INDEX, self._parts) if self.find(WEIGHTS) is None else [WEIGHTS]
        if not names:
            name = self._source.pickle()
            if name is None:
                raise InputError(f"{self.name}: has no {WEIGHTS}{self._source.missing()}")
            if not allow_pickle:  # and before it is fetched
                raise InputError(
                    f"{self.name}: {name} is a pickle, which can run code where it is read: give allow_pickle=True"
                    " (--allow-pickle) to read it, tensors alone, or a model.safetensors"
                )
            names = [name]
        found = [path for name in names if (path := self.find(name))]
        if len(found) < len(names):
            missing = {*names} - {path.name for path in found}
            raise InputError(f"{self.name}: {min(missing)} is missing, which {INDEX} names")
        return found

    def _parts(self, index: Path) -> list[str]:
        """The files of weights in parts: each a .safetensors beside the index."""
        where = f"{self.name}: {INDEX}"
        placed = read_json(index, where).get("weight_map")
        if not isinstance(placed, dict) or not placed or not all(isinstance(file, str) for file in placed.values()):
            raise InputError(f"{where} has no weight_map, the file of every tensor")
        for file in (files := sorted({*placed.values()})):
            if PurePosixPath(file).name != file or "\\" in file or not file.endswith(".safetensors"):
                raise InputError(f"{where} names a file {file!r}, which is no .safetensors beside it")
        return files

    def _tensors(self, path: Path) -> dict[str, Tensor]:
        from safetensors.torch import load_file

        where, safe = f"{self.name}: {path.name}", path.suffix == ".safetensors"
        try:
            state = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # both raise several
            what = "is damaged or no safetensors file" if safe else "cannot be read as tensors"
            raise InputError(f"{where} {what}: {squeeze(str(error))[:200]}") from error
        if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
            raise InputError(f"{where} holds no tensors by name, but a {type(state).__name__}")
        return state


def read_json(path: Path, where: str) -> dict[str, Any]:
    """A JSON object. Raises InputError: it is none."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{where} is JSON, but no object")
    return content


def _git_digest(path: Path) -> str:
    """The sha1 by which git names the content of a file."""
    return hashlib.sha1(b"blob %d\0" % path.stat().st_size + path.read_bytes()).hexdigest()


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
