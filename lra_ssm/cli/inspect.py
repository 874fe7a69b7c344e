"""`lra-ssm inspect`: what a checkpoint remembers and where it is unstable, as one HTML page and one picture."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_ssm.cli.find_checkpoint import Found, find, is_saved, load_network, load_saved
from lra_ssm.cli.measured import (
    Opened,
    RandomInputs,
    check_takes,
    data_options,
    examples_of,
    open_data,
    other_data,
    random_examples,
)
from lra_ssm.cli.output import PlainParser
from lra_ssm.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from lra_ssm.analysis.network import Example

DESCRIPTION = """\
Writes a report on a trained model: per layer what it remembers and for how long, how Δ moves with the input, which
parameters sit near instability, what one large input does to memory, and where gradients grow; of two models side by
side, on the same inputs. Measured on a few validation examples of the first one's data, which must be prepared;
--data.NAME=VALUE changes its settings as in fit, --random takes random inputs instead."""

EXAMPLE = """\
examples:
  lra-ssm inspect runs/mnist/s4d/38722f686f
  lra-ssm inspect runs/mnist/s6/5d0c1f6a52 --against=runs/mnist/b2s6/91e2b7c6d0 --out=docs
  lra-ssm inspect mnist-lru --against=mnist-b2s6
  lra-ssm inspect mnist-lru --data.source=./digits
"""


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
    said = "a setting of its data, as fit takes it, such as --data.source=./digits; --data=CLASS is other data"
    parser.add_argument("--data.NAME", metavar="VALUE", help=said)
    parser.add_argument("--random", action="store_true", help="random inputs of the first one's form, no data")
    parser.add_argument("--examples", type=int, default=2, metavar="N", help="validation examples; default: 2")
    parser.add_argument("--allow-pickle", action="store_true", help="read a saved model's weights that are a pickle")
    said = "a class of others that a saved model is made with and that may be imported"
    parser.add_argument("--trust", action="append", default=[], metavar="module.Class", help=said)
    of_data, rest = data_options(arguments)
    options = parser.parse_args(rest)
    if options.random and of_data:
        raise InputError(f"--random takes no data: leave it out, or {of_data[0]}")
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
        examples, sources = _inputs(opened, options.random, of_data, options.root, options.examples)
        networks = _measured(opened, examples, sources)
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
    record = read_record(found.run / "run.json")[0] if found.run else {}
    metrics = record.get("metrics", {})
    best = [f"{name} {value:.4g}" for name, value in metrics.items() if name.startswith("best ")]
    facts = [f"{found.file.name}, step {step:,}", *best[:1]]
    return Opened(network, specification, found.config, title, facts, str(found.file), None, record.get("data") or {})


def _of_a_saved_model(name: str, allow_pickle: bool, trust: Collection[str]) -> Opened:
    from lra_ssm.checkpoints.known import headline
    from lra_ssm.models.pretrained import Pretrained

    files, network, config = load_saved(name, allow_pickle, trust)
    stated = files.config()
    specification = network.specification() if isinstance(network, Pretrained) else stated["network"]
    said = headline({n: v for n, v in _within(stated, "source", "metrics", "test").items() if type(v) in (int, float)})
    recorded = _within(stated, "source", "data")
    return Opened(network, specification, config, files.name, [said] if said else [], name, files, recorded)


def _within(stated: Any, *keys: str) -> dict[str, Any]:
    """A part of what somebody wrote; empty where it is not there."""
    for key in keys:
        stated = stated.get(key) if isinstance(stated, dict) else None
    return stated if isinstance(stated, dict) else {}


def _inputs(
    opened: Sequence[Opened], random: bool, of_data: Sequence[str], root: str | None, count: int
) -> tuple[list["Example"], list[list[str]]]:
    """The inputs that all models are measured on, and what the page says of them to each. Raises InputError: one of
    them cannot take them."""
    if random:
        sizes = RandomInputs(opened[0])
        for one in opened:
            check_takes(one, sizes)
        examples, source = random_examples(opened[0], count)
        return examples, [[source] for _ in opened]
    data = open_data(opened, of_data, root)
    for one in opened:
        check_takes(one, data.module)
    examples, source = examples_of(data.module, count)
    return examples, [[source, *other_data(one, data)] for one in opened]


def _measured(opened: list[Opened], examples: list["Example"], sources: list[list[str]]) -> list[Any]:
    """Measures every checkpoint under a progress bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from lra_ssm.analysis.measure import measure, steps

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results = []
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("loading", total=sum(steps(one.network, examples) for one in opened))

        def tick(text: str) -> None:
            progress.update(task, description=text)
            progress.advance(task)

        for one, source in zip(opened, sources, strict=True):
            facts = [*_size(one.network), *one.facts, *source]
            results.append(measure(one.network, examples, one.title, facts, tick))
    return results


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
