"""An ordered map over processes, for generators of data. Imports only the standard library."""

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from threading import Thread
from types import ModuleType
from typing import TypeVar

from lra_ssm.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_WORKERS = 16  # the consuming process keeps up with about this many
_AHEAD = 2  # items per process that are computed before the first of them is taken


def available_cores() -> int:
    """Return the number of cores that this process may run on; on a cluster, fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int | None = None
) -> Generator[Result, None, None]:
    """Yield function(item) for each item, in order, computed by several processes of one thread each.

    Close the generator (`contextlib.closing`) to end the processes; they also end with this process.

    Args:
        function: can be pickled, and so can items, results and errors.
        items: taken as they are needed; may be endless.
        workers: number of processes; 1 computes in this one, None takes one per core.

    Raises:
        InputError: a process was killed.
        Exception: what the function raised for the first item that failed.
    """
    workers = workers or min(available_cores(), MAX_WORKERS)
    if workers == 1:
        yield from map(function, items)
        return
    # Spawned: fork would copy torch's threads and the locks that this process holds.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start_worker)
    futures: deque[Future[Result]] = deque()
    try:
        for item in items:
            with _no_main_module():
                futures.append(pool.submit(function, item))
            if len(futures) == _AHEAD * workers:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    except BrokenProcessPool as error:
        raise InputError("a worker process was killed, perhaps because memory ran out; start again") from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep spawned processes from importing the main module, a user's script, which would then run again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent reacts to it
    os.environ |= {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End with the parent.

    A worker that waits for work would not notice that its parent was killed: it holds both ends of the queue.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
