"""The names we know: what comes with the package, and what is known to load from the Hub. Needs no network."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lra_ssm.checkpoints.files import within
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
    file = Path(__file__).with_name("known.yaml")
    for name, entry in yaml.safe_load(file.read_bytes()).items():
        count = entry["parameters"]
        note = "a pickle: --allow-pickle" if entry.get("pickle") else ""
        found.append(KnownModel(name, entry["task"], count, 4 * count, "", note))
    return found


def _shipped(folder: Path) -> KnownModel:
    config = json.loads((folder / CONFIG).read_bytes())
    source = within(config, "source")
    task = within(source, "data").get("dataset", "")
    if task == "corpus":
        kind = within(source, "data", "source").get("kind")
        task = f"text ({kind})" if kind else "text"
    if is_lossy(source):
        task += ", lossy pixels"
    size = (folder / WEIGHTS).stat().st_size
    score = headline(within(source, "metrics", "test"))
    return KnownModel(folder.name, task, source.get("parameters"), size, score, "comes with lra_ssm")


def is_lossy(source: Mapping[str, Any]) -> bool:
    """Whether a model's images were not the published pixels, but compressed with loss."""
    return bool(within(source, "data", "source").get("lossy"))


def headline(metrics: dict[str, float]) -> str:
    """The metric by which a model is compared, as text: the first of these that is known."""
    for name in ("accuracy", "bits_per_byte", "perplexity", "loss"):
        for key, value in metrics.items():
            if key.rpartition("/")[2] == name:
                return f"{key} {100 * value:.2f} %" if name == "accuracy" else f"{key} {value:.2f}"
    return ""
