"""A model's card: README.md with the Hub's header, made from what config.json says of the model's source."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lra_ssm.checkpoints.files import get_nested
from lra_ssm.tables import duration

# Dataset -> its title, and its repository on the Hub, if it has one.
_DATA: dict[str, tuple[str, str | None]] = {
    "listops": ("ListOps", None),
    "text": ("IMDb, LRA's Text", "stanfordnlp/imdb"),
    "retrieval": ("AAN, LRA's Retrieval", None),
    "cifar10": ("CIFAR-10", "uoft-cs/cifar10"),
    "mnist": ("MNIST", "ylecun/mnist"),
    "pathfinder": ("Pathfinder", None),
    "wikitext103": ("WikiText-103", "Salesforce/wikitext"),
    "wikitext2": ("WikiText-2", "Salesforce/wikitext"),
    "slimpajama": ("SlimPajama-6B", "DKYoon/SlimPajama-6B"),
}
_IMAGES = ("cifar10", "mnist", "pathfinder")


def usage(name: str, network: Mapping[str, Any], source: Mapping[str, Any], has_tokenizer: bool) -> list[str]:
    """Return the commands that use a model; arguments as for `model_card`."""
    trust = "".join(f" --trust {path}" for path in source.get("foreign") or ())
    commands = []
    if not source.get("in_python"):
        command = "test" if _has_test_split(source) else "validate"
        commands.append(f"lra-ssm {command} {name}{trust}{_source_option(source)}")
    if _class_of(network)[1] == "LanguageModel" and has_tokenizer:
        commands += [f'lra-ssm generate {name}{trust} --prompt "The"', f"lra-ssm score {name}{trust} FILE"]
    return commands


def model_card(
    name: str, network: Mapping[str, Any], source: Mapping[str, Any], license: str | None, has_tokenizer: bool = False
) -> str:
    """Return README.md: card.md, filled in.

    Args:
        name: by which the model is loaded: a folder or a repository.
        network: its specification.
        source: as `push` writes it into config.json.
        license: an identifier as the Hub has them ("apache-2.0"); None if nobody states one.
        has_tokenizer: whether a tokenizer is saved with the weights.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    module, cls = _class_of(network)
    layer, data = _layers_of(network), get_nested(source, "data")
    dataset, kind = str(data.get("dataset", "")), str(get_nested(data, "source").get("kind", ""))
    title, repository = _DATA.get(dataset, (dataset or "data of its author's own", None))
    task = (
        "text-generation" if cls == "LanguageModel" else f"{'image' if dataset in _IMAGES else 'text'}-classification"
    )
    metrics = get_nested(source, "metrics")
    results = [
        EvalResult(
            task_type=task,
            dataset_type=repository or dataset or "other",
            dataset_name=f"{title} ({'lossy pixels' if is_lossy(source) else kind})",
            dataset_split="test",
            metric_type=key.rpartition("/")[2],
            metric_value=float(f"{value:.6g}"),
        )
        for key, value in metrics.get("test", {}).items()
    ]
    header = ModelCardData(
        license=license,
        library_name="lra_ssm",
        tags=["state-space-model", *filter(None, [layer.lower()])],
        datasets=[repository] if repository else None,
        metrics=[result.metric_type for result in results] or None,
        pipeline_tag=task if dataset else None,
        model_name=name.rpartition("/")[2] if results else None,
        eval_results=results or None,
    )
    splits = ("validation", "test")
    values = [(split, key, value) for split in splits for key, value in metrics.get(split, {}).items()]
    hardware = get_nested(source, "hardware")
    devices = hardware.get("gpus") or [f"{hardware['cpu']}, {hardware['cpus']} cores"] if hardware else []
    card = ModelCard.from_template(
        header,
        template_path=str(Path(__file__).with_name("card.md")),
        source=source,
        network=cls,
        layer=layer,
        title=title,
        repository=repository,
        kind=kind,
        lossy=is_lossy(source),
        examples=", ".join(f"{split} {count:,}" for split, count in data.get("examples", {}).items()),
        rows=[f"| {split} | {key} | {value:.6g} |" for split, key, value in values],
        score=_score(source),
        python=_python(name, module, cls, source),
        commands=usage(name, network, source, has_tokenizer),
        foreign=source.get("foreign"),
        files=_source_option(source),
        devices=", ".join(dict.fromkeys(devices)),
        duration=duration(source["seconds"]) if source.get("seconds") else "",
        versions=", ".join(f"{package} {version}" for package, version in get_nested(source, "versions").items()),
        license=license,
    )
    return re.sub(r"\n{3,}", "\n\n", card.content)


def _class_of(network: Mapping[str, Any]) -> tuple[str, str]:
    """The module and the name of the network's class."""
    module, _, cls = str(network.get("class_path", "")).rpartition(".")
    return module, cls


def _layers_of(network: Mapping[str, Any]) -> str:
    """The names of the classes of its layers; empty if it names none."""
    layers = get_nested(network, "init_args").get("layer")
    several = layers if isinstance(layers, list) else [layers]
    paths = [one.get("class_path") if isinstance(one, dict) else one for one in several]
    return ", ".join(dict.fromkeys(str(path or "").rpartition(".")[2] for path in paths))


def _python(name: str, module: str, cls: str, source: Mapping[str, Any]) -> str:
    trust = f", trust={tuple(source['foreign'])}" if source.get("foreign") else ""
    if module.startswith("lra_ssm.models"):
        return f'from lra_ssm.models import {cls}\n\nmodel = {cls}.from_pretrained("{name}"{trust})'
    imports = f"from lra_ssm.models import load_pretrained\nfrom {module} import {cls}"
    return f'{imports}\n\nmodel = load_pretrained("{name}", {cls}{trust})'


def _source_option(source: Mapping[str, Any]) -> str:
    """The option that names a user's own files, which have another place on another machine; empty for other data."""
    made_of = get_nested(source, "data", "source")
    if made_of.get("kind") != "files":
        return ""
    return f" --data.source={'FILE' if made_of.get('splits') == 'tail' else 'FOLDER'}"


def _has_test_split(source: Mapping[str, Any]) -> bool:
    """Whether its data has a test split; data of which nothing is known has one."""
    names = [name.rpartition("/")[2] for name in get_nested(source, "data", "examples")]
    return "test" in names or not names


def _score(source: Mapping[str, Any]) -> str:
    """Its figure on the test split, or on the validation split if its data has no test split; empty if unknown."""
    for split in ("test",) if _has_test_split(source) else ("test", "validation"):
        if found := headline(get_nested(source, "metrics", split)):
            return f"{found}, on the {split} split"
    return ""


def is_lossy(source: Mapping[str, Any]) -> bool:
    """Return whether a model's images were compressed with loss, and so are not the published pixels."""
    return bool(get_nested(source, "data", "source").get("lossy"))


def headline(metrics: Mapping[str, Any]) -> str:
    """Return the metric by which models are compared, as text: the first of these that is known; else empty."""
    for name in ("accuracy", "bits_per_byte", "perplexity", "loss"):
        for key, value in metrics.items():
            if key.rpartition("/")[2] == name and isinstance(value, (int, float)):
                return f"{key} {100 * value:.2f} %" if name == "accuracy" else f"{key} {value:.2f}"
    return ""
