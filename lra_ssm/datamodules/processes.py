"""A map over processes, for generators of data. Imports only the standard library."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Collection, Generator
from concurrent.futures import ProcessPoolExecutor
from types import ModuleType
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    """Return the number of cores that this process may run on; on a cluster, fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_processes(
    function: Callable[[Item], Result], items: Collection[Item], workers: int
) -> Generator[Result, None, None]:
    """Yield function(item) for each item, in order, computed by `workers` processes; 1 computes in this process.

    Close the generator (`contextlib.closing`) to cancel the items that have not begun.
    """
    if workers == 1:
        yield from map(function, items)
        return
    # Spawned: fork would copy torch's threads and the locks that this process holds. Ctrl-C reaches all processes; only
    # this one reacts to it.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, spawn, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    main = sys.modules["__main__"]
    try:
        # A spawned process imports the main module: a user's script would run again.
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            results = pool.map(function, items)
        finally:
            sys.modules["__main__"] = main
        yield from results
    finally:
        pool.shutdown(cancel_futures=True)
