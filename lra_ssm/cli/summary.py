"""Show what is prepared below a data root as a table, without importing torch."""

import os
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.storage import MANIFEST, load, verify
from lra_ssm.errors import InputError, to_one_line
from lra_ssm.files import UNFINISHED
from lra_ssm.tables import table, terminal_width

_COLUMNS = ("folder", "settings", "inputs", "split", "examples", "tokens", "classes", "vocabulary", "mean length",
            "longest")  # fmt: skip


def prepared_folders(root: Path) -> list[Path]:
    """Return every prepared folder below a data root, by name."""
    return sorted(path.parent for path in root.glob(f"*/[!.]*/{MANIFEST}"))


def show_prepared(root: Path, compare: bool = False) -> list[str]:
    """Print a table of what is prepared below a root, a row per split; return messages about damage.

    compare: read all files and compare their digests. Raises InputError if the root cannot be read.
    """
    if root.exists() and not os.access(root, os.R_OK | os.X_OK):
        raise InputError(f"data root {root}: cannot be read; change its permissions, or choose another with --root")
    rows, damaged = list[list[str]](), list[str]()
    for folder in prepared_folders(root):
        try:
            prepared = load(folder)
            if compare:
                verify(prepared)
            rows += _rows(prepared.manifest, f"{folder.parent.name}/{folder.name}")
        except InputError as error:
            damaged.append(f"damaged: {error}")
    print(table(_COLUMNS, rows, 4, terminal_width()) if rows else to_one_line(f"nothing is prepared below {root}"))
    if compare and not damaged:
        print("all digests are as recorded")
    for path in sorted([*root.glob("*/.parts-*"), *root.glob(f"*/{UNFINISHED}*")]):
        print(to_one_line(f"not finished: {path} (the same command goes on there)"))
    return damaged


def _rows(manifest: dict[str, Any], folder: str) -> list[list[str]]:
    """Return a row per split: of classification examples, or of text for language models."""
    source, rows = manifest["source"], []
    settings = [source.get("difficulty"), source.get("limit") and f"limit {source['limit']}"]
    settings += ["{} to {}".format(*source["length_bounds"])] if "length_bounds" in source else []
    for name, split in manifest["splits"].items():
        image = "×".join(map(str, split.get("arrays", {}).get("images", {"shape": []})["shape"][1:]))
        inputs = f"{image} {source.get('inputs', '')}".rstrip() if image else source.get("inputs", "tokens")
        if tokenizer := manifest.get("tokenizer"):
            inputs, count, tokens = tokenizer["specification"], split["documents"], f"{split['tokens']:,}"
            lengths = [f"{split['tokens'] / (count or 1):,.1f}", ""]
        else:
            count, tokens = split["examples"], ""
            lengths = [f"{split['length']['mean']:,.1f}", f"{split['length']['max']:,}"]
        vocabulary = manifest.get("vocab_size") or len(manifest.get("vocabulary", ()))
        sizes = [str(manifest.get("num_classes", "")), f"{vocabulary:,}" if vocabulary else "", *lengths]
        rows.append([folder, ", ".join(filter(None, settings)), inputs, name, f"{count:,}", tokens, *sizes])
    return rows
