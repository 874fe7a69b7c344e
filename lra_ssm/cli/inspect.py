"""`lra-ssm inspect`: what a checkpoint remembers and where it is unstable, as one figure and a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lra_ssm.bars import Bar
from lra_ssm.cli.options import A_MODEL, add_trust, configuring, count
from lra_ssm.cli.output import PlainParser
from lra_ssm.errors import InputError
from lra_ssm.files import replacing

if TYPE_CHECKING:
    from lra_ssm.analysis.measure import Measures
    from lra_ssm.analysis.network import Example
    from lra_ssm.cli.named_network import NamedNetwork


FORMATS = (".png", ".pdf", ".svg")
DESCRIPTION = """\
Draws what a trained model remembers: the memory and the eigenvalues of each layer, gradients, the step sizes Δ, and
the effect of one large input; prints the same as a table. A second model is drawn on the same scales. Both are measured
on a few validation examples of the first one's data, which must be prepared."""

EXAMPLE = """\
examples:
  lra-ssm inspect runs/mnist/s4d/38722f686f
  lra-ssm inspect runs/mnist/s6/5d0c1f6a52 --against=runs/mnist/b2s6/91e2b7c6d0 --out=s6-b2s6.pdf
  lra-ssm inspect mnist-lru --against=mnist-b2s6
  lra-ssm inspect mnist-lru --data.source=./digits
"""


def parser() -> PlainParser:
    made = PlainParser("lra-ssm inspect", DESCRIPTION, EXAMPLE)
    made.add_argument("checkpoint", metavar="CHECKPOINT", help=A_MODEL)
    made.add_argument("--against", metavar="OTHER", help="a second model")
    text = "the figure: .png, .pdf or .svg; default: inspect.png in the run's directory, for a saved model in this one"
    made.add_argument("--out", type=Path, metavar="FILE", help=text)
    made.add_argument("--root", metavar="FOLDER", help="data root; default: the run's own")
    text = "a setting of its data, as in fit; --data=CLASS selects other data"
    made.add_argument("--data.NAME", metavar="VALUE", help=text)
    made.add_argument("--random", action="store_true", help="use random inputs that fit the first model, no data")
    made.add_argument("--examples", type=count, default=2, metavar="N", help="validation examples; default: 2")
    add_trust(made)
    return made


def main(command: str, arguments: list[str]) -> int:
    of_data, rest = configuring(arguments, "data")
    options = parser().parse_args(rest)
    if options.out and (options.out.suffix not in FORMATS or options.out.is_dir()):
        raise InputError(f"--out {options.out}: give a file that ends in {', '.join(FORMATS)}, such as inspect.png")
    if options.random and of_data:
        raise InputError(f"--random takes no data: leave it out, or {of_data[0]}")
    import torch

    from lra_ssm.cli.named_network import named_network

    given = [options.checkpoint, options.against] if options.against else [options.checkpoint]
    named = [named_network(name, options.allow_pickle, options.trust) for name in given]
    first = named[0].found
    out = options.out or (first.run or first.file.parent if first else Path()) / "inspect.png"
    # Gradients of a model that forgets are full of numbers that a processor takes 50 times as long for.
    torch.set_flush_denormal(True)
    try:
        examples, sources = _inputs(named, options.random, of_data, options.root, options.examples)
        networks = _measured(named, examples, sources)
    finally:
        torch.set_flush_denormal(False)
    _write(out, networks)
    return 0


def _title(one: NamedNetwork) -> str:
    if one.found is None:
        return one.name
    if one.found.run is None:
        return one.found.file.name
    return " ".join(filter(None, [one.config.get("experiment"), one.found.run.resolve().name]))


def _facts(one: NamedNetwork) -> list[str]:
    from lra_ssm.analysis.network import layers_of

    layers = list(layers_of(one.network).values())
    step = [f"{one.found.file.name}, step {one.step:,}"] if one.found else []
    score = [one.score] if one.score else []
    kinds = Counter(type(layer).__name__ for layer in layers)
    units = " and ".join(f"{count} × {kind}" for kind, count in kinds.items())
    return [units, f"{one.parameters:,} parameters", *step, *score]


def _inputs(
    named: Sequence[NamedNetwork], random: bool, of_data: Sequence[str], root: str | None, count: int
) -> tuple[list[Example], list[list[str]]]:
    """The examples that all models are measured on, and for each model where they come from."""
    from lra_ssm.cli import inspect_inputs

    if random:
        sizes = inspect_inputs.RandomInputs(named[0].network, named[0].specification)
        for one in named:
            inspect_inputs.check_takes(one, sizes)
        examples, source = inspect_inputs.random_examples(named[0], count)
        return examples, [[source] for _ in named]
    data = inspect_inputs.open_data(named, of_data, root)
    for one in named:
        inspect_inputs.check_takes(one, data.module)
    examples, source = inspect_inputs.examples_of(data.module, count)
    return examples, [[source, *inspect_inputs.other_data(one, data)] for one in named]


def _measured(named: Sequence[NamedNetwork], examples: list[Example], sources: list[list[str]]) -> list[Measures]:
    """Measure every checkpoint under a progress bar."""
    from lra_ssm.analysis.measure import count_ticks, measure

    with Bar("measuring", sum(count_ticks(one.network, examples) for one in named)) as bar:
        return [
            measure(one.network, examples, _title(one), [*_facts(one), *source], lambda: bar.advance(1))
            for one, source in zip(named, sources, strict=True)
        ]


def _write(out: Path, networks: list[Measures]) -> None:
    from lra_ssm.analysis.figure import draw
    from lra_ssm.analysis.measure import summary

    for measures in networks:
        print(f"{measures.title}: {'; '.join(measures.facts)}\n{summary(measures)}\n")
    figure = draw(networks)
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out, "wb") as file:
        figure.savefig(file, format=out.suffix[1:])
    print(out)
