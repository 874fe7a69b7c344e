"""Where the name of a saved model is looked up; one name means the same to every command:

1. a folder that exists;
2. a model that comes with the package (pretrained/<name>/): no slash in it;
3. "wandb:entity/project/artifact:version";
4. a repository of the Hub, "owner/name" or "owner/name@revision".

A name that looks like a run or a folder here is not asked of the Hub, nor is one without a slash, but as "hf://name".
The Hub's files are cached where huggingface_hub keeps them, wandb's among its assets (HF_HOME, HF_ASSETS_CACHE).
"""

import difflib
import re
from pathlib import Path

from lra_ssm.checkpoints.layout import CONFIG, PICKLE
from lra_ssm.errors import InputError
from lra_ssm.files import one_reason

SHIPPED = Path(__file__).parents[1] / "pretrained"
HUB = "hf://"
WANDB = "wandb:"
DIGEST = "[0-9a-f]{40}|[0-9a-f]{64}"  # git's sha1 of a blob, or a sha256
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class Folder:
    """A folder, or what was downloaded into one. name: what messages call it."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self.folder, self.name = folder, name or str(folder)

    def find(self, file: str) -> Path | None:
        """The file here; None where there is no such. Raises InputError: it cannot be had."""
        path = self.folder / file
        return path if path.is_file() else None

    def pickle(self) -> str | None:
        """The name of its weights that are a pickle, if there is one; it is not fetched."""
        names = [name for name in self._names() if name.endswith(_PICKLES)]
        if PICKLE in names:
            return PICKLE
        return names[0] if len(names) == 1 else None

    def missing(self) -> str:
        """What an error adds about files that are not there."""
        names = self._names()
        more = ", …" if len(names) > 5 else ""
        return f"; it holds {', '.join(names[:5]) or 'nothing'}{more}"

    def _names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def digest(self, file: Path) -> str | None:
        """What its publisher says of a file, see DIGEST; None where unknown."""
        return None

    def fetch_anew(self, file: str) -> bool:
        """Replaces a cached file that is damaged; false where nothing is fetched from anywhere."""
        return False


class Repository:
    """A repository of the Hub, all files of the commit that the first one was of; its methods are Folder's.

    HF_ENDPOINT, HF_HUB_OFFLINE and the token are as huggingface_hub has them.
    """

    def __init__(self, repository: str, revision: str | None) -> None:
        self._repository, self._revision = repository, revision
        self._commit: str | None = None
        self._unknown = False  # whether it has files that are not cached here
        self.name = f"{repository}@{revision}" if revision else repository

    def find(self, file: str) -> Path | None:
        try:
            path = self._download(file)
        except Exception as error:  # huggingface_hub's, the network's, the disk's
            why = self._why(error, file)
            if why is None:
                return None
            raise InputError(f"{self.name}: {why}") from error
        if self._commit is None:
            self._commit = path.parent.name  # …/snapshots/<commit>/<file>
            self.name = f"{self._repository}@{self._commit[:12]}"
        return path

    def _download(self, file: str, anew: bool = False) -> Path:
        from huggingface_hub import hf_hub_download

        revision = self._commit or self._revision
        return Path(hf_hub_download(self._repository, file, revision=revision, force_download=anew))

    def _why(self, error: Exception, file: str) -> str | None:
        """What an error about a file comes to; None where there is no such file."""
        from huggingface_hub import constants, errors

        nowhere = "there is no such folder"
        match error:
            case errors.LocalEntryNotFoundError():
                self._unknown = True
                if self._commit:  # some of its files are here: there may be no such file
                    return None
                why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "it cannot be reached"
                return f"{nowhere}, {file} of the Hub's is not cached here, and {why}"
            case errors.EntryNotFoundError():
                return None
            case errors.RevisionNotFoundError():
                return "has no such revision"
            case errors.RepositoryNotFoundError() if not isinstance(error, errors.GatedRepoError):
                return f"{nowhere}, and the Hub has no such model, or it is private"
        return f"{file} cannot be downloaded ({one_reason(error)})"

    def pickle(self) -> str | None:
        from huggingface_hub import HfApi, try_to_load_from_cache

        cached = try_to_load_from_cache(self._repository, PICKLE, revision=self._commit)
        if isinstance(cached, str):
            return PICKLE
        revision = self._commit or self._revision
        try:
            there = HfApi().file_exists(self._repository, PICKLE, revision=revision)
        except Exception:  # it cannot be reached, or is not to be asked
            self._unknown = True
            return None
        return PICKLE if there else None

    def missing(self) -> str:
        return ", of what is cached here" if self._unknown else ""

    def digest(self, file: Path) -> str | None:
        """Its ETag, by which the cache names a content; a mirror's may be something else.

        huggingface_hub compares sizes alone. Where a file system has no links, nothing is known.
        """
        return file.readlink().name if file.is_symlink() else None

    def fetch_anew(self, file: str) -> bool:
        try:
            self._download(file, anew=True)
        except Exception:  # it cannot be reached, or is not to be asked
            return False
        return True


def source_of(name: str | Path, revision: str | None = None) -> Folder | Repository:
    """Where a name leads, see `ModelFiles`; a Path is a folder. An artifact of wandb is downloaded by now."""
    given, path = str(name), Path(name)
    if path.is_dir():
        kind = "a folder"
        found = Folder(path)
    elif not isinstance(name, Path) and given in shipped():
        kind = "a model that comes with lra_ssm"
        found = Folder(SHIPPED / given, given)
    elif given.startswith(WANDB):
        kind = "an artifact"
        found = _artifact(given)
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
        raise InputError(f"{given} names a revision, and revision={revision!r} another")
    nowhere = f"{given}: there is no such folder"
    if not is_repository(name):
        raise InputError(f"{nowhere}, and no repository of the Hub can be called so")
    if "/" not in given:
        names = ", ".join(shipped())
        unknown = f"{nowhere}, and no such model comes with lra_ssm, which has {names}"
        raise InputError(f"{unknown}; a repository of the Hub is owner/name")
    return Repository(name, revision or stated or None)


def shipped() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def is_repository(name: str) -> bool:
    """Whether a repository of the Hub can be called so."""
    return re.fullmatch(r"[\w.-]*\w(/\w[\w.-]*)?", name) is not None


def is_local(name: str) -> bool:
    """Whether a name that is no folder looks like a run or a folder here, not like a repository of the Hub."""
    if name.startswith((".", "/", "~", "runs/")):
        return True
    first, slash, _ = name.partition("/")
    return bool(slash) and Path(first).is_dir()


def _nearest(path: Path) -> str:
    """Behind the name of a folder that is not there: the nearest one that is, and what the Hub's would be called."""
    there = next((parent for parent in path.parents if parent.is_dir()), None)
    if there is not None:
        missing = path.relative_to(there).parts[0]
        names = [one.name for one in there.iterdir() if one.is_dir()]
        for near in difflib.get_close_matches(missing, names, n=1):
            return f"; did you mean {there / near}?"
    name = str(path).partition("@")[0]
    if len(path.parts) == 2 and path.parts[0] != "runs" and is_repository(name):
        return f"; a repository of the Hub is {HUB}{path}"
    return ""


def _artifact(given: str) -> Folder:
    """An artifact of type model, by wandb itself, which compares digests and has a cache of its own."""
    from huggingface_hub import cached_assets_path

    try:
        import wandb

        artifact = wandb.Api().artifact(given.removeprefix(WANDB), type="model")
        # A version may come to mean another artifact; the digest is its content's.
        folder = cached_assets_path("lra_ssm", namespace="wandb", subfolder=artifact.digest)
        artifact.download(root=str(folder))
    except Exception as error:  # wandb's, its server's, the network's, the disk's
        raise InputError(f"{given}: cannot be downloaded ({one_reason(error)})") from error
    return Folder(folder, f"{WANDB}{artifact.qualified_name}")
