"""The names we know: what comes with the package, and what is known to load from the Hub. Needs no network."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lra_ssm.checkpoints.layout import CONFIG, WEIGHTS
from lra_ssm.checkpoints.sources import SHIPPED


class KnownModel(NamedTuple):
    """`size` in bytes, of the weights; `metric` as its publisher states it."""

    name: str
    task: str
    parameters: int | None
    size: int
    metric: str
    note: str


def known_models() -> list[KnownModel]:
    """Those that come with the package first."""
    import yaml

    found = [_shipped(path.parent) for path in sorted(SHIPPED.glob(f"*/{CONFIG}"))]
    entries = yaml.safe_load((Path(__file__).parent / "known.yaml").read_text(encoding="utf-8"))
    for name, entry in entries.items():
        count, note = entry["parameters"], "a pickle: --allow-pickle" if entry.get("pickle") else ""
        found.append(KnownModel(name, entry["task"], count, 4 * count, "", note))
    return found


def _shipped(folder: Path) -> KnownModel:
    source: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("source", {})
    data, metrics = source.get("data", {}), source.get("metrics", {}).get("test", {})
    task = data.get("dataset", "")
    if task == "corpus":
        task = "text"
        if kind := data.get("source", {}).get("kind"):
            task = f"text ({kind})"
    task += ", lossy pixels" if is_lossy(source) else ""
    size = (folder / WEIGHTS).stat().st_size
    return KnownModel(folder.name, task, source.get("parameters"), size, headline(metrics), "comes with lra_ssm")


def is_lossy(source: Mapping[str, Any]) -> bool:
    """Whether a model's images were not the published pixels, but compressed with loss."""
    return bool(((source.get("data") or {}).get("source") or {}).get("lossy"))


def headline(metrics: dict[str, float]) -> str:
    """The metric by which a model is compared, as text; of test/accuracy and others the first that is known."""
    for name in ("accuracy", "bits_per_byte", "perplexity", "loss"):
        for key, value in metrics.items():
            if key.rpartition("/")[2] == name:
                return f"{key} {100 * value:.2f} %" if name == "accuracy" else f"{key} {value:.2f}"
    return ""
