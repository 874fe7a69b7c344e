"""The card of a model: README.md with the Hub's header, made of what config.json says of its source.

What a run knows of itself is said; what nobody stated (a licence) is said to be unstated.
"""

from collections.abc import Mapping
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
_TASKS = {"LanguageModel": "text-generation"}
_LRA = ("listops", "text", "retrieval", "cifar10", "pathfinder")


def model_card(name: str, network: Mapping[str, Any], source: Mapping[str, Any], license: str | None) -> str:
    """README.md.

    Args:
        name: by which the model is loaded: a folder or a repository.
        network: its specification.
        source: as `push` writes it into config.json.
        license: an identifier as the Hub has them ("apache-2.0"); None where nobody states one.
    """
    sections = [
        _introduction(network, source),
        _use(name, network, source),
        _data(source),
        _settings(source),
        _results(source),
        _made(source),
        _licence(license),
    ]
    return (
        f"---\n{_header(name, network, source, license)}\n---\n\n# {_title(source)}\n\n" + "\n\n".join(sections) + "\n"
    )


def _title(source: Mapping[str, Any]) -> str:
    return str(source.get("experiment") or "A model of lra_ssm")


def _known(source: Mapping[str, Any]) -> tuple[str, str | None, str | None]:
    dataset = _dataset(source)
    if found := _DATA.get(f"{dataset} {_kind(source)}"):
        return found
    return _DATA.get(dataset, (dataset.replace("_", " ") or "data of its author's own", None, None))


def _dataset(source: Mapping[str, Any]) -> str:
    return str((source.get("data") or {}).get("dataset", ""))


def _class(specification: Any) -> str:
    path = specification.get("class_path", "") if isinstance(specification, dict) else specification
    return str(path or "").rpartition(".")[2]


def _layer(network: Mapping[str, Any]) -> str:
    return _class((network.get("init_args") or {}).get("layer"))


def _header(name: str, network: Mapping[str, Any], source: Mapping[str, Any], license: str | None) -> str:
    """The YAML between the dashes: huggingface_hub knows its form."""
    from huggingface_hub import EvalResult, ModelCardData

    title, repository, of_data = _known(source)
    task = _TASKS.get(_class(network), of_data)
    kind = "lossy pixels" if is_lossy(source) else _kind(source)
    tested: Mapping[str, float] = (source.get("metrics") or {}).get("test") or {}
    results = [
        EvalResult(
            task_type=task or "other",
            dataset_type=repository or _dataset(source) or "other",
            dataset_name=f"{title} ({kind})" if kind else title,
            dataset_split="test",
            metric_type=key.rpartition("/")[2],
            metric_value=float(f"{value:.6g}"),
        )
        for key, value in tested.items()
    ]
    layer = _layer(network).lower()
    tags = [
        "state-space-model",
        *([layer] if layer else []),
        *(["long-range-arena"] if _dataset(source) in _LRA else []),
    ]
    card = ModelCardData(
        license=license,
        library_name="lra_ssm",
        tags=tags,
        datasets=[repository] if repository else None,
        metrics=[result.metric_type for result in results] or None,
        pipeline_tag=task,
        model_name=name.rpartition("/")[2] if results else None,
        eval_results=results or None,
    )
    return card.to_yaml().strip()


def _introduction(network: Mapping[str, Any], source: Mapping[str, Any]) -> str:
    layer, count = _layer(network), source.get("parameters")
    size = f" of {count:,} parameters" if count else ""
    stated = headline((source.get("metrics") or {}).get("test") or {})
    score = f"{stated}, on the test split." if stated else "It has not been scored on a test split."
    kind = f"A {_class(network)} with {layer or 'its own'} layers{size}"
    data = _known(source)[0] + (" of lossy pixels" if is_lossy(source) else "")
    return f"{kind}, trained on {data} with lra_ssm. {score}"


def _use(name: str, network: Mapping[str, Any], source: Mapping[str, Any]) -> str:
    cls, path = _class(network), str(network.get("class_path", ""))
    foreign = source.get("foreign") or []
    trusted = ", ".join(repr(one) for one in foreign)
    more = f", trust=({trusted},)" if foreign else ""
    if path.startswith("lra_ssm.models."):
        python = f'from lra_ssm.models import {cls}\n\nmodel = {cls}.from_pretrained("{name}"{more})'
    else:
        python = (
            f"from lra_ssm.models import load_pretrained\nfrom {path.rpartition('.')[0]} import {cls}\n"
            f'model = load_pretrained("{name}", {cls}{more})'
        )
    own = "\n\nIt is made with classes that are not of lra_ssm, which must be importable: " + trusted if foreign else ""
    options = "".join(f" --trust {one}" for one in foreign)
    commands = [] if source.get("in_python") else [f"lra-ssm test {name}{options}"]
    if cls == "LanguageModel":
        commands.append(f'lra-ssm generate {name}{options} --prompt "The"')
    shell = "\n\n```\n" + "\n".join(commands) + "\n```" if commands else ""
    return f"## Use\n\n```python\n{python}\n```{shell}{own}"


def _kind(source: Mapping[str, Any]) -> str:
    return str(((source.get("data") or {}).get("source") or {}).get("kind", ""))


def _data(source: Mapping[str, Any]) -> str:
    data = source.get("data") or {}
    title, repository, task = _known(source)
    lines = [f"{title}{f' ({repository} on the Hub)' if repository else ''}."]
    if kind := _kind(source):
        settings = {k: v for k, v in data["source"].items() if k != "kind" and isinstance(v, (int, str))}
        said = ", ".join(f"{key} {value}" for key, value in settings.items() if not key.startswith("num_"))
        how = "Generated by lra_ssm" if kind == "generated" else f"Source: {kind}"
        lines.append(f"{how}{f' ({said})' if said else ''}.")
    if counts := data.get("examples"):
        lines.append("Splits: " + ", ".join(f"{split} {count:,}" for split, count in counts.items()) + ".")
    if batches := data.get("batches"):
        lines.append("Inputs: " + ", ".join(str(v) if k == "inputs" else f"{k} {v}" for k, v in batches.items()) + ".")
    page = "language-data.md" if task == "text-generation" else "data.md"
    lines.append(f"How every data set is split and prepared: docs/{page} of lra_ssm.")
    return "## Data\n\n" + "\n".join(lines)


def _settings(source: Mapping[str, Any]) -> str:
    config = source.get("config")
    where = f"`{config}` of lra_ssm says where each value comes from" if config else "Its author chose them"
    return (
        "## Settings\n\nconfig.yaml has every setting of the run, resolved. "
        f"{where}; docs/reproduction.md says which published rows have which settings, and what differs."
    )


def _results(source: Mapping[str, Any]) -> str:
    metrics, seeds = source.get("metrics") or {}, source.get("seeds") or {}
    rows = []
    for split in ("validation", "test"):
        for key, value in (metrics.get(split) or {}).items():
            several = seeds.get(key)
            spread = f"{several['mean']:.6g} ± {several['std']:.2g} ({several['runs']} seeds)" if several else ""
            rows.append(f"| {split} | {key} | {value:.6g} | {spread} |")
    if not rows:
        return "## Results\n\nNone were recorded."
    first = f"this model (seed {source['seed']})" if source.get("seed") is not None else "this model"
    table = [f"| split | metric | {first} | mean ± standard deviation |", "|---|---|---|---|", *rows]
    return "## Results\n\n" + "\n".join(table)


def _made(source: Mapping[str, Any]) -> str:
    lines = [
        f"Run {source.get('experiment')}/{source.get('run')}, {source.get('checkpoint')}, step {source.get('step'):,}."
    ]
    if source.get("status") != "finished":
        lines.append(f"The run is not finished: {source.get('status') or 'nothing is recorded'}.")
    if averaged := source.get("averaged"):
        lines.append(f"The mean of {len(averaged)} checkpoints.")
    hardware = source.get("hardware") or {}
    devices = hardware.get("gpus") or [f"{hardware.get('cpu')}, {hardware.get('cpus')} cores"] if hardware else []
    if devices:
        lines.append(f"On {', '.join(dict.fromkeys(map(str, devices)))}.")
    if begun := source.get("begun"):
        starts = f" in {source['starts']} starts" if source.get("starts", 1) > 1 else ""
        lines.append(
            f"Begun {begun}" + (f", {_duration(source['seconds'])}" if "seconds" in source else "") + f"{starts}."
        )
    if versions := source.get("versions"):
        lines.append("Versions: " + ", ".join(f"{name} {v}" for name, v in versions.items() if v) + ".")
    if commit := (source.get("git") or {}).get("commit"):
        changed = ", with changes that were not committed" if source["git"].get("changed") else ""
        lines.append(f"Commit {commit} of the folder that it was started in{changed}.")
    if source.get("in_python"):
        lines.append("It was trained from Python (lra_ssm.runs.Run); config.yaml has what its identity is made of.")
    else:
        lines += ["", "Again:", "", "```\nlightning fit --config config.yaml\n```"]
    if command := source.get("command"):
        lines += ["", "It was started as", "", f"```\n{command}\n```"]
    return "## How it was made\n\n" + "\n".join(lines)


def _duration(seconds: float) -> str:
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} seconds"


def _licence(license: str | None) -> str:
    if license is None:
        said = "None is stated by who published these weights: ask before you use them. lra_ssm itself is Apache-2.0."
    else:
        said = f"{license}, stated by who published these weights. The data's own terms are its publisher's."
    return f"## Licence\n\n{said}"
