"""Draw small errors by a seed, put one at a time into a copy of the package, and see whether its tests notice.

    python tests/mutants.py --count 40 --seed 0

Each runs `pytest -x` on the tests of its room, and if these pass, on the whole default suite (`--room` omits that).
Changes that are not committed are not in the copy. Prints a line for each: the place, the change, and the test that
failed, or "survived".
"""

import argparse
import ast
import copy
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The tests of each room. A GPU's kernels are left out, because they do not run without one.
ROOMS = {
    **{room: [f"tests/{room}"] for room in ("ops", "layers", "models", "datamodules")},
    "tasks": ["tests/tasks", "tests/test_evaluation.py"],
    "runs": ["tests/results/test_record.py", *(f"tests/test_{name}.py" for name in (
        "runs", "identity", "curves", "records", "estimate", "resume", "init_from", "checks", "signals"))],
    "results": ["tests/results", "tests/test_results_command.py"],
}  # fmt: skip
SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def changed(node: ast.AST) -> ast.AST | None:
    """Return what stands for a node: another sign or comparison, a number by one, a flag, a statement left out."""
    other = copy.copy(node)
    match other:
        case ast.Compare(ops=[operator]):
            other.ops = [SWAPPED[type(operator)]()]
        case ast.BinOp() | ast.BoolOp() if type(other.op) in SWAPPED:
            other.op = SWAPPED[type(other.op)]()
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return other.operand
        case ast.Constant(value=bool()):
            other.value = not other.value
        case ast.Constant(value=int()):
            other.value += 1
        case ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Attribute()]):
            return ast.Pass()
        case _:
            return None
    return other


def mutants_of(tree: ast.Module, node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (line and change, source of the whole file) below a node, except in annotations and messages of errors."""
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        parts = field if isinstance(field, list) else [field]
        for i, part in enumerate(parts):
            if not isinstance(part, ast.AST) or isinstance(part, ast.Raise | ast.JoinedStr | ast.Import):
                continue
            if other := changed(part):
                setattr(node, name, [*parts[:i], other, *parts[i + 1 :]] if isinstance(field, list) else other)
                yield f"{part.lineno}: {ast.unparse(part)} -> {ast.unparse(other)}", ast.unparse(tree)
                setattr(node, name, field)
            yield from mutants_of(tree, part)


def drawn(room: str, chance: random.Random) -> tuple[Path, str, str]:
    """Draw a file of a room and one of its mutants; long files more often."""
    files = [path for path in sorted((ROOT / "lra_ssm" / room).rglob("*.py"))
             if "triton" not in path.name and "mamba_ssm" not in path.name]  # fmt: skip
    (path,) = chance.choices(files, [file.stat().st_size for file in files])
    tree = ast.parse(path.read_text())
    return path.relative_to(ROOT), *chance.choice([*mutants_of(tree, tree)])


def first_failure(path: Path, source: str, several: list[list[str]]) -> str:
    """Return the first test that fails with the changed file, or "survived". several: what is run in turn."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), folder], check=True)
        Path(folder, path).write_text(source)
        for tests in several:
            line = [sys.executable, "-m", "pytest", "-qx", *tests]
            try:
                done = subprocess.run(line, cwd=folder, env=os.environ | {"PYTHONPATH": folder}, capture_output=True,
                                      text=True, timeout=1500)  # fmt: skip
            except subprocess.TimeoutExpired:
                return "hung"
            if done.returncode:
                failed = re.search(r"^(FAILED|ERROR) (\S+)", done.stdout, re.M)
                return failed[2] if failed else done.stderr[-200:]
    return "survived"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="number of mutants (default: 40)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", action="store_true", help="only run the tests of each mutant's room")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    for number in range(arguments.count):
        room = list(ROOMS)[number % len(ROOMS)]
        path, change, source = drawn(room, chance)
        end = first_failure(path, source, [ROOMS[room]] + [["tests"]] * (not arguments.room))
        print(f"{path}:{change}  {end}", flush=True)
