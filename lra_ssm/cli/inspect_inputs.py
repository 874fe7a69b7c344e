"""What `inspect` and `coordcheck` measure models on: examples of data that is prepared here, or random inputs."""

import inspect
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lra_ssm.analysis.network import Example
from lra_ssm.cli.config import build_data
from lra_ssm.cli.named_network import NamedNetwork
from lra_ssm.cli.starting_weights import check_start_tokenizer
from lra_ssm.datamodules.base import DataModule, PreparedData
from lra_ssm.errors import InputError
from lra_ssm.layers.spec import import_object, public_path
from lra_ssm.runs.checks import check_data, check_vocabulary, differing_settings
from lra_ssm.runs.identity import plain


class Data(NamedTuple):
    """A data module that is ready to be read, and its settings as a configuration has them."""

    module: Any
    settings: dict[str, Any]


def open_data(opened: Sequence[NamedNetwork], options: Sequence[str], root: str | None) -> Data:
    """The data of the first model whose configuration names some, changed by the options.

    Raises InputError: none does, it cannot be made so, or it is not prepared; nothing is ever made here.
    """
    found = [one.data for one in opened if one.data]
    module = build_data(found[0] if found else None, options)
    if module is None:
        unknown = f"{opened[0].name}: no config.yaml says what data it was trained on"
        instead = "--data=CLASS and its settings (--data.source=…), or --random for random inputs"
        raise InputError(f"{unknown}: give {instead}")
    if root is not None and hasattr(module, "root"):
        module.root = root
    names = inspect.signature(type(module)).parameters
    values = {each: plain(getattr(module, each)) for each in names if hasattr(module, each)}
    settings = {"class_path": public_path(type(module)), "init_args": values}
    name, instead = type(module).__name__, "--random takes random inputs"
    if not isinstance(module, DataModule):
        raise InputError(f"{name} is a data module of another kind than ours: {instead}")
    if isinstance(module, PreparedData) and not module.is_prepared():
        raise InputError(f"{name} is not prepared below {module.data_root} with these settings; {instead}")
    return Data(module, settings)


def check_takes(one: NamedNetwork, module: Any) -> None:
    """Raises InputError: the model cannot read such inputs, or they mean something else to it."""
    task = SimpleNamespace(hparams={"network": one.specification}, network=one.network)
    try:
        check_data(task, module)
        check_vocabulary(task, module)
    except InputError as error:
        raise InputError(f"{one.name}: {error}") from error
    given = str(one.found.file) if one.found else one.name
    if one.found or one.files:
        check_start_tokenizer(given, one.files, module)
    manifest = module.manifest() if hasattr(module, "manifest") else {}
    theirs, ours = one.recorded.get("vocabulary"), manifest.get("vocabulary")
    if theirs and ours and list(theirs) != list(ours):
        raise InputError(f"{one.name}: was trained on another vocabulary than {type(module).__name__} has here")


def other_data(one: NamedNetwork, data: Data) -> list[str]:
    """A note for a model that was trained with other data settings; else nothing."""

    def decisive(section: dict[str, Any]) -> dict[str, Any]:
        arguments = (section.get("init_args") or {}).items()
        affects = getattr(import_object(section["class_path"]), "affects", {}) if "class_path" in section else {}
        kept = {k: v for k, v in arguments if affects.get(k, "data") == "data" and k not in ("root", "limit")}
        return {"data": {"class_path": section.get("class_path"), "init_args": kept}}

    if one.data is None:
        return []
    here = SimpleNamespace(hparams=decisive(data.settings))
    differing = differing_settings(here, {"hyper_parameters": decisive(one.data)})
    return [f"trained with other settings of data: {differing}"] if differing else []


def examples_of(module: Any, count: int) -> tuple[list[Example], str]:
    """The first validation examples, and a description of them."""
    module.setup("validate")
    batch = next(iter(module.val_dataloader()))
    found = []
    for i in range(min(count, len(batch.inputs))):
        longest = batch.inputs.shape[1] if batch.lengths is None else int(batch.lengths[i].max())
        one = part_of(batch, slice(i, i + 1), longest)
        found.append(Example(one.inputs, one.lengths, one.labels if hasattr(one, "labels") else one.targets))
    module.teardown()
    return found, f"measured on {len(found)} validation example(s) of {type(module).__name__}"


def part_of(batch: Any, examples: slice, length: int) -> Any:
    """Some examples of a batch, a named tuple of ours or a plain one, and their first positions."""
    if not hasattr(batch, "_fields"):
        return tuple(x[examples] if isinstance(x, Tensor) else x for x in batch)
    inputs = batch.inputs[examples]
    axis = 2 if batch.lengths is not None and batch.lengths.dim() == 2 else 1
    longest = inputs.shape[axis]
    cut = {"inputs": inputs.narrow(axis, 0, min(length, longest))}
    for name in set(batch._fields) - {"inputs"}:
        value = getattr(batch, name)
        if not isinstance(value, Tensor):
            continue
        value = value[examples]
        if name == "lengths":
            value = value.clamp(max=length)
        elif value.dim() > 1 and value.shape[1] == longest:
            value = value[:, :length]
        cut[name] = value
    return batch._replace(**cut)


class RandomInputs:
    """Inputs drawn at random for a network, and their sizes, as data says its own."""

    def __init__(self, network: nn.Module, specification: Mapping[str, Any]) -> None:
        arguments = specification.get("init_args") or {}
        self.vocab_size, self.d_input = arguments.get("vocab_size"), arguments.get("d_input")
        self.num_classes, self.num_outputs = arguments.get("num_classes"), arguments.get("num_outputs")
        self.per_example = getattr(network, "per_example", 1)
        self._network, self._generator = type(network).__name__, torch.Generator().manual_seed(0)

    def draw(self, examples: int, length: int) -> tuple[Tensor, Tensor | None]:
        """Inputs (B, L) int64, (B, L, d_input) float32, or of pairs (B, 2, …); and labels (B,), None without classes.

        Raises InputError: the network says no size of its inputs.
        """
        shape = (examples, *((2,) if self.per_example == 2 else ()), length)
        if self.vocab_size:
            low = min(1, self.vocab_size - 1)  # 0 is padding
            inputs = torch.randint(low, self.vocab_size, shape, generator=self._generator)
        elif self.d_input:
            inputs = torch.rand(*shape, self.d_input, generator=self._generator)
        else:
            raise InputError(f"{self._network} says neither vocab_size nor d_input: no random inputs for it")
        classes = self.num_classes
        return inputs, torch.randint(0, classes, (examples,), generator=self._generator) if classes else None

    def values(self, *shape: int) -> Tensor:
        """Random targets of a regression, of any shape."""
        return torch.randn(shape, generator=self._generator)


def random_examples(one: NamedNetwork, count: int) -> tuple[list[Example], str]:
    """Random inputs of the data's length with random labels, and a description of them."""
    random, length = RandomInputs(one.network, one.specification), _length(one.data or {})
    found = []
    for _ in range(count):
        inputs, label = random.draw(1, length)
        lengths = torch.full(inputs.shape[: random.per_example], length)  # (1,), of a pair (1, 2)
        if label is None:
            with torch.no_grad():
                label = random.values(*one.network(inputs, lengths).shape)
        found.append(Example(inputs, lengths, label))
    return found, f"measured on {count} random input(s) with random labels"


def _length(data: dict[str, Any]) -> int:
    """The data's, where its settings say it."""
    settings = data.get("init_args") or {}
    try:
        size = getattr(import_object(data.get("class_path", "")), "image_size", None)
    except ValueError:
        size = None
    if isinstance(size, (tuple, list)):
        return int(size[0] * size[1])
    return int(settings.get("max_length") or (settings.get("resolution") or 32) ** 2)
