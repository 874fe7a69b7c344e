"""A checkpoint as a file: written whole, with a digest of itself, and checked wherever it is read.

torch.save writes a zip file; the digest of all before it stands as its comment, at its end. In one file no crash
can part the two, and torch, Lightning and unzip read it as any other. A checkpoint from elsewhere has no digest and is
taken as it is.
"""

import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import lightning
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lra_ssm.errors import InputError, squeeze
from lra_ssm.files import replacing

_MARK = b"lra_ssm sha256 "
_COMMENT = len(_MARK) + 64
_END_OF_ZIP = 22  # bytes, without a comment; the last two are the comment's length
# What a fit goes on from, of a Lightning checkpoint.
_NEEDED = {
    "epoch": int, "global_step": int, "pytorch-lightning_version": str, "loops": dict, "callbacks": dict,
    "optimizer_states": list, "lr_schedulers": list,
}  # fmt: skip

_OF_TRAINING = ("loops", "optimizer_states", "lr_schedulers")


class DamagedCheckpoint(InputError):
    """What a checkpoint holds is not what was written, or no checkpoint: the one before may be whole."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and renames it: whoever reads it finds the old one or the new one, whole.

    (Lightning's own write goes through the system's temporary folder, and is a copy where that is another disk.)

    Args:
        scoring: of what it reads, the weights are wanted alone; how training would go on may be missing or wrong.
    """

    def __init__(self, scoring: bool = False) -> None:
        self.scoring = scoring

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(Path(path), "w+b") as file:
            torch.save(checkpoint, file)
            _seal(file)

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        if Path(path).is_file():  # else what fsspec opens: an address
            _verify(Path(path))
        state = super().load_checkpoint(path, *args, **options)
        if self.scoring:
            state = {key: value for key, value in state.items() if key not in _OF_TRAINING}
            state.setdefault("pytorch-lightning_version", lightning.__version__)
        return state


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The checkpoint on the CPU, its tensors mapped from the file.

    Raises InputError where it cannot be opened; DamagedCheckpoint where it is not as it was written, or has no weights.
    """
    _verify(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise DamagedCheckpoint(f"checkpoint {path} cannot be read: {squeeze(str(error))[:200]}") from error
    if not isinstance(state, dict) or not isinstance(state.get("state_dict"), dict):
        kind = "no state_dict" if isinstance(state, dict) else f"a {type(state).__name__}"
        raise DamagedCheckpoint(f"{path} is no checkpoint: it holds {kind}")
    return state


def check_resumable(state: dict[str, Any], path: Path) -> None:
    """A fit can go on from it: it has every part, of the kind that Lightning writes. Raises DamagedCheckpoint."""
    for name, kind in _NEEDED.items():
        if not isinstance(state.get(name), kind):
            what = f"{name} is a {type(state[name]).__name__}" if name in state else f"it has no {name}"
            raise DamagedCheckpoint(f"{path} cannot be resumed from: {what}; --init_from starts from its weights")


def _seal(file: IO[bytes]) -> None:
    """Writes the digest of a zip file that stands open to be written and read, as its comment."""
    file.seek(-_END_OF_ZIP, os.SEEK_END)
    if not file.read().startswith(b"PK\5\6"):  # another format of another torch
        return
    file.seek(-2, os.SEEK_END)
    file.write(_COMMENT.to_bytes(2, "little"))
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    file.seek(0, os.SEEK_END)
    file.write(_MARK + digest.encode())


def _verify(path: Path) -> None:
    """Raises InputError where the file cannot be opened, DamagedCheckpoint where it does not fit its digest."""
    try:
        now = path.stat()
        _verify_once(path, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns))
    except OSError as error:
        raise InputError(f"checkpoint {path} cannot be read: {error.strerror}") from error


@lru_cache(maxsize=64)
def _verify_once(path: Path, version: tuple[int, ...]) -> None:
    """A fit reads its checkpoint more than once; hashing takes as long as reading. version: of the file."""
    with open(path, "rb") as file:
        left = file.seek(0, os.SEEK_END) - _COMMENT
        file.seek(max(0, left))
        mark = file.read()
        if not mark.startswith(_MARK):
            return
        file.seek(0)
        digest = hashlib.sha256()
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    if mark[len(_MARK) :] != digest.hexdigest().encode():
        raise DamagedCheckpoint(f"checkpoint {path} is damaged: it does not fit the digest it was written with")
