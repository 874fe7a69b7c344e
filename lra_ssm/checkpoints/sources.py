"""Where the name of a saved model leads. A name means the same to every command:

1. a folder that exists;
2. a model that comes with the package (pretrained/<name>/), which has no slash;
3. "wandb:entity/project/artifact:version";
4. a repository of the Hub: "owner/name", "owner/name@revision", or either with "hf://" before it.

A name that looks like a local run or folder is not looked up on the Hub unless it begins with "hf://". The Hub's files
are cached where huggingface_hub keeps them, wandb's among its assets (HF_HOME, HF_ASSETS_CACHE).
"""

import difflib
import re
from pathlib import Path

from lra_ssm.errors import InputError, describe_error, hint

# The files of a saved model.
CONFIG, RUN_CONFIG, CARD = "config.json", "config.yaml", "README.md"
WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"
TOKENIZERS, TOKENIZER_CONFIG = ("vocabulary.json", "tokenizer.json"), "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"  # transformers' own

SHIPPED = Path(__file__).parents[1] / "pretrained"
HUB, WANDB = "hf://", "wandb:"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class Folder:
    """A saved model's files in a folder. name: what messages call it."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self.folder, self.name = folder, name or str(folder)

    def find(self, file: str) -> Path | None:
        """Return a file's path here, or None if the model has no such file. Raises InputError if it cannot be read."""
        path = self.folder / file
        return path if path.is_file() else None

    def pickles(self) -> list[str]:
        """Return the names of all files that are pickles, without fetching them."""
        return [name for name in self._names() if name.endswith(_PICKLES)]

    def digest(self, path: Path) -> str | None:
        """Return the sha256 that the publisher states for a file; None if unknown."""
        return None

    def missing(self) -> str:
        """Return what an error adds about a file that does not exist."""
        names = self._names()
        return f"; it holds {', '.join(names[:5]) or 'nothing'}{', …' if len(names) > 5 else ''}"

    def _names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


class Repository:
    """A repository of the Hub, all files of one commit; its methods are Folder's.

    HF_ENDPOINT, HF_HUB_OFFLINE and the token are as huggingface_hub has them.
    """

    def __init__(self, repository: str, revision: str | None) -> None:
        self._repository, self._revision = repository, revision
        self._snapshot: Path | None = None  # the cache's folder of the commit, once a file of it is here
        self._offline = False
        self.name = f"{repository}@{revision}" if revision else repository

    def find(self, file: str) -> Path | None:
        from huggingface_hub import errors, hf_hub_download

        nowhere = "there is no such folder"
        try:
            path = Path(hf_hub_download(self._repository, file, revision=self._commit))
        except errors.LocalEntryNotFoundError as error:
            self._offline = True
            if self._snapshot:  # other files of it are cached: there may be no such file
                return None
            raise InputError(
                f"{self.name}: {nowhere}, the Hub cannot be reached, and {file} is not in its cache"
            ) from error
        except errors.EntryNotFoundError:
            return None
        except errors.RevisionNotFoundError as error:
            raise InputError(f"{self.name}: has no such revision") from error
        except Exception as error:  # huggingface_hub's, the network's, the disk's
            unknown = isinstance(error, errors.RepositoryNotFoundError)
            if unknown and not isinstance(error, errors.GatedRepoError):
                raise InputError(f"{self.name}: {nowhere}, and the Hub has no such model, or it is private") from error
            raise InputError(f"{self.name}: {file} cannot be downloaded ({describe_error(error)})") from error
        if self._snapshot is None:
            self._snapshot = path.parent  # …/snapshots/<commit>
            self.name = f"{self._repository}@{path.parent.name[:12]}"
        return path

    @property
    def _commit(self) -> str | None:
        return self._snapshot.name if self._snapshot else self._revision

    def pickles(self) -> list[str]:
        from huggingface_hub import HfApi

        try:
            names = HfApi().list_repo_files(self._repository, revision=self._commit)
        except Exception:  # it cannot be reached, or must not be asked
            self._offline = True
            names = [path.name for path in self._snapshot.iterdir()] if self._snapshot else []
        return [name for name in names if name.endswith(_PICKLES) and "/" not in name]

    def digest(self, path: Path) -> str | None:
        """A large file's ETag is its sha256, and its name in the cache; huggingface_hub compares only sizes."""
        name = path.readlink().name if path.is_symlink() else ""
        return name if re.fullmatch("[0-9a-f]{64}", name) else None

    def missing(self) -> str:
        return " in the Hub's cache, and the Hub cannot be reached" if self._offline else ""


def source_of(name: str | Path, revision: str | None = None) -> Folder | Repository:
    """Return where a name leads; a Path is a folder. A wandb artifact is downloaded.

    Raises InputError if nothing has this name, or if a revision is given for something that has none.
    """
    given, path = str(name), Path(name)
    if path.is_dir():
        kind, found = "a folder", Folder(path)
    elif isinstance(name, str) and given in shipped():
        kind, found = "a model that comes with lra_ssm", Folder(SHIPPED / given, given)
    elif given.startswith(WANDB):
        kind, found = "an artifact", _artifact(given)
    elif path.is_file():
        raise InputError(f"{given} is a file; a saved model is a folder, or a repository of the Hub")
    elif isinstance(name, Path) or is_local(given):
        raise InputError(f"{given}: there is no such folder, neither a run nor a saved model{_nearest(path)}")
    else:
        return _repository(given, revision)
    if revision is not None:
        raise InputError(f"{given} is {kind}, which has no revision {revision!r}")
    return found


def _repository(given: str, revision: str | None) -> Repository:
    name, _, stated = given.removeprefix(HUB).partition("@")
    if stated and revision not in (None, stated):
        raise InputError(f"{given} names a revision, and revision={revision!r} another one")
    if not is_repository(name):
        raise InputError(f"{given}: there is no such folder, and it is not a valid name of a Hub repository")
    if "/" not in given:
        raise InputError(
            f"{given}: there is no such folder, and no such model comes with lra_ssm"
            f" ({hint(given, shipped(), 'it has')}); a repository of the Hub is owner/name"
        )
    return Repository(name, revision or stated or None)


def shipped() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def is_repository(name: str) -> bool:
    """Return whether a repository of the Hub can have this name."""
    return re.fullmatch(r"[\w.-]*\w(/\w[\w.-]*)?", name) is not None


def is_local(name: str) -> bool:
    """Return whether a name looks like a local run or folder, not like a repository of the Hub."""
    first, slash, _ = name.partition("/")
    return name.startswith((".", "/", "~", "runs/")) or bool(slash) and Path(first).is_dir()


def _nearest(path: Path) -> str:
    """What an error says behind the name of a folder that does not exist: the nearest name, else the Hub's form."""
    parent = next(each for each in path.parents if each.is_dir())
    missing = path.relative_to(parent).parts[0]
    for near in difflib.get_close_matches(missing, [each.name for each in parent.iterdir() if each.is_dir()], n=1):
        return f"; did you mean {parent / near}?"
    is_owner_and_name = len(path.parts) == 2 and is_repository(str(path).partition("@")[0])
    return f"; a repository of the Hub is {HUB}{path}" if is_owner_and_name and path.parts[0] != "runs" else ""


def _artifact(given: str) -> Folder:
    """Download an artifact of type model by wandb, which compares its digests and has a cache of its own."""
    from huggingface_hub import cached_assets_path

    try:
        import wandb

        artifact = wandb.Api().artifact(given.removeprefix(WANDB), type="model")
        # A version may come to mean another artifact; the digest is that of its content.
        folder = cached_assets_path("lra_ssm", namespace="wandb", subfolder=artifact.digest)
        artifact.download(root=str(folder))
    except Exception as error:  # wandb's, its server's, the network's, the disk's
        raise InputError(f"{given}: cannot be downloaded ({describe_error(error)})") from error
    return Folder(folder, f"{WANDB}{artifact.qualified_name}")
