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
from functools import cache
from pathlib import Path

import torch
from filelock import FileLock, SoftFileLock

SOURCES = Path(__file__).parent / "native"
UNITS = ("selective_scan.cpp", "s4d_kernel.cpp")
# -ffast-math is not used: it breaks the range reductions.  What is used instead changes no result but for fused
# multiply-adds, which the reductions rely on.
FLAGS = "-std=c++17 -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fPIC -Wno-psabi".split()
_TIMEOUT_S = 600

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
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:20]


def cache_folder() -> Path:
    """The first of the documented places that can be written; a private one below the temporary folder as a last."""
    places = [os.environ.get("LRA_SSM_CACHE")]
    if os.environ.get("XDG_CACHE_HOME"):
        places.append(os.path.join(os.environ["XDG_CACHE_HOME"], "lra_ssm"))
    places.append(os.path.expanduser("~/.cache/lra_ssm"))
    for place in places:
        if place:
            try:
                os.makedirs(place, exist_ok=True)
            except OSError:
                continue
            if os.access(place, os.W_OK):
                return Path(place)
    return Path(tempfile.mkdtemp(prefix="lra_ssm-"))  # this process's own: nobody else can have put a file there


def compiler() -> str | None:
    candidates = [shlex.split(os.environ["CXX"])[0]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((path for name in candidates if (path := shutil.which(name))), None)


class _NotBuilt(Exception):
    """Why, in one line."""


def _compile(target: Path) -> None:
    cxx = compiler()
    if cxx is None:
        wanted = f"CXX={os.environ['CXX']}" if os.environ.get("CXX") else "c++, g++ or clang++"
        raise _NotBuilt(f"no C++ compiler was found ({wanted})")
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True, timeout=60).stdout
    failure = target.with_suffix("." + hashlib.sha256((cxx + version).encode()).hexdigest()[:8] + ".failed")
    if failure.exists():  # by this compiler, on this processor: it would fail again, in every process of a job array
        raise _NotBuilt(f"its build failed before, see {failure}")
    log.warning("lra_ssm: compiling the CPU kernels, once, into %s", target.parent)
    with tempfile.TemporaryDirectory(prefix=target.stem, dir=target.parent) as folder:
        built = Path(folder) / target.name
        command = [cxx, *flags(), "-shared", *(str(SOURCES / unit) for unit in UNITS), "-o", str(built)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
        if run.returncode:
            failure.write_text(shlex.join(command) + "\n" + run.stderr)
            raise _NotBuilt(f"its build failed, see {failure}")
        os.replace(built, target)


def _load() -> ctypes.CDLL:
    target = cache_folder() / f"native-{key()}.so"
    if not target.exists():
        lock = target.with_suffix(".lock")
        try:
            with FileLock(lock):
                if not target.exists():
                    _compile(target)
        except NotImplementedError:  # a file system without locks
            with SoftFileLock(str(lock) + ".soft", timeout=_TIMEOUT_S):
                if not target.exists():
                    _compile(target)
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
