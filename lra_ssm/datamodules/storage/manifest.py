"""Reads a manifest and makes sure that it is one, before anything stands on it. Needs no torch."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

# 1: every example has a class, and the vocabulary is listed and has at most 2^16 tokens. 2: whatever 1 cannot say of
# examples; all other data is still written as 1, byte for byte as before. 3: text, a stream of tokens in shards.
FORMATS = (1, 2, 3)
DTYPES = {
    "tokens": ("uint8", "uint16", "uint32"),
    "offsets": ("<i8",),
    "starts": ("<i8",),
    "labels": ("<i8",),
    "targets": ("<i4",),
    "images": ("uint8",),
}


class Malformed(ValueError):
    """What a manifest lacks, in a few words."""


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a prepared folder: every entry that this package reads is there, of its type, and fits.

    Raises:
        Malformed: it is cut off, of another format, or at odds with itself; or names files outside its folder.
        FileNotFoundError: there is none.
    """
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise Malformed(f"cannot be read as JSON ({' '.join(str(error).split())})") from error
    if not isinstance(manifest, dict) or not manifest:
        raise Malformed("is not a manifest")
    version = _get(manifest, "format", _is_count)
    if version not in FORMATS:
        *others, last = map(str, FORMATS)
        raise Malformed(f"format {version} is not {', '.join(others)} or {last}, which this version reads")
    _get(manifest, "dataset", _is_text)
    source = _get(manifest, "source", _is_dict)
    _get(source, "kind", _is_text)
    for key in ("difficulty", "pixels", "inputs"):
        _optional(source, key, _is_text)
    classes = _optional(manifest, "num_classes", _is_positive)
    _optional(manifest, "vocabulary", lambda x: isinstance(x, list) and x != [] and all(map(_is_text, x)))
    _optional(manifest, "vocab_size", _is_positive)
    _optional(manifest, "max_length", _is_positive)
    per_example = _optional(manifest, "per_example", _is_positive) or 1
    splits = _get(manifest, "splits", lambda x: _is_dict(x) and x != {})
    if version == 3:
        _check_text(manifest, path.parent)
    for name, split in splits.items():
        if not _is_dict(split):
            raise Malformed(f"its split {name} is {_short(split)}")
        if version == 3:
            _check_shards(f"splits.{name}.", split, path.parent)
            continue
        _check_split(name, split, classes, per_example, path.parent)
        has_size = manifest.get("vocabulary") is not None or manifest.get("vocab_size") is not None
        if "tokens" in split["arrays"] and not has_size:
            raise Malformed("has neither vocabulary nor vocab_size")
    return manifest


def _check_text(manifest: dict[str, Any], folder: Path) -> None:
    """What all splits of a text have in common."""
    size = _get(manifest, "vocab_size", _is_positive)
    if _get(manifest, "end_of_text", _is_count) >= size:
        raise Malformed(f"its end_of_text {manifest['end_of_text']} is no token: there are {size}")
    tokenizer = _get(manifest, "tokenizer", _is_dict)
    _get(tokenizer, "specification", _is_text, "tokenizer.")
    _check_file(tokenizer, "tokenizer.", folder)


def _check_shards(where: str, split: dict[str, Any], folder: Path) -> None:
    """A split of text: its counts, those by source, and its shards, which add up to them."""
    documents, tokens = _get(split, "documents", _is_positive, where), _get(split, "tokens", _is_positive, where)
    for key in ("bytes", "words", "lines"):
        _get(split, key, _is_count, where)
    sources = _get(split, "sources", lambda x: _is_dict(x) and x != {}, where)
    for name, source in sources.items():
        if not _is_dict(source):
            raise Malformed(f"its {where}sources.{name} is {_short(source)}")
        for key in ("documents", "tokens", "bytes"):
            _get(source, key, _is_count, f"{where}sources.{name}.")
    for key in ("documents", "tokens", "bytes"):
        _check_sum(split[key], (source[key] for source in sources.values()), f"{where}sources", key)
    shards = _get(split, "shards", lambda x: isinstance(x, list) and x != [], where)
    for number, shard in enumerate(shards):
        at = f"{where}shards.{number}"
        if not _is_dict(shard) or set(shard) != {"tokens", "starts"} or not all(map(_is_dict, shard.values())):
            raise Malformed(f"its {at} is {_short(shard)}")
        for key, entry in shard.items():
            _check_array(key, entry, f"{at}.{key}.", folder)
        if shard["tokens"]["dtype"] != shards[0]["tokens"]["dtype"]:
            raise Malformed(f"its {at}.tokens.dtype is not that of the first shard")
    _check_sum(tokens, (shard["tokens"]["count"] for shard in shards), f"{where}shards", "tokens")
    _check_sum(documents, (shard["starts"]["count"] for shard in shards), f"{where}shards", "documents")


def _check_sum(total: int, parts: Iterable[int], where: str, what: str) -> None:
    if (found := sum(parts)) != total:
        raise Malformed(f"its {where} have {found} {what}, not {total}")


def _check_split(name: str, split: dict[str, Any], classes: int | None, per_example: int, folder: Path) -> None:
    where = f"splits.{name}."
    examples = _get(split, "examples", _is_positive, where)
    length = _get(split, "length", _is_dict, where)
    for key, holds in (("min", _is_count), ("max", _is_positive), ("mean", _is_number)):
        _get(length, key, holds, f"{where}length.")
    counts = _optional(split, "class_counts", lambda x: isinstance(x, list) and all(map(_is_count, x)), where)
    arrays = _get(split, "arrays", _is_dict, where)
    kinds = set(arrays)
    if kinds not in (
        {"tokens", "offsets"},
        {"tokens", "offsets", "labels"},
        {"tokens", "offsets", "targets"},
        {"images", "labels"},
    ):
        raise Malformed(f"its split {name} has the arrays {', '.join(sorted(kinds)) or '(none)'}")
    if classes is None and kinds & {"labels", "targets"}:
        raise Malformed("has no num_classes")
    if ("labels" in kinds) != (counts is not None and len(counts) == classes and sum(counts) == examples):
        raise Malformed(f"its {where}class_counts do not fit the examples and classes")
    if "targets" in kinds:
        _get(split, "scored", _is_count, where)
    for key, entry in arrays.items():
        if not _is_dict(entry):
            raise Malformed(f"its {where}arrays.{key} is {_short(entry)}")
        _check_array(key, entry, f"{where}arrays.{key}.", folder)
    item = arrays["images"]["item"] if "images" in kinds else []
    fitting = {
        "labels": examples,
        "offsets": examples * per_example + 1,
        "targets": arrays.get("tokens", {}).get("count"),
        "images": examples * int(np.prod(item, dtype=object)),
    }
    for key, count in fitting.items():
        if key in kinds and arrays[key]["count"] != count:
            raise Malformed(f"its {where}arrays.{key}.count {arrays[key]['count']} should be {count}")


def _check_array(key: str, entry: dict[str, Any], where: str, folder: Path) -> None:
    _get(entry, "count", _is_count if key == "starts" else _is_positive, where)
    _get(entry, "dtype", lambda x: _is_text(x) and x in DTYPES[key], where)
    if key == "images":
        _get(entry, "item", lambda x: isinstance(x, list) and len(x) == 3 and all(map(_is_positive, x)), where)
    elif "item" in entry:
        raise Malformed(f"has {where}item")
    _check_file(entry, where, folder)


def _check_file(entry: dict[str, Any], where: str, folder: Path) -> None:
    _get(entry, "sha256", lambda x: _is_text(x) and len(x) == 64, where)
    file = _get(entry, "file", _is_text, where)
    # A link may lead from one file of the folder to another, but nowhere else.
    if "\0" in file or Path(file).name != file or (folder / file).resolve().parent != folder.resolve():
        raise Malformed(f"its {where}file {file!r} is not a file of this folder")


def _get(table: dict[str, Any], key: str, holds: Callable[[Any], bool], where: str = "") -> Any:
    """table[key], which must be there and as it should."""
    if key not in table:
        raise Malformed(f"has no {where}{key}")
    if not holds(table[key]):
        raise Malformed(f"its {where}{key} is {_short(table[key])}")
    return table[key]


def _optional(table: dict[str, Any], key: str, holds: Callable[[Any], bool], where: str = "") -> Any:
    return None if table.get(key) is None else _get(table, key, holds, where)


def _is_text(x: Any) -> bool:
    return isinstance(x, str)


def _is_dict(x: Any) -> bool:
    return isinstance(x, dict)


def _is_count(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 1 << 62


def _is_positive(x: Any) -> bool:
    return _is_count(x) and x > 0


def _is_number(x: Any) -> bool:
    return _is_count(x) or (isinstance(x, float) and 0 <= x < float("inf"))


def _short(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 40 else text[:37] + "..."
