"""What is prepared below a data root, as a table. Needs no torch."""

import os
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.storage import MANIFEST, Prepared, load
from lra_ssm.errors import InputError, to_one_line
from lra_ssm.files import UNFINISHED
from lra_ssm.tables import table, terminal_width

Row = dict[str, str]  # the cells of a table's row, by their columns' names
_LEFT, _TEXT_LEFT = 4, 5  # so many columns of text; the others are figures


def prepared_folders(root: Path) -> list[Path]:
    """Every prepared folder below a data root, by name."""
    return sorted(path.parent for path in root.glob(f"*/[!.]*/{MANIFEST}"))


def unfinished(root: Path) -> list[Path]:
    """What preparations below a data root left that did not end: started again, they go on there."""
    patterns = (".parts-*", f"{UNFINISHED}*")
    return sorted(path for pattern in patterns for path in root.glob(f"*/{pattern}"))


def open_all(root: Path) -> tuple[list[Prepared], list[str]]:
    """Every prepared folder below a data root, and what is wrong with those that are damaged."""
    opened, damaged = [], []
    for folder in prepared_folders(root):
        try:
            opened.append(load(folder))
        except InputError as error:
            damaged.append(str(error))
    return opened, damaged


def show_prepared(root: Path) -> None:
    """Print the table of everything that is prepared below a root."""
    if root.exists() and not os.access(root, os.R_OK | os.X_OK):
        raise InputError(f"data root {root}: cannot be read; change its permissions, or choose another with --root")
    opened, damaged = open_all(root)
    print("\n\n".join(summary_tables(opened, terminal_width())) or to_one_line(f"nothing is prepared below {root}"))
    for what in damaged:
        print(f"damaged: {what}")
    for path in (left := unfinished(root)):
        print(f"not finished: {path}")
    if left:
        print(to_one_line(f"the same command goes on there; `lra-ssm prepare --clean --root={root}` removes them"))


def summary_tables(opened: list[Prepared], width: int | None) -> list[str]:
    """Tables of what is prepared: of examples, and of text for language models; those that have rows."""
    examples: list[Row] = []
    texts: list[Row] = []
    for prepared in opened:
        if "tokenizer" in prepared.manifest:
            texts += _text_rows(prepared.manifest)
        else:
            examples += summary_rows(prepared.manifest)
    both = [(rows, left) for rows, left in ((examples, _LEFT), (texts, _TEXT_LEFT)) if rows]
    return [table(list(rows[0]), [list(row.values()) for row in rows], left, width) for rows, left in both]


def _text_rows(manifest: dict[str, Any]) -> list[Row]:
    """One row per split, and where it has several sources one for each, the largest first."""
    rows = []
    for name, split in manifest["splits"].items():
        sources = sorted(split["sources"].items(), key=lambda item: -item[1]["tokens"])
        for part, counts in [("all", split), *(sources if len(sources) > 1 else [])]:
            tokens = counts["tokens"]
            row = {
                "dataset": manifest["dataset"],
                "source": _kind(manifest["source"]),
                "tokenizer": manifest["tokenizer"]["specification"],
                "split": name,
                "part": part,
                "documents": f"{counts['documents']:,}",
                "tokens": f"{tokens:,}",
                "share": f"{tokens / split['tokens']:.1%}",
                "vocabulary": f"{manifest['vocab_size']:,}",
                "bytes/token": f"{counts['bytes'] / tokens:.2f}" if tokens else "",
            }
            rows.append(row)
    return rows


def _kind(source: dict[str, Any]) -> str:
    parts = [source["kind"], source.get("difficulty")]
    if "length_bounds" in source:  # of ListOps
        parts.append("{} to {}".format(*source["length_bounds"]))
    if source.get("limit"):
        parts.append(f"limit {source['limit']}")
    return ", ".join(filter(None, parts))


def summary_rows(manifest: dict[str, Any]) -> list[Row]:
    """One row per split."""
    source, rows = manifest["source"], []
    for name, split in manifest["splits"].items():
        shares = [100 * count / split["examples"] for count in split.get("class_counts", [])]
        image = "×".join(map(str, split["arrays"].get("images", {"shape": []})["shape"][1:]))
        row = {
            "dataset": manifest["dataset"],
            "source": _kind(source),
            "inputs": f"{image} {source.get('pixels', '')}".rstrip() if image else source.get("inputs", "tokens"),
            "split": name,
            "examples": f"{split['examples']:,}",
            "classes": str(manifest.get("num_classes", "")),
            "class shares": f"{min(shares):.1f}–{max(shares):.1f}%" if shares else "",
            "tokens": str(manifest.get("vocab_size") or len(manifest.get("vocabulary", ())) or ""),
            "length mean": f"{split['length']['mean']:,.1f}",
            "max": f"{split['length']['max']:,}",
        }
        rows.append(row)
    return rows
