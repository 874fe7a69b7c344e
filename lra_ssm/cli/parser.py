"""The parser of the run commands: one-line errors out of jsonargparse's many lines, with the nearest valid key."""

import difflib
import inspect
import re
from importlib import import_module
from typing import Any, NoReturn

from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

from lra_ssm.errors import InputError, squeeze


class RunParser(LightningArgumentParser):
    """Lightning's parser; what is wrong with the arguments is raised as one line (`InputError`)."""

    def parse_args(self, args: Any = None, *positional: Any, **keywords: Any) -> Any:
        """jsonargparse hands an option of a class within a class to a parser of that class, as text that `str` made:
        None of null. Such parsers do not exit on errors."""
        if args is not None and not self.exit_on_error:
            args = [re.sub(r"^(--[\w.]+)=None$", r"\1=null", text) for text in args]
        return super().parse_args(args, *positional, **keywords)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # jsonargparse tries alternatives with such parsers
            super().error(message, ex)
        raise InputError(one_line(message, _options(self))) from ex


def without_trainer_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """So that an argument which a new Lightning brings does not make every run another one."""
    defaults = {name: p.default for name, p in inspect.signature(Trainer).parameters.items()}
    given = {key: value for key, value in config["trainer"].items() if value != defaults[key]}
    return {**config, "trainer": given}


def one_line(message: str, options: list[str]) -> str:
    """The cause among jsonargparse's lines. `options`: every dotted option the command takes."""
    if found := re.search(r"unrecognized arguments: (.+)", message):
        name = found[1].split()[0].split("=")[0].lstrip("-")
        if owners := re.findall(r"given class_path '([^']+)'", message[: found.start()]):
            *group, name = name.split(".")
            where, valid = ".".join(["model", *group]), _settings(owners[-1], group)
            return f"{where} " + _unknown(f"takes no key {name!r}", name, valid, verb="")
        return _unknown(f"option --{name}", name, options)
    if found := re.search(r"does not accept (?:option|nested key) '([^']+)'", message):
        return _unknown(f"key {found[1]!r}", found[1], options)
    keys = ".".join(re.findall(r'Parser key "([^"]+)"', message))
    at = f"{keys}: " if keys else ""
    if found := re.search(r"Option '([^']+)' is not accepted", message):
        name = found[1]
        owner = re.search(r"class_path='([^']+)'", message[found.end() :].split("\n")[0])
        before = re.findall(r"given class_path '([^']+)'", message[: found.start()])
        class_path = owner[1] if owner else before[-1] if before else None
        return at + _unknown(f"{class_path or 'this'} takes no key {name!r}", name, _arguments(class_path), verb="")
    for pattern in (
        r"the following arguments are required: .+",
        r"Expected an? (?!<class 'NoneType)[^\n]+?\. Got value: [^\n]*?(?=\. Got value:|\n|$)",
        r"(?<=or a callable class: )(?!Parser key)[^\n]+?(?=\. Got value:|\n|$)",
        r"module '[^']+' has no attribute '[^']+'",
        r"No module named '[^']+'",
        r"File does not exist: .+",
        r"Problems? (?:with|parsing) config.*",
    ):
        if found := re.search(pattern, message, re.DOTALL if "config" in pattern else 0):
            return at + _plain(found[0])
    if found := re.search(r"Subtypes: \[(.+?)\]\n.*Given value: (.+)", message, re.DOTALL):
        return f"{at}expected one of {_plain(found[1])}; got {squeeze(found[2])}"
    return squeeze(message)


def _plain(text: str) -> str:
    return squeeze(re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text).replace("typing.Literal", "value of "))


def _unknown(what: str, name: str, valid: list[str], verb: str = "unknown ") -> str:
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    if not near and "." in name:
        near = difflib.get_close_matches(name.split(".")[-1], [v for v in valid if "." not in v], n=1)
    return f"{verb}{what}" + (
        f"; did you mean {near[0]!r}?" if near else f"; it takes {', '.join(valid)}" if len(valid) < 25 else ""
    )


def _arguments(class_path: str | None) -> list[str]:
    if class_path is None:
        return []
    module, _, name = class_path.rpartition(".")
    names = list(inspect.signature(getattr(import_module(module), name)).parameters)
    return [n for n in names if n != "d_model"] if names[:1] == ["d_model"] else names


def _settings(class_path: str, group: list[str]) -> list[str]:
    """The fields of a group of settings among the arguments of a class: of its `optimizer`, say."""
    module, _, name = class_path.rpartition(".")
    found: Any = getattr(import_module(module), name)
    for part in group:
        found = inspect.signature(found).parameters[part].annotation
    return list(inspect.signature(found).parameters)


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
    return next((e for e in chain if _raised_here(e)), chain[-1])


def _raised_here(error: BaseException) -> bool:
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    return where is not None and where.tb_frame.f_globals.get("__name__", "").startswith("lra_ssm.")
