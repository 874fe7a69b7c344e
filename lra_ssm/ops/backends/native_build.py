"""Builds the C++ kernels of native/ at their first use, and loads them.

Nothing is asked of the user: where a C++ compiler is found, the library is compiled for the machine's own processor
into a cache folder, named by a hash of the sources, the flags and the processor's features, so that login and compute
nodes with one home directory each have theirs.  Many processes may start at once: a lock lets one of them compile, and
the finished file is moved into place in one step.  Where it cannot be built, `library()` gives the reason instead.

LRA_SSM_CACHE: the cache folder, else XDG_CACHE_HOME/lra_ssm, else ~/.cache/lra_ssm.  CXX: the compiler.
LRA_SSM_NATIVE=0: build and use nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import torch
from filelock import FileLock

SOURCES = Path(__file__).parent / "native"
UNITS = ("selective_scan.cpp", "s4d_kernel.cpp", "memory.cpp")
# -ffast-math is not used: it breaks the range reductions.  What is used instead changes no result but for fused
# multiply-adds, which the reductions rely on.
FLAGS = "-std=c++17 -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fPIC -Wno-psabi".split()
_TIMEOUT_S, _RETRY_S = 600, 3600

log = logging.getLogger(__name__)


def processor() -> str:
    """The processor's architecture and features: code compiled for one set may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = sorted({line for line in lines if line.startswith(("flags", "Features", "CPU part"))})
    except OSError:
        features = [platform.processor()]
    return "\n".join([sys.platform, platform.machine(), *features])


def flags() -> list[str]:
    target = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"
    # Apple's compiler has no OpenMP: one thread there.
    return [*FLAGS, target] if sys.platform == "darwin" else [*FLAGS, target, "-fopenmp"]


def key() -> str:
    digest = hashlib.sha256(" ".join(flags()).encode() + processor().encode())
    for path in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:20]


def cache_folders() -> list[Path]:
    """The documented places, in order."""
    xdg = os.environ.get("XDG_CACHE_HOME")
    places = [os.environ.get("LRA_SSM_CACHE"), xdg and os.path.join(xdg, "lra_ssm"), "~/.cache/lra_ssm"]
    paths = [Path(os.path.expanduser(place)) for place in places if place]
    return [path for path in paths if path.is_absolute()]  # without a home, ~ stays as it is


def folder_to_write() -> Path:
    """The first place that can be written; one of this process's own below the temporary folder as a last."""
    for path in cache_folders():
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(path, os.W_OK):
            return path
    return Path(tempfile.mkdtemp(prefix="lra_ssm-"))  # nobody else can have put a file there


class _NotBuilt(Exception):
    """Why, in one line."""


def compilers() -> list[list[str]]:
    """Commands to try: CXX, wrapper and options included, or what is usually there."""
    try:
        wanted = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise _NotBuilt(f"CXX={os.environ['CXX']}: {error}") from error
    commands = [wanted] if wanted else [["c++"], ["g++"], ["clang++"]]
    found = [command for command in commands if shutil.which(command[0])]
    if not found:
        raise _NotBuilt(f"no C++ compiler was found ({'CXX=' + ' '.join(wanted) if wanted else 'c++, g++ or clang++'})")
    return found


def _compile(target: Path) -> None:
    commands = compilers()
    versions = [subprocess.run([*c, "--version"], capture_output=True, timeout=60).stdout for c in commands]
    failure = target.with_suffix("." + hashlib.sha256(repr((commands, versions)).encode()).hexdigest()[:8] + ".failed")
    if failure.exists() and time.time() - failure.stat().st_mtime < _RETRY_S:
        # It would most likely fail again, in every process of a job array; but a full disk does not stay full.
        raise _NotBuilt(f"its build failed, see {failure} (tried again after an hour, or once that file is gone)")
    log.warning("lra_ssm: compiling the CPU kernels, once, into %s", target.parent)
    said = ""
    for command in commands:
        with tempfile.TemporaryDirectory(prefix=target.stem, dir=target.parent) as folder:
            built = Path(folder) / target.name
            line = [*command, *flags(), "-shared", *(str(SOURCES / unit) for unit in UNITS), "-o", str(built)]
            try:
                run = subprocess.run(line, capture_output=True, text=True, timeout=_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                said += f"{shlex.join(line)}\nnot done after {_TIMEOUT_S} s\n"
                continue
            if run.returncode == 0:
                os.replace(built, target)
                return
            said += f"{shlex.join(line)}\n{run.stderr}\n"
    failure.write_text(said)
    raise _NotBuilt(f"its build failed, see {failure}")


def _load() -> ctypes.CDLL:
    name = f"native-{key()}.so"
    for folder in cache_folders():
        if (folder / name).exists():
            return ctypes.CDLL(str(folder / name))
    target = folder_to_write() / name
    lock = FileLock(target.with_suffix(".lock"))
    try:
        lock.acquire()
    except (OSError, NotImplementedError):
        pass  # a file system without locks: several processes may compile, and each puts a whole file in its place
    try:
        if not target.exists():
            _compile(target)
    finally:
        lock.release()
    return ctypes.CDLL(str(target))


@cache
def library() -> ctypes.CDLL | str:
    """The loaded library, built first if need be; or, in one line, why there is none (said once as a warning too)."""
    if os.environ.get("LRA_SSM_NATIVE") == "0":
        return "the CPU kernels are switched off by LRA_SSM_NATIVE=0"
    try:
        return _load()
    except (OSError, subprocess.SubprocessError, _NotBuilt) as error:
        reason = f"the CPU kernels are not there: {' '.join(str(error).split())}"
        log.warning("lra_ssm: %s; the eager scan runs in their place, an order of magnitude slower", reason)
        return reason


@torch.compiler.assume_constant_result  # torch.compile does not look inside
def unavailable() -> str | None:
    """Why the kernels cannot be used, or None."""
    native = library()
    return native if isinstance(native, str) else None
