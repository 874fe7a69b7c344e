"""An ordered map over processes: of the generators, and of what makes tokens of text. Standard library alone.

A worker is a plain child process instead of one of multiprocessing's: fork would copy torch's threads and the locks
that this process holds (a child that outlives a killed parent would hold them for ever), spawn would run the user's
script a second time. A worker knows nothing but its two pipes, imports what its function needs and no more, and ends
when nobody holds the other end.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2  # items for each process that are begun before the first of them is taken
_START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from lra_ssm.datamodules import processes"
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "ARROW_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], processes: int
) -> Generator[Result, None, None]:
    """Yields function(item) for each item, in their order, computed by several processes of one thread each.

    All of them end with the generator, so close it (`contextlib.closing`), and with this process, however it ends.

    Args:
        function: pickles, and so do items, results and errors: a function of a module, or a partial of one.
        items: taken as they are needed; may be endless.
        processes: how many, no more than there are items; 1 for none but this one.

    Raises:
        ChildProcessError: one was killed.
        Exception: what the function raised, of the first item for which it did.
    """
    if processes <= 1 or not sys.executable:
        yield from map(function, items)
        return
    workers: list[subprocess.Popen[bytes]] = []
    sent = taken = 0
    try:
        for item in items:
            if len(workers) < processes:
                workers.append(_start(function))
            _send(workers[sent % processes], item)
            sent += 1
            if sent - taken == _AHEAD * processes:
                yield _answer(workers[taken % processes])
                taken += 1
        while taken < sent:
            yield _answer(workers[taken % processes])
            taken += 1
    finally:
        for worker in workers:
            worker.kill()
            for pipe in (worker.stdin, worker.stdout):
                with suppress(BrokenPipeError):
                    _open(pipe).close()
            worker.wait()


def _start(function: Callable[..., Any]) -> "subprocess.Popen[bytes]":
    path = json.dumps([entry or os.getcwd() for entry in sys.path])
    worker = subprocess.Popen(
        [sys.executable, "-c", f"{_START}; processes._work()", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **_ONE_THREAD},
    )
    _send(worker, function)
    return worker


def _send(worker: "subprocess.Popen[bytes]", what: Any) -> None:
    with suppress(BrokenPipeError):  # it has ended: `_answer` says so
        pickle.dump(what, _open(worker.stdin))
        _open(worker.stdin).flush()


def _answer(worker: "subprocess.Popen[bytes]") -> Any:
    try:
        result, error = pickle.load(_open(worker.stdout))
    except (EOFError, pickle.UnpicklingError):
        raise ChildProcessError(
            f"a process that prepares data ended with exit code {worker.wait()} (-9: killed, as for want of memory);"
            " start again with fewer of them, or more memory"
        ) from None
    if error is not None:
        raise error
    return result


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _work() -> None:
    """A worker: reads a function and then items from the standard input, writes what becomes of them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent is the one to act on it
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints
    given: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_listen, args=(given,), daemon=True).start()
    function = given.get()
    with suppress(BrokenPipeError):  # the parent was killed
        while True:
            item = given.get()
            try:
                answer: tuple[Any, Exception | None] = function(item), None
            except Exception as error:
                error.add_note(f"In a process that prepares data:\n{traceback.format_exc()}")
                answer = None, error
            pickle.dump(answer, answers)
            answers.flush()


def _listen(given: "SimpleQueue[Any]") -> None:
    """Takes all that is sent, so that whoever sends need not wait; ends the process when nobody can send any more."""
    try:
        while True:
            given.put(pickle.load(sys.stdin.buffer))
    except EOFError:
        pass
    except Exception:  # what was sent cannot be imported here
        traceback.print_exc()
    os._exit(1)
