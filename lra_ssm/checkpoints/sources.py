"""Find a saved model by its name. A name means the same to every command:

1. a folder that exists;
2. a model that comes with the package (pretrained/<name>/), which has no slash;
3. "wandb:entity/project/artifact:version";
4. a repository of the Hub: "owner/name", "owner/name@revision", or either with "hf://" before it.

A name that looks like a local run or folder is not looked up on the Hub unless it begins with "hf://". The Hub's files
are cached where huggingface_hub keeps them, wandb's among its assets (HF_HOME, HF_ASSETS_CACHE). HF_ENDPOINT,
HF_HUB_OFFLINE and the token are as huggingface_hub has them.
"""

import difflib
import re
from pathlib import Path
from typing import NamedTuple

from lra_ssm.errors import InputError, describe_error, hint

# The files of a saved model.
CONFIG, RUN_CONFIG, CARD = "config.json", "config.yaml", "README.md"
WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"
TOKENIZERS, TOKENIZER_CONFIG = ("vocabulary.json", "tokenizer.json"), "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"  # the file of transformers
INDEX = ".index.json"  # suffix of the index of weights that are in parts
# The files that are downloaded from a repository; pickles are downloaded only on request.
_WANTED = [CONFIG, RUN_CONFIG, CARD, GENERATION_CONFIG, *TOKENIZERS, TOKENIZER_CONFIG, "model*.safetensors",
           f"{WEIGHTS}{INDEX}"]  # fmt: skip
_PICKLES = ["pytorch_model*.bin", f"{PICKLE}{INDEX}"]

SHIPPED = Path(__file__).parents[1] / "pretrained"
HUB, WANDB = "hf://", "wandb:"


class Source(NamedTuple):
    """The folder of a saved model.

    Attributes:
        folder: where its files are; those of a repository or an artifact have been downloaded.
        name: what messages call it; a repository with its commit.
        repository: the repository and commit, from which pickles can still be downloaded; else None.
    """

    folder: Path
    name: str
    repository: tuple[str, str] | None = None

    def fetch_pickles(self) -> None:
        if self.repository:
            _download(*self.repository, _PICKLES)


def source_of(name: str | Path, revision: str | None = None) -> Source:
    """Return the saved model that a name means; a Path is a folder. Downloads a repository or a wandb artifact.

    Raises InputError if nothing has this name, or if a revision is given for something that has none.
    """
    given, path = str(name), Path(name)
    is_shipped = isinstance(name, str) and given in shipped()
    if revision is not None and (path.is_dir() or is_shipped or given.startswith(WANDB)):
        raise InputError(f"{given} is not a repository of the Hub: it has no revision {revision!r}")
    if path.is_dir():
        return Source(path, given)
    if is_shipped:
        return Source(SHIPPED / given, given)
    if given.startswith(WANDB):
        return _artifact(given)
    if path.is_file():
        raise InputError(f"{given} is a file; a saved model is a folder, or a repository of the Hub")
    if isinstance(name, Path) or is_local(given):
        raise InputError(f"{given}: there is no such folder, neither a run nor a saved model{_nearest(path)}")
    repository, _, stated = given.removeprefix(HUB).partition("@")
    if not is_repository(repository):
        raise InputError(f"{given}: there is no such folder, and it is not a valid name of a Hub repository")
    if "/" not in given:
        names = hint(given, shipped(), "it has")
        raise InputError(f"{given}: there is no such folder, and no such model comes with lra_ssm ({names})")
    folder = _download(repository, revision or stated or None, _WANTED)  # …/snapshots/<commit>
    return Source(folder, f"{repository}@{folder.name[:12]}", (repository, folder.name))


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
    """Return a hint for a folder that does not exist: the nearest existing name, else the name on the Hub."""
    parent = next(each for each in path.parents if each.is_dir())
    names = [each.name for each in parent.iterdir() if each.is_dir()]
    if near := difflib.get_close_matches(path.relative_to(parent).parts[0], names, n=1):
        return f"; did you mean {parent / near[0]}?"
    may_be_owner = len(path.parts) == 2 and is_repository(str(path)) and path.parts[0] != "runs"
    return f"; a repository of the Hub is {HUB}{path}" if may_be_owner else ""


def _download(repository: str, revision: str | None, files: list[str]) -> Path:
    """Return the folder of a commit in huggingface_hub's cache, with the files that match these patterns."""
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=files))
    except Exception as error:  # from huggingface_hub, the network or the disk
        reasons = {
            errors.LocalEntryNotFoundError: "the Hub cannot be reached, and its cache does not have all files of it",
            errors.RevisionNotFoundError: "it has no such revision",
            errors.RepositoryNotFoundError: "there is no such folder, and the Hub has no such model, or it is private",
        }
        reason = reasons.get(type(error), f"it cannot be downloaded ({describe_error(error)})")
        raise InputError(f"{repository}{f'@{revision}' if revision else ''}: {reason}") from error


def _artifact(given: str) -> Source:
    """Download an artifact of type model with wandb, which compares its digests and has its own cache."""
    from huggingface_hub import cached_assets_path

    try:
        import wandb

        artifact = wandb.Api().artifact(given.removeprefix(WANDB), type="model")
        # A version may later name another artifact; the digest identifies the content.
        folder = cached_assets_path("lra_ssm", namespace="wandb", subfolder=artifact.digest)
        artifact.download(root=str(folder))
    except Exception as error:  # from wandb, its server, the network or the disk
        raise InputError(f"{given}: it cannot be downloaded ({describe_error(error)})") from error
    return Source(folder, f"{WANDB}{artifact.qualified_name}")
