"""`lra-ssm inspect`: draw what a model remembers and where it is unstable, and print it as a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
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
    checkpoint: str,
    *settings: str,
    against: str | None = None,
    out: Path | None = None,
    random: bool = False,
    examples: PositiveInt = 2,
    trust: list[str] = [],  # noqa: B006
    allow_pickle: bool = False,
) -> int:
    """Draw what a trained model remembers, and print the same as a table.

    The figure has the memory and eigenvalues of each layer, gradients, the step sizes Δ, and the effect of one large
    input. A second model is drawn on the same scales. Both are measured on a few validation examples of the first one's
    data, which must be prepared; options of fit such as --data.source change it, and --data=CLASS selects other data.

    Args:
        checkpoint: a run's directory (its best.ckpt, else its last.ckpt), a .ckpt, or a saved model by its name or
            folder
        against: a second model
        out: the figure: .png, .pdf or .svg; default: inspect.png in the run's directory, for a saved model in this one
        random: use random inputs that fit the first model, and no data
        examples: validation examples
        trust: a class of other packages that a saved model, or its data, may be made with; may be repeated
        allow_pickle: read a saved model's weights from a pickle (only tensors)

    Examples:
        lra-ssm inspect runs/mnist/s4d/38722f686f
        lra-ssm inspect runs/mnist/s6/5d0c1f6a52 --against=runs/mnist/b2s6/91e2b7c6d0 --out=s6-b2s6.pdf
        lra-ssm inspect mnist-lru --against=mnist-b2s6
        lra-ssm inspect mnist-lru --data.source=./digits
    """
    if out and (out.suffix not in FORMATS or out.is_dir()):
        raise InputError(f"--out {out}: give a file that ends in {', '.join(FORMATS)}, such as inspect.png")
    if random and settings:
        raise InputError(f"--random takes no data: leave it out, or {settings[0]}")
    import torch

    from lra_ssm.bars import Bar
    from lra_ssm.cli.find_model import check_trusted, named_network

    models = [named_network(name, allow_pickle, trust) for name in filter(None, (checkpoint, against))]
    for model in models:
        if model.files is not None:
            check_trusted(model.name, model.data, trust)
    first = models[0].checkpoint
    out = out or (first.run or first.file.parent if first else Path()) / "inspect.png"
    # Gradients of a model that forgets are full of denormal numbers, with which a processor is 50 times slower.
    torch.set_flush_denormal(True)
    try:
        inputs, facts = _random(models, examples) if random else _validation(models, settings, examples)
        from lra_ssm.analysis.measure import count_ticks, measure

        with Bar("measuring", sum(count_ticks(model.network, inputs) for model in models)) as bar:
            measures = [
                measure(model.network, inputs, _title(model), [*_facts(model), *inputs_facts], lambda: bar.advance(1))
                for model, inputs_facts in zip(models, facts, strict=True)
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


# --- the inputs: examples that all models are measured on, and for each model the lines that describe them ---


def _random(models: Sequence[NamedNetwork], count: int) -> tuple[list[Example], list[list[str]]]:
    from lra_ssm.analysis.inputs import RandomInputs

    sizes = RandomInputs(models[0].network, models[0].specification)
    for model in models[1:]:
        _check_sizes(model, sizes, f"random input for {models[0].name}", sizes.vocab_size)
    return random_examples(models[0], count), [[f"measured on {count} random input(s) with random labels"]] * len(
        models
    )


def random_examples(model: NamedNetwork, count: int) -> list[Example]:
    """Return random inputs with a model's sizes and the length of its data, with random labels."""
    import torch

    from lra_ssm.analysis.inputs import RandomInputs
    from lra_ssm.analysis.network import Example
    from lra_ssm.layers.spec import import_object

    draws, settings = RandomInputs(model.network, model.specification), (model.data or {}).get("init_args") or {}
    size = getattr(import_object(model.data["class_path"]), "image_size", None) if model.data else None
    if not isinstance(size, (tuple, list)):
        size = (settings.get("max_length") or (settings.get("resolution") or 32) ** 2, 1)
    examples = []
    for _ in range(count):
        inputs, label = draws.draw(1, size[0] * size[1])
        lengths = torch.full(inputs.shape[: draws.per_example], size[0] * size[1])  # (1,), of a pair (1, 2)
        if label is None:
            with torch.no_grad():
                label = draws.values(*model.network(inputs, lengths).shape)
        examples.append(Example(inputs, lengths, label))
    return examples


def _validation(
    models: Sequence[NamedNetwork], settings: Sequence[str], count: int
) -> tuple[list[Example], list[list[str]]]:
    data = open_data(models, settings)
    for model in models:
        check_fits(model, data)
    examples = validation_examples(data, count)
    source = f"measured on {len(examples)} validation example(s) of {type(data).__name__}"
    return examples, [[source, *other_data(model, data)] for model in models]


def open_data(models: Sequence[NamedNetwork], settings: Sequence[str]) -> Any:
    """Return the data module of the first model whose configuration names one, changed by the settings.

    Raises InputError if no model names one, if it cannot be built, or if it is not prepared; this prepares nothing.
    """
    from lra_ssm.cli.config import build_data
    from lra_ssm.datamodules.base import DataModule, PreparedData

    sections = [model.data for model in models if model.data]
    data = build_data(sections[0] if sections else None, settings)
    if data is None:
        raise InputError(
            f"{models[0].name}: no config.yaml names its training data: give --data=CLASS and its settings"
            " (--data.source=…), or --random for random inputs"
        )
    if not isinstance(data, DataModule):
        raise InputError(f"{type(data).__name__} is a data module of another kind: --random takes random inputs")
    if isinstance(data, PreparedData) and not data.is_prepared():
        configs = [model.config_file for model in models if model.data]
        command = " ".join(["lra-ssm prepare", f"--config {configs[0]}" if configs else "DATASET", *settings])
        raise InputError(
            f"{type(data).__name__} is not prepared below {data.data_root} with these settings: `{command}` prepares"
            " it, --random takes random inputs"
        )
    return data


def check_fits(model: NamedNetwork, data: Any) -> None:
    """Raise InputError if a model cannot read a data module's inputs, or if they mean something else to it."""
    from lra_ssm.models.pretrained import FORMAT

    manifest, name = data.manifest() if hasattr(data, "manifest") else {}, type(data).__name__
    tokens = data.vocab_size or manifest.get("vocab_size") or len(manifest.get("vocabulary") or ()) or None
    _check_sizes(model, data, name, tokens)
    model_vocabulary, data_vocabulary = model.recorded.get("vocabulary"), manifest.get("vocabulary")
    if model_vocabulary and data_vocabulary and list(model_vocabulary) != list(data_vocabulary):
        raise InputError(f"{model.name}: was trained on another vocabulary than {name} has here")
    digest = getattr(data, "tokenizer_digest", None)
    if digest and (model.files is None or model.files.config().get("format") == FORMAT):
        tokenizer = model.tokenizer
        if tokenizer and tokenizer.digest != digest:
            raise InputError(
                f"{model.name}: its tokenizer is not the data's ({tokenizer.digest[:12]}…, {digest[:12]}…)"
            )


def _check_sizes(model: NamedNetwork, data: Any, name: str, tokens: int | None) -> None:
    """Compare a model's sizes with those of the data; tokens: how many the data has, at most `data.vocab_size`."""
    sizes = model.specification.get("init_args") or {}
    names = ("d_input", "num_classes", "num_outputs", "per_example")
    data_sizes = data.model_sizes() if hasattr(data, "model_sizes") else {key: getattr(data, key) for key in names}
    data_sizes = {**data_sizes, "vocab_size": tokens}
    of_tokens = {"vocab_size"} if getattr(data, "pretrain", None) is None else {"vocab_size", "num_outputs"}
    for key in sorted((data_sizes.keys() & sizes.keys()) - {"per_example"}):
        padded = key in of_tokens and tokens and data.vocab_size is None and (sizes[key] or 0) >= tokens
        if sizes[key] != data_sizes[key] and not padded:
            raise InputError(f"{model.name}: its {key} is {sizes[key]}, but {name} has {data_sizes[key]}")
    if getattr(model.network, "per_example", data_sizes["per_example"]) != data_sizes["per_example"]:
        raise InputError(f"{model.name}: takes {model.network.per_example} sequence(s) per example, not {name}'s")


def other_data(model: NamedNetwork, data: Any) -> list[str]:
    """Return a note for a model that was trained with other settings of its data; else nothing."""
    if model.data is None:
        return []
    cls, settings = model.data["class_path"].rpartition(".")[2], model.data.get("init_args") or {}
    if cls != type(data).__name__:
        return [f"trained on {cls}"]
    decisive = {name for name, kind in data.affects.items() if kind in ("data", "batches")}
    differing = [name for name in settings if name in decisive and _differ(settings[name], getattr(data, name))]
    described = ", ".join(f"{name} {settings[name]!r}" for name in differing)
    return [f"trained with other settings of data: {described}"] if differing else []


def _differ(configured: Any, value: Any) -> bool:
    """Return whether a configured setting differs from a module's: there a tuple is a list, an object a dict."""
    if is_dataclass(type(value)) and isinstance(configured, dict):
        configured, value = asdict(type(value)(**configured)), asdict(value)
    return json.dumps(configured, default=str) != json.dumps(value, default=str)


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
