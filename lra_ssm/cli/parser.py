"""The parser of the run commands: one-line errors out of jsonargparse's many lines, with the nearest valid key."""

import difflib
import inspect
import re
import sys
from dataclasses import is_dataclass
from typing import Any, NoReturn

from jsonargparse import Namespace, _typehints
from lightning.pytorch.cli import LightningArgumentParser

from lra_ssm.cli.help import Help, arrange
from lra_ssm.errors import InputError, in_user_code, raised_here, squeeze
from lra_ssm.layers import ModuleSpec
from lra_ssm.layers.spec import annotations, import_object, own_arguments, wants_specification

# What jsonargparse takes arguments for where no class was given: null, or none yet.
_NO_CLASS = ("torch.nn.Module", "lightning.LightningModule", "lightning.LightningDataModule")
_SAY_CLASS = "no class is given here; give it, or a --config that does, before its arguments"


class RunParser(LightningArgumentParser):
    """Lightning's parser: exact option names, a new class starts from its own defaults, and what is wrong with the
    arguments is raised as one line (`InputError`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, allow_abbrev=False, formatter_class=Help)

    def format_help(self, *formatter: Any) -> str:
        self._action_groups = arrange(list(self._action_groups))
        return super().format_help(*formatter)

    def parse_args(self, args: Any = None, *positional: Any, **keywords: Any) -> Any:
        """jsonargparse hands an option of a class within a class to a parser of that class, as text that `str` made:
        None of null. Such parsers do not exit on errors."""
        if args is not None and not self.exit_on_error:
            args = [re.sub(r"^(--[\w.]+)=None$", r"\1=null", text) for text in args]
        else:
            _said.clear()
        return super().parse_args(args, *positional, **keywords)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # jsonargparse tries alternatives with such parsers
            super().error(message, ex)
        raise in_user_code(ex) or _import_error(message) or InputError(one_line(message, _options(self))) from ex


# Keeps, of a specification whose class is about to be replaced, the arguments that the new class takes too.
_keep_common = _typehints.discard_init_args_on_class_path_change
_said: set[str] = set()


def _start_anew(parser_or_action: Any, before: Any, now: Any) -> None:
    """A new class starts from its own defaults: S6 in the place of an S4D has not its d_state.

    What it has no default for, it keeps where the one before had it; a class derived from the one that it replaces, or
    the other way round, keeps all that both have. What is kept is said.
    """
    if not (before and before.get("init_args")):
        return
    try:
        old, new = (import_object(spec["class_path"]) for spec in (before, now))
    except ValueError:  # the parser will say it better
        return
    _keep_common(parser_or_action, before, now)
    if old is new:
        return
    related = inspect.isclass(old) and inspect.isclass(new) and (issubclass(new, old) or issubclass(old, new))
    parameters, kept = inspect.signature(new).parameters, before["init_args"]
    for name in list(vars(kept)):
        if not related and (name not in parameters or parameters[name].default is not inspect.Parameter.empty):
            kept.pop(name)
    line = f"note: {new.__name__} keeps what {old.__name__} was given: {', '.join(vars(kept))}"
    if vars(kept) and line not in _said:  # arguments are parsed several times
        _said.add(line)
        print(line, file=sys.stderr)


# jsonargparse has no setting for this.
_typehints.discard_init_args_on_class_path_change = _start_anew


def one_line(message: str, options: list[str]) -> str:
    """The cause among jsonargparse's lines. `options`: every dotted option the command takes."""
    keys = ".".join(re.findall(r'Parser key "([^"]+)"', message))
    at = f"{keys}: " if keys else ""
    if found := re.search(r"unrecognized arguments: (\S+)", message):
        name = found[1].split("=")[0].lstrip("-").rstrip(".")
        owner = _owner(message, found)
        return _unknown_below(keys, owner, name) if owner else _unknown(f"option --{name}", name, options)
    if found := re.search(r"does not accept (?:option|nested key) '([^']+)'", message):
        return _unknown(f"key {found[1]!r}", found[1], options)
    if found := re.search(r"Option '([^']+)' is not accepted", message):
        owner = _owner(message, found)
        if owner in _NO_CLASS:
            return at + _SAY_CLASS
        return at + _unknown(f"{owner or 'this'} takes no key {found[1]!r}", found[1], _arguments(owner), verb="")
    if found := re.search(r"the following arguments are required: ([\w, ]+)", message):
        owner = _owner(message, found)
        return f"{at}{owner} needs {found[1]}" if owner else at + found[0]
    for pattern in (
        r"Expected an? (?!<class 'NoneType)[^\n]+?\. Got value: [^\n]*?(?=\. Got value:|\n|$)",
        r"(?<=or a callable class: )(?!Parser key)[^\n]+?(?=\. Got value:|\n|$)",
        r"module '[^']+' has no attribute '[^']+'",
        r"No module named '[^']+'",
        r"File does not exist: .+",
        r"Problems? (?:with|parsing) config.*",
    ):
        if found := re.search(pattern, message, re.DOTALL if "config" in pattern else 0):
            return at + _plain(found[0])
    # the innermost union of types: the one that no other stands in
    innermost = r"Subtypes: \[([^\n]+)\]\n(?:(?!Subtypes: ).)*?Given value: (.+?)(?:\. Got value: |\n|$)"
    if found := re.search(innermost, message, re.DOTALL):
        return f"{at}expected one of {_plain(found[1])}; got {squeeze(found[2])}"
    return squeeze(message)


def _import_error(message: str) -> InputError | None:
    """Where a user's module that jsonargparse was given fails to be imported: of what it tried, it keeps the text."""
    found = re.search(r"Given value: (\w+(?:\.\w+)+)$", message)
    try:
        import_object(found[1] if found else "torch.nn.Module")
    except Exception as error:
        return in_user_code(error)
    return None


def _plain(text: str) -> str:
    return squeeze(re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text).replace("typing.Literal", "value of "))


def _owner(message: str, found: re.Match[str]) -> str | None:
    """The class that was given what the match complains of: named behind it on its line, or before it."""
    line = message[found.end() :].split("\n")[0]
    behind = re.search(r"class_path='([^']+)'", line) or re.search(r"Got value: ([\w.]+\.\w+)", line)
    before = re.findall(r"given class_path '([^']+)'", message[: found.start()])
    return behind[1] if behind else before[-1] if before else None


def _unknown_below(keys: str, class_path: str, name: str) -> str:
    """Which part of a dotted name is no argument: of the class, or of a group of settings among its arguments."""
    if class_path in _NO_CLASS:
        return f"{keys}: {_SAY_CLASS}"
    owner, where, valid = import_object(class_path), class_path, _arguments(class_path)
    for part in name.split("."):
        if part not in valid:
            break
        keys, owner = f"{keys}.{part}", annotations(owner).get(part)
        where, valid = getattr(owner, "__name__", "it"), list(inspect.signature(owner).parameters) if owner else []
    return f"{keys}: " + _unknown(f"{where} takes no key {part!r}", part, valid, verb="")


def _unknown(what: str, name: str, valid: list[str], verb: str = "unknown ") -> str:
    if name in valid:  # a class has it, but where it is given as a specification, others set it
        return f"{verb}{what}; what it is a part of sets it"
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    if not near and "." in name:
        near = difflib.get_close_matches(name.split(".")[-1], [v for v in valid if "." not in v], n=1)
    takes = f"; it takes {', '.join(valid) or 'none'}" if len(valid) < 25 else ""
    return f"{verb}{what}" + (f"; did you mean {near[0]!r}?" if near else takes)


def _arguments(class_path: str | None) -> list[str]:
    if class_path is None:
        return []
    return own_arguments(import_object(class_path))


def _options(parser: Any) -> list[str]:
    options = []
    for action in parser._actions:
        for choice in getattr(action, "_name_parser_map", None) or {}:
            options += _options(action._name_parser_map[choice])
        if action.dest not in ("help", "subcommand"):
            options.append(action.dest)
    return sorted(set(options))


def cause(error: BaseException) -> BaseException:
    """The first error of the chain that this package raised, else the innermost: libraries wrap what a user did."""
    chain = [error]
    while before := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(before)
    return next((e for e in chain if raised_here(e)), chain[-1])


def freeze_specifications(model: Namespace) -> None:
    """What the model takes as a specification reaches it as one, not as jsonargparse's anonymous function."""
    settings = model.get("init_args", {})
    for name, hint in annotations(import_object(model.class_path)).items():
        if is_dataclass(hint) and name in settings and settings[name] is None:
            raise InputError(f"model.{name} is null; give its settings, or leave it out for its defaults")
        if wants_specification(hint) and settings.get(name) is not None:
            settings[name] = _specified(settings[name])


def _specified(value: Any) -> Any:
    """jsonargparse's namespaces of a class and its arguments as specifications, in lists too."""
    if isinstance(value, list):
        return [_specified(item) for item in value]
    try:
        return ModuleSpec.of(value.as_dict()) if isinstance(value, Namespace) else value
    except ValueError as error:
        raise InputError(str(error)) from error
