"""How many processes generate."""

import os


def available_cores() -> int:
    """Cores that this process may run on: on a cluster fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
