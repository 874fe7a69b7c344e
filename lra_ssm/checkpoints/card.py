"""The card of a model: README.md with the Hub's header, made of what config.json says of its source.

What nobody stated (a licence) is said to be unstated.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lra_ssm.checkpoints.files import within
from lra_ssm.checkpoints.known import headline, is_lossy
from lra_ssm.tables import duration

# Data set, or data set and source -> its name, its repository on the Hub where it has one, the Hub's task.
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
    "corpus imdb": ("IMDb's reviews", "stanfordnlp/imdb", "text-generation"),
}
_LRA = ("listops", "text", "retrieval", "cifar10", "pathfinder")


def commands(name: str, network: Mapping[str, Any], source: Mapping[str, Any], tokenizer: bool) -> list[str]:
    """What a model is used with, as it is typed; arguments as of `model_card`."""
    trust = "".join(f" --trust {one}" for one in source.get("foreign") or ())
    found = []
    if not source.get("in_python"):
        command = "test" if _has_test(source) else "validate"
        found.append(f"lra-ssm {command} {name}{trust}{_files(source)}")
    if _class(network)[1] == "LanguageModel" and tokenizer:
        found += [f'lra-ssm generate {name}{trust} --prompt "The"', f"lra-ssm score {name}{trust} FILE"]
    return found


def model_card(
    name: str, network: Mapping[str, Any], source: Mapping[str, Any], license: str | None, tokenizer: bool = False
) -> str:
    """README.md: card.md, filled in.

    Args:
        name: by which the model is loaded: a folder or a repository.
        network: its specification.
        source: as `push` writes it into config.json.
        license: an identifier as the Hub has them ("apache-2.0"); None where nobody states one.
        tokenizer: whether one lies beside the weights.
    """
    import jinja2

    module, cls = _class(network)
    layer = _layer(network)
    title, repository, task = _data(source, cls)
    packages = within(source, "versions").items()
    versions = [f"{package} {version}" for package, version in packages if version]
    template = Path(__file__).with_name("card.md").read_text(encoding="utf-8")
    card = jinja2.Template(template, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return card.render(
        header=_header(name, source, license, cls, layer),
        source={"seed": None, **source},
        data=within(source, "data"),
        name=name,
        module=module,
        cls=cls,
        layer=layer,
        title=title,
        repository=repository,
        task=task,
        license=license,
        foreign=tuple(source.get("foreign") or ()),
        settings=_settings(source),
        versions=versions,
        score=_score(source),
        commands=commands(name, network, source, tokenizer),
        files=_files(source),
        duration=duration(source["seconds"]) if "seconds" in source else "",
    )


def _class(network: Mapping[str, Any]) -> tuple[str, str]:
    """The network's module, and its class."""
    module, _, cls = str(network.get("class_path", "")).rpartition(".")
    return module, cls


def _layer(network: Mapping[str, Any]) -> str:
    """The classes of its layers; nothing where it says none."""
    layers = within(network, "init_args").get("layer")
    several = layers if isinstance(layers, list) else [layers]
    paths = [one.get("class_path") if isinstance(one, dict) else one for one in several]
    return ", ".join(dict.fromkeys(str(path or "").rpartition(".")[2] for path in paths))


def _score(source: Mapping[str, Any]) -> str:
    """Its figure, on the test split, or of data without one on the validation split; nothing where there is none."""
    for split in ("test",) if _has_test(source) else ("test", "validation"):
        if found := headline(within(source, "metrics", split)):
            return f"{found}, on the {split} split"
    return ""


def _files(source: Mapping[str, Any]) -> str:
    """The option that names data of files, which are elsewhere on another machine; nothing of other data."""
    if _kind(source) != "files":
        return ""
    one_text = within(source, "data", "source").get("splits") == "tail"
    return f" --data.source={'FILE' if one_text else 'FOLDER'}"


def _has_test(source: Mapping[str, Any]) -> bool:
    """Whether its data has a split for testing, as all has of which nothing is known."""
    names = [name.rpartition("/")[2] for name in within(source, "data", "examples")]
    return "test" in names or not names


def _data(source: Mapping[str, Any], cls: str) -> tuple[str, str | None, str | None]:
    """Its data's name and repository, and the Hub's task."""
    dataset = str(within(source, "data").get("dataset", ""))
    unknown = (dataset.replace("_", " ") or "data of its author's own", None, None)
    title, repository, task = _DATA.get(f"{dataset} {_kind(source)}") or _DATA.get(dataset, unknown)
    return title, repository, "text-generation" if cls == "LanguageModel" else task


def _kind(source: Mapping[str, Any]) -> str:
    return str(within(source, "data", "source").get("kind", ""))


def _settings(source: Mapping[str, Any]) -> str:
    """Of how the data was made; the numbers of examples stand elsewhere."""
    shown = []
    for name, value in within(source, "data", "source").items():
        elsewhere = name == "kind" or name.startswith("num_")
        if isinstance(value, (int, str)) and not elsewhere:
            shown.append(f"{name} {value}")
    return ", ".join(shown)


def _header(name: str, source: Mapping[str, Any], license: str | None, cls: str, layer: str) -> str:
    """The YAML between the dashes: huggingface_hub knows its form."""
    from huggingface_hub import EvalResult, ModelCardData

    title, repository, task = _data(source, cls)
    dataset = within(source, "data").get("dataset")
    kind = "lossy pixels" if is_lossy(source) else _kind(source)
    tested = within(source, "metrics", "test")
    results = [
        EvalResult(
            task_type=task or "other",
            dataset_type=repository or dataset or "other",
            dataset_name=f"{title} ({kind})" if kind else title,
            dataset_split="test",
            metric_type=key.rpartition("/")[2],
            metric_value=float(f"{value:.6g}"),
        )
        for key, value in tested.items()
    ]
    tags = ["state-space-model", layer.lower(), "long-range-arena" if dataset in _LRA else ""]
    card = ModelCardData(
        license=license,
        library_name="lra_ssm",
        tags=[tag for tag in tags if tag],
        datasets=[repository] if repository else None,
        metrics=[result.metric_type for result in results] or None,
        pipeline_tag=task,
        model_name=name.rpartition("/")[2] if results else None,
        eval_results=results or None,
    )
    return card.to_yaml().strip()
