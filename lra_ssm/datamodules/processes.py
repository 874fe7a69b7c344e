"""An ordered map over processes: of the generators, and of what makes tokens of text. Standard library alone."""

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

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2  # items for each process that are begun before the first of them is taken
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
        processes: how many; 1 for none but this one.

    Raises:
        ChildProcessError: one was killed.
        Exception: what the function raised, of the first item for which it did.
    """
    if processes <= 1:
        yield from map(function, items)
        return
    # Spawned: fork would copy torch's threads and the locks that this process holds, and a child that outlived a killed
    # parent would hold them for ever.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin)
    begun: deque[Future[Result]] = deque()
    try:
        for item in items:
            with _no_main_module():
                begun.append(pool.submit(function, item))
            if len(begun) == _AHEAD * processes:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a process of these was killed, perhaps for want of memory; start again with fewer of them, or more memory"
        ) from error
    finally:
        # Private to ProcessPoolExecutor, seen in Python 3.11 to 3.13; 3.14's `kill_workers` leaves the second out.
        for worker in list((pool._processes or {}).values()):
            worker.kill()
        # One that was killed within a result would be waited for without end, while this process can write to the pipe.
        pool._result_queue._writer.close()  # type: ignore[attr-defined]
        pool.shutdown(cancel_futures=True)


@contextmanager
def _no_main_module() -> Iterator[None]:
    """A process that is spawned imports the main module first: a user's script, which would run a second time."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _begin() -> None:
    """What a worker does first. Ctrl-C reaches the whole group; the parent is the one to act on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(_ONE_THREAD)
    os.dup2(2, 1)  # what the function prints is no output of the command's
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker that waits for work would not notice: it holds both ends of the queue."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
