"""Make a command from a typed function: its signature gives the arguments, its docstring the help.

Positional parameters are positional arguments (`*files: str` takes several), keyword-only parameters are options:
`dry_run: bool = False` is the flag `--dry-run` (or `--dry_run`), `estimate: bool | str = False` an option with or
without a value, `trust: list[str]` an option that may be repeated, `widths: list[int]` one with several numbers, and
any other type is read as jsonargparse reads it (`int | None`, `Literal`, `PositiveInt`, `Path`). `*settings: str` takes
the options of a configuration as texts (`--data.source=x`), `*options: str` all options that the function does not have
itself.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from textwrap import indent, wrap
from typing import Any, get_args, get_type_hints

import docstring_parser
from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter

from lra_ssm.errors import InputError, hint

# Names at the top of a configuration. `--model.….NAME=VALUE` and the like are settings.
SECTIONS = ("config", "seed_everything", "experiment", "runs_dir", "init_from", "init_from_without", "ckpt_path",
            "check_layer", "trainer", "model", "data", "checkpoint", "compute")  # fmt: skip
_OPEN = ("settings", "options")  # names of `*parameters` that take options
# Help on parameters that mean the same in every command whose docstring does not explain them.
_HELP = {
    "model": "a run's directory (its best.ckpt, else its last.ckpt), a .ckpt, or a saved model by its name or folder",
    "trust": "a class of other packages that a saved model, or its data, may be made with; may be repeated",
    "allow_pickle": "read a saved model's weights from a pickle (only tensors)",
    "device": "such as cpu or cuda:1; default: cuda if there is one",
    "tokenizer": "for a model that has none: a tokenizer.json, a folder with one, bytes, or a name on the Hub",
}


def call(command: str, function: Callable[..., int | None], arguments: Sequence[str]) -> int:
    """Call the function with the arguments of its command line; return its exit code.

    Raises InputError for an unknown option, a missing argument or a value of another type, SystemExit for `--help`.
    """
    parser = function_parser(f"lra-ssm {command}", function)
    parameters = inspect.signature(function).parameters.values()
    extra = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL and p.name in _OPEN), "")
    settings, arguments = _sort(arguments, parser, extra)
    values = {**vars(parse(parser, arguments, SECTIONS if extra else ())), extra: settings}
    positional = [values[p.name] for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    several = [item for p in parameters if p.kind is p.VAR_POSITIONAL for item in values[p.name]]
    options = {p.name: values[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
    return function(*positional, *several, **options) or 0


def parse(parser: ArgumentParser, arguments: Sequence[str], settings: Sequence[str] = ()) -> Any:
    """Parse the arguments. settings: further names that an unknown option may have meant.

    Raises InputError of one line, with the nearest option.
    """
    try:
        return parser.parse_args(list(arguments))
    except ArgumentError as error:
        message, options = str(error), _options(parser)
        if unknown := re.search(r"nrecognized arguments: (?:.*?(--[\w-]+))?(.*)", message):
            name = unknown[1] or unknown[2].strip()
            known = [*options, *(f"--{each}" for each in settings)]
            message = f"unknown {'option' if unknown[1] else 'argument'} {name}; {hint(name, known, 'it takes')}"
        elif missing := re.match("the following arguments are required: (.*)", message):
            needed = [f"--{name}" if f"--{name}" in options else name.upper() for name in missing[1].split(", ")]
            message = f"the following arguments are required: {', '.join(needed)}"
        elif key := re.match(r'Parser key "([^"]+)":\s*(.*)', message, re.DOTALL):
            option = f"--{key[1].replace('_', '-')}"
            message = f"{option if option in options else key[1].upper()}: {expected(key[2])}"
        raise InputError(message) from error


def expected(message: str) -> str:
    """Shorten jsonargparse's message about a value of a wrong type, which lists the error for each type of a union."""
    types = re.search(r"Subtypes: (\[.*\])$", message, re.MULTILINE)
    value = re.search(r"Given value: (.*)\Z", message, re.DOTALL)
    if types and value:
        message = f"expected one of {types[1]}. Given value: {value[1]}"
    settings = re.match(r"Not a valid subclass of (\w+)\. Got value: (.*?)\s+Subclass types", message, re.DOTALL)
    if settings:
        message = f"expected the settings of {settings[1]}, as {{name: value}}. Given value: {settings[2]}"
    return re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", message)


def function_parser(prog: str, function: Callable[..., Any]) -> ArgumentParser:
    """Make the parser of a typed function; its docstring is Google's."""
    about = docstring_parser.parse(inspect.getdoc(function) or "", docstring_parser.DocstringStyle.GOOGLE)
    helps = _HELP | {each.arg_name.lstrip("*"): " ".join((each.description or "").split()) for each in about.params}
    parser = ArgumentParser(
        prog=prog, description=about.description or "", exit_on_error=False, allow_abbrev=False, formatter_class=Help,
        epilog="".join(f"examples:\n{indent(each.description or '', '  ')}" for each in about.examples),
    )  # fmt: skip
    types = get_type_hints(function)
    for parameter in inspect.signature(function).parameters.values():
        name, kind, default = parameter.name, types.get(parameter.name, str), parameter.default
        needed = default is parameter.empty
        common: dict[str, Any] = {"help": helps.get(name, "")}
        option = f"--{name.replace('_', '-')}"
        if parameter.kind is parameter.VAR_POSITIONAL:
            if name not in _OPEN:
                action = parser.add_argument(name, type=kind, nargs="*", metavar=name.upper(), **common)
                action.required = False  # argparse sets it, which only the help shows
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            optional = {} if needed else {"nargs": "?", "default": default}
            parser.add_argument(name, type=kind, metavar=name.upper(), **optional, **common)
        elif kind is bool:
            parser.add_argument(option, dest=name, action="store_true", **common)
        elif kind == bool | str:
            parser.add_argument(option, dest=name, nargs="?", const=True, default=default, **common)
        elif getattr(kind, "__origin__", None) is list:
            several: dict[str, Any] = {"action": "append"} if get_args(kind)[0] is str else {"nargs": "+"}
            common |= {"dest": name, "default": list(default or ()), "metavar": name.upper().rstrip("S")}
            parser.add_argument(option, type=get_args(kind)[0], **several, **common)
        else:
            requirement = {"required": True} if needed else {"default": default}
            parser.add_argument(option, type=kind, dest=name, **requirement, **common)
    return parser


def _sort(arguments: Sequence[str], parser: ArgumentParser, extra: str) -> tuple[list[str], list[str]]:
    """Return the options that `*settings` or `*options` takes, each as one text, and the other arguments.

    Of these, positional ones come first: argparse wants several in one row. Raises InputError for a setting without a
    value.
    """
    settings, positional, options = list[str](), list[str](), list[str]()
    waiting = 0.0  # number of values that the last option still takes
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, _ = argument.partition("=")
        option = name.replace("_", "-") if name.startswith("--") else name  # --top_k is --top-k
        action = parser._option_string_actions.get(option)
        top = "config" if name == "-c" else re.split(r"[.+]", name.removeprefix("--"))[0]
        if not name.startswith("-") or argument == "-":
            (options if waiting else positional).append(argument)
            waiting = max(0, waiting - 1)
        elif extra and name == "--print_config":
            settings.append(name)
        elif extra and top in SECTIONS or extra == "options" and name.startswith("--") and action is None:
            if not equals and not (value := next(remaining, "")):
                raise InputError(f"{name}: a value is missing")
            settings.append(argument if equals else f"{name}={value}")
        else:
            options.append(option + argument.removeprefix(name))
            nargs = 0 if action is None or equals else action.nargs
            waiting = float("inf") if nargs == "+" else float(nargs in (None, "?"))
    return settings, [*positional, *options]


def _options(parser: ArgumentParser) -> list[str]:
    return [each for each in parser._option_string_actions if each.startswith("--") and each != "--print_shtab"]


class Help(DefaultHelpFormatter):
    """Help without the names of every module of torch, the whole documentation of the Trainer, and empty defaults.

    Running text is wrapped at the terminal's width; indented lines (commands to copy, tables) stay as they are.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = list[str]()
        for as_it_is, group in groupby(text.splitlines(), key=lambda line: line[:1].isspace() or not line):
            group_lines = list(group)
            lines += group_lines if as_it_is else wrap(" ".join(group_lines), width, break_on_hyphens=False)
        return "\n".join(lines)

    def _expand_help(self, action: Any) -> str:
        text = re.sub(r", known subclasses: ([^)]*)", "", super()._expand_help(action))
        text = re.sub(r" \(default: (null|False)\)$|, default: (null|\[\])(?=\)$)", "", text)
        if action.dest.startswith("trainer."):
            about, _, kind = text.rpartition(" (type: ")
            text = f"{first_sentence(about)} (type: {kind}" if about else text
        return text

    def add_argument(self, action: Any) -> None:
        whole = type(action).__name__ == "_ActionConfigLoad"  # --trainer FILE; --config takes every section
        hidden = action.dest.endswith(".help") or action.dest == "print_shtab" or action.help == "==SUPPRESS=="
        if not (whole or hidden):
            super().add_argument(action)


def first_sentence(text: str) -> str:
    """Return the first sentence, in one line."""
    return re.split(r"(?<!al\.)(?<=[.?])\s", " ".join(text.split()), maxsplit=1)[0]
