"""Networks that are saved as a folder and loaded from one, or from the Hub; checkpoints/ has the files."""

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from lra_ssm import __version__
from lra_ssm.checkpoints import (
    CONFIG,
    ModelFiles,
    SavedTokenizer,
    check_shapes,
    tokenizer_files,
    untied,
    write_model,
)
from lra_ssm.errors import InputError
from lra_ssm.layers.spec import NetworkSpec, import_object
from lra_ssm.models.mamba_checkpoints import from_mamba, hf_config, network_of_mamba, normalized, to_mamba

FORMAT = "lra_ssm/1"
SavedFormat = Literal["lra_ssm", "hf"]
_Network = TypeVar("_Network", bound=nn.Module)
_IMPORT_PATH = re.compile(r"[^\W\d]\w*\..+")  # what stands before the first dot would be imported
KNOWN = ("lra_ssm", "lightning", "torch", "torchmetrics")  # whose classes may be made unasked


class Pretrained(nn.Module):
    """A network that knows the arguments it was built with, so that it can be saved and built again."""

    _given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self.__dict__["_given"] = args, kwargs
        return self

    def specification(self) -> dict[str, Any]:
        """The class and all its arguments as plain values: {class_path, init_args}.

        Raises ValueError for an argument that is no plain value or specification.
        """
        args, kwargs = self._given
        bound = inspect.signature(type(self)).bind(*args, **kwargs)
        return NetworkSpec(type(self), **bound.arguments).as_dict()

    @classmethod
    def from_pretrained(
        cls,
        folder_or_repo: str | Path,
        *,
        revision: str | None = None,
        allow_pickle: bool = False,
        dtype: torch.dtype = torch.float32,
        trust: Collection[str] = (),
    ) -> Self:
        """A saved network of this class, with its weights, on the CPU, in evaluation mode.

        Args:
            folder_or_repo: a folder that `save_pretrained` wrote, or a repository of the Hub, "owner/name" or
                "owner/name@revision". A `LanguageModel` is read from `state-spaces/mamba-*`, `mamba2-*` and the `-hf`
                forms too.
            revision: a branch, tag or commit.
            allow_pickle: read weights that are a pickle (`pytorch_model.bin`), tensors alone.
            dtype: of the weights; they may be stored in another.
            trust: import paths of what else the network may be made with than modules of lra_ssm, lightning, torch and
                torchmetrics.

        Raises:
            InputError: there is no such model or revision, it is damaged, does not fit, is of another class, is a
                pickle, or is made with classes that are not trusted. A ValueError.
        """
        return load_pretrained(
            folder_or_repo, cls, revision=revision, allow_pickle=allow_pickle, dtype=dtype, trust=trust
        )

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        tokenizer: SavedTokenizer | str | Path | None = None,
        source: Mapping[str, Any] | None = None,
        format: SavedFormat = "lra_ssm",
    ) -> None:
        """Writes the network into a folder, whole or not at all; a model saved there before is replaced.

        Args:
            folder: created where it is missing.
            tokenizer: kept beside it: what `load_tokenizer` gives, or the path of a vocabulary.json or tokenizer.json.
            source: where it comes from (data, commit, metrics), for config.json; values as JSON has them.
            format: "lra_ssm"; or "hf" for what transformers' MambaForCausalLM and Mamba2ForCausalLM load: a
                `LanguageModel` of S6 in MambaBlocks, or of SSD in Mamba2Blocks.

        Raises:
            InputError: that format cannot hold it, the folder holds something else, or the disk does not take it.
        """
        save_network(folder, self.specification(), self.state_dict(), tokenizer, source, format)


def save_network(
    folder: str | Path,
    network: Mapping[str, Any],
    state: Mapping[str, Tensor],
    tokenizer: SavedTokenizer | str | Path | None = None,
    source: Mapping[str, Any] | None = None,
    format: SavedFormat = "lra_ssm",
    beside: Mapping[str, bytes] | None = None,
) -> None:
    """`Pretrained.save_pretrained` of a network of any class, by its specification and its state_dict.

    beside: other files of the folder, by name; then "source" of config.json has the digests of all but the card.
    """
    files, end = tokenizer_files(tokenizer)
    if format == "hf":
        number = None if end is None else getattr(tokenizer, "end_of_text", None)
        config, state = hf_config(network, number, str(folder)), to_mamba(state)
        if source:
            config["source"] = dict(source)
    elif format == "lra_ssm":
        config = {"format": FORMAT, "network": network, "lra_ssm_version": __version__, "source": dict(source or {})}
    else:
        raise InputError(f"format is {format!r}; it must be lra_ssm or hf")
    write_model(folder, config, state, {**files, **(beside or {})}, digests=beside is not None)


def load_pretrained(
    folder_or_repo: str | Path | ModelFiles,
    kind: type[_Network],
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
    dtype: torch.dtype = torch.float32,
    trust: Collection[str] = (),
) -> _Network:
    """`Pretrained.from_pretrained` of networks of a class and those derived from it; nn.Module takes all."""
    files = folder_or_repo if isinstance(folder_or_repo, ModelFiles) else ModelFiles(folder_or_repo, revision)
    model, tensors, foreign = _read(files, kind, allow_pickle, dtype, trust)
    sizes = model.state_dict()
    # In memory of its own: what is mapped from a file changes where the file does.
    weights = {name: x.to(sizes[name].dtype, copy=True) for name, x in tensors.items()}
    model.load_state_dict(weights, strict=not foreign, assign=not foreign)
    return model.eval()


def check_pretrained(files: ModelFiles, allow_pickle: bool = False, trust: Collection[str] = ()) -> type[nn.Module]:
    """A saved model can be loaded, whatever its class, which is returned: all that `load_pretrained` refuses is
    refused, and no weight is copied. Raises InputError."""
    return type(_read(files, nn.Module, allow_pickle, torch.float32, trust)[0])


def _read(
    files: ModelFiles, kind: type[_Network], allow_pickle: bool, dtype: torch.dtype, trust: Collection[str]
) -> tuple[_Network, dict[str, Tensor], bool]:
    """The network without its weights, these under its own names, and whether it is made with classes not of ours."""
    config = files.config()
    where = files.name  # with the commit, by now
    ours = "format" in config
    network = _network_of(config, trust, where) if ours else network_of_mamba(config, where)
    if network is None:
        found = f"model_type {config['model_type']!r}" if "model_type" in config else f"keys {sorted(config)[:5]}"
        raise InputError(f"{where}: its {CONFIG} is of no layout that can be read: {found}")
    foreign = any(path in trust for path in import_paths(network))
    tensors = files.weights(allow_pickle)
    model = _built(network, kind, foreign, where)
    model._apply(lambda x: x.to(_as_wide(x.dtype, dtype)))
    sizes = model.state_dict()
    if ours:
        check_shapes(untied(sizes), tensors, where)
    else:  # compared under the file's names, which its owner knows
        tensors = normalized(tensors, "head.weight" not in sizes, where)
        check_shapes(to_mamba(sizes), tensors, where)
        tensors = from_mamba(tensors, sizes)
    for name, x in tensors.items():
        if x.is_floating_point() != sizes[name].is_floating_point():
            raise InputError(f"{where}: {name} is of {x.dtype}, not {sizes[name].dtype}")
    return model, tensors, foreign


def _network_of(config: Mapping[str, Any], trust: Collection[str], where: str) -> dict[str, Any]:
    """The network's specification of a config.json of ours, whatever it names allowed.

    Raises InputError: another version of the format, no specification, or a class that is not of this package or that
    nobody trusts, which has not been imported then.
    """
    if config["format"] != FORMAT:
        raise InputError(f"{where}: its {CONFIG} is of format {config['format']!r}; this version reads {FORMAT!r}")
    network = config.get("network")
    if not isinstance(network, dict) or not isinstance(network.get("class_path"), str):
        raise InputError(f"{where}: its {CONFIG} has no network, a class_path and its init_args")
    for path in import_paths(network):
        if path not in trust and not is_known(path):
            raise InputError(
                f"{where}: its network is made with {path}, which is no module of {one_of_known()} and would be"
                f" imported: if it is to be trusted, give trust=({path!r},) (--trust {path})"
            )
    return network


def import_paths(value: Any) -> Iterator[str]:
    """What settings name that could be imported: a specification may be its path alone, so any text of that form."""
    if isinstance(value, str):
        if _IMPORT_PATH.fullmatch(value):
            yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from import_paths(item)


def is_known(path: str, kinds: tuple[type, ...] = (nn.Module,)) -> bool:
    """Whether it names a class of these kinds that lra_ssm, lightning, torch or torchmetrics defines; not what their
    files import (lra_ssm.files.os.system), nor another class or function of theirs (torch.hub.load), which may run
    anything."""
    package = path.partition(".")[0]
    try:
        found = import_object(path) if package in KNOWN else None
    except Exception:  # of a module of theirs that is not meant to be imported here
        return False
    return isinstance(found, type) and issubclass(found, kinds) and found.__module__.partition(".")[0] == package


def one_of_known() -> str:
    return f"{', '.join(KNOWN[:-1])} or {KNOWN[-1]}"


def _as_wide(own: torch.dtype, wanted: torch.dtype) -> torch.dtype:
    """The dtype of a parameter or buffer in a network of that dtype: complex stays complex, an integer as it is."""
    if own.is_complex:
        return torch.promote_types(wanted, torch.float32).to_complex()
    return wanted if own.is_floating_point else own


def _built(network: dict[str, Any], kind: type[_Network], foreign: bool, where: str) -> _Network:
    """Build the network; without memory for weights, which are loaded, where it has only classes of ours and no buffer
    that is computed instead of saved (sinusoidal positions)."""
    try:
        cls = import_object(network["class_path"], "network")
        spec = NetworkSpec.of(network)
        with torch.random.fork_rng(devices=[]):
            with torch.device("cpu" if foreign else "meta"):
                model = spec()
            if not foreign and {name for name, _ in model.named_buffers()} - model.state_dict().keys():
                model = spec()
    except (ValueError, TypeError, ArithmeticError, RuntimeError, MemoryError) as error:  # sizes
        raise InputError(f"{where}: its network cannot be built: {error}") from error
    if not isinstance(model, kind):
        raise InputError(f"{where}: is a {getattr(cls, '__name__', cls)}, not a {kind.__name__}")
    return model
