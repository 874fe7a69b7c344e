"""Build the C++ kernels of native/ at their first use, and load them.

The user does not need to do anything: if there is a C++ compiler, it compiles the library for the machine's processor
into a cache folder. The file's name has a hash of the sources, the flags and the processor's features, so that login
and compute nodes that share a home directory each have their own file.  A lock lets only one process compile, and the
finished file is moved into place in one step.  If it cannot be built, `library()` returns the reason instead.

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
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from filelock import FileLock

SOURCES = Path(__file__).parent / "native"
# -ffast-math is not used: it breaks the range reductions.  These flags only change results by fused multiply-adds,
# which the reductions rely on.
FLAGS = "-std=c++17 -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fPIC -shared -Wno-psabi".split()

log = logging.getLogger(__name__)


def processor() -> str:
    """Return the processor's architecture and features: code compiled for one set may not run on another."""
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


def file_name() -> str:
    digest = hashlib.sha256(" ".join(flags()).encode() + processor().encode())
    for path in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        digest.update(path.name.encode() + path.read_bytes())
    return f"native-{digest.hexdigest()[:20]}.so"


def cache_folder() -> Path:
    """Return the documented cache folder; without a home its name begins with ~."""
    xdg = os.environ.get("XDG_CACHE_HOME")
    place = os.environ.get("LRA_SSM_CACHE") or (xdg and os.path.join(xdg, "lra_ssm")) or "~/.cache/lra_ssm"
    return Path(os.path.expanduser(place))


def _is_writable(folder: Path) -> bool:
    """Return whether files can be made in the folder, which is created."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def compile_into(target: Path) -> None:
    """Compile the library. Raises RuntimeError, in one line, if that fails."""
    wanted = os.environ.get("CXX", "")
    commands = [shlex.split(wanted)] if wanted else [["c++"], ["g++"], ["clang++"]]
    command = next((c for c in commands if shutil.which(c[0])), None)
    if command is None:
        raise RuntimeError(f"no C++ compiler was found ({f'CXX={wanted}' if wanted else 'c++, g++ or clang++'})")
    log.warning("lra_ssm: compiling the CPU kernels, once, into %s", target.parent)
    # Not by tempfile, whose files nobody else may read: the cache may be a group's.
    made = target.with_suffix(f".{uuid.uuid4().hex}.tmp")
    try:
        line = [*command, *flags(), *map(str, sorted(SOURCES.glob("*.cpp"))), "-o", str(made)]
        run = subprocess.run(line, capture_output=True, text=True)
        if run.returncode:
            last = (run.stderr.splitlines() or ["no message"])[-1]
            raise RuntimeError(f"their build failed ({last}); the command was: {shlex.join(line)}")
        os.replace(made, target)
    finally:
        made.unlink(missing_ok=True)


def _load() -> ctypes.CDLL:
    folder, name = cache_folder(), file_name()
    target = folder / name
    if target.exists():
        return ctypes.CDLL(str(target))
    if not folder.is_absolute() or not _is_writable(folder):  # what is loaded needs no name
        with tempfile.TemporaryDirectory() as temporary:
            compile_into(Path(temporary, name))
            return ctypes.CDLL(str(Path(temporary, name)))
    lock = FileLock(target.with_suffix(".lock"))
    # On a file system without locks several processes may compile, and each puts a whole file in its place.
    with suppress(OSError, NotImplementedError):
        lock.acquire()
    try:
        if not target.exists():
            compile_into(target)
    finally:
        lock.release()
    return ctypes.CDLL(str(target))


@cache
def library() -> ctypes.CDLL | str:
    """Return the loaded library, built first if necessary; or, in one line, why it is missing (also warned once)."""
    if os.environ.get("LRA_SSM_NATIVE") == "0":
        return "the CPU kernels are switched off by LRA_SSM_NATIVE=0"
    try:
        return _load()
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: CXX has an open quotation
        reason = f"the CPU kernels cannot be used: {' '.join(str(error).split())}"
        log.warning("lra_ssm: %s; the eager scan runs in their place, some fifty times slower", reason)
        return reason


@torch.compiler.assume_constant_result  # torch.compile does not look inside
def unavailable() -> str | None:
    """Return why the kernels cannot be used, or None if they can."""
    native = library()
    return native if isinstance(native, str) else None


def unsupported_reason(device: torch.device, inputs: object = None) -> str | None:
    """Return why the kernels cannot run on the device, or None if they can."""
    return f"runs tensors on a CPU only, not on {device}" if device.type != "cpu" else unavailable()


def fields(integers: str, pointers: str) -> list[tuple[str, type]]:
    """Return the fields of a ctypes structure by their names: int64, then pointers."""
    names = [(name, ctypes.c_int64) for name in integers.split()]
    return [*names, *((name, ctypes.c_void_p) for name in pointers.split())]


def call(function: str, structure: type[ctypes.Structure], **values: object) -> int:
    """Call a function of the library; values of the structure's fields are numbers, and tensors or None as pointers.

    What a C++ function without a result returns means nothing.
    """
    native = library()
    assert not isinstance(native, str), native
    plain = {name: v.data_ptr() if isinstance(v, torch.Tensor) else v for name, v in values.items()}
    return int(getattr(native, function)(ctypes.byref(structure(**plain))))
