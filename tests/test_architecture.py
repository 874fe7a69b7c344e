"""Who imports whom, as docs/architecture.md has it: ops ← layers ← models ← tasks ← callbacks ← runs ← cli."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.results.made import make_run

ROOT = Path(__file__).parents[1] / "lra_ssm"
STDLIB = set(sys.stdlib_module_names)

# Files that any room except ops, layers and models may import (these two only import errors).
LEAVES = {"errors", "files", "tables", "bars", "machine"}
# room -> rooms of the package that it may import besides itself
ALLOWED = {
    "ops": set(),
    "layers": {"ops", "errors"},
    "models": {"ops", "layers", "checkpoints", "errors"},
    "width": {"ops", "layers", *LEAVES},
    "tasks": {"ops", "layers", "models", "width", *LEAVES},
    "datamodules": LEAVES,
    "analysis": {"ops", "layers", "models", *LEAVES},
    "callbacks": {"ops", "layers", "tasks", "analysis", "progress", *LEAVES},
    "progress": LEAVES,
    "runs": {"ops", "layers", "models", "tasks", "analysis", "callbacks", "progress", "checkpoints", *LEAVES},
    "sweeps": {"runs", "shipped", *LEAVES},
    "results": {"runs", "shipped", *LEAVES},
    "checkpoints": {"errors", "files", "tables", "datamodules"},  # only downloads of datamodules: see below
    **{leaf: set() for leaf in LEAVES},
    "files": {"errors"},
    "bars": {"errors", "tables"},
    "shipped": {"errors"},
    "tables": {"errors"},  # what a cell quotes is made printable
    "text_generation": {"models"},
    "evaluation": {"models", "datamodules", "checkpoints", "text_generation", *LEAVES},  # nothing imports it
    "cli": {
        *("ops", "layers", "models", "width", "tasks", "datamodules", "callbacks", "progress", "analysis"),
        *("sweeps", "runs", "results", "checkpoints", "shipped", "text_generation", *LEAVES),
    },
    "__main__": {"cli"},
    "__init__": set(),
}
# Rooms of datamodules that all may import. Every other file or folder is a dataset, which no other room imports.
SHARED_ROOMS = {
    *("base", "batches", "characters", "counter_random", "download", "images", "imdb", "language", "loader", "parts"),
    *("pretraining", "sequences", "settings", "storage"),
}
LIGHTNING = {"tasks", "datamodules", "callbacks", "progress", "runs", "cli"}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> list[str]:
    """Absolute names of everything a file imports, at the top or inside functions."""
    names = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


FILES = sorted(ROOT.rglob("*.py"))


def test_imports_point_forward():
    for path in FILES:
        here = room(path)
        assert here in ALLOWED, f"{path} is in a room that the architecture does not know"
        for name in imports(path):
            top, *rest = name.split(".")
            if top == "lra_ssm" and rest and not rest[0].startswith("__"):  # these are the version
                assert rest[0] in {here, *ALLOWED[here]}, f"{path} imports {name}"
            elif top in ("lightning", "pytorch_lightning"):
                assert here in LIGHTNING, f"{path} imports {name}"
            elif here == "ops" and top != "lra_ssm":
                backends = {"triton", "mamba_ssm", "filelock"} if "backends" in path.parts else set()
                assert top in STDLIB | {"torch", "numpy"} | backends, f"{path} imports {name}"


def test_datasets_are_imported_by_no_other_room_of_datamodules():
    folder = ROOT / "datamodules"
    assert {path.relative_to(folder).parts[0].removesuffix(".py") for path in folder.rglob("*.py")} > SHARED_ROOMS
    for path in sorted(folder.rglob("*.py")):
        here = path.relative_to(folder).parts[0].removesuffix(".py")
        for name in imports(path):
            if name.startswith("lra_ssm.datamodules.") and here != "__init__":  # which names them, for lazy import
                assert name.split(".")[2] in {here, *SHARED_ROOMS}, f"{path} imports {name}"


def test_checkpoints_only_use_downloads_of_datamodules():
    """They import them inside functions, so that a network is loaded without them."""
    for path in (ROOT / "checkpoints").glob("*.py"):
        ours = {name.split(".")[2] for name in imports(path) if name.startswith("lra_ssm.datamodules.")}
        assert ours <= {"download", "storage"}, f"{path} imports {ours}"
        at_top = [node.module for node in tree(path).body if isinstance(node, ast.ImportFrom)]
        assert not any(name.startswith("lra_ssm.datamodules") for name in at_top), path


# Commands that do not train.
HELPED = "configs coordcheck export generate inspect pull push results score status submit".split()


def test_help_and_tables_load_neither_torch_nor_lightning(tmp_path):
    make_run(tmp_path)
    code = f"""
import sys
from contextlib import suppress
from lra_ssm.cli import main
main(["--help"])
assert main(["status", "runs"]) == 0
assert not {{"numpy", "pandas"}} & set(sys.modules)
assert main(["results", "runs"]) == 0
for name in {HELPED}:
    with suppress(SystemExit):
        main([name, "--help"])
assert not {{"torch", "lightning", "matplotlib"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("example") >= len(HELPED), done.stderr


def test_only_rooms_of_tables_load_pandas_when_they_are_imported():
    """It takes half a second to import, and `fit` imports the other rooms."""
    for path in FILES:
        at_top = {alias.name for node in tree(path).body if isinstance(node, ast.Import) for alias in node.names}
        assert "pandas" not in at_top or room(path) in {"results", "width"}, path
