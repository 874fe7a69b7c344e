"""The build of the C++ kernels: once, by one of many processes, for this processor, and never in anybody's way."""

from __future__ import annotations

import os
import sys
import time

import pytest
from filelock import FileLock

from lra_ssm.ops.backends import native_build
from tests.ops.scan_cases import needs_compiled
from tests.ops.scan_twice import scan_twice
from tests.runner import Command


def start(cache, compiler=None, **environment):
    env = {"LRA_SSM_CACHE": str(cache), "HOME": str(cache.parent), **environment}
    if compiler is not None:
        env["CXX"] = str(compiler)
    return Command(["XDG_CACHE_HOME", *(["CXX"] if compiler is None else [])], cache.parent, env, scan_twice)


def finish(command):
    code, out, err = command.wait(120)
    assert code == 0, err
    lines = dict(line.split(": ", 1) for line in out.splitlines())
    y = [float(v) for v in lines["y"].strip("[]").split(",")]
    assert y == pytest.approx([1.0, 1.3678794, 1.5032147])
    return lines["backend"], [line for line in err.splitlines() if line.startswith("lra_ssm:")]


@pytest.fixture
def compiler(tmp_path):
    """A stand-in that takes half a second and gives the library that this process has; counts its calls."""
    path, log = tmp_path / "c++", tmp_path / "compiled"
    library = native_build.library()
    path.write_text(
        f"#!{sys.executable}\nimport shutil, sys, time\n"
        "if '--version' in sys.argv: sys.exit(print('stand-in'))\n"
        f"open({str(log)!r}, 'a').write('once ')\ntime.sleep(0.5)\n"
        f"shutil.copy({getattr(library, '_name', '')!r}, sys.argv[sys.argv.index('-o') + 1])\n"
    )
    path.chmod(0o755)
    return path, log


@needs_compiled
def test_many_processes_compile_once(tmp_path, compiler):
    path, log = compiler
    results = [finish(p) for p in [start(tmp_path / "cache", path) for _ in range(4)]]
    assert [backend for backend, _ in results] == ["cpu"] * 4
    assert log.read_text() == "once "
    assert sum(len(lines) for _, lines in results) == 1, "one line, from the process that compiled"
    assert finish(start(tmp_path / "cache", "no-such-compiler")) == ("cpu", []), "a built library needs no compiler"


@needs_compiled
def test_killed_while_compiling(tmp_path, compiler):
    path, log = compiler
    process = start(tmp_path / "cache", path)
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert log.exists()
    process.kill()
    process.process.join()
    assert not list((tmp_path / "cache").glob("*.so"))
    assert finish(start(tmp_path / "cache", path))[0] == "cpu"
    assert not list((tmp_path / "cache").glob("*/")), "what the killed one left is gone"


def cut(whole):
    return whole[: len(whole) // 2]


def flipped(whole):
    return whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]


@needs_compiled
@pytest.mark.slow
def test_a_damaged_library_is_built_again(tmp_path, compiler):
    """It was loaded once: cut in half, every start died of a bus error; empty, the eager scan ran for ever."""
    path, log = compiler
    assert finish(start(tmp_path / "cache", path))[0] == "cpu"
    (built,) = (tmp_path / "cache").glob("*.so")
    whole = built.read_bytes()
    for damage in (cut, flipped, lambda whole: b""):
        built.write_bytes(damage(whole))
        assert finish(start(tmp_path / "cache", path))[0] == "cpu"
        assert built.read_bytes() == whole
    assert log.read_text() == "once " * 4


@needs_compiled
def test_what_killed_builders_left_is_removed(tmp_path, compiler):
    """And nothing of a living one, whatever processor it builds for."""
    cache = tmp_path / "cache"
    cache.mkdir()
    dead, living = cache / f"native-{'d' * 20}x1y2", cache / f"native-{'a' * 20}x1y2"
    own = cache / f"native-{native_build.key()}x1y2"
    for folder in (dead, living, own):
        folder.mkdir()
        (folder / "built.so").write_text("half")
    with FileLock(cache / f"native-{'a' * 20}.lock"):
        assert finish(start(cache, compiler[0]))[0] == "cpu"
        assert list(cache.glob("*/")) == [living]
    assert finish(start(cache, compiler[0]))[0] == "cpu"
    assert not list(cache.glob("*/"))


def test_without_locks_yesterdays_folders_are_removed(tmp_path, monkeypatch):
    def refuse(self, timeout):
        raise NotImplementedError

    monkeypatch.setattr(FileLock, "acquire", refuse)
    old, young = (tmp_path / f"native-{letter * 20}" for letter in "oy")
    old.mkdir(), young.mkdir()
    os.utime(old, (0, 0))
    native_build.remove_stale(tmp_path)
    assert list(tmp_path.iterdir()) == [young]


@needs_compiled
def test_nowhere_to_write_but_the_temporary_folder(tmp_path, compiler):
    """The kernels run, and what was built for this process alone is gone at once."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    nowhere = {"LRA_SSM_CACHE": "/proc/nowhere", "HOME": "/proc/nowhere", "TMPDIR": str(temporary)}
    assert finish(start(tmp_path / "cache", compiler[0], **nowhere))[0] == "cpu"
    assert not list(temporary.glob("lra_ssm-*"))


def test_a_full_disk(tmp_path, monkeypatch):
    """It is passed over; where the compiler meets it, one line says so, and no half a library is left or loaded."""
    monkeypatch.setenv("LRA_SSM_CACHE", str(tmp_path / "full"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    usage = native_build.shutil.disk_usage
    monkeypatch.setattr(
        native_build.shutil,
        "disk_usage",
        lambda path: usage(path)._replace(free=1000) if path.name == "full" else usage(path),
    )
    assert native_build.folder_to_write() == tmp_path / "xdg" / "lra_ssm"
    path = tmp_path / "c++"
    path.write_text('#!/bin/sh\n[ "$1" = --version ] && exit\nfor last; do :; done\n: > "$last"\n')  # and exits with 0
    path.chmod(0o755)
    backend, lines = finish(start(tmp_path / "cache", path))
    assert "build failed (gave no library)" in backend and "eager" in lines[-1]
    assert [p.suffix for p in (tmp_path / "cache").iterdir() if p.suffix != ".lock"] == [".failed"]


def test_without_a_compiler(tmp_path):
    backend, lines = finish(start(tmp_path / "cache", "no-such-compiler"))
    assert "no C++ compiler was found (CXX=no-such-compiler)" in backend
    assert len(lines) == 1 and "eager" in lines[0]
    assert not list((tmp_path / "cache").glob("*.so"))


def test_failed_build_is_said_once_and_not_tried_again(tmp_path):
    path, log = tmp_path / "c++", tmp_path / "compiled"
    path.write_text(f"#!/bin/sh\n[ \"$1\" = --version ] && exit\necho once >> {log}\necho 'no such flag' >&2\nexit 1\n")
    path.chmod(0o755)
    for _ in range(2):
        backend, lines = finish(start(tmp_path / "cache", path))
        assert "build failed" in backend
        assert "eager" in lines[-1]
    assert log.read_text() == "once\n"
    (failure,) = (tmp_path / "cache").glob("*.failed")
    assert "no such flag" in failure.read_text()
    os.utime(failure, (0, 0))  # long ago
    finish(start(tmp_path / "cache", path))
    assert log.read_text() == "once\nonce\n"


def test_switched_off(tmp_path):
    backend, lines = finish(start(tmp_path / "cache", LRA_SSM_NATIVE="0"))
    assert "LRA_SSM_NATIVE=0" in backend and lines == []
    assert not (tmp_path / "cache").exists()


def test_each_processor_has_its_own(monkeypatch):
    here = native_build.key()
    monkeypatch.setattr(native_build, "processor", lambda: "another")
    assert native_build.key() != here


def test_cache_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LRA_SSM_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert native_build.folder_to_write() == tmp_path / "xdg" / "lra_ssm"
    monkeypatch.delenv("LRA_SSM_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # nobody's home
    assert native_build.cache_folders() == []
    assert native_build.folder_to_write().is_absolute()


@needs_compiled
def test_a_built_library_in_a_folder_that_cannot_be_written(tmp_path, compiler):
    path, log = compiler
    assert finish(start(tmp_path / "cache", path))[0] == "cpu"
    (tmp_path / "cache").chmod(0o500)
    assert finish(start(tmp_path / "cache", "no-such-compiler")) == ("cpu", [])
    (tmp_path / "cache").chmod(0o700)


@pytest.mark.parametrize("value, reason", [("ccache no-such", "build failed"), ("'", "CXX=': No closing quotation")])
def test_odd_compilers(value, reason, tmp_path):
    (tmp_path / "ccache").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "ccache").chmod(0o755)
    backend, lines = finish(start(tmp_path / "cache", value, PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert reason in backend and "eager" in lines[-1]
