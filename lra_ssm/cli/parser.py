"""The parser of the run commands: what is wrong with the arguments is one line, with the nearest valid name."""

import inspect
import re
import sys
from argparse import SUPPRESS, ArgumentError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import is_dataclass
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from jsonargparse import Namespace, _typehints
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

from lra_ssm.cli.help import CHOICES, TITLES, Help
from lra_ssm.errors import InputError, chain, hint, in_user_code, raised_here, squeeze
from lra_ssm.layers import ModuleSpec
from lra_ssm.layers.spec import annotations, import_object, public_path, wants_specification

_NO_CLASS = (nn.Module, LightningModule, LightningDataModule)  # stand for the class that was not given yet
_validated: ContextVar[bool] = ContextVar("_validated", default=False)  # whether what was read is being checked
_MANY = 25  # names that are too many to be listed


class RunParser(LightningArgumentParser):
    """Lightning's parser with exact option names, where a new class starts from its own defaults.

    jsonargparse makes another one for each class that a class_path names; `exit_on_error` is False there.
    Wrong arguments raise InputError.
    """

    takes: Callable[..., Any] | None = None  # the class or function whose arguments a nested parser reads

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, allow_abbrev=False, formatter_class=Help)

    def add_class_arguments(self, theclass: type, nested_key: str | None = None, *args: Any, **kwargs: Any) -> Any:
        self.takes = theclass if nested_key is None else self.takes
        added = super().add_class_arguments(theclass, nested_key, *args, **kwargs)
        for action in self._actions:
            # jsonargparse does so itself where a class alone may stand, and not where a list of them may, too.
            if isinstance(action, _typehints.ActionTypeHint) and inspect.isclass(action.default):
                action.default = {"class_path": _typehints.get_import_path(action.default)}
        if issubclass(theclass, TensorBoardLogger) and nested_key is None:  # it writes into the run's directory
            self.set_defaults(save_dir=".")
        return added

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
            # A command's parser has set its defaults: that of all commands would take as long again to do so anew.
            keywords["defaults"] = self._subparsers is None
            with _in_our_way():
                return super().parse_args(args, *positional, **keywords)
        # Seen in jsonargparse 4.53: it hands a nested parser each value as `str` makes it: None for null.
        args = args and [re.sub(r"^(--[\w.]+)=None$", r"\1=null", text) for text in args]
        # It takes a name within an entry of a dictionary only where the dictionary was given before.
        args = args and [re.sub(r"^(--optimizer\.roles\.\w+)\.(\w+)=(.*)$", r"\1={\2: \3}", text) for text in args]
        return super().parse_args(args, *positional, **keywords)

    def dump(self, *args: Any, **keywords: Any) -> Any:
        """jsonargparse takes a list, where a class or a list of classes may stand, for a class that it cannot write."""
        write = _typehints.serialize_as_import_path
        _typehints.serialize_as_import_path = partial(_no_list, write)
        try:
            return super().dump(*args, **keywords)
        finally:
            _typehints.serialize_as_import_path = write

    def validate(self, *args: Any, **keywords: Any) -> None:
        token = _validated.set(True)
        try:
            super().validate(*args, **keywords)
        finally:
            _validated.reset(token)

    def _apply_actions(self, cfg: Any, *args: Any, **keywords: Any) -> Any:
        """jsonargparse reads the values of a class anew, and all classes within, each time that it checks them: twice
        as often for each class that is further in. What is checked was read."""
        if _validated.get() and not self.exit_on_error:
            return Namespace(cfg) if isinstance(cfg, dict) else cfg
        return super()._apply_actions(cfg, *args, **keywords)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if self.exit_on_error:
            failed = in_user_code(ex) or _import_error(message)
            raise failed or InputError(self._one_line(message, ex)) from ex
        if isinstance(ex, _Told) or _KEY.match(message):  # of a parser further in
            super().error(message, ex)
        unknown = _unknown_name(message)
        if unknown and self.takes in _NO_CLASS:
            message = "no class is given here; give it, or a --config that does, before its arguments"
        elif unknown:
            message = "takes no key {!r}{}".format(*self._nearest(unknown))
        if self.takes and self.takes not in _NO_CLASS:
            between = " " if unknown else ": "
            message = public_path(self.takes) + between + message
        raise _Told(None, message) from ex

    def _one_line(self, message: str, ex: Exception | None) -> str:
        """The cause, and the keys that lead to it: jsonargparse's text repeats both at each level
        (https://github.com/mauvilsa/jsonargparse/issues/695)."""
        if unknown := _unknown_name(message):
            of_a_file = "'" in message
            what = "unknown key {!r}{}" if of_a_file else "unknown option --{}{}"
            return what.format(*self._nearest(unknown))
        if message.startswith("the following arguments are required") and "model" in message:
            return "no model is given: give --config CONFIG (`lra-ssm configs` lists ours), or --model and --data"
        errors = chain(ex)
        named, own = [], ""  # the keys, and what is said of the last
        for error in errors:
            found = _KEY.match(str(error))
            if found and type(error) is TypeError:
                named.append(found[1])
                own = str(error)
        if not named:
            return message
        keys = "trainer" if set(named) == {"trainer"} else ".".join(named)
        told = next((error for error in errors if isinstance(error, _Told)), None)
        said = told or _wrong_class(keys, errors[-1]) or _wrong_value(own, errors[-1])
        return f"{keys}: {said}"

    def _nearest(self, name: str) -> tuple[str, str]:
        """The part of a dotted name that is unknown here and to the command, and what an error says behind it."""
        actions = [*self._actions]
        for action in self._actions:
            if isinstance(action.choices, dict):  # the parsers of commands
                actions += [one for parser in action.choices.values() for one in parser._actions]
        shown = [action.dest for action in actions if SUPPRESS not in (action.help, action.dest)]
        valid = [dest for dest in shown if dest.rpartition(".")[2] not in ("help", "subcommand")]
        head = name.partition(".")[0]
        if head not in {dest.partition(".")[0] for dest in valid}:
            name = head
        near = hint(name, valid, "it takes")
        told = len(valid) < _MANY or near.startswith("did")
        return name, f"; {near}" if told else ""


class _Told(ArgumentError):
    """What is wrong, in our words; jsonargparse quotes it in its own."""


_KEY = re.compile(r'Parser key "([^"]+)"')


def _unknown_name(message: str) -> str | None:
    """The option or key that a parser does not have, from jsonargparse's messages or argparse's."""
    argparse = r"unrecognized arguments: --([\w.+-]+)"
    jsonargparse = r"(?:Group '(.+)' .*|.*)[Oo]ption '([^']+)'"
    found = re.match(f"{argparse}|{jsonargparse}", message)
    return ".".join(filter(None, found.groups())) if found else None


def _wrong_class(keys: str, cause: BaseException) -> str | None:
    """What is said of a class that is not there, or cannot be imported; None of anything else."""
    if isinstance(cause, AttributeError) and isinstance(cause.obj, ModuleType):
        classes = [name for name, thing in vars(cause.obj).items() if inspect.isclass(thing)]
        public = getattr(cause.obj, "__all__", classes)
        return f"{cause}; {hint(str(cause.name), public)}"
    if isinstance(cause, ImportError):
        return str(cause)
    short = str(cause).split()[-1]  # "Expected a dot import path string: S7"
    ours = [cls.__name__ for cls in CHOICES.get(f"--{keys}", ())]
    if ours and isinstance(cause, ValueError) and short.isidentifier():
        return f"no class {short!r}; {hint(short, ours)}"
    return None


def _wrong_value(message: str, cause: BaseException) -> str:
    """The value and what is expected; of a union of types all that stand in it."""
    lines = [line.strip() for line in message.splitlines()]
    union = [line for line in lines if line.startswith(("Subtypes: ", "Given value: "))]
    said = _KEY.sub("", str(cause)).lstrip(": ")
    if union:
        types = union[0].removeprefix("Subtypes: ")
        said = f"expected one of {types}. {union[-1]}"
    return squeeze(re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", said))


def _import_error(message: str) -> InputError | None:
    """Where a user's module fails as it is imported: jsonargparse keeps only the error of a union's first type."""
    given = message.rpartition("Given value: ")[2]
    try:
        if re.fullmatch(r"\w+(\.\w+)+", given):
            import_object(given)
    except Exception as error:
        return in_user_code(error)
    return None


@contextmanager
def _in_our_way() -> Iterator[None]:
    """Two functions of jsonargparse do as ours do; it has no settings for them.

    Of a class that another one replaces it keeps all arguments that the new one takes too: S6 would have the d_state of
    the S4D before it (https://github.com/mauvilsa/jsonargparse/issues/460). And it looks a short name up among all
    classes that are imported: MambaBlock could be transformers' too.
    """
    anew, found = _typehints.discard_init_args_on_class_path_change, _typehints.resolve_class_path_by_name
    if isinstance(anew, partial):  # a command's parser within the parser of all commands
        yield
        return
    _typehints.discard_init_args_on_class_path_change = partial(_start_anew, anew, set())
    _typehints.resolve_class_path_by_name = partial(_ours_first, found)
    try:
        yield
    finally:
        _typehints.discard_init_args_on_class_path_change = anew
        _typehints.resolve_class_path_by_name = found


def _no_list(write: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list):
        raise ValueError("a list is no class")
    return write(value)


def _ours_first(among_all: Callable[[Any, str], str], kinds: Any, name: str) -> str:
    """The path of a class by its short name: our own, where there is one of these kinds."""
    accepted = kinds if isinstance(kinds, tuple) else _typehints.get_class_types(kinds)
    ours = [
        cls for classes in CHOICES.values() for cls in classes if cls.__name__ == name and issubclass(cls, accepted)
    ]
    return public_path(ours[0]) if ours else among_all(kinds, name)


def _start_anew(keep_common: Callable[..., None], said: set[str], parser_or_action: Any, before: Any, now: Any) -> None:
    """A new class starts from its own defaults, and keeps what it has no default for.

    Where one is derived from the other it keeps all that both have. What is kept is said.
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
    kept = before["init_args"]
    if not _are_related(old, new):
        parameters = inspect.signature(new).parameters.values()
        needed = {one.name for one in parameters if one.default is inspect.Parameter.empty}
        for name in vars(kept).keys() - needed:
            kept.pop(name)
    line = f"note: {new.__name__} keeps what {old.__name__} was given: {', '.join(vars(kept))}"
    if vars(kept) and line not in said:  # arguments are parsed several times
        said.add(line)
        print(line, file=sys.stderr)


def _are_related(old: Any, new: Any) -> bool:
    if not (inspect.isclass(old) and inspect.isclass(new)):
        return False
    return issubclass(new, old) or issubclass(old, new)


def cause(error: BaseException) -> BaseException:
    """The first error of the chain that this package raised, else the innermost: libraries wrap what a user did."""
    errors = chain(error)
    return next((e for e in errors if raised_here(e)), errors[-1])


def freeze_specifications(model: Namespace) -> None:
    """What the model takes as a specification reaches it as one, not as jsonargparse's anonymous function."""
    settings = model.get("init_args", {})
    known = annotations(import_object(model.class_path))
    parameters = inspect.signature(import_object(model.class_path)).parameters
    for name, parameter in parameters.items():
        value = settings.get(name)
        untyped = parameter.annotation is inspect.Parameter.empty
        if untyped and isinstance(value, Namespace) and "class_path" in value:
            task = model.class_path.rpartition(".")[2]
            raise InputError(
                f"{task} takes {name!r} without a type, so that it is not built: annotate it, `{name}: NetworkFactory`"
                " (from lra_ssm.layers.spec import NetworkFactory)"
            )
    for name, kind in known.items():
        if is_dataclass(kind) and name in settings and settings[name] is None:
            raise InputError(f"model.{name} is null; give its settings, or leave it out for its defaults")
        if wants_specification(kind) and settings.get(name) is not None:
            settings[name] = _specified(settings[name])


def _specified(value: Any) -> Any:
    """jsonargparse's namespaces of a class and its arguments as specifications, in lists and by names too."""
    if isinstance(value, list):
        return [_specified(item) for item in value]
    if isinstance(value, dict):
        return {name: _specified(item) for name, item in value.items()}
    try:
        return ModuleSpec.of(value.as_dict()) if isinstance(value, Namespace) else value
    except ValueError as error:
        raise InputError(str(error)) from error
