"""Where the name of a saved model is looked up; one name means the same to every command:

1. a folder that exists;
2. a model that comes with the package (pretrained/<name>/): no slash in it;
3. "wandb:entity/project/artifact:version", "https://host/model.tar.gz#sha256=…" (also .tgz, .zip, or a
   model.safetensors with its config.json beside it);
4. a repository of the Hub, "owner/name" or "owner/name@revision"; "hf://owner/name" is never a folder.

A name without a slash that is none of these is not asked of the Hub, but as "hf://name".

The Hub's files are cached where huggingface_hub keeps them, the others among its assets (HF_HOME, HF_ASSETS_CACHE).
"""

import hashlib
import os
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import unquote, urlsplit

from lra_ssm import files
from lra_ssm.checkpoints.layout import CONFIG, WEIGHTS, is_model_file, stated_digests
from lra_ssm.errors import InputError

SHIPPED = Path(__file__).parents[1] / "pretrained"
HUB = "hf://"
_ARCHIVES = (".tar.gz", ".tgz", ".zip")


class Source(Protocol):
    """Where a model's files come from.

    Attributes:
        name: what messages call it.
        folder: where all of them lie; None where they are fetched one by one.
        commit: of a repository, once it is known.
    """

    folder: Path | None
    commit: str | None

    @property
    def name(self) -> str: ...

    def find(self, file: str) -> Path | None:
        """The file here; None where there is no such. Raises InputError: it cannot be had."""
        ...

    def has(self, file: str) -> bool:
        """Whether there is such a file; it is not fetched."""
        ...

    def missing(self) -> str:
        """What an error adds about files that are not there."""
        ...

    def check(self, file: Path) -> None:
        """The file has the digest that its publisher states, if one is. Raises InputError, the file gone then."""
        ...

    def forget(self) -> str:
        """Removes what is damaged of what was fetched and is not checked anew; what an error says of that."""
        ...


class Folder:
    """A folder, or what was fetched into one."""

    commit: str | None = None

    def __init__(self, folder: Path, name: str | None = None, cached: Path | None = None) -> None:
        self.folder: Path | None = folder
        self.name = name or str(folder)
        self._cached = cached

    def find(self, file: str) -> Path | None:
        assert self.folder is not None
        return self.folder / file if (self.folder / file).is_file() else None

    def has(self, file: str) -> bool:
        return self.find(file) is not None

    def missing(self) -> str:
        assert self.folder is not None
        names = sorted(path.name for path in self.folder.iterdir())
        return f"; it holds {', '.join(names[:5]) or 'nothing'}{', …' if len(names) > 5 else ''}"

    def check(self, file: Path) -> None: ...

    def forget(self) -> str:
        if self._cached is None:
            return ""
        shutil.rmtree(self._cached, ignore_errors=True)
        return "; what was fetched is removed, pull again"


class Repository:
    """A repository of the Hub, all files of the commit that the first one was of.

    HF_ENDPOINT, HF_HUB_OFFLINE and the token are as huggingface_hub has them.
    """

    folder: Path | None = None

    def __init__(self, repository: str, revision: str | None) -> None:
        self._repository, self._revision = repository, revision
        self.commit: str | None = None
        self._unknown = False

    @property
    def name(self) -> str:
        revision = self.commit[:12] if self.commit else self._revision
        return f"{self._repository}@{revision}" if revision else self._repository

    def find(self, file: str) -> Path | None:
        from huggingface_hub import constants, errors, hf_hub_download

        try:
            path = Path(hf_hub_download(self._repository, file, revision=self.commit or self._revision))
        except errors.LocalEntryNotFoundError as error:
            self._unknown = True
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
        return path

    def has(self, file: str) -> bool:
        from huggingface_hub import HfApi, try_to_load_from_cache

        if isinstance(try_to_load_from_cache(self._repository, file, revision=self.commit), str):
            return True
        try:
            return HfApi().file_exists(self._repository, file, revision=self.commit or self._revision)
        except Exception:  # it cannot be reached, or is not to be asked
            self._unknown = True
            return False

    def missing(self) -> str:
        return ", of what is cached here" if self._unknown else ""

    def check(self, file: Path) -> None:
        """huggingface_hub compares sizes alone. Its cache names a content by the ETag: the sha256 of large files,
        git's sha1 of others. (Where a file system has no links, it does not.)"""
        if not file.is_symlink():
            return
        etag = PurePosixPath(os.readlink(file)).name
        if re.fullmatch("[0-9a-f]{64}", etag):
            found = files.sha256(file)
        elif re.fullmatch("[0-9a-f]{40}", etag):
            found = hashlib.sha1(b"blob %d\0" % file.stat().st_size + file.read_bytes()).hexdigest()
        else:
            return
        if found != etag:
            file.resolve().unlink(missing_ok=True)
            file.unlink()
            raise InputError(
                f"{self.name}: {file.name} has the digest {found[:12]}…, the Hub says {etag[:12]}…: what was downloaded"
                " is damaged; it is removed, pull again"
            )

    def forget(self) -> str:
        return ""


def source_of(name: str | Path, revision: str | None = None, sha256: str | None = None) -> Source:
    """Where a name leads; what it names by "wandb:" or "https:" is fetched by now.

    Args:
        name: as this module has it; a Path is a folder.
        revision: a branch, tag or commit of a repository; None for its main branch.
        sha256: of the file that an address names.

    Raises:
        InputError: there is no such thing, it cannot be had, or it has no revisions or digest of that kind.
    """
    given, path = str(name), Path(name)
    remote = None if isinstance(name, Path) else given.partition(":")[0].lower()
    if sha256 is not None and remote not in ("https", "http"):
        raise InputError(f"{given}: a sha256 belongs to an address, https://…")
    found: Source | None = None
    if path.is_dir():
        found, kind = Folder(path), "a folder"
    elif not isinstance(name, Path) and re.fullmatch(r"\w[\w.-]*", given) and (SHIPPED / given / CONFIG).is_file():
        found, kind = Folder(SHIPPED / given, given), "a model that comes with lra_ssm"
    elif remote in ("https", "http"):
        found, kind = _of_address(given, sha256), "an address"
    elif remote == "wandb":
        found, kind = _of_wandb(given), "an artifact"
    if found is not None:
        if revision is not None:
            raise InputError(f"{given} is {kind}, which has no revision {revision!r}")
        return found
    if path.is_file():
        raise InputError(f"{given} is a file; a saved model is a folder, or a repository of the Hub")
    repository, _, stated = given.removeprefix(HUB).partition("@")
    if stated and revision not in (None, stated):
        raise InputError(f"{given} names a revision, and revision={revision!r} another")
    if isinstance(name, Path) or not is_repository(repository):
        raise InputError(f"{given}: there is no such folder, and no repository of the Hub can be called so")
    if "/" not in given:
        names = ", ".join(sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}")))
        raise InputError(
            f"{given}: there is no such folder, and no such model comes with lra_ssm, which has {names}; a repository"
            " of the Hub is owner/name"
        )
    return Repository(repository, revision or stated or None)


def is_repository(name: str) -> bool:
    """Whether a repository of the Hub can be called so."""
    return re.fullmatch(r"[\w.-]*\w(/\w[\w.-]*)?", name) is not None


def _of_address(given: str, sha256: str | None) -> Folder:
    """An archive of a saved model's folder, or its model.safetensors beside its config.json, with the sha256."""
    url, _, fragment = given.partition("#")
    stated = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
    digest = (sha256 or stated or "").removeprefix("sha256:").lower()
    if sha256 and stated and digest != stated.lower():
        raise InputError(f"{url}: two digests are given, {digest[:12]}… and {stated[:12]}…")
    if not re.fullmatch("[0-9a-f]{64}", digest):
        said = "is no sha256, 64 hexadecimal digits" if digest else "states no digest"
        raise InputError(f"{given} {said}: give --sha256, or #sha256=… behind the address")
    file = PurePosixPath(unquote(urlsplit(url).path)).name
    if file != WEIGHTS and not file.lower().endswith(_ARCHIVES):
        raise InputError(f"{url}: names neither a {WEIGHTS} nor an archive ({', '.join(_ARCHIVES)})")
    from lra_ssm.datamodules.fetch.archives import extract
    from lra_ssm.datamodules.fetch.download import RemoteFile, download

    folder = _cache("https", digest)
    if file == WEIGHTS:
        beside = url.rpartition("/")[0]
        download(RemoteFile((f"{beside}/{CONFIG}",), CONFIG), folder)
        for name, its in stated_digests(folder / CONFIG).items():
            if name not in (WEIGHTS, CONFIG):
                download(RemoteFile((f"{beside}/{name}",), name, f"sha256:{its}"), folder)
        download(RemoteFile((url,), WEIGHTS, f"sha256:{digest}"), folder)
        return Folder(folder, url, folder)

    def place(member: str) -> str | None:
        parts = PurePosixPath(member).parts
        return member if 0 < len(parts) <= 2 and is_model_file(parts[-1]) else None

    unpacked = folder / "unpacked"
    with files.locked(folder / "unpacked.lock", "unpacks this model"):
        if not unpacked.is_dir():
            download(RemoteFile((url,), file, f"sha256:{digest}"), folder)
            extract(folder / file, unpacked, place)
            (folder / file).unlink()
    holding = sorted({path.parent for path in [unpacked / CONFIG, *unpacked.glob(f"*/{CONFIG}")] if path.is_file()})
    if len(holding) != 1:
        raise InputError(f"{url}: holds {len(holding) or 'no'} folders with a {CONFIG}: it must be one saved model")
    return Folder(holding[0], url, folder)


def _of_wandb(given: str) -> Folder:
    """An artifact of type model, by wandb itself: its files are compared with their digests, and cached by it too."""
    found = re.fullmatch(r"wandb:((?:[\w.-]+/)?[\w.-]+/[\w.-]+):([\w.-]+)", given)
    if not found:
        raise InputError(f"{given}: an artifact is wandb:entity/project/name:version, such as wandb:me/lra/s4d:v0")
    import wandb

    try:
        artifact = wandb.Api().artifact(given.removeprefix("wandb:"))
        if artifact.type != "model":
            raise InputError(f"{given}: is an artifact of type {artifact.type}, not a model")
        names = [name for name in artifact.manifest.entries if is_model_file(name)]
        # Another version of the name may come to mean another artifact; its digest is that of its content.
        folder = _cache("wandb", hashlib.sha256(f"{found[1]} {artifact.digest}".encode()).hexdigest())
        for name in sorted(names):
            artifact.get_entry(name).download(root=str(folder))
    except InputError:
        raise
    except Exception as error:  # wandb's, its server's, the network's, the disk's
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{given}: cannot be downloaded ({reason})") from error
    version = getattr(artifact, "version", None) or found[2]
    return Folder(folder, f"wandb:{found[1]}:{version}")


def _cache(kind: str, digest: str) -> Path:
    from huggingface_hub import cached_assets_path

    try:
        return cached_assets_path("lra_ssm", namespace=kind, subfolder=digest[:32])
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be made ({error.strerror}); set HF_HOME") from error
