"""The build of the C++ kernels: once, by one of many processes, for this processor, and never in anybody's way."""

from __future__ import annotations

import os
import sys
import time

import pytest

from lra_ssm.ops.backends import native_build
from tests.ops.scan_cases import needs_compiled
from tests.ops.scan_twice import scan_twice
from tests.runner import Command


def start(cache, **environment):
    env = {"LRA_SSM_CACHE": str(cache), "HOME": str(cache.parent), **environment}
    return Command(["XDG_CACHE_HOME", *(["CXX"] if "CXX" not in env else [])], cache.parent, env, scan_twice)


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
        f"open({str(log)!r}, 'a').write('once ')\ntime.sleep(0.5)\n"
        f"shutil.copyfile({getattr(library, '_name', '')!r}, sys.argv[sys.argv.index('-o') + 1])\n"
    )
    path.chmod(0o755)
    return path, log


@needs_compiled
def test_many_processes_compile_once(tmp_path, compiler):
    path, log = compiler
    results = [finish(p) for p in [start(tmp_path / "cache", CXX=str(path)) for _ in range(4)]]
    assert [backend for backend, _ in results] == ["cpu"] * 4
    assert log.read_text() == "once "
    assert sum(len(lines) for _, lines in results) == 1, "one line, from the process that compiled"
    (built,) = (tmp_path / "cache").glob("*.so")
    assert built.stat().st_mode & 0o044 == ~os.umask(os.umask(0o22)) & 0o044, (
        "others may read it where new files are so"
    )
    (tmp_path / "cache").chmod(0o500)
    assert finish(start(tmp_path / "cache", CXX="no-such-compiler")) == ("cpu", []), "a built library needs no compiler"
    (tmp_path / "cache").chmod(0o700)


@needs_compiled
def test_killed_while_compiling(tmp_path, compiler):
    path, log = compiler
    process = start(tmp_path / "cache", CXX=str(path))
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert log.exists()
    process.kill()
    process.process.join()
    assert not list((tmp_path / "cache").glob("*.so"))
    assert finish(start(tmp_path / "cache", CXX=str(path)))[0] == "cpu"


@needs_compiled
def test_nowhere_to_write_but_the_temporary_folder(tmp_path, compiler):
    """The kernels run, and what was built for this process only is gone at once."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    nowhere = {"LRA_SSM_CACHE": "/proc/nowhere", "HOME": "/proc/nowhere", "TMPDIR": str(temporary)}
    assert finish(start(tmp_path / "cache", CXX=str(compiler[0]), **nowhere))[0] == "cpu"
    assert not list(temporary.rglob("*.so"))


@pytest.mark.parametrize(
    ("environment", "reason", "lines"),
    [
        ({"CXX": "no-such-compiler"}, "no C++ compiler was found (CXX=no-such-compiler)", 1),
        ({"CXX": "ccache no-such"}, "build failed (no such flag); the command was: ccache no-such", 2),
        ({"CXX": "'"}, "No closing quotation", 1),
        ({"LRA_SSM_NATIVE": "0"}, "LRA_SSM_NATIVE=0", 0),
    ],
)
def test_without_kernels_the_eager_scan_runs_and_one_line_says_why(environment, reason, lines, tmp_path):
    (tmp_path / "ccache").write_text("#!/bin/sh\necho 'no such flag' >&2\nexit 1\n")
    (tmp_path / "ccache").chmod(0o755)
    backend, said = finish(start(tmp_path / "cache", **environment, PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert reason in backend and len(said) == lines and (not said or "eager" in said[-1])
    assert not list((tmp_path / "cache").glob("native-*.[st]*")) and (lines or not (tmp_path / "cache").exists())


def test_each_processor_has_its_own(monkeypatch):
    here = native_build.file_name()
    monkeypatch.setattr(native_build, "processor", lambda: "another")
    assert native_build.file_name() != here


def test_the_cache_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("LRA_SSM_CACHE", "~/kernels")
    for variable, folder in (("LRA_SSM_CACHE", "/home/me/kernels"), ("XDG_CACHE_HOME", "/xdg/lra_ssm")):
        assert str(native_build.cache_folder()) == folder
        monkeypatch.delenv(variable)
    assert str(native_build.cache_folder()) == "/home/me/.cache/lra_ssm"
