"""What is prepared below a data root, as a table. Needs no torch."""

from pathlib import Path
from typing import Any

from lra_ssm.datamodules.storage.format import MANIFEST, PreparedDataset, open_prepared, vocab_size
from lra_ssm.errors import InputError

COLUMNS = (
    "dataset",
    "source",
    "inputs",
    "split",
    "examples",
    "classes",
    "class shares",
    "tokens",
    "length mean",
    "max",
)
LEFT = 4  # so many columns of text; the others are figures


def prepared_folders(root: Path) -> list[Path]:
    """Every prepared folder below a data root, by name."""
    return sorted(path.parent for path in root.glob(f"*/[!.]*/{MANIFEST}"))


def open_all(root: Path) -> tuple[list[PreparedDataset], list[str]]:
    """Every prepared folder below a data root, and what is wrong with those that are damaged."""
    opened, damaged = [], []
    for folder in prepared_folders(root):
        try:
            opened.append(open_prepared(folder))
        except InputError as error:
            damaged.append(str(error))
    return opened, damaged


def summary_rows(manifest: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row per split, in the order of COLUMNS."""
    source = manifest["source"]
    kind = ", ".join(
        [source["kind"]]
        + ([source["difficulty"]] if source.get("difficulty") else [])
        + ([f"limit {source['limit']}"] if source.get("limit") else [])
        + (["lossy"] if source.get("lossy") else [])
    )
    tokens = vocab_size(manifest)
    rows: list[tuple[str, ...]] = []
    for name, split in manifest["splits"].items():
        shares = [count / split["examples"] for count in split.get("class_counts", [])]
        item = split["arrays"].get("images", {}).get("item")
        length = split["length"]
        rows.append(
            (
                manifest["dataset"],
                kind,
                " ".join(["×".join(map(str, item)), source.get("pixels", "")]).rstrip()
                if item
                else source.get("inputs", "tokens"),
                name,
                f"{split['examples']:,}",
                str(manifest.get("num_classes", "")),
                f"{min(shares):.1%} to {max(shares):.1%}" if shares else "",
                str(tokens) if tokens else "",
                f"{length['mean']:,.1f}",
                f"{length['max']:,}",
            )
        )
    return rows
