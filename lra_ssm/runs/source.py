"""The user's own code that decides a run's result: digests of the files behind every class that it names.

Of a class in a file of its own: that file and every file of the user's that it imports, at the top or within functions;
of one in a package: the whole package. Files are read, never imported. lra_ssm's own source is
`provenance.code_version`'s; of an installed library the version stands for it; of what has no file (a class of a
notebook) the source of its methods, and what they use.
"""

import ast
import hashlib
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from lra_ssm.errors import is_installed
from lra_ssm.runs.identity import TRAINER_NEUTRAL
from lra_ssm.runs.provenance import code_version

SOURCE = "lra_ssm_source"  # the digests' name in a checkpoint; in run.json each start has them as "source"
_CODE = (".py", ".pyx", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
_OURS = Path(__file__).parents[1]


def user_source(config: Mapping[str, Any], objects: Iterable[Any] = ()) -> dict[str, str]:
    """File (below its import root), class without a file, or installed library -> its digest, or version.

    config: a run's resolved configuration; every import path in it counts whose module is loaded, wherever it stands.
    objects: further ones whose classes count.
    """
    trainer = {key: value for key, value in (config.get("trainer") or {}).items() if key not in TRAINER_NEUTRAL}
    named = dict.fromkeys(_texts({**config, "trainer": trainer}), True)
    built = dict.fromkeys((f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in objects), False)
    source = _Source()
    for name, version in {**built, **named}.items():
        parts = name.split(".")
        loaded = [i for i in range(1, len(parts)) if ".".join(parts[:i]) in sys.modules]
        if not loaded:
            continue
        module = sys.modules[".".join(parts[: loaded[-1]])]
        if hasattr(module, "__file__") or hasattr(module, "__path__"):
            source.add_module(module.__name__, version)
        else:
            source.add_without_file(getattr(module, parts[loaded[-1]], None))
    return dict(sorted(source.found.items()))


def changed(before: Any, now: Mapping[str, str] | None) -> str:
    """What differs between two results of `user_source`, as text; nothing where either is unknown."""
    if not isinstance(before, dict) or now is None:
        return ""
    names = [name for name in sorted(before.keys() | now.keys(), key=str) if before.get(name) != now.get(name)]
    what = {name: "is new" if name not in before else "is gone" if name not in now else "has changed" for name in names}
    text = ", ".join(f"{name} {what[name]}" for name in names[:3])
    return text + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def other_code(record: Mapping[str, Any], now: Mapping[str, str]) -> str:
    """Where one of the starts of a recorded run was with other code than this, lra_ssm's or the user's: that it was."""
    found = []
    for start in record.get("starts", []):
        versions = start.get("versions")
        made_by = versions.get("lra_ssm") if isinstance(versions, dict) else None
        if made_by not in (None, code_version()):
            found.append(f"lra_ssm was {made_by}, this is {code_version()}")
        if files := changed(start.get("source"), now):
            found.append(files)
    return f"; warning: it was trained with other code: {'; '.join(dict.fromkeys(found))}" if found else ""


def _texts(value: Any) -> Iterator[str]:
    """Every string in nested plain values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


class _Source:
    """Collects digests by name; each module and object once."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._seen: set[Any] = set()

    def add_module(self, name: str, version: bool = False) -> None:
        """A module by its dotted name, on which attributes may follow. version: of an installed one, note that."""
        if (name, version) in self._seen:
            return
        self._seen.add((name, version))
        root, place = _top(name.partition(".")[0])
        if root is None or place is None or place == _OURS:
            return
        if is_installed(place):
            library = name.partition(".")[0]
            if version and (number := _version(library)):
                self.found[library] = number
            return
        home, files = _within(place, name.split(".")[1:])
        if home is not None and home not in self._seen:
            self._seen.add(home)
            for file in _below(home) if home.is_dir() else [home]:
                self.found[file.relative_to(root).as_posix()] = _digest(file.read_bytes())
        for file in files:  # of a package's other files nobody knows whether what they import is used
            if ("imports of", file) not in self._seen:
                self._seen.add(("imports of", file))
                self._add_imports(file.read_bytes(), root, file)

    def _add_imports(self, text: bytes, root: Path, file: Path) -> None:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return
        package = file.relative_to(root).parts[:-1]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.add_module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else ()
                base = ".".join([*above, *([node.module] if node.module else [])])
                for alias in node.names:
                    self.add_module(f"{base}.{alias.name}" if base else alias.name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(_CODE[1:]):
                beside = file.parent / node.value  # C++ or CUDA, built when it is imported
                if len(node.value) < 200 and beside.is_file():
                    self.found[node.value] = _digest(beside.read_bytes())

    def add_without_file(self, thing: Any) -> None:
        """A class or function of a notebook, and what it uses of the user's."""
        if id(thing) in self._seen or not (inspect.isclass(thing) or inspect.isfunction(thing)):
            return
        self._seen.add(id(thing))
        functions = [thing] if inspect.isfunction(thing) else [f for v in vars(thing).values() for f in _functions(v)]
        if functions:
            texts = [_text(function) for function in functions]
            self.found[f"{thing.__module__}.{thing.__qualname__}"] = _digest("\n".join(texts).encode())
        used = [f.__globals__.get(name) for f in functions for name in _names(f.__code__)]
        for other in (*used, *(thing.__mro__ if inspect.isclass(thing) else ())):
            if isinstance(other, ModuleType):
                self.add_module(other.__name__)
            elif inspect.isclass(other) or inspect.isfunction(other):
                if hasattr(sys.modules.get(other.__module__), "__file__"):
                    self.add_module(other.__module__)
                else:
                    self.add_without_file(other)


def _within(place: Path, parts: list[str]) -> tuple[Path | None, list[Path]]:
    """Of a module below a file or folder: its package, whole, or its file; and the files that importing it runs."""
    if place.is_file():
        return place, [place]
    home: Path | None = None
    files: list[Path] = []
    for folder in (place, *(place.joinpath(*parts[: i + 1]) for i in range(len(parts)))):
        if (folder / "__init__.py").is_file():
            home, files = home or folder, [*files, folder / "__init__.py"]
        elif folder != place and (file := folder.with_name(f"{folder.name}.py")).is_file():
            return home or file, [*files, file]
        elif not folder.is_dir():  # an attribute
            break
    return home, files


def _top(name: str) -> tuple[Path | None, Path | None]:
    """Import root, and file or folder, of a module without dots."""
    module = sys.modules.get(name)
    if name in sys.stdlib_module_names and name != "__main__":
        return None, None
    try:
        spec = getattr(module, "__spec__", None) or (find_spec(name) if module is None else None)
    except (ImportError, ValueError):
        return None, None
    origin = getattr(module, "__file__", None) or (spec.origin if spec and spec.has_location else None)
    if origin and Path(origin).is_file():
        file = Path(origin).absolute()
        return (file.parent.parent, file.parent) if file.name == "__init__.py" else (file.parent, file)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return (Path(places[0]).absolute().parent, Path(places[0]).absolute()) if places else (None, None)


def _below(folder: Path) -> Iterator[Path]:
    """The source files of a package."""
    for base, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__pycache__")))
        paths = (Path(base, file) for file in sorted(files) if file.endswith(_CODE) and not file.startswith("."))
        yield from (path for path in paths if path.is_file())


def _version(library: str) -> str | None:
    """Without the build: a run may go on on another machine."""
    try:
        return metadata.version(library).partition("+")[0]
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(library), "__version__", "")) or None


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]


def _functions(value: Any) -> list[FunctionType]:
    """What a class holds under a name, as functions."""
    if isinstance(value, property):
        return [f for f in (value.fget, value.fset) if isinstance(f, FunctionType)]
    value = inspect.unwrap(getattr(value, "__func__", value)) if callable(getattr(value, "__func__", value)) else value
    return [value] if isinstance(value, FunctionType) else []


def _names(code: Any) -> set[str]:
    inner = [const for const in code.co_consts if inspect.iscode(const)]
    return set(code.co_names).union(*(_names(const) for const in inner))


def _text(function: FunctionType) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # typed into a prompt: what it was compiled to
        code = function.__code__
        return repr((code.co_code, [c for c in code.co_consts if not inspect.iscode(c)], sorted(_names(code))))
