"""The pool of processes: in order, no more than is needed, errors as they are, and nothing lives on."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from lra_ssm.datamodules.processes import ordered_map
from lra_ssm.errors import InputError


def square(number: int) -> int:
    if number < 0:
        raise FileNotFoundError(2, "No such file", "four")
    if number == 9:
        raise InputError("nine: is refused")
    print("what a worker prints is not a result")
    return number * number


def modules(_: int) -> tuple[int, bool]:
    return os.getpid(), bool({"torch", "lightning", "numpy"} & set(sys.modules))


@pytest.mark.parametrize("processes", [1, 3])
def test_results_come_in_order_and_errors_as_themselves(processes: int) -> None:
    taken = []

    def endless():
        for number in count():
            taken.append(number)
            yield number % 9

    with closing(ordered_map(square, endless(), processes)) as results:
        assert [next(results) for _ in range(8)] == [number * number for number in range(8)]
    assert len(taken) <= 8 + 2 * processes
    results = ordered_map(square, [0, 9], processes)
    assert next(results) == 0
    with pytest.raises(InputError, match="^nine: is refused$") as refused:
        next(results)
    assert processes == 1 or "in square" in str(refused.value.__cause__)
    with pytest.raises(FileNotFoundError) as missing:
        list(ordered_map(square, [-1, 4], processes))
    assert (missing.value.errno, missing.value.filename) == (2, "four")


def test_a_killed_worker_is_an_error_and_workers_load_only_what_they_need_and_end_with_the_map() -> None:
    with pytest.raises(InputError, match="a worker process was killed"):
        list(ordered_map(os._exit, [3, 3], 2))
    found = list(ordered_map(modules, range(4), 2))
    assert {pid for pid, _ in found} != {os.getpid()} and not any(loaded for _, loaded in found)
    for pid, _ in found:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


SCRIPT = """
import fcntl, sys, time
from lra_ssm.datamodules.processes import ordered_map
print("once", flush=True)
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
for second in ordered_map(time.sleep, [0, 0, 1000, 1000], 2):
    print("began", flush=True)
"""


def test_a_killed_script_ran_once_and_leaves_neither_workers_nor_locks(tmp_path: Path) -> None:
    script, locked = tmp_path / "script.py", tmp_path / "lock"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(locked)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["once\n", "began\n", "began\n"]
    process.kill()
    out, errors = process.communicate(timeout=60)  # its workers hold the pipe of its errors too
    assert not out and "Traceback" not in errors and process.returncode == -signal.SIGKILL
    subprocess.run(["flock", "--nonblock", str(locked), "true"], check=True)
