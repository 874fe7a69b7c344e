"""A user's program that scans, for processes whose environment says how the kernels are built.

In a module of its own: one that skips tests has looked for the kernels when it is imported.
"""

import logging
import os

import torch

from lra_ssm.ops import scan_backends, selective_scan


def scan_twice(unset: list[str]) -> int:
    """unset: variables that the environment is without."""
    for name in unset:
        os.environ.pop(name, None)
    logging.basicConfig(format="%(message)s", force=True)
    x = torch.ones(1, 1, 3)
    for _ in range(2):
        y = selective_scan(x, x, -torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1))
    print("backend:", "cpu" if scan_backends()["cpu"] is None else scan_backends()["cpu"])
    print("y:", y.flatten().tolist())
    return 0
