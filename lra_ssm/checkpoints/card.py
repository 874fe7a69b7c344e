"""A model's card: README.md with the Hub's header, made from "source" in the model's config.json."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lra_ssm.checkpoints.files import get_nested

# Dataset -> its title, its repository on the Hub, if it has one, and the Hub's task.
_DATA: dict[str, tuple[str, str | None, str | None]] = {
    "listops": ("ListOps", None, "text-classification"),
    "text": ("IMDb, LRA's Text", "stanfordnlp/imdb", "text-classification"),
    "retrieval": ("AAN, LRA's Retrieval", None, "text-classification"),
    "cifar10": ("CIFAR-10", "uoft-cs/cifar10", "image-classification"),
    "mnist": ("MNIST", "ylecun/mnist", "image-classification"),
    "pathfinder": ("Pathfinder", None, "image-classification"),
    "wikitext103": ("WikiText-103", "Salesforce/wikitext", "text-generation"),
    "wikitext2": ("WikiText-2", "Salesforce/wikitext", "text-generation"),
    "slimpajama": ("SlimPajama-6B", "DKYoon/SlimPajama-6B", "text-generation"),
    "corpus": ("a folder of text", None, "text-generation"),
}


def usage(name: str, network: Mapping[str, Any], source: Mapping[str, Any], has_tokenizer: bool) -> list[str]:
    """Return the commands that use a model; arguments as for `model_card`."""
    trust = "".join(f" --trust {path}" for path in source.get("foreign") or ())
    commands = []
    if not source.get("in_python"):
        command = "test" if _has_test_split(source) else "validate"
        commands.append(f"lra-ssm {command} {name}{trust}{_source_option(source)}")
    if str(network.get("class_path")).endswith(".LanguageModel") and has_tokenizer:
        commands += [f'lra-ssm generate {name}{trust} --prompt "The"', f"lra-ssm score {name}{trust} FILE"]
    return commands


def model_card(name: str, network: Mapping[str, Any], source: Mapping[str, Any], has_tokenizer: bool) -> str:
    """Return README.md: card.md, filled in.

    Args:
        name: the folder or repository from which the model is loaded.
        network: the specification of the network.
        source: as `push` writes it into config.json.
        has_tokenizer: whether a tokenizer is saved with the weights.
    """
    from huggingface_hub import ModelCard, ModelCardData

    data, metrics = get_nested(source, "data"), get_nested(source, "metrics")
    dataset, kind = str(data.get("dataset", "")), str(get_nested(data, "source").get("kind", ""))
    title, repository, task = _DATA.get(dataset, (dataset or "data of its author's own", None, None))
    layer = get_nested(network, "init_args").get("layer")
    paths = [get_nested(each).get("class_path", each) for each in (layer if isinstance(layer, list) else [layer])]
    layers = dict.fromkeys(str(path).rpartition(".")[2] for path in paths if path)
    module, _, cls = str(network.get("class_path")).rpartition(".")
    split = "test" if _has_test_split(source) or metrics.get("test") else "validation"
    card = ModelCard.from_template(
        ModelCardData(
            license=source.get("license"),
            library_name="lra_ssm",
            tags=["state-space-model", *(layer.lower() for layer in layers)],
            datasets=[repository] if repository else None,
            pipeline_tag=task,
        ),
        template_path=str(Path(__file__).with_name("card.md")),
        name=name,
        module=module,
        network=cls,
        layers=", ".join(layers),
        source=source,
        data={"title": title, "repository": repository, "kind": kind, "examples": data.get("examples", {})},
        score=headline(metrics.get(split, {})),
        split=split,
        commands=usage(name, network, source, has_tokenizer),
        source_option=_source_option(source),
    )
    return re.sub(r"\n{3,}", "\n\n", card.content)


def _source_option(source: Mapping[str, Any]) -> str:
    """Return the option that names the user's own files, which differs between machines; empty for other data."""
    return " --data.source=PATH" if get_nested(source, "data", "source").get("kind") == "files" else ""


def _has_test_split(source: Mapping[str, Any]) -> bool:
    """Return whether the model's data has a test split; unknown data counts as having one."""
    names = [name.rpartition("/")[2] for name in get_nested(source, "data", "examples")]
    return "test" in names or not names


def headline(metrics: Mapping[str, Any]) -> str:
    """Return the metric by which models are compared, as text: the first of these that is known; else empty."""
    for name in ("accuracy", "bits_per_byte", "perplexity", "loss"):
        for key, value in metrics.items():
            if key.rpartition("/")[2] == name and isinstance(value, (int, float)):
                return f"{key} {100 * value:.2f} %" if name == "accuracy" else f"{key} {value:.2f}"
    return ""
