"""The files of a saved model by name, and the digests that its config.json states of them.

"source": {"files": {"model.safetensors": its sha256, …}, …}
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lra_ssm.errors import InputError
from lra_ssm.files import sha256

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
TOKENIZERS, TOKENIZER_CONFIG = ("vocabulary.json", "tokenizer.json"), "tokenizer_config.json"
RUN_CONFIG, CARD = "config.yaml", "README.md"
_KNOWN = {CONFIG, WEIGHTS, INDEX, PICKLE, *TOKENIZERS, TOKENIZER_CONFIG, RUN_CONFIG, CARD}
_PART = re.compile(r"model-\d+-of-\d+\.safetensors")


def is_model_file(name: str) -> bool:
    """Whether a saved model has a file of this name: others are never fetched."""
    return name in _KNOWN or _PART.fullmatch(name) is not None


def stated_digests(config: Path) -> dict[str, str]:
    """sha256 of a model's other files, by name, as far as its config.json says them ("source": {"files": …})."""
    try:
        content = json.loads(config.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    source: Any = content.get("source") if isinstance(content, dict) else None
    files = source.get("files") if isinstance(source, dict) else None
    pairs = files.items() if isinstance(files, dict) else ()
    return {n: d for n, d in pairs if is_model_file(n) and isinstance(d, str) and re.fullmatch("[0-9a-f]{64}", d)}


def check_stated(config: Path, find: Callable[[str], Path | None], name: str) -> None:
    """Files whose digests a config.json says have them. Raises InputError naming the first that has not."""
    for file, stated in stated_digests(config).items():
        path = find(file)
        if path is None:
            raise InputError(f"{name}: has no {file}, which its {CONFIG} names")
        if (found := sha256(path)) != stated:
            raise InputError(
                f"{name}: {file} has the sha256 {found[:12]}…, its {CONFIG} says {stated[:12]}…: it is damaged, or was"
                " changed afterwards"
            )
