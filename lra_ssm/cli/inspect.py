"""`lra-ssm inspect`: draw what a model remembers and where it is unstable, and print it as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveInt

from lra_ssm.errors import InputError

if TYPE_CHECKING:
    from lra_ssm.analysis.measure import Measures
    from lra_ssm.analysis.network import Example
    from lra_ssm.cli.find_model import NamedNetwork

FORMATS = (".png", ".pdf", ".svg")


def inspect(
    model: str,
    *settings: str,
    against: str | None = None,
    out: Path | None = None,
    examples: PositiveInt = 2,
    trust: list[str] = [],  # noqa: B006
    allow_pickle: bool = False,
) -> int:
    """Draw what a trained model remembers, and print the same as a table.

    The figure has the memory and eigenvalues of each layer, gradients, the step sizes Δ, and the effect of one large
    input. A second model is drawn on the same scales. Both are measured on a few validation examples of the first one's
    data, which is prepared if its files are here; options of fit such as --data.source change it, and --data=CLASS
    selects other data.

    Args:
        against: a second model
        out: the figure: .png, .pdf or .svg; default: inspect.png in the run's directory, for a saved model in this one
        examples: validation examples

    Examples:
        lra-ssm inspect runs/mnist/s4d/38722f686f
        lra-ssm inspect runs/mnist/s6/5d0c1f6a52 --against=runs/mnist/b2s6/91e2b7c6d0 --out=s6-b2s6.pdf
        lra-ssm inspect mnist-lru --against=mnist-b2s6
        lra-ssm inspect mnist-lru --data.source=./digits
    """
    if out and (out.suffix not in FORMATS or out.is_dir()):
        raise InputError(f"--out {out}: give a file that ends in {', '.join(FORMATS)}, such as inspect.png")
    import torch

    from lra_ssm.analysis.measure import count_ticks, measure
    from lra_ssm.bars import Bar
    from lra_ssm.cli.find_model import check_trusted, named_network

    models = [named_network(name, allow_pickle, trust) for name in filter(None, (model, against))]
    for each in models:
        if each.files is not None:
            check_trusted(each.name, each.data, trust)
    first = models[0].checkpoint
    out = out or (first.run or first.file.parent if first else Path()) / "inspect.png"
    data = open_data(models, settings)
    for each in models:
        check_fits(each, data)
    inputs = validation_examples(data, examples)
    source = f"measured on {len(inputs)} validation example(s) of {type(data).__name__}"
    # Gradients of a model that forgets are full of denormal numbers, with which a processor is 50 times slower.
    torch.set_flush_denormal(True)
    try:
        with Bar("measuring", sum(count_ticks(each.network, inputs) for each in models)) as bar:
            measures = [
                measure(each.network, inputs, _title(each), [*_facts(each), source], lambda: bar.advance(1))
                for each in models
            ]
    finally:
        torch.set_flush_denormal(False)
    _write(out, measures)
    return 0


def _title(model: NamedNetwork) -> str:
    if model.checkpoint is None:
        return model.name
    if model.checkpoint.run is None:
        return model.checkpoint.file.name
    return " ".join(filter(None, [model.config.get("experiment"), model.checkpoint.run.resolve().name]))


def _facts(model: NamedNetwork) -> list[str]:
    from lra_ssm.analysis.network import layers_of

    kinds = Counter(type(layer).__name__ for layer in layers_of(model.network).values())
    step = f"{model.checkpoint.file.name}, step {model.step:,}" if model.checkpoint else ""
    layers = " and ".join(f"{count} × {kind}" for kind, count in kinds.items())
    return [*filter(None, [layers, f"{model.parameters:,} parameters", step, model.score])]


def _write(out: Path, networks: list[Measures]) -> None:
    from lra_ssm.analysis.figure import draw
    from lra_ssm.analysis.measure import summary
    from lra_ssm.files import replacing
    from lra_ssm.tables import terminal_width, wrapped

    for measures in networks:
        print(wrapped(f"{measures.title}: {'; '.join(measures.facts)}"))
        print(f"{summary(measures, terminal_width())}\n")
    figure = draw(networks)
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out, "wb") as file:
        figure.savefig(file, format=out.suffix[1:])
    print(out)


# --- the inputs: examples that all models are measured on ---


def open_data(models: Sequence[NamedNetwork], settings: Sequence[str]) -> Any:
    """Return the prepared data module of the first model whose configuration names one, changed by the settings.

    Raises InputError if no model names one, if it cannot be built, or if its files are missing.
    """
    from lra_ssm.cli.config import build_data
    from lra_ssm.datamodules.base import DataModule

    data = build_data(next((model.data for model in models if model.data), None), settings)
    if data is None:
        raise InputError(
            f"{models[0].name}: no config.yaml names its training data: give --data=CLASS and its settings"
            " (--data.source=…)"
        )
    if not isinstance(data, DataModule):
        raise InputError(f"{type(data).__name__} is not a data module of this package, or derived from one")
    data.prepare_data()
    return data


def check_fits(model: NamedNetwork, data: Any) -> None:
    """Raise InputError if a model cannot read a data module's inputs, or if they mean something else to it."""
    from lra_ssm.runs.checks import check_data, check_vocabulary

    try:
        check_data(model, data)
        check_vocabulary(model, data)
    except InputError as error:
        raise InputError(f"{model.name}: {error}") from error
    model_vocabulary, data_vocabulary = model.recorded.get("vocabulary"), data.manifest().get("vocabulary")
    if model_vocabulary and data_vocabulary and list(model_vocabulary) != list(data_vocabulary):
        raise InputError(f"{model.name}: was trained on another vocabulary than {type(data).__name__} has here")
    digest, tokenizer = getattr(data, "tokenizer_digest", None), model.tokenizer
    if digest and tokenizer and model.is_ours and tokenizer.digest != digest:
        raise InputError(f"{model.name}: its tokenizer is not the data's ({tokenizer.digest[:12]}…, {digest[:12]}…)")


def validation_examples(data: Any, count: int) -> list[Example]:
    """Return the first validation examples, each without padding."""
    from lra_ssm.analysis.inputs import part_of_batch
    from lra_ssm.analysis.network import Example

    data.setup("validate")
    batch = next(iter(data.val_dataloader()))
    examples = []
    for i in range(min(count, len(batch.inputs))):
        longest = batch.inputs.shape[1] if batch.lengths is None else int(batch.lengths[i].max())
        one = part_of_batch(batch, slice(i, i + 1), longest)
        examples.append(Example(one.inputs, one.lengths, one.labels if hasattr(one, "labels") else one.targets))
    data.teardown()
    return examples
