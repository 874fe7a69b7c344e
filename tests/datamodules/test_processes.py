"""The map over processes: in order, errors as they are, and no worker lives on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lra_ssm.datamodules.processes import map_in_processes
from lra_ssm.errors import InputError


def square(number: int) -> int:
    if number == 9:
        raise InputError("nine: is refused")
    print("what a worker prints is not a result")
    return number * number


def modules(_: int) -> tuple[int, bool]:
    return os.getpid(), bool({"torch", "lightning", "numpy"} & set(sys.modules))


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_order_and_errors_as_themselves(workers: int) -> None:
    assert list(map_in_processes(square, range(9), workers)) == [number * number for number in range(9)]
    results = map_in_processes(square, [0, 9], workers)
    assert next(results) == 0
    with pytest.raises(InputError, match="^nine: is refused$"):
        next(results)


def test_workers_load_only_what_they_need_and_end_with_the_map() -> None:
    found = list(map_in_processes(modules, range(4), 2))
    assert {pid for pid, _ in found} != {os.getpid()} and not any(loaded for _, loaded in found)
    for pid, _ in found:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_script_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from lra_ssm.datamodules.processes import map_in_processes\n"
        "print('once', [*map_in_processes(abs, [-1, 2], 2)])\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("once [1, 2]\n", "")
