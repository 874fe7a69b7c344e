"""A command from a typed function: its signature gives the arguments, its docstring the help.

Positional parameters are positional arguments (`*files: str` takes several), keyword-only parameters are options:
`dry_run: bool = False` is the flag `--dry-run`, `trust: list[str]` an option that may be repeated, `widths: list[int]`
one with several numbers, and any other type is read as jsonargparse reads it (`int | None`, `Literal`, `PositiveInt`,
`Path`). `*settings: str` takes the dotted options of a configuration as they are written (`--data.source=x`). The
docstring is Google's: what stands before `Args:` is the description, each argument's text its help, and `Examples:` the
end of the page.
"""

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, get_args, get_type_hints

from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter

from lra_ssm.errors import InputError, hint

_SETTINGS = "settings"
_SECTION = re.compile(r"^(Args|Returns|Raises|Examples?):\n", re.MULTILINE)


def call(command: str, function: Callable[..., int | None], arguments: Sequence[str]) -> int:
    """Call the function with the arguments of its command line; return its exit code.

    Raises InputError for an unknown option, a missing argument or a value of another type.
    """
    parser = function_parser(f"lra-ssm {command}", function)
    parameters = inspect.signature(function).parameters.values()
    settings: list[str] = []
    if any(p.name == _SETTINGS for p in parameters):
        settings, arguments = _split_settings(arguments)
    given = {**vars(parse(parser, _positional_first(parser, arguments))), _SETTINGS: settings}
    positional = [given[p.name] for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    several = [item for p in parameters if p.kind is p.VAR_POSITIONAL for item in given[p.name]]
    options = {p.name: given[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
    return function(*positional, *several, **options) or 0


def parse(parser: ArgumentParser, arguments: Sequence[str]) -> Any:
    """Parse; what is wrong is an InputError of one line, with the nearest option."""
    try:
        return parser.parse_args(list(arguments))
    except ArgumentError as error:
        message, options = str(error), _one_of_each(list(parser._option_string_actions))
        if unknown := re.search(r"nrecognized arguments: .*?(--[\w-]+)", message):
            message = f"unknown option {unknown[1]}; {hint(unknown[1], options, 'it takes')}"
        elif missing := re.match("the following arguments are required: (.*)", message):
            message = f"the following arguments are required: {missing[1].upper()}"
        elif key := re.match(r'Parser key "([^"]+)":\s*(.*)', message, re.DOTALL):
            spelled = [option for option in _spellings(key[1]) if option in options]
            name = spelled[0] if spelled else key[1].upper()
            message = f"{name}: {expected(key[2])}"
        raise InputError(message) from error


def expected(message: str) -> str:
    """Shorten what jsonargparse says of a value of another type; it names a union's types and each one's error."""
    types = re.search(r"Subtypes: (\[.*\])$", message, re.MULTILINE)
    value = re.search(r"Given value: (.*)\Z", message, re.DOTALL)
    if types and value:
        message = f"expected one of {types[1]}. Given value: {value[1]}"
    settings = re.match(r"Not a valid subclass of (\w+)\. Got value: (.*?)\s+Subclass types", message, re.DOTALL)
    if settings:
        message = f"expected the settings of {settings[1]}, as {{name: value}}. Given value: {settings[2]}"
    return re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", message)


def function_parser(prog: str, function: Callable[..., Any]) -> ArgumentParser:
    """Make the parser of a typed function."""
    about = read_docstring(function)
    parser = ArgumentParser(
        prog=prog, description=about[""], epilog=about.get("Examples", ""), exit_on_error=False, allow_abbrev=False,
        formatter_class=PlainHelp,
    )  # fmt: skip
    types = get_type_hints(function)
    for parameter in inspect.signature(function).parameters.values():
        name, kind, default = parameter.name, types.get(parameter.name, str), parameter.default
        needed = default is parameter.empty
        common: dict[str, Any] = {"help": about.get(f"Args {name}", "")}
        if name == _SETTINGS:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            action = parser.add_argument(name, type=kind, nargs="*", metavar=name.upper(), **common)
            action.required = False  # argparse sets it, which only the help shows
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            optional = {} if needed else {"nargs": "?", "default": default}
            parser.add_argument(name, type=kind, metavar=name.upper(), **optional, **common)
        elif kind is bool:
            parser.add_argument(*_spellings(name), dest=name, action="store_true", **common)
        elif getattr(kind, "__origin__", None) is list:
            default = list(default or ())
            common |= {"dest": name, "default": default, "metavar": name.upper().rstrip("S")}
            common |= {"action": "append"} if get_args(kind)[0] is str else {"nargs": "+"}
            parser.add_argument(*_spellings(name), type=get_args(kind)[0], **common)
        else:
            given = {"required": True} if needed else {"default": default}
            parser.add_argument(*_spellings(name), type=kind, dest=name, **given, **common)
    return parser


def _positional_first(parser: ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """The positional arguments, then the options: argparse takes a row of several only from one place."""
    positional, options, waiting = list[str](), list[str](), 0.0  # how many values the last option still takes
    for argument in arguments:
        if argument.startswith("-") and argument != "-":
            action = parser._option_string_actions.get(argument)
            takes = 0 if action is None else action.nargs
            waiting = 1 if takes is None else float("inf") if takes == "+" else 0
            options.append(argument)
        elif waiting:
            waiting -= 1
            options.append(argument)
        else:
            positional.append(argument)
    return [*positional, *options]


def _split_settings(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The dotted options of a configuration (--data=CLASS, --data.NAME VALUE), each as one text, and the rest."""
    settings, rest = list[str](), list[str]()
    given = iter(arguments)
    for argument in given:
        if re.match(r"--(model|data|seed_everything)([.=]|$)", argument):
            settings.append(argument if "=" in argument else f"{argument}={next(given, '')}")
        else:
            rest.append(argument)
    return settings, rest


def _spellings(name: str) -> list[str]:
    """The option with dashes and, where that is another one, with underscores."""
    return list(dict.fromkeys([f"--{name.replace('_', '-')}", f"--{name}"]))


def _one_of_each(options: list[str]) -> list[str]:
    """Options without the spelling with underscores of those that have dashes."""
    named = [each for each in options if each.startswith("--") and each != "--print_shtab"]  # jsonargparse's own
    return [each for each in named if "_" not in each or each.replace("_", "-") not in options]


def read_docstring(function: Callable[..., Any]) -> dict[str, str]:
    """The description as "", the text of the examples, and the help of each argument as "Args name"."""
    description, *sections = _SECTION.split(inspect.getdoc(function) or "")
    found = {"": description.strip()}
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        body = textwrap.dedent(body).rstrip()
        if title == "Args":
            for name, text in re.findall(r"^\*?(\w+): (.*(?:\n +.*)*)", body, re.MULTILINE):
                found[f"Args {name}"] = " ".join(text.split())
        elif title.startswith("Example"):
            found["Examples"] = "examples:\n" + textwrap.indent(body, "  ")
    return found


class PlainHelp(DefaultHelpFormatter):
    """Wraps running text at the terminal's width; indented lines (commands to copy) stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = list[str]()
        for whole, group in groupby(text.splitlines(), key=lambda line: line[:1].isspace() or not line):
            found = list(group)
            lines += found if whole else textwrap.wrap(" ".join(found), width, break_on_hyphens=False)
        return "\n".join(lines)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = _one_of_each(list(action.option_strings)) or action.option_strings
        if not shown:
            return super()._format_action_invocation(action)
        metavar = self._get_default_metavar_for_optional(action)
        return ", ".join(shown) + ("" if action.nargs == 0 else f" {self._format_args(action, metavar)}")
