"""Draw small errors by a seed, put one at a time into a copy of the package, and see whether its tests notice.

    python tests/mutants.py --count 40 --seed 0 --jobs 2

Each runs `pytest -x` on the tests of its room, and if these pass, on the whole default suite (`--room` omits that).
Changes that are not committed are not in the copy. Prints a line for each: the place, the change, and the test that
failed, or "survived".
"""

import argparse
import ast
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
    **{room: [f"tests/{room}"] for room in ("ops", "layers", "models")},
    "tasks": ["tests/tasks", "tests/test_evaluation.py", "tests/test_packed_documents.py"],
    "datamodules": ["tests/datamodules"],
    "runs": ["tests/test_runs.py", "tests/test_identity.py", "tests/test_curves.py", "tests/test_records.py",
             "tests/test_estimate.py", "tests/test_cost_table.py", "tests/test_resume.py", "tests/test_init_from.py",
             "tests/test_checks.py", "tests/test_signals.py"],
    "results": ["tests/results", "tests/test_results_command.py"],
}  # fmt: skip
_SWAPPED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*",
}  # fmt: skip


class Mutant(NamedTuple):
    room: str
    path: str
    line: int
    start: int  # of the replaced text in the file
    end: int
    text: str

    def describe(self, source: str) -> str:
        before = " ".join(source[self.start : self.end].split())
        return f"{self.path}:{self.line}: {before} -> {' '.join(self.text.split())}"


def mutants_of(room: str, path: str, source: str) -> Iterator[Mutant]:
    """Yield changed signs, comparisons, numbers by one, flags, and statements that are left out."""
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    data = source.encode()

    def at(line: int, column: int) -> int:
        return len(data[: lines[line - 1] + column].decode())

    def mutant(node: ast.expr | ast.stmt, text: str) -> Mutant:
        assert node.end_lineno is not None and node.end_col_offset is not None
        end = at(node.end_lineno, node.end_col_offset)
        return Mutant(room, path, node.lineno, at(node.lineno, node.col_offset), end, text)

    def shown(node: ast.AST) -> str:
        return ast.get_source_segment(source, node) or ""

    for node in _running(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            operator = _SWAPPED[type(node.ops[0])]
            yield mutant(node, f"({shown(node.left)} {operator} {shown(node.comparators[0])})")
        elif isinstance(node, ast.BinOp) and type(node.op) in _SWAPPED:
            yield mutant(node, f"({shown(node.left)} {_SWAPPED[type(node.op)]} {shown(node.right)})")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield mutant(node, shown(node.operand))
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield mutant(node, str(not node.value))
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield mutant(node, str(node.value + 1))
        elif isinstance(node, ast.BoolOp):
            word = " or " if isinstance(node.op, ast.And) else " and "
            yield mutant(node, f"({word.join(f'({shown(value)})' for value in node.values)})")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield mutant(node, "pass")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            yield mutant(node, "pass")


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that compute: no annotations, and nothing that only words an error."""
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.Raise | ast.JoinedStr | ast.Import):
                yield child
                yield from _running(child)


def drawn(count: int, seed: int) -> list[Mutant]:
    """Draw equally many from every room, by the seed."""
    chance = random.Random(seed)
    mutants: dict[str, list[Mutant]] = {room: [] for room in ROOMS}
    for room, own in mutants.items():
        for path in sorted((ROOT / "lra_ssm" / room).rglob("*.py")):
            if "triton" not in path.name and "mamba_ssm" not in path.name:
                own.extend(mutants_of(room, str(path.relative_to(ROOT)), path.read_text()))
    order = [list(ROOMS)[i % len(ROOMS)] for i in range(count)]
    return [mutants[room].pop(chance.randrange(len(mutants[room]))) for room in order]


def first_failure(mutant: Mutant, only_room: bool) -> str:
    """Return the first test that fails with the mutant, or "survived"."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), folder], check=True)
        path = Path(folder, mutant.path)
        source = path.read_text()
        path.write_text(source[: mutant.start] + mutant.text + source[mutant.end :])
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
    parser.add_argument("--list", action="store_true", help="print them and run nothing")
    parser.add_argument("--room", action="store_true", help="only run the tests of each mutant's room")
    arguments = parser.parse_args()
    mutants = drawn(arguments.count, arguments.seed)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        ends = (
            [""] * len(mutants)
            if arguments.list
            else pool.map(partial(first_failure, only_room=arguments.room), mutants)
        )
        for mutant, end in zip(mutants, ends, strict=True):
            print(mutant.describe((ROOT / mutant.path).read_text()), end, sep="  ", flush=True)


if __name__ == "__main__":
    main()
