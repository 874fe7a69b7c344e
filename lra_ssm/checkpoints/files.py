"""A saved model: a folder, here or as a repository of the Hub.

    config.json          {"format": "lra_ssm/1", "network": {class_path, init_args}, "lra_ssm_version", "source": {…}}
    model.safetensors    the weights by the names of the state_dict, tied ones once
    vocabulary.json or tokenizer.json (with tokenizer_config.json), where there is one
    config.yaml          of a model that was pushed: the configuration of its run
    README.md            likewise: its card (card.py)

Files of other layouts are found and read here too; what they mean is told in models/. Nothing in such a folder is run:
pickles are refused unless asked for (models/pretrained.py has the same of classes).
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import torch
from torch import Tensor

from lra_ssm.checkpoints.layout import (
    CARD,
    CONFIG,
    GENERATION_CONFIG,
    INDEX,
    RUN_CONFIG,
    TOKENIZER_CONFIG,
    TOKENIZERS,
    WEIGHTS,
)
from lra_ssm.checkpoints.sources import DIGEST, source_of
from lra_ssm.errors import InputError, squeeze
from lra_ssm.files import sha256

_Content = TypeVar("_Content")


class ModelFiles:
    """The files of a saved model, found by its name (checkpoints/sources.py).

    Of a repository only those asked for are fetched; one that is damaged is fetched anew, once.

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
        """A file by what reads it; None where the model has no such. `read` raises InputError of a damaged one."""
        path = self.find(file)
        if path is None:
            return None
        try:
            return read(path)
        except InputError:
            if not self._source.fetch_anew(file):
                raise
        try:
            return read(path)
        except InputError:  # the cache keeps neither it nor the config, whose digests may be wrong
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

    def end_tokens(self) -> tuple[int, ...]:
        """Return the tokens that end a text of the model by transformers' configuration; empty if it names none."""
        stated = self.config().get("eos_token_id")
        if path := self.find(GENERATION_CONFIG):
            stated = read_json(path, f"{self.name}: {GENERATION_CONFIG}").get("eos_token_id", stated)
        return tuple(id_ for id_ in (stated if isinstance(stated, list) else [stated]) if isinstance(id_, int))

    def fetch(self, allow_pickle: bool = False) -> dict[str, Path]:
        """All its files that are known here, by name, the card among them; their digests are compared.

        Raises InputError: one is missing or damaged, or the weights are a pickle and allow_pickle is false.
        """
        stated = within(self.config(), "source", "files")
        weights = [path.name for path in self.weight_files(allow_pickle)]
        found = {}
        for name in (CONFIG, *weights, INDEX, *TOKENIZERS, TOKENIZER_CONFIG, RUN_CONFIG, CARD):
            path = self._read(name, lambda path: self._checked(path, stated.get(path.name)))
            if path is not None:
                found[name] = path
            elif name in stated:
                raise InputError(f"{self.name}: has no {name}, which its {CONFIG} names")
        return found

    def _checked(self, path: Path, stated: Any) -> Path:
        """The file. Raises InputError: it has not the digest that the Hub or config.json says."""
        from huggingface_hub.utils.sha import git_hash

        for who, digest in (("the Hub", self._source.digest(path)), (f"its {CONFIG}", stated)):
            if not isinstance(digest, str) or not re.fullmatch(DIGEST, digest):
                continue
            found = sha256(path) if len(digest) == 64 else git_hash(path.read_bytes())
            if found != digest:
                differ = f"has the digest {found[:12]}…, {who} says {digest[:12]}…"
                raise InputError(f"{self.name}: {path.name} {differ}: it is damaged, or was changed afterwards")
        return path

    def weights(self, allow_pickle: bool = False) -> dict[str, Tensor]:
        """The tensors by name, mapped from the files where they can be.

        Raises:
            InputError: there are none, they are damaged, or they are a pickle and allow_pickle is false. A pickle is
                read with torch.load(weights_only=True), which builds tensors and nothing else.
        """
        found: dict[str, Tensor] = {}
        for path in self.weight_files(allow_pickle):
            if path.suffix == ".safetensors":
                found |= self._read(path.name, self._tensors) or {}
            else:  # one that torch refuses is as its owner wrote it: `fetch` compares its digest
                found |= self._tensors(path)
        return found

    def weight_files(self, allow_pickle: bool) -> list[Path]:
        """model.safetensors, in one or in parts, else one pickle.

        Raises InputError: there are none, or they are a pickle and allow_pickle is false.
        """
        names = self._read(INDEX, self._parts) if self.find(WEIGHTS) is None else [WEIGHTS]
        found = []
        for name in names or [self._allowed_pickle(allow_pickle)]:
            path = self.find(name)
            if path is None:
                raise InputError(f"{self.name}: {name} is missing, which {INDEX} names")
            found.append(path)
        return found

    def _allowed_pickle(self, allow_pickle: bool) -> str:
        """Its name; nothing is fetched."""
        name = self._source.pickle()
        if name is None:
            raise InputError(f"{self.name}: has no {WEIGHTS}{self._source.missing()}")
        if not allow_pickle:
            danger = f"{self.name}: {name} is a pickle, which can run code where it is read"
            remedy = f"allow_pickle=True (--allow-pickle) reads its tensors alone; or give a {WEIGHTS}"
            raise InputError(f"{danger}: {remedy}")
        return name

    def _parts(self, index: Path) -> list[str]:
        """The files of weights in parts: each a .safetensors beside the index."""
        where = f"{self.name}: {INDEX}"
        files = [*within(read_json(index, where), "weight_map").values()]
        if not files or not all(isinstance(file, str) for file in files):
            raise InputError(f"{where} has no weight_map, the file of every tensor")
        for file in files:
            beside = PurePosixPath(file).name == file and "\\" not in file
            if not beside or not file.endswith(".safetensors"):
                raise InputError(f"{where} names a file {file!r}, which is no .safetensors beside it")
        return sorted({*files})

    def _tensors(self, path: Path) -> dict[str, Tensor]:
        from safetensors.torch import load_file

        where = f"{self.name}: {path.name}"
        wrong = "cannot be read as tensors"
        try:
            if path.suffix == ".safetensors":
                wrong = "is damaged or no safetensors file"
                return load_file(path)
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # both raise several
            raise InputError(f"{where} {wrong}: {squeeze(str(error))[:200]}") from error
        if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
            raise InputError(f"{where} holds no tensors by name, but a {type(state).__name__}")
        return state


def within(stated: Any, *keys: str) -> dict[str, Any]:
    """A part of what somebody wrote; empty where it is not there."""
    for key in keys:
        stated = stated.get(key) if isinstance(stated, dict) else None
    return stated if isinstance(stated, dict) else {}


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
    """Raises InputError where the tensors of a checkpoint are not those of the model, by name and shape."""
    wrong = []
    for name in sorted(ours.keys() | theirs.keys()):
        here, there = _shape(ours, name), _shape(theirs, name)
        if here != there:
            wrong.append(f"{name} is {there} in the checkpoint, {here} in the model")
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InputError(f"checkpoint {where} is of another shape: {wrong[0]}{more}")


def _shape(state: Mapping[str, Any], name: str) -> str:
    if name not in state:
        return "missing"
    value = state[name]
    return str(tuple(value.shape)) if isinstance(value, Tensor) else f"a {type(value).__name__}"
