"""A saved model: a folder, here or as a repository of the Hub.

    config.json          {"format": "lra_ssm/1", "network": {class_path, init_args}, "lra_ssm_version", "source": {…}}
    model.safetensors    the weights by the names of the state_dict, tied ones once
    vocabulary.json or tokenizer.json (with tokenizer_config.json), where there is one

Files of other layouts are found and read here too; what they mean is told in models/. Nothing that lies in such a
folder is run: pickles are refused unless asked for (models/pretrained.py has the same of classes).
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from lra_ssm.errors import InputError, squeeze
from lra_ssm.files import UNFINISHED

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
TOKENIZERS, TOKENIZER_CONFIG = ("vocabulary.json", "tokenizer.json"), "tokenizer_config.json"


class SavedTokenizer(Protocol):
    """What is saved of a tokenizer; those of `lra_ssm.datamodules` are such."""

    file: str

    def content(self) -> bytes: ...

    @property
    def end_of_text_name(self) -> str: ...


class ModelFiles:
    """The files of a saved model: a folder, or a repository of the Hub, of which those asked for alone are fetched.

    The Hub's are huggingface_hub's: cached where it does, HF_ENDPOINT, HF_HUB_OFFLINE and the token as it has them. All
    are of the commit that the first one was of.

    Args:
        name: a folder, else "owner/name" or "owner/name@revision".
        revision: a branch, tag or commit of the repository; None for its main branch.

    Raises:
        InputError: there is no such folder or repository, or a revision that cannot be.
    """

    def __init__(self, name: str | Path, revision: str | None = None) -> None:
        self.folder: Path | None = None
        self._given, self._unknown = str(name), list[str]()
        path = Path(name)
        if path.is_dir():
            if revision is not None:
                raise InputError(f"{name} is a folder, which has no revision {revision!r}")
            self.folder, self.name = path, str(path)
            return
        if path.is_file():
            raise InputError(f"{name} is a file; a saved model is a folder, or a repository of the Hub")
        self._repository, _, stated = self._given.partition("@")
        if stated and revision not in (None, stated):
            raise InputError(f"{name} names a revision, and revision={revision!r} another")
        if isinstance(name, Path) or not re.fullmatch(r"[\w.-]*\w(/\w[\w.-]*)?", self._repository):
            raise InputError(f"{name}: there is no such folder, and no repository of the Hub can be called so")
        self._revision = revision or stated or None
        self.name = f"{self._repository}@{self._revision}" if self._revision else self._repository
        self.commit: str | None = None

    def find(self, file: str) -> Path | None:
        """A file of the model; None where it has no such. Raises InputError: it cannot be had."""
        if self.folder is not None:
            return self.folder / file if (self.folder / file).is_file() else None
        from huggingface_hub import constants, errors, hf_hub_download

        try:
            path = Path(hf_hub_download(self._repository, file, revision=self.commit or self._revision))
        except errors.LocalEntryNotFoundError as error:
            self._unknown.append(file)
            if self.commit:  # some of its files are here: there may be no such file
                return None
            if constants.HF_HUB_OFFLINE:
                why = f"there is no such folder, {file} of the Hub's is not cached here, and HF_HUB_OFFLINE is set"
            else:
                why = f"there is no such folder, {file} of the Hub's is not cached here, and it cannot be reached"
            raise InputError(f"{self.name}: {why}") from error
        except errors.EntryNotFoundError:
            return None
        except errors.GatedRepoError as error:
            raise InputError(f"{self.name}: no access without its owner's consent and a token; see its page") from error
        except errors.RevisionNotFoundError as error:
            raise InputError(f"{self._repository}: has no revision {self._revision!r}") from error
        except errors.RepositoryNotFoundError as error:
            raise InputError(
                f"{self.name}: there is no such folder, and the Hub has no such model, or it is private"
            ) from error
        except errors.HFValidationError as error:
            raise InputError(f"{self.name}: there is no such folder; of the Hub: {error}") from error
        except Exception as error:  # whatever the libraries below raise: connections, the Hub, the disk
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(f"{self.name}: {file} cannot be downloaded ({reason})") from error
        if self.commit is None:
            self.commit = path.parent.name  # …/snapshots/<commit>/<file>
            self.name = f"{self._repository}@{self.commit[:12]}"
        return path

    def config(self) -> dict[str, Any]:
        """config.json. Raises InputError: there is none, or it is no JSON object."""
        path = self.find(CONFIG)
        if path is None:
            raise InputError(f"{self.name}: has no {CONFIG}: it is no saved model{self._holds()}")
        return _json(path, f"{self.name}: {CONFIG}")

    def tokenizer(self) -> Path | None:
        """The file of its tokenizer, as `load_tokenizer` of the data modules reads it; None where it has none."""
        for name in TOKENIZERS:
            if path := self.find(name):
                if name == "tokenizer.json":
                    self.find(TOKENIZER_CONFIG)  # it is read beside the other: which token ends a text
                return path
        return None

    def weights(self, allow_pickle: bool = False) -> dict[str, Tensor]:
        """The tensors by name, mapped from the files where they can be: model.safetensors, one or in parts, else a
        pickle.

        Raises:
            InputError: there are none, they are damaged, or they are a pickle and allow_pickle is false. A pickle is
                read with torch.load(weights_only=True), which builds tensors and nothing else.
        """
        if path := self.find(WEIGHTS):
            return self._safetensors(path)
        if path := self.find(INDEX):
            return self._parts(_json(path, f"{self.name}: {INDEX}"))
        path = self.find(PICKLE)
        if path is None and self.folder is not None:
            others = [each for each in sorted(self.folder.iterdir()) if each.suffix in _PICKLES]
            path = others[0] if len(others) == 1 else None
        if path is None:
            offline = ", of what is cached here" if self._unknown else ""
            raise InputError(f"{self.name}: has no {WEIGHTS}{offline}{self._holds()}")
        where = f"{self.name}: {path.name}"
        if not allow_pickle:
            raise InputError(
                f"{where} is a pickle, which can run code where it is read: give allow_pickle=True (--allow-pickle) to"
                " read it, tensors alone, or a model.safetensors"
            )
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # torch raises several
            raise InputError(f"{where} cannot be read as tensors: {squeeze(str(error))[:200]}") from error
        if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
            raise InputError(f"{where} holds no tensors by name, but a {type(state).__name__}")
        return state

    def _parts(self, index: dict[str, Any]) -> dict[str, Tensor]:
        where = f"{self.name}: {INDEX}"
        placed = index.get("weight_map")
        if not isinstance(placed, dict) or not all(isinstance(file, str) for file in placed.values()):
            raise InputError(f"{where} has no weight_map, the file of every tensor")
        found: dict[str, Tensor] = {}
        for file in sorted({*placed.values()}):
            if PurePosixPath(file).name != file or "\\" in file or not file.endswith(".safetensors"):
                raise InputError(f"{where} names a file {file!r}, which is no .safetensors beside it")
            path = self.find(file)
            if path is None:
                raise InputError(f"{where} names {file}, which is missing")
            part = self._safetensors(path)
            if twice := found.keys() & part.keys():
                raise InputError(f"{self.name}: {file} holds {min(twice)}, and so does another part")
            found |= part
        if lost := placed.keys() - found.keys():
            raise InputError(f"{where} says that {placed[min(lost)]} holds {min(lost)}, which it does not")
        return found

    def _safetensors(self, path: Path) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, ValueError, KeyError) as error:  # KeyError: a dtype that torch has not
            raise InputError(f"{self.name}: {path.name} is damaged or no safetensors file ({error})") from error

    def _holds(self) -> str:
        """What an error says that a folder has instead."""
        if self.folder is None:
            return ""
        names = sorted(path.name for path in self.folder.iterdir())
        return f"; it holds {', '.join(names[:5]) or 'nothing'}{', …' if len(names) > 5 else ''}"


def _json(path: Path, where: str) -> dict[str, Any]:
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


class TokenizerFiles(NamedTuple):
    """Contents by file name, and the token that ends a text, where it is known."""

    files: dict[str, bytes]
    end_of_text: str | None


def tokenizer_files(tokenizer: SavedTokenizer | str | Path | None) -> TokenizerFiles:
    """What is written of a tokenizer: an object's content, or the file (or the one in a folder) that a path names.

    Raises:
        InputError: there is no such file, or it is called otherwise.
    """
    if tokenizer is None:
        return TokenizerFiles({}, None)
    if not isinstance(tokenizer, (str, Path)):
        name = tokenizer.end_of_text_name
        beside = {TOKENIZER_CONFIG: _tokenizer_config(name)} if tokenizer.file == "tokenizer.json" else {}
        return TokenizerFiles({tokenizer.file: tokenizer.content(), **beside}, name)
    path = Path(tokenizer)
    if path.is_dir():
        path = next((path / name for name in TOKENIZERS if (path / name).is_file()), path)
    if not path.is_file() or path.name not in TOKENIZERS:
        raise InputError(f"{tokenizer}: is no {' or '.join(TOKENIZERS)}, nor a folder with one")
    end: str | None = None
    files = {path.name: path.read_bytes()}
    config = path.with_name(TOKENIZER_CONFIG)
    if path.name == "tokenizer.json" and config.is_file():
        files[config.name] = config.read_bytes()
        token = _json(config, str(config)).get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        end = token if isinstance(token, str) else None
    return TokenizerFiles(files, end)


def _tokenizer_config(end: str) -> bytes:
    """What transformers needs beside a tokenizer.json."""
    return (json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}, indent=2) + "\n").encode()


def write_model(
    folder: str | Path, config: Mapping[str, Any], weights: Mapping[str, Tensor], tokenizer: Mapping[str, bytes]
) -> None:
    """Writes a saved model, whole or not at all; an older one in the folder is replaced.

    Tensors that share their memory and shape are written once, by the first name. Raises InputError: the folder holds
    something else, or the disk does not take it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    folder = Path(folder).resolve()
    if folder.exists() and not _replaceable(folder):
        raise InputError(f"{folder} is not empty and holds no saved model: give a new or an empty folder")
    partial = folder.with_name(f"{UNFINISHED}{folder.name}-{os.getpid()}")
    try:
        texts = {**tokenizer, CONFIG: (json.dumps(config, indent=2) + "\n").encode()}
    except (TypeError, ValueError) as error:
        raise InputError(f"{folder}: {CONFIG} cannot be saved: {error}") from error
    try:
        partial.mkdir(parents=True)
        for name, text in texts.items():
            (partial / name).write_bytes(text)
        kept = {name: tensor.detach().cpu().contiguous() for name, tensor in untied(weights).items()}
        save_file(kept, partial / WEIGHTS, metadata={"format": "pt"})
        (partial / WEIGHTS).chmod((partial / CONFIG).stat().st_mode)  # it makes a file for its owner alone
        for path in partial.iterdir():
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        if not folder.exists() or not any(folder.iterdir()):
            os.replace(partial, folder)
            return
        # Without its config.json the older one is no model any more, nor is a mixture of both.
        (folder / CONFIG).unlink()
        for name in {*TOKENIZERS, TOKENIZER_CONFIG, INDEX} - texts.keys():
            (folder / name).unlink(missing_ok=True)
        for name in (WEIGHTS, *texts):  # config.json last
            os.replace(partial / name, folder / name)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{folder}: the model cannot be saved there ({reason})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _replaceable(folder: Path) -> bool:
    """Whether a folder is empty, or a saved model of ours or of transformers'."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return folder.is_dir()
    config = folder / CONFIG
    try:
        return config.is_file() and bool({"format", "model_type"} & _json(config, str(config)).keys())
    except InputError:
        return False


def untied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without tensors that are another one by a later name."""
    kept: dict[Any, str] = {}
    for name, x in state.items():
        same = (x.data_ptr(), x.shape, x.stride(), x.dtype) if x.numel() and not x.is_meta else name
        kept.setdefault(same, name)
    return {name: state[name] for name in kept.values()}
