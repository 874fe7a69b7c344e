"""How a command says something, and where TensorBoard writes."""

import argparse
import os
import textwrap
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from lra_ssm.errors import InputError


class PlainHelp(argparse.HelpFormatter):
    """Breaks running text where the terminal ends; indented lines, commands to copy, stay whole."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = list[str]()
        for whole, group in groupby(text.splitlines(), key=lambda line: line[:1].isspace() or not line):
            found = list(group)
            lines += found if whole else textwrap.wrap(" ".join(found), width, break_on_hyphens=False)
        return "\n".join(lines)


class PlainParser(argparse.ArgumentParser):
    """Of the commands that train nothing: exact option names, a wrong one is one line."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(prog, description=description, epilog=epilog, allow_abbrev=False, formatter_class=PlainHelp)
        add_debug(self)

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def add_debug(parser: Any) -> None:
    """Has `--help` show the option of every command; `lra_ssm.cli.main` takes it before the command sees it."""
    absent = {"dest": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    parser.add_argument("--debug", action="store_true", help="show the traceback behind a one-line error", **absent)


def in_a_folder(file: str, option: str = "--output") -> Path:
    """The file that an option names. Raises InputError: it cannot be one."""
    path = Path(file)
    if path.is_dir():
        raise InputError(f"{option} {path}: is a folder")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{option} {path}: its folder does not exist")
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise InputError(f"{option} {path}: its folder cannot be written")
    return path


def place_tensorboard(given: Any, run: Path) -> None:
    """TensorBoard loggers of a configuration write into the run directory where it leaves that open."""
    open_values = {"name": "lightning_logs", "version": None, "save_dir": "."}
    ours = {"name": "tensorboard", "version": "", "save_dir": str(run)}
    for logger in given if isinstance(given, list) else [given]:
        if getattr(logger, "class_path", "").rpartition(".")[2] == "TensorBoardLogger":
            for key, value in ours.items():
                if logger.init_args.get(key) == open_values[key]:
                    logger.init_args[key] = value
