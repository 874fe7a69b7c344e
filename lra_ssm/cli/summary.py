"""What is prepared below a data root, as a table. Needs no torch."""

from pathlib import Path
from typing import Any

from lra_ssm.datamodules.storage.format import MANIFEST, PreparedDataset, open_prepared, vocab_size
from lra_ssm.errors import InputError
from lra_ssm.files import UNFINISHED
from lra_ssm.tables import table

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
TEXT_COLUMNS = (
    "dataset",
    "source",
    "tokenizer",
    "split",
    "part",
    "documents",
    "tokens",
    "share",
    "vocabulary",
    "bytes/token",
)
_TEXT_LEFT = 5


def prepared_folders(root: Path) -> list[Path]:
    """Every prepared folder below a data root, by name."""
    return sorted(path.parent for path in root.glob(f"*/[!.]*/{MANIFEST}"))


def unfinished(root: Path) -> list[Path]:
    """What preparations below a data root left that did not end: started again, they go on there."""
    return sorted(path for pattern in (".shards-*", ".parts-*", f"{UNFINISHED}*") for path in root.glob(f"*/{pattern}"))


def open_all(root: Path) -> tuple[list[PreparedDataset], list[str]]:
    """Every prepared folder below a data root, and what is wrong with those that are damaged."""
    opened, damaged = [], []
    for folder in prepared_folders(root):
        try:
            opened.append(open_prepared(folder))
        except InputError as error:
            damaged.append(str(error))
    return opened, damaged


def summary_tables(opened: list[PreparedDataset], width: int | None) -> list[str]:
    """Tables of what is prepared: of examples, and of text for language models; those that have rows."""
    manifests = [prepared.manifest for prepared in opened]
    examples = [row for manifest in manifests if "tokenizer" not in manifest for row in summary_rows(manifest)]
    texts = [row for manifest in manifests if "tokenizer" in manifest for row in text_rows(manifest)]
    both = ((COLUMNS, examples, LEFT), (TEXT_COLUMNS, texts, _TEXT_LEFT))
    return [table(columns, rows, left, width) for columns, rows, left in both if rows]


def text_rows(manifest: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row per split, and where it has several sources one for each, the largest first; as TEXT_COLUMNS."""
    rows: list[tuple[str, ...]] = []
    for name, split in manifest["splits"].items():
        sources = sorted(split["sources"].items(), key=lambda item: -item[1]["tokens"])
        for part, counts in [("all", split), *(sources if len(sources) > 1 else [])]:
            tokens = counts["tokens"]
            rows.append(
                (
                    manifest["dataset"],
                    _kind(manifest["source"]),
                    manifest["tokenizer"]["specification"],
                    name,
                    part,
                    f"{counts['documents']:,}",
                    f"{tokens:,}",
                    f"{tokens / split['tokens']:.1%}",
                    f"{manifest['vocab_size']:,}",
                    f"{counts['bytes'] / tokens:.2f}" if tokens else "",
                )
            )
    return rows


def _kind(source: dict[str, Any]) -> str:
    return ", ".join(
        [source["kind"]]
        + ([source["difficulty"]] if source.get("difficulty") else [])
        + ([f"{source['min_length']} to {source['max_length']}"] if "min_length" in source else [])  # of ListOps
        + ([f"limit {source['limit']}"] if source.get("limit") else [])
        + (["lossy"] if source.get("lossy") else [])
    )


def summary_rows(manifest: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row per split, in the order of COLUMNS."""
    source = manifest["source"]
    tokens = vocab_size(manifest)
    rows: list[tuple[str, ...]] = []
    for name, split in manifest["splits"].items():
        shares = [count / split["examples"] for count in split.get("class_counts", [])]
        item = split["arrays"].get("images", {"shape": []})["shape"][1:]
        length = split["length"]
        rows.append(
            (
                manifest["dataset"],
                _kind(source),
                " ".join(["×".join(map(str, item)), source.get("pixels", "")]).rstrip()
                if item
                else source.get("inputs", "tokens"),
                name,
                f"{split['examples']:,}",
                str(manifest.get("num_classes", "")),
                f"{100 * min(shares):.1f}–{100 * max(shares):.1f}%" if shares else "",
                str(tokens) if tokens else "",
                f"{length['mean']:,.1f}",
                f"{length['max']:,}",
            )
        )
    return rows
