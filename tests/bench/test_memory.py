"""Peak memory: an allocation of known size is seen, and a child that fails says why."""

import os
import signal
from dataclasses import dataclass

import pytest
import torch

from lra_ssm.bench.memory import MemoryFailure, peak_memory
from lra_ssm.bench.work import BOTH, FORWARD, Prepared

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Allocating:
    """forward holds `megabytes` at once; forward+backward twice that, in blocks one after the other."""

    megabytes: float
    does: str = "allocate"

    def build(self):
        inputs = torch.ones(20_000_000)  # 80 MB that are there before the call and are not its own
        count = int(self.megabytes * 1e6 / 4)

        def forward():
            if self.does == "raise" and self.megabytes > 1:
                raise ValueError("a reason\nand more")
            if self.does == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            return torch.ones(count) + inputs[0]

        def both():
            for _ in range(3):
                kept = [torch.ones(count), torch.ones(count)]
            return kept[0][0]

        return Prepared({FORWARD: forward, BOTH: both}, lambda: {})

    def smaller(self):
        return Allocating(0.1, self.does)

    def bytes_needed(self):
        return 0.0


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the kernel's high-water mark is Linux's")
def test_a_known_allocation_is_seen():
    found = peak_memory(Allocating(48.0), [FORWARD, BOTH], CPU, threads=1)
    assert found[FORWARD].megabytes == pytest.approx(96, rel=0.1)  # ones, and their sum with the input
    # the blocks of a pass are made before those of the one before are dropped
    assert 96 * 0.95 < found[BOTH].megabytes < 4 * 48 * 1.1
    assert "VmHWM" in found[FORWARD].how


def test_a_call_that_fails_says_why():
    with pytest.raises(MemoryFailure, match="^ValueError: a reason$"):
        peak_memory(Allocating(2.0, "raise"), [FORWARD], CPU, threads=1)


def test_a_process_that_is_killed_says_so():
    with pytest.raises(MemoryFailure, match="ended with -9"):
        peak_memory(Allocating(2.0, "die"), [FORWARD], CPU, threads=1)
