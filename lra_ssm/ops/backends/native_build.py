"""Builds the C++ kernels of native/ at their first use, and loads them.

Nothing is asked of the user: where a C++ compiler is found, the library is compiled for the machine's own processor
into a cache folder, named by a hash of the sources, the flags and the processor's features, so that login and compute
nodes with one home directory each have theirs.  Many processes may start at once: a lock lets one of them compile, and
the finished file is moved into place in one step, under a name that holds its own digest too: whatever is cut off,
empty or changed is built again, never loaded.  Where it cannot be built, `library()` gives the reason instead.

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
from filelock import FileLock, Timeout

SOURCES = Path(__file__).parent / "native"
UNITS = (
    "selective_scan.cpp", "linear_scan.cpp", "s4d_kernel.cpp", "depthwise_convolution.cpp", "mamba_step.cpp",
    "few_rows.cpp", "memory.cpp",
)  # fmt: skip
# -ffast-math is not used: it breaks the range reductions.  What is used instead changes no result but for fused
# multiply-adds, which the reductions rely on.
FLAGS = "-std=c++17 -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fPIC -Wno-psabi".split()
_TIMEOUT_S, _RETRY_S = 600, 3600
_DEAD_S = 86_400  # no builder lives so long
_ROOM = 32 << 20  # bytes that a build takes, and some more

_PRIVATE = "lra_ssm-"  # folders of one process

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
    """The first place that can be written and has room; one of this process's own in the temporary folder as a last."""
    for path in cache_folders():
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(path, os.W_OK) and shutil.disk_usage(path).free >= _ROOM:
            return path
    return Path(tempfile.mkdtemp(prefix=_PRIVATE))  # nobody else can have put a file there


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


def find(folder: Path, stem: str) -> Path | None:
    """The library of this stem in a folder, if its content has the digest in its name."""
    for path in folder.glob(f"{stem}-*.so"):
        try:
            if path.name == _name(stem, path):
                return path
        except OSError:
            pass
    return None


def _name(stem: str, path: Path) -> str:
    return f"{stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:20]}.so"


def _compile(folder: Path, stem: str) -> Path:
    """Builds the library into a folder; nothing else is left there, or the reason why not."""
    commands = compilers()
    versions = [subprocess.run([*c, "--version"], capture_output=True, timeout=60).stdout for c in commands]
    failure = folder / f"{stem}.{hashlib.sha256(repr((commands, versions)).encode()).hexdigest()[:8]}.failed"
    if failure.exists() and time.time() - failure.stat().st_mtime < _RETRY_S:
        # It would most likely fail again, in every process of a job array; but a full disk does not stay full.
        raise _NotBuilt(f"its build failed, see {failure} (tried again after an hour, or once that file is gone)")
    log.warning("lra_ssm: compiling the CPU kernels, once, into %s", folder)
    said = ""
    for command in commands:
        with tempfile.TemporaryDirectory(prefix=stem, dir=folder) as temporary:
            built = Path(temporary) / "built.so"
            line = [*command, *flags(), "-shared", *(str(SOURCES / unit) for unit in UNITS), "-o", str(built)]
            environment = {**os.environ, "TMPDIR": temporary}  # the compiler's own files go with the folder
            try:
                run = subprocess.run(line, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment)
            except subprocess.TimeoutExpired:
                said += f"{shlex.join(line)}\nnot done after {_TIMEOUT_S} s\n"
                continue
            if run.returncode == 0 and built.is_file() and built.stat().st_size:
                target = folder / _name(stem, built)
                os.replace(built, target)
                for other in folder.glob(f"{stem}-*.so"):  # damaged ones, or somebody else's whole one
                    if other != target and other.name != _name(stem, other):
                        other.unlink(missing_ok=True)
                return target
            said += f"{shlex.join(line)}\n{run.stderr or 'gave no library'}\n"
    last = said.splitlines()[-1]
    try:
        failure.write_text(said)
    except OSError as error:  # no room for that either
        failure.unlink(missing_ok=True)
        raise _NotBuilt(f"its build failed ({last}), and {failure} cannot be written ({error.strerror})") from error
    raise _NotBuilt(f"its build failed ({last}), see {failure}")


def remove_stale(folder: Path, held: str | None = None) -> None:
    """Removes what killed builders left in a folder.

    A builder holds the lock of its stem as long as its temporary folder is there; `held` is the stem whose lock the
    caller holds.  Where there are no locks, a folder of yesterday is nobody's.
    """
    for path in folder.glob("native-*/"):
        stem = path.name[: len("native-") + 20]
        if stem == held or _is_free(folder / f"{stem}.lock", path):
            shutil.rmtree(path, ignore_errors=True)


def _is_free(lock_file: Path, path: Path) -> bool:
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    except (OSError, NotImplementedError):
        return _is_old(path)
    lock.release()
    return True


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _DEAD_S
    except OSError:
        return False


def _load() -> ctypes.CDLL:
    stem = f"native-{key()}"
    for folder in cache_folders():
        remove_stale(folder)
    for folder in cache_folders():
        if found := find(folder, stem):
            return ctypes.CDLL(str(found))
    folder = folder_to_write()
    private = folder not in cache_folders()
    lock = FileLock(folder / f"{stem}.lock")
    try:
        lock.acquire()
    except (OSError, NotImplementedError):
        pass  # a file system without locks: several processes may compile, and each puts a whole file in its place
    try:
        remove_stale(folder, stem if lock.is_locked else None)
        return ctypes.CDLL(str(find(folder, stem) or _compile(folder, stem)))
    finally:
        lock.release()
        if private:  # what is loaded needs no name; nor do those of killed processes
            shutil.rmtree(folder, ignore_errors=True)
            for other in Path(tempfile.gettempdir()).glob(f"{_PRIVATE}*/"):
                if _is_old(other) and other.stat().st_uid == os.getuid():
                    shutil.rmtree(other, ignore_errors=True)


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
