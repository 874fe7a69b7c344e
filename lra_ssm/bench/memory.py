"""Peak memory of a call beyond its inputs.

On a GPU the allocator knows. On a CPU each work runs in a fresh process, whose resident set the kernel counts: native
memory of C++ code and of libraries is in it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from lra_ssm.bench.work import Work

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_M_MMAP_THRESHOLD = -3  # of malloc.h


@dataclass(frozen=True)
class Peak:
    """Megabytes (10^6 bytes) beyond what was held before the call, and how that was found."""

    megabytes: float
    how: str


class MemoryFailure(RuntimeError):
    """The child process ended without an answer; says how."""


def peak_memory(work: Work, modes: list[str], device: torch.device, threads: int) -> dict[str, Peak]:
    """Mode -> peak. Raises MemoryFailure, on a CPU, where the process was killed or the call failed."""
    if device.type == "cuda":
        return _on_gpu(work, modes)
    context = multiprocessing.get_context("forkserver")
    # What the children import, once for all of them; _dynamo is what a custom operator's first call imports.
    ours = [name for name in sys.modules if name.startswith("lra_ssm.bench.")]
    context.set_forkserver_preload(["torch._dynamo", *ours])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, work, modes, threads))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        process.join()
        raise MemoryFailure(f"the process that measured memory ended with {process.exitcode}") from None
    except BaseException:  # the user has stopped the bench
        process.kill()
        raise
    finally:
        receiver.close()
        process.join()
    if isinstance(answer, str):
        raise MemoryFailure(answer)
    return answer


def _on_gpu(work: Work, modes: list[str]) -> dict[str, Peak]:
    calls, peaks = work.build().calls, {}
    for mode in modes:
        calls[mode]()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        calls[mode]()
        torch.cuda.synchronize()
        peaks[mode] = Peak((torch.cuda.max_memory_allocated() - before) / 1e6, "torch.cuda.max_memory_allocated")
    return peaks


def _child(sender: Connection, work: Work, modes: list[str], threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the bench's, which ends this process
    try:
        sender.send(measure_here(work, modes, threads))
    except Exception as error:
        sender.send(f"{type(error).__name__}: {error}".splitlines()[0])


def measure_here(work: Work, modes: list[str], threads: int) -> dict[str, Peak]:
    """Mode -> peak of the work in this process, which should be a fresh one."""
    torch.set_num_threads(threads)
    _return_freed_memory()
    small = work.smaller().build()
    for mode in modes:
        small.calls[mode]()  # libraries, thread pools, the autograd engine
    calls = work.build().calls
    peaks = {}
    for mode in modes:
        before, how = _resident_and_reset()
        result = calls[mode]()
        peaks[mode] = Peak(max(0.0, (_highest() - before) / 1e6), how)
        del result
    return peaks


def _return_freed_memory() -> None:
    """Makes glibc give freed blocks back at once: memory that lies around from before would hide what a call takes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 16)


def _resident_and_reset() -> tuple[float, str]:
    """Bytes that count as held before the call, with the kernel's high-water mark set back to it where that can be."""
    try:
        _CLEAR.write_text("5")
        return _status("VmRSS"), "VmHWM of a fresh process"
    except OSError:
        return _highest(), "ru_maxrss of a fresh process"


def _highest() -> float:
    if _STATUS.is_file():
        return _status("VmHWM")
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(field: str) -> float:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field + ":"))
    return float(line.split()[1]) * 1024


def available_bytes(device: torch.device) -> float:
    """Memory that a contender may take: half of what is free, of a GPU's, which nothing else needs, nine tenths."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what PyTorch keeps for later is free
        return 0.9 * torch.cuda.mem_get_info()[0]
    info = Path("/proc/meminfo")
    if info.is_file():
        line = next(line for line in info.read_text().splitlines() if line.startswith("MemAvailable:"))
        return float(line.split()[1]) * 1024 / 2
    return 4e9
