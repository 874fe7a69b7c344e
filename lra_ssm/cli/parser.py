"""The parser of the run commands: what is wrong with the arguments is one line, with the nearest valid name."""

import inspect
import re
import sys
from argparse import SUPPRESS, ArgumentError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from jsonargparse import Namespace, _typehints
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser
from torch import nn

from lra_ssm.cli.help import CHOICES, TITLES, Help
from lra_ssm.errors import InputError, hint, in_user_code, raised_here, squeeze
from lra_ssm.layers import ModuleSpec
from lra_ssm.layers.spec import annotations, import_object, public_path, wants_specification

_NO_CLASS = (nn.Module, LightningModule, LightningDataModule)  # stand for the class that was not given yet
_MANY = 25  # names that are too many to be listed


class RunParser(LightningArgumentParser):
    """Lightning's parser with exact option names, where a new class starts from its own defaults.

    jsonargparse makes another one of these for each class that is named by class_path, which `exit_on_error` tells
    apart. Wrong arguments raise InputError.
    """

    takes: Callable[..., Any] | None = None  # the class or function whose arguments a nested parser reads

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, allow_abbrev=False, formatter_class=Help)

    def add_class_arguments(self, theclass: type, nested_key: str | None = None, *args: Any, **kwargs: Any) -> Any:
        self.takes = theclass if nested_key is None else self.takes
        return super().add_class_arguments(theclass, nested_key, *args, **kwargs)

    def add_function_arguments(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.takes = function
        return super().add_function_arguments(function, *args, **kwargs)

    def add_lightning_class_args(self, lightning_class: Any, nested_key: str, *args: Any, **kwargs: Any) -> Any:
        added = super().add_lightning_class_args(lightning_class, nested_key, *args, **kwargs)
        for action in self._actions:
            # typing may give Optional[Union[int, float]] back as another module wrote it, float first: 1, which is one
            # batch, would be read as 1.0, all of them.
            if getattr(action, "_typehint", None) == int | float | None:
                action._typehint = int | float | None  # type: ignore[attr-defined]
        assert self.groups is not None
        self.groups[nested_key].title = TITLES.get(nested_key, nested_key)
        return added

    def parse_args(self, args: Any = None, *positional: Any, **keywords: Any) -> Any:
        if self.exit_on_error:
            with _new_classes_start_anew():
                return super().parse_args(args, *positional, **keywords)
        # Seen in jsonargparse 4.53: it hands a nested parser each value as `str` makes it: None for null.
        args = args and [re.sub(r"^(--[\w.]+)=None$", r"\1=null", text) for text in args]
        return super().parse_args(args, *positional, **keywords)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if self.exit_on_error:
            raise in_user_code(ex) or _import_error(message) or InputError(self._one_line(message, ex)) from ex
        if isinstance(ex, _Told) or _KEY.match(message):  # of a parser further in
            super().error(message, ex)
        unknown = _unknown_name(message)
        if unknown and self.takes in _NO_CLASS:
            message = "no class is given here; give it, or a --config that does, before its arguments"
        elif unknown:
            message = "takes no key {!r}{}".format(*self._nearest(unknown))
        if self.takes and self.takes not in _NO_CLASS:
            message = f"{public_path(self.takes)} {message}" if unknown else f"{public_path(self.takes)}: {message}"
        raise _Told(None, message) from ex

    def _one_line(self, message: str, ex: Exception | None) -> str:
        """The cause, and the keys that lead to it: jsonargparse's text repeats both at each level
        (https://github.com/mauvilsa/jsonargparse/issues/695)."""
        if unknown := _unknown_name(message):
            what = "unknown key {!r}{}" if "'" in message else "unknown option --{}{}"  # of a file, or given here
            return what.format(*self._nearest(unknown))
        chain = _chain(ex) if ex else []
        levels = [i for i, error in enumerate(chain) if type(error) is TypeError and _KEY.match(str(error))]
        if not levels:
            return message
        named = [_KEY.match(str(chain[i]))[1] for i in levels]  # type: ignore[index]
        keys = "trainer" if set(named) == {"trainer"} else ".".join(named)
        own, cause = str(chain[levels[-1]]), chain[-1]
        told = next((error for error in chain if isinstance(error, _Told)), None)
        return f"{keys}: {told or _wrong_class(keys, cause) or _wrong_value(own, cause)}"

    def _nearest(self, name: str) -> tuple[str, str]:
        """What of a dotted name this parser, or that of its command, does not have; and what an error says behind."""
        commands = [a.choices.values() for a in self._actions if isinstance(a.choices, dict)]
        parsers = [self, *(parser for parsers in commands for parser in parsers)]
        actions = [a for parser in parsers for a in parser._actions if SUPPRESS not in (a.help, a.dest)]
        valid = [a.dest for a in actions if a.dest not in ("help", "subcommand") and not a.dest.endswith(".help")]
        head = name.partition(".")[0]
        if not any(option.partition(".")[0] == head for option in valid):
            name = head
        near = hint(name, valid, "it takes")
        return name, f"; {near}" if len(valid) < _MANY or near.startswith("did") else ""


class _Told(ArgumentError):
    """What is wrong, in our words; jsonargparse quotes it in its own."""


_KEY = re.compile(r'Parser key "([^"]+)"')


def _unknown_name(message: str) -> str | None:
    """The option or key that a parser does not have, of jsonargparse's and argparse's two messages about one."""
    found = re.match(r"(?:unrecognized arguments: --([\w.+-]+)|(?:Group '(.+)' .*|.*)[Oo]ption '([^']+)')", message)
    return ".".join(filter(None, found.groups())) if found else None


def _wrong_class(keys: str, cause: BaseException) -> str | None:
    """What is said of a class that is not there, or cannot be imported; None of anything else."""
    if isinstance(cause, AttributeError) and isinstance(cause.obj, ModuleType):
        classes = [name for name, thing in vars(cause.obj).items() if inspect.isclass(thing)]
        return f"{cause}; {hint(str(cause.name), getattr(cause.obj, '__all__', classes))}"
    if isinstance(cause, ImportError):
        return str(cause)
    short = str(cause).split()[-1]  # "Expected a dot import path string: S7"
    if isinstance(cause, ValueError) and f"--{keys}" in CHOICES and short.isidentifier():
        return f"no class {short!r}; {hint(short, [cls.__name__ for cls in CHOICES[f'--{keys}']])}"
    return None


def _wrong_value(message: str, cause: BaseException) -> str:
    """The value and what is expected; of a union of types all that stand in it."""
    lines = [line.strip() for line in message.splitlines()]
    union = [line for line in lines if line.startswith(("Subtypes: ", "Given value: "))]
    said = _KEY.sub("", str(cause)).lstrip(": ")
    if union:
        said = f"expected one of {union[0].removeprefix('Subtypes: ')}. {union[-1]}"
    return squeeze(re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", said))


def _import_error(message: str) -> InputError | None:
    """Where a user's module fails as it is imported: jsonargparse keeps the error of a union's first type alone."""
    given = message.rpartition("Given value: ")[2]
    try:
        import_object(given if re.fullmatch(r"\w+(\.\w+)+", given) else "torch.nn.Module")
    except Exception as error:
        return in_user_code(error)
    return None


@contextmanager
def _new_classes_start_anew() -> Iterator[None]:
    """jsonargparse keeps, of a class that another one replaces, all arguments that the new one takes too: S6 would have
    the d_state of the S4D before it. It has no setting for this: https://github.com/mauvilsa/jsonargparse/issues/460"""
    original = _typehints.discard_init_args_on_class_path_change
    if isinstance(original, partial):  # a command's parser within the parser of all commands
        yield
        return
    _typehints.discard_init_args_on_class_path_change = partial(_start_anew, original, set())
    try:
        yield
    finally:
        _typehints.discard_init_args_on_class_path_change = original


def _start_anew(keep_common: Callable[..., None], said: set[str], parser_or_action: Any, before: Any, now: Any) -> None:
    """A new class starts from its own defaults.

    What it has no default for, it keeps where the one before had it; a class derived from the one that it replaces, or
    the other way round, keeps all that both have. What is kept is said.
    """
    if not (before and before.get("init_args")):
        return
    try:
        old, new = (import_object(spec["class_path"]) for spec in (before, now))
    except ValueError:  # the parser will say it better
        return
    keep_common(parser_or_action, before, now)
    if old is new:
        return
    related = inspect.isclass(old) and inspect.isclass(new) and (issubclass(new, old) or issubclass(old, new))
    parameters, kept = inspect.signature(new).parameters, before["init_args"]
    for name in list(vars(kept)):
        if not related and (name not in parameters or parameters[name].default is not inspect.Parameter.empty):
            kept.pop(name)
    line = f"note: {new.__name__} keeps what {old.__name__} was given: {', '.join(vars(kept))}"
    if vars(kept) and line not in said:  # arguments are parsed several times
        said.add(line)
        print(line, file=sys.stderr)


def cause(error: BaseException) -> BaseException:
    """The first error of the chain that this package raised, else the innermost: libraries wrap what a user did."""
    chain = _chain(error)
    return next((e for e in chain if raised_here(e)), chain[-1])


def _chain(error: BaseException) -> list[BaseException]:
    chain = [error]
    while before := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(before)
    return chain


def freeze_specifications(model: Namespace) -> None:
    """What the model takes as a specification reaches it as one, not as jsonargparse's anonymous function."""
    settings = model.get("init_args", {})
    for name, kind in annotations(import_object(model.class_path)).items():
        if is_dataclass(kind) and name in settings and settings[name] is None:
            raise InputError(f"model.{name} is null; give its settings, or leave it out for its defaults")
        if wants_specification(kind) and settings.get(name) is not None:
            settings[name] = _specified(settings[name])


def _specified(value: Any) -> Any:
    """jsonargparse's namespaces of a class and its arguments as specifications, in lists too."""
    if isinstance(value, list):
        return [_specified(item) for item in value]
    try:
        return ModuleSpec.of(value.as_dict()) if isinstance(value, Namespace) else value
    except ValueError as error:
        raise InputError(str(error)) from error
