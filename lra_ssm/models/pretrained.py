"""Networks saved to a folder and loaded from one, or from the Hub; checkpoints/ reads and writes the files."""

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
from lra_ssm.layers.arguments import KeepsArguments
from lra_ssm.layers.spec import NetworkSpec, import_object
from lra_ssm.models.mamba_checkpoints import from_mamba, hf_config, network_of_mamba, normalized, to_mamba

FORMAT = "lra_ssm/1"
SavedFormat = Literal["lra_ssm", "hf"]
_Network = TypeVar("_Network", bound=nn.Module)
_IMPORT_PATH = re.compile(r"[^\W\d]\w*\..+")  # the part before the first dot would be imported
KNOWN = ("lra_ssm", "lightning", "torch", "torchmetrics")  # packages whose classes need no trust


class Pretrained(KeepsArguments):
    """A network that can be saved and loaded."""

    def specification(self) -> dict[str, Any]:
        """Return the class and all its arguments as plain values: {class_path, init_args}.

        Raises ValueError for an argument that is not a plain value or a specification.
        """
        return NetworkSpec(type(self), **self.constructor_arguments()).as_dict()

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
        """Load a saved network of this class, with its weights, on the CPU, in evaluation mode.

        Args:
            folder_or_repo: a folder that `save_pretrained` wrote, or a repository on the Hub, "owner/name" or
                "owner/name@revision". A `LanguageModel` also reads `state-spaces/mamba-*`, `mamba2-*` and their `-hf`
                forms.
            revision: a branch, tag or commit.
            allow_pickle: also read weights from a pickle (`pytorch_model.bin`), only its tensors.
            dtype: of the weights, whatever they are stored in.
            trust: import paths of classes, other than modules of lra_ssm, lightning, torch and torchmetrics, that the
                network may be built with.

        Raises:
            InputError (a ValueError): there is no such model or revision, it is damaged, does not fit, is of another
                class, is a pickle, or is built with classes that are not trusted.
        """
        return load_pretrained(
            folder_or_repo, cls, revision=revision, allow_pickle=allow_pickle, dtype=dtype, trust=trust
        )

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        tokenizer: SavedTokenizer | None = None,
        source: Mapping[str, Any] | None = None,
        format: SavedFormat = "lra_ssm",
    ) -> None:
        """Write the network to a folder, completely or not at all; replaces a model that was saved there.

        Args:
            folder: created if it is missing.
            tokenizer: saved next to it: what `load_tokenizer` of the data modules returns.
            source: where the network comes from (data, commit, metrics), for config.json; JSON values.
            format: "lra_ssm"; or "hf", which transformers' MambaForCausalLM and Mamba2ForCausalLM load: for a
                `LanguageModel` of S6 in MambaBlocks, or of SSD in Mamba2Blocks.

        Raises:
            InputError: the format cannot hold the network, the folder holds something else, or writing fails.
        """
        save_network(folder, self.specification(), self.state_dict(), tokenizer, source, format)


def save_network(
    folder: str | Path,
    network: Mapping[str, Any],
    state: Mapping[str, Tensor],
    tokenizer: SavedTokenizer | None = None,
    source: Mapping[str, Any] | None = None,
    format: SavedFormat = "lra_ssm",
    other_files: Mapping[str, bytes] | None = None,
) -> None:
    """Do what `Pretrained.save_pretrained` does for a network of any class, given its specification and state_dict.

    other_files: their content by name; with them "source" in config.json has digests of all files but the card.
    """
    if format == "hf":
        end_of_text = None if tokenizer is None else tokenizer.end_of_text
        config, state = hf_config(network, end_of_text, str(folder)), to_mamba(state)
        if source:
            config["source"] = dict(source)
    elif format == "lra_ssm":
        config = {"format": FORMAT, "network": network, "lra_ssm_version": __version__, "source": dict(source or {})}
    else:
        raise InputError(f"format is {format!r}; it must be lra_ssm or hf")
    files = {**tokenizer_files(tokenizer), **(other_files or {})}
    write_model(folder, config, state, files, digests=other_files is not None)


def load_pretrained(
    folder_or_repo: str | Path | ModelFiles,
    kind: type[_Network],
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
    dtype: torch.dtype = torch.float32,
    trust: Collection[str] = (),
) -> _Network:
    """Do what `Pretrained.from_pretrained` does for networks of class `kind` and its subclasses, such as nn.Module."""
    files = folder_or_repo if isinstance(folder_or_repo, ModelFiles) else ModelFiles(folder_or_repo, revision)
    model, tensors, foreign = _read(files, kind, allow_pickle, dtype, trust)
    sizes = model.state_dict()
    # Copies: tensors mapped from a file would change with the file.
    weights = {name: x.to(sizes[name].dtype, copy=True) for name, x in tensors.items()}
    model.load_state_dict(weights, strict=not foreign, assign=not foreign)
    return model.eval()


def check_pretrained(files: ModelFiles, allow_pickle: bool = False, trust: Collection[str] = ()) -> type[nn.Module]:
    """Check that a saved model can be loaded, without copying weights, and return its class.

    Raises InputError for everything that `load_pretrained` refuses.
    """
    return type(_read(files, nn.Module, allow_pickle, torch.float32, trust)[0])


def _read(
    files: ModelFiles, kind: type[_Network], allow_pickle: bool, dtype: torch.dtype, trust: Collection[str]
) -> tuple[_Network, dict[str, Tensor], bool]:
    """Return the network without its weights, the weights by its own names, and whether it has foreign classes."""
    config = files.config()
    where = files.name  # known only now: it includes the commit
    is_own_format = "format" in config
    network = _network_of(config, trust, where) if is_own_format else network_of_mamba(config, where)
    if network is None:
        content = f"model_type {config['model_type']!r}" if "model_type" in config else f"keys {sorted(config)[:5]}"
        raise InputError(f"{where}: its {CONFIG} has no known layout: {content}")
    foreign = any(path in trust for path in import_paths(network))
    tensors = files.weights(allow_pickle)
    model = _build(network, kind, foreign, where)
    model._apply(lambda x: x.to(_loaded_dtype(x.dtype, dtype)))
    sizes = model.state_dict()
    if is_own_format:
        check_shapes(untied(sizes), tensors, where)
    else:  # compare by the file's names, because its owner knows those
        tensors = normalized(tensors, "head.weight" not in sizes, where)
        check_shapes(to_mamba(sizes), tensors, where)
        tensors = from_mamba(tensors, sizes)
    for name, x in tensors.items():
        if x.is_floating_point() != sizes[name].is_floating_point():
            raise InputError(f"{where}: {name} is of {x.dtype}, not {sizes[name].dtype}")
    return model, tensors, foreign


def _network_of(config: Mapping[str, Any], trust: Collection[str], where: str) -> dict[str, Any]:
    """Return the network's specification from our config.json, after checking every class that it names.

    Raises InputError for another version of the format, a missing specification, or a class that is neither known nor
    trusted, which has not been imported then.
    """
    if config["format"] != FORMAT:
        raise InputError(f"{where}: its {CONFIG} has the format {config['format']!r}; this version reads {FORMAT!r}")
    network = config.get("network")
    if not isinstance(network, dict) or not isinstance(network.get("class_path"), str):
        raise InputError(f"{where}: its {CONFIG} has no network, a class_path and its init_args")
    for path in import_paths(network):
        if path not in trust and not is_known(path):
            raise InputError(
                f"{where}: its network is built with {path}, which is not a module of {one_of_known()} and would be"
                f" imported: if you trust it, give trust=({path!r},) (--trust {path})"
            )
    return network


def import_paths(value: Any) -> Iterator[str]:
    """Yield every text in the settings that could be imported; a specification may be just its path."""
    return filter(_IMPORT_PATH.fullmatch, texts(value))


def texts(value: Any) -> Iterator[str]:
    """Yield every text in the settings, except for their names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts(item)


def is_known(path: str, kinds: tuple[type, ...] = (nn.Module,)) -> bool:
    """Return whether the path names a class of these kinds that lra_ssm, lightning, torch or torchmetrics defines.

    It is False for something that their files import (lra_ssm.files.os.system), and for their other classes or
    functions (torch.hub.load), which may run anything.
    """
    package = path.partition(".")[0]
    try:
        cls = import_object(path) if package in KNOWN else None
    except Exception:  # some of their modules cannot be imported here
        return False
    return isinstance(cls, type) and issubclass(cls, kinds) and cls.__module__.partition(".")[0] == package


def one_of_known() -> str:
    """Return the known packages for a message: "a, b or c"."""
    return f"{', '.join(KNOWN[:-1])} or {KNOWN[-1]}"


def _loaded_dtype(current: torch.dtype, target: torch.dtype) -> torch.dtype:
    """Return a parameter's or buffer's dtype in a network of dtype `wanted`: complex stays complex, integers stay."""
    if current.is_complex:
        return torch.promote_types(target, torch.float32).to_complex()
    return target if current.is_floating_point else current


def _build(network: dict[str, Any], kind: type[_Network], foreign: bool, where: str) -> _Network:
    """Build the network, without memory for its weights, which are loaded next.

    With foreign classes, or buffers that are computed instead of saved (sinusoidal positions), it is built in full.
    """
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
