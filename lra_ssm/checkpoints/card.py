"""The card of a model: README.md with the Hub's header, made of what config.json says of its source.

What a run knows of itself is said; what nobody stated (a licence) is said to be unstated.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lra_ssm.checkpoints.known import headline, is_lossy

# Data set, or data set and source -> its name, its repository on the Hub (None: it has none, or it is generated), the
# Hub's task.
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


def model_card(name: str, network: Mapping[str, Any], source: Mapping[str, Any], license: str | None) -> str:
    """README.md: card.md, filled in.

    Args:
        name: by which the model is loaded: a folder or a repository.
        network: its specification.
        source: as `push` writes it into config.json.
        license: an identifier as the Hub has them ("apache-2.0"); None where nobody states one.
    """
    import jinja2

    module, _, cls = str(network.get("class_path", "")).rpartition(".")
    layer = (network.get("init_args") or {}).get("layer")
    layer = str((layer.get("class_path") if isinstance(layer, dict) else layer) or "").rpartition(".")[2]
    title, repository, task = _data(source, cls)
    foreign = list(source.get("foreign") or [])
    versions = [f"{package} {its}" for package, its in (source.get("versions") or {}).items() if its]
    template = (Path(__file__).parent / "card.md").read_text(encoding="utf-8")
    card = jinja2.Template(template, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return card.render(
        header=_header(name, source, license, cls, layer),
        source={"seed": None, **source},
        data=source.get("data") or {},
        name=name,
        module=module,
        cls=cls,
        layer=layer,
        title=title,
        repository=repository,
        task=task,
        license=license,
        foreign=foreign,
        trust=f", trust={tuple(foreign)!r}" if foreign else "",
        settings=_settings(source),
        versions=versions,
        rows=_results(source),
        score=headline((source.get("metrics") or {}).get("test") or {}),
        duration=_duration(source["seconds"]) if "seconds" in source else "",
    )


def _data(source: Mapping[str, Any], cls: str) -> tuple[str, str | None, str | None]:
    """Its data's name and repository, and the Hub's task."""
    dataset = str((source.get("data") or {}).get("dataset", ""))
    unknown = (dataset.replace("_", " ") or "data of its author's own", None, None)
    title, repository, task = _DATA.get(f"{dataset} {_kind(source)}") or _DATA.get(dataset, unknown)
    return title, repository, "text-generation" if cls == "LanguageModel" else task


def _kind(source: Mapping[str, Any]) -> str:
    return str(((source.get("data") or {}).get("source") or {}).get("kind", ""))


def _settings(source: Mapping[str, Any]) -> str:
    """Of how the data was made; the numbers of examples stand elsewhere."""
    made = (source.get("data") or {}).get("source") or {}
    plain = {name: value for name, value in made.items() if name != "kind" and isinstance(value, (int, str))}
    return ", ".join(f"{name} {value}" for name, value in plain.items() if not name.startswith("num_"))


def _header(name: str, source: Mapping[str, Any], license: str | None, cls: str, layer: str) -> str:
    """The YAML between the dashes: huggingface_hub knows its form."""
    from huggingface_hub import EvalResult, ModelCardData

    title, repository, task = _data(source, cls)
    dataset = (source.get("data") or {}).get("dataset")
    kind = "lossy pixels" if is_lossy(source) else _kind(source)
    results = [
        EvalResult(
            task_type=task or "other",
            dataset_type=repository or dataset or "other",
            dataset_name=f"{title} ({kind})" if kind else title,
            dataset_split="test",
            metric_type=key.rpartition("/")[2],
            metric_value=float(f"{value:.6g}"),
        )
        for key, value in ((source.get("metrics") or {}).get("test") or {}).items()
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


def _results(source: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Split, metric, this model's value, and the mean over seeds where there are several."""
    metrics, seeds, rows = source.get("metrics") or {}, source.get("seeds") or {}, []
    for split in ("validation", "test"):
        for key, value in (metrics.get(split) or {}).items():
            several = seeds.get(key)
            spread = f"{several['mean']:.6g} ± {several['std']:.2g} ({several['runs']} seeds)" if several else ""
            rows.append((split, key, f"{value:.6g}", spread))
    return rows


def _duration(seconds: float) -> str:
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} seconds"
