"""Draw small errors by a seed, put one at a time into a copy of the package, and see whether its tests notice.

    python tests/mutants.py --count 40 --seed 0 --jobs 2

Each runs `pytest -x` on the tests of its room, and if these pass, on the whole default suite (`--room` omits that).
Changes that are not committed are not in the copy. Prints a line for each: the place, the change, and the test that
failed, or "survived".
"""

import argparse
import ast
import copy
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# The tests of each room. A GPU's kernels are left out, because they do not run without one.
ROOMS = {
    **{room: [f"tests/{room}"] for room in ("ops", "layers", "models", "datamodules")},
    "tasks": ["tests/tasks", "tests/test_evaluation.py", "tests/test_packed_documents.py"],
    "runs": ["tests/results/test_record.py", *(f"tests/test_{name}.py" for name in (
        "runs", "identity", "curves", "records", "estimate", "resume", "init_from", "checks", "signals"))],
    "results": ["tests/results", "tests/test_results_command.py"],
}  # fmt: skip
SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


class Mutant(NamedTuple):
    room: str
    path: str
    line: int
    change: str
    source: str  # of the whole file


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


def mutants_of(room: str, path: Path) -> Iterator[Mutant]:
    """Yield every change of a file, except of annotations and of what only words an error."""
    tree = ast.parse(path.read_text())

    def visit(node: ast.AST) -> Iterator[Mutant]:
        for name, field in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            parts = field if isinstance(field, list) else [field]
            for i, part in enumerate(parts):
                if not isinstance(part, ast.AST) or isinstance(part, ast.Raise | ast.JoinedStr | ast.Import):
                    continue
                if other := changed(part):
                    setattr(node, name, [*parts[:i], other, *parts[i + 1 :]] if isinstance(field, list) else other)
                    change = f"{ast.unparse(part)} -> {ast.unparse(other)}"
                    yield Mutant(room, str(path.relative_to(ROOT)), part.lineno, change, ast.unparse(tree))
                    setattr(node, name, field)
                yield from visit(part)

    return visit(tree)


def drawn(count: int, seed: int) -> list[Mutant]:
    """Draw equally many from every room, by the seed."""
    chance = random.Random(seed)
    files = {room: [path for path in sorted((ROOT / "lra_ssm" / room).rglob("*.py"))
                    if "triton" not in path.name and "mamba_ssm" not in path.name] for room in ROOMS}  # fmt: skip
    mutants = []
    for i in range(count):
        room = list(ROOMS)[i % len(ROOMS)]
        sizes = [path.stat().st_size for path in files[room]]
        mutants.append(chance.choice([*mutants_of(room, *chance.choices(files[room], sizes))]))
    return mutants


def first_failure(mutant: Mutant, only_room: bool) -> str:
    """Return the first test that fails with the mutant, or "survived"."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), folder], check=True)
        Path(folder, mutant.path).write_text(mutant.source)
        for tests in [ROOMS[mutant.room]] if only_room else [ROOMS[mutant.room], ["tests"]]:
            arguments = ["env", f"PYTHONPATH={folder}", sys.executable, "-m", "pytest", "-qx", *tests]
            try:
                done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=1500)
            except subprocess.TimeoutExpired:
                return "hung"
            if done.returncode:
                failed = re.search(r"^(FAILED|ERROR) (\S+)", done.stdout, re.M)
                return failed[2] if failed else done.stderr[-200:]
    return "survived"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="number of mutants (default: 40)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="number that run at a time (default: 2)")
    parser.add_argument("--room", action="store_true", help="only run the tests of each mutant's room")
    arguments = parser.parse_args()
    mutants = drawn(arguments.count, arguments.seed)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        ends = pool.map(partial(first_failure, only_room=arguments.room), mutants)
        for mutant, end in zip(mutants, ends, strict=True):
            print(f"{mutant.path}:{mutant.line}: {mutant.change}  {end}", flush=True)


if __name__ == "__main__":
    main()
