"""Options that several commands have."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lra_ssm.cli.output import PlainParser
from lra_ssm.errors import InputError

if TYPE_CHECKING:
    import torch

A_MODEL = "a run's directory (its best.ckpt, else its last.ckpt), a .ckpt, or a saved model by its name or folder"
A_TOKENIZER = "of a model that has none: a tokenizer.json, a folder with one, bytes, or a name of the Hub"


def count(text: str) -> int:
    """The type of an option that is a number of things."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number}, but it must be at least 1")
    return number


def content(file: str) -> tuple[str, bytes]:
    """What messages call a file, where - is standard input, and its bytes."""
    return ("standard input", sys.stdin.buffer.read()) if file == "-" else (file, Path(file).read_bytes())


def configuring(arguments: Sequence[str], sections: str) -> tuple[list[str], list[str]]:
    """Options of a configuration, `--data=CLASS`, `--data.NAME VALUE`, each as one text; and the rest.

    sections: the configuration's sections that are looked for, as "model|data".
    """
    found, rest = list[str](), list[str]()
    given = iter(arguments)
    for argument in given:
        if re.match(rf"--({sections})([.=]|$)", argument):
            found.append(argument if "=" in argument else f"{argument}={next(given, '')}")
        else:
            rest.append(argument)
    return found, rest


def add_trust(parser: PlainParser) -> None:
    """What a saved model is read with: `allow_pickle` and `trust`."""
    said = "read a saved model's weights from a pickle, tensors alone"
    parser.add_argument("--allow-pickle", action="store_true", help=said)
    said = "a class of others that a saved model, or its data, may be made with; repeated"
    parser.add_argument("--trust", action="append", default=[], metavar="module.Class", help=said)


def add_device(parser: PlainParser) -> None:
    parser.add_argument("--device", metavar="DEVICE", help="such as cpu or cuda:1; default: cuda where there is one")


def device_of(name: str | None) -> "torch.device":
    """The device that `--device` names. Raises InputError: it is not here."""
    import torch

    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch is built without CUDA
        reason = str(error).partition("\n")[0]
        raise InputError(f"--device {name}: there is no such device here ({reason})") from error
    return device
