"""`lra-ssm inspect`: what a checkpoint remembers and where it is unstable, as one HTML page and one picture."""

import inspect
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lra_ssm.cli.output import PlainParser
from lra_ssm.cli.trained import Found, find, is_saved, load_network, load_saved
from lra_ssm.errors import InputError, squeeze

if TYPE_CHECKING:
    from torch import nn

    from lra_ssm.analysis.network import Example

DESCRIPTION = """\
Writes a report on a trained model: per layer what it remembers and for how long, how Δ moves with the input, which
parameters sit near instability, what one large input does to memory, and where gradients grow; of two models side by
side. Measured on a few validation examples of the run's own data, or on random inputs where that is not prepared."""

EXAMPLE = """\
examples:
  lra-ssm inspect runs/mnist/s4d/38722f686f
  lra-ssm inspect runs/mnist/s6/5d0c1f6a52 --against=runs/mnist/b2s6/91e2b7c6d0 --out=docs
  lra-ssm inspect mnist-lru --against=mnist-b2s6
"""


class Opened(NamedTuple):
    """A network, what it is made of and was trained with, and what the report's reader must know."""

    network: "nn.Module"
    specification: dict[str, Any]
    config: dict[str, Any]
    title: str
    facts: list[str]


def main(command: str, arguments: list[str]) -> int:
    parser = PlainParser("lra-ssm inspect", DESCRIPTION, EXAMPLE)
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a run's directory (its best.ckpt, else its last.ckpt), a .ckpt, or a saved model by its name or folder",
    )
    parser.add_argument("--against", metavar="OTHER", help="another one, shown below the first on the same scales")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where inspect.html and inspect.png go; default: the run's directory, of a saved model the current folder",
    )
    parser.add_argument("--root", metavar="FOLDER", help="data root; default: the run's own")
    parser.add_argument("--examples", type=int, default=2, metavar="N", help="validation examples; default: 2")
    parser.add_argument("--allow-pickle", action="store_true", help="read a saved model's weights that are a pickle")
    said = "a class of others that a saved model is made with and that may be imported"
    parser.add_argument("--trust", action="append", default=[], metavar="module.Class", help=said)
    options = parser.parse_args(arguments)
    if options.examples < 1:
        raise InputError(f"--examples is {options.examples}; it must be at least 1")
    given = [options.checkpoint, *([options.against] if options.against else [])]
    found = [None if is_saved(name) else find(name) for name in given]
    folder = options.out or (Path() if found[0] is None else found[0].run or found[0].file.parent)
    if not folder.is_dir():
        raise InputError(f"--out {folder}: is no existing folder")
    opened = [
        _of_a_run(one) if one else _of_a_saved_model(name, options.allow_pickle, options.trust)
        for name, one in zip(given, found, strict=True)
    ]
    import torch

    # Gradients of a model that diverged, or forgets, are full of numbers that a processor takes 50 times as long for.
    torch.set_flush_denormal(True)
    try:
        networks = _measured(opened, options.root, options.examples)
    finally:
        torch.set_flush_denormal(False)
    _write(folder, networks)
    return 0


def _of_a_run(found: Found) -> Opened:
    from lra_ssm.runs.record import read_record

    network, specification, step = load_network(found.file)
    title = found.run.resolve().name if found.run else found.file.name
    if found.run and (experiment := found.config.get("experiment")):
        title = f"{experiment} {title}"
    metrics = read_record(found.run / "run.json")[0].get("metrics", {}) if found.run else {}
    best = [f"{name} {value:.4g}" for name, value in metrics.items() if name.startswith("best ")]
    return Opened(network, specification, found.config, title, [f"{found.file.name}, step {step:,}", *best[:1]])


def _of_a_saved_model(name: str, allow_pickle: bool, trust: Collection[str]) -> Opened:
    from lra_ssm.checkpoints.known import headline
    from lra_ssm.models.pretrained import Pretrained

    files, network, config = load_saved(name, allow_pickle, trust)
    stated = files.config()
    specification = network.specification() if isinstance(network, Pretrained) else stated["network"]
    tested: Any = stated
    for key in ("source", "metrics", "test"):  # whoever wrote it
        tested = tested.get(key) if isinstance(tested, dict) else None
    metrics = tested.items() if isinstance(tested, dict) else ()
    said = headline({key: value for key, value in metrics if isinstance(value, (int, float))})
    return Opened(network, specification, config, files.name, [said] if said else [])


def _measured(opened: list[Opened], root: str | None, count: int) -> list[Any]:
    """Measures every checkpoint under a progress bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from lra_ssm.analysis.measure import measure, steps

    loaded = []
    for one in opened:
        examples, source = examples_of(one.config, one.network, one.specification, root, count)
        loaded.append((one.network, examples, one.title, [*_size(one.network), *one.facts, source]))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results = []
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("loading", total=sum(steps(network, examples) for network, examples, *_ in loaded))

        def tick(text: str) -> None:
            progress.update(task, description=text)
            progress.advance(task)

        for network, examples, title, facts in loaded:
            results.append(measure(network, examples, title, facts, tick))
    return results


def examples_of(
    config: dict[str, Any], network: "nn.Module", spec: dict[str, Any], root: str | None, count: int
) -> tuple[list["Example"], str]:
    """Validation examples of the run's own data, where it is prepared, else random ones; and which they are."""
    import torch

    from lra_ssm.analysis.network import Example

    data, why = _datamodule(config, root)
    if data is not None:
        data.setup("validate")
        batch = next(iter(data.val_dataloader()))
        lengths, labels, found = batch.lengths, batch[2] if hasattr(batch, "labels") else batch.targets, []
        for i in range(min(count, len(batch.inputs))):
            longest = None if lengths is None else int(lengths[i].max())
            inputs = batch.inputs[i : i + 1]
            inputs = inputs[:, :, :longest] if getattr(data, "per_example", 1) == 2 else inputs[:, :longest]
            by_position = labels.dim() > 1 and labels.shape[1] == batch.inputs.shape[1]
            label = labels[i : i + 1, :longest] if by_position else labels[i : i + 1]
            found.append(Example(inputs, None if lengths is None else lengths[i : i + 1], label))
        data.teardown()
        return found, f"measured on {len(found)} validation example(s) of {type(data).__name__}"
    arguments = spec.get("init_args") or {}
    length, generator = _length(config), torch.Generator().manual_seed(0)
    pair = (2,) if getattr(network, "per_example", 1) == 2 else ()
    found = []
    for _ in range(count):
        if arguments.get("vocab_size"):
            low = min(1, arguments["vocab_size"] - 1)  # 0 is padding
            inputs = torch.randint(low, arguments["vocab_size"], (1, *pair, length), generator=generator)
        elif arguments.get("d_input"):
            inputs = torch.rand(1, *pair, length, arguments["d_input"], generator=generator)
        else:
            raise InputError(
                f"{why}, and {type(network).__name__} says neither vocab_size nor d_input: no inputs for it"
            )
        lengths = torch.full((1, *pair), length)
        if classes := arguments.get("num_classes"):
            label = torch.randint(0, classes, (1,), generator=generator)
        else:
            with torch.no_grad():
                label = torch.randn(network(inputs, lengths).shape, generator=generator)
        found.append(Example(inputs, lengths, label))
    return found, f"measured on {count} random input(s) with random labels, as {why}"


def _datamodule(config: dict[str, Any], root: str | None) -> tuple[Any, str]:
    """The run's own data where it is prepared or needs no preparation, else None and why not."""
    from lra_ssm.datamodules.base import PreparedDataModule
    from lra_ssm.datamodules.loading.module import LoadedDataModule
    from lra_ssm.layers.spec import import_object

    data = config.get("data")
    if not isinstance(data, dict) or "class_path" not in data:
        return None, "no config.yaml says what data it was trained on"
    settings = dict(data.get("init_args") or {})
    try:
        cls = import_object(data["class_path"], "data")
        if root is not None and "root" in inspect.signature(cls).parameters:
            settings["root"] = root
        module = cls(**settings)
    except (ValueError, TypeError) as error:
        return None, f"its data cannot be opened here ({squeeze(str(error))})"
    name = type(module).__name__
    if not isinstance(module, LoadedDataModule):
        return None, f"{name} is a data module of another kind than ours"
    if isinstance(module, PreparedDataModule) and not module.is_prepared():
        return None, f"{name} is not prepared below {module.root}"
    return module, ""


def _length(config: dict[str, Any]) -> int:
    """Positions of a random input: the data's, where its settings say it."""
    from lra_ssm.layers.spec import import_object

    given = config.get("data")
    data: dict[str, Any] = given if isinstance(given, dict) else {}
    settings = data.get("init_args") or {}
    try:
        size = getattr(import_object(data.get("class_path", "")), "image_size", None)
    except ValueError:
        size = None
    if isinstance(size, (tuple, list)):
        return int(size[0] * size[1])
    return int(settings.get("max_length") or (settings.get("resolution") or 32) ** 2)


def _size(network: "nn.Module") -> list[str]:
    from lra_ssm.analysis.network import layers_of

    layers = list(layers_of(network).values())
    parameters = sum(p.numel() for p in network.parameters())
    return [f"{len(layers)} × {type(layers[0]).__name__}", f"{parameters:,} parameters"]


def _write(folder: Path, networks: list[Any]) -> None:
    from lra_ssm.analysis.report import page, picture
    from lra_ssm.files import replacing

    for name, content in (("inspect.html", page(networks).encode()), ("inspect.png", picture(networks))):
        try:
            with replacing(folder / name, "wb") as file:
                file.write(content)
        except OSError as error:
            raise InputError(f"{folder / name}: cannot be written ({error.strerror or error})") from error
        print(folder / name)
