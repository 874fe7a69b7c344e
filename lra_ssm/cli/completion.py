"""`lightning --print_completion bash`: a script with which the shell completes commands, options and our classes.

shtab writes it, of a parser made here: jsonargparse's own would follow every class of torch into all its arguments. It
is made once and says what this version has; completing then starts no Python.
"""

import argparse
import inspect
from importlib.util import find_spec
from typing import Any

from lightning.pytorch.cli import LightningCLI

from lra_ssm.cli import COMMANDS, export, generate, predict, pull, push, results, runs
from lra_ssm.cli.help import CHOICES
from lra_ssm.cli.prepare import DATASETS, LOADING
from lra_ssm.cli.run_options import RunOptions
from lra_ssm.errors import InputError, hint
from lra_ssm.layers.spec import own_arguments
from lra_ssm.tasks import OptimizerSettings

# Options that take a path.
FILES = (
    "config",
    "ckpt_path",
    "init_from",
    "source",
    "root",
    "runs_dir",
    "prompt_file",
    "out",
    "curves",
    "plot",
    "to",
    "output",
)
_PARSERS = {
    "export": export.parser,
    "generate": generate.parser,
    "predict": predict.parser,  # beside LightningCLI's
    "pull": pull.parser,
    "push": push.parser,
    "results": results.parser,
    "runs": runs.parser,
}


def print_completion(arguments: list[str]) -> int:
    """arguments: the shell. Raises InputError without shtab, and for a shell that it does not know."""
    if not find_spec("shtab"):
        raise InputError("--print_completion needs shtab: pip install shtab")
    import shtab

    shell = arguments[0] if len(arguments) == 1 else ""
    if shell not in shtab.SUPPORTED_SHELLS:
        raise InputError(f"--print_completion {shell!r}: {hint(shell, shtab.SUPPORTED_SHELLS)}")
    options = _run_options()
    for program in ("lightning", "lra-ssm"):
        print(shtab.complete(_parser(program, options), shell))
    return 0


class _Parsers(RunOptions):
    """Stops where a run command's parser is made."""

    def parse_arguments(self, parser: Any, args: Any) -> None:
        raise _Made(self._parser(self.command))


class _Made(Exception): ...


def _run_options() -> dict[str, list[str]]:
    """The options of fit, validate, test and predict, by command."""
    options = {}
    for command in LightningCLI.subcommands():
        try:
            _Parsers(command, [])
        except _Made as made:
            options[command] = [o for o in made.args[0]._option_string_actions if o.startswith("--")]
    return options


def _parser(program: str, run_options: dict[str, list[str]]) -> argparse.ArgumentParser:
    import shtab

    parser = argparse.ArgumentParser(program)
    parser.add_argument("--version", action="store_true")
    subparsers = parser.add_subparsers()
    for command, (_, text) in COMMANDS.items():
        own = subparsers.add_parser(command, help=text, description=text)
        if command == "prepare":
            own.add_argument("dataset", choices=list(DATASETS))
            names = {
                n: None for cls in CHOICES["--data"] for n in inspect.signature(cls).parameters if n not in LOADING
            }
            options: dict[str, Any] = {f"--{name}": None for name in ("summary", "picture", "debug", *names)}
        elif command in run_options:
            options = dict.fromkeys(run_options[command]) | _of_our_classes() | _of_parser(command)
        elif command in _PARSERS:
            options = _of_parser(command)
        else:
            options = {"--debug": None}
        for option, choices in options.items():
            if option == "--help":
                continue
            action = own.add_argument(option, choices=choices)
            if option.rpartition(".")[2].lstrip("-") in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser


def _of_parser(command: str) -> dict[str, Any]:
    """Options of a command's own parser, where it has one."""
    actions = _PARSERS[command]()._option_string_actions.items() if command in _PARSERS else ()
    return {option: action.choices for option, action in actions if option.startswith("--")}


def _of_our_classes() -> dict[str, list[str] | None]:
    """Options that take a class of ours, with their names; and what our classes take in their turn."""
    options: dict[str, list[str] | None] = {name: [c.__name__ for c in classes] for name, classes in CHOICES.items()}
    for name, classes in CHOICES.items():
        taken = {argument: None for cls in classes for argument in own_arguments(cls)}
        options |= {f"{name}.{a}": None for a in taken if f"{name}.{a}" not in options}
    fields = inspect.signature(OptimizerSettings).parameters
    return options | {f"--model.optimizer.{name}": None for name in fields}
